"""What stands around a text: BOS, EOS and padding, in `encode` and in the bridge's own methods, for
every kind of tokenizer.
"""

from functools import cache
from typing import Any

import pytest

import ostools as ost
from ostools.models.tokenizer_calls import note_once
from ostools.models.tokens import count_tokens, offsets
from tests.checkpoints import make_model, refused
from tests.tokenizers import TOKENIZERS

TEXT, LONGER = "the hen", "the other hen, there"


@cache
def _model(name: str) -> Any:
    """A tiny Llama with a tokenizer of that kind, as a user has both."""
    tokenizer: Any = TOKENIZERS[name]()
    return ost.adopt(make_model("llama", d_vocab=len(tokenizer)), tokenizer=tokenizer)


def _own_ids(name: str, text: str, **options: Any) -> list[int]:
    """The tokenizer's own ids, without an EOS that it appends."""
    ids = list(TOKENIZERS[name]()(text, **options).input_ids)
    return ids[:-1] if "appends" in name and options.get("add_special_tokens", True) else ids


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_bridge_cuts_a_text_as_encode_and_the_tokenizer_do(name: str) -> None:
    model = _model(name)
    ids = _own_ids(name, TEXT)
    assert (ost.encode(model, TEXT).ids.tolist(), model.to_tokens(TEXT).tolist()) == (ids, [ids])
    tokenizer: Any = TOKENIZERS[name]()
    assert model.to_str_tokens(TEXT) == [tokenizer.decode([index]) for index in ids]
    assert model.to_string(model.to_tokens(TEXT)[0]) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("bos", [True, False])
def test_a_bos_that_was_chosen_stands_there_or_not(name: str, bos: bool) -> None:
    model, tokenizer = _model(name), TOKENIZERS[name]()
    bos_id = tokenizer.bos_token_id
    if bos and bos_id is None:
        with pytest.raises(
            ost.InputError, match="bos: expected a tokenizer with a BOS token, found one without"
        ):
            ost.encode(model, TEXT, bos=True)
        return
    prompt = ost.encode(model, TEXT, bos=bos)
    body = _own_ids(name, TEXT, add_special_tokens=False)
    others = [tokenizer.eos_token_id] if name == "EOS before" else []
    assert prompt.ids.tolist() == [*([bos_id] if bos else []), *others, *body]
    assert (prompt.bos, prompt.provenance["bos"]) == (bos, bos)
    assert prompt.origins == tuple(["special"] * (bos + len(others)) + ["text"] * len(body))
    assert count_tokens(tokenizer, TEXT, bos=bos) == len(prompt.ids)
    assert (
        model.to_tokens(TEXT, prepend_bos=bos).tolist() == [prompt.ids.tolist()]
        or name == "EOS before"
    )
    assert [TEXT[low:high].strip() for low, high in offsets(model, prompt)] == [
        "" if origin == "special" else token.strip()
        for origin, token in zip(prompt.origins or (), prompt.tokens, strict=True)
    ]


def test_what_a_reader_expects_and_does_not_find_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = {name: ost.encode(_model(name), TEXT).provenance for name in TOKENIZERS}
    assert said["gpt2"] == {"bos_not_added": "<|endoftext|>"}
    assert said["smollm2"] == {"bos_not_added": "<|im_start|>"}
    assert said["appends EOS"] == said["appends EOS and pads"] == {"left_out": ("</s>",)}
    assert said["appends EOS alone"] == {"bos_not_added": "<|begin|>", "left_out": ("<|end|>",)}
    assert said["llama2"] == said["llama3"] == said["gemma"] == said["qwen"] == said["no EOS"] == {}
    capsys.readouterr()
    note_once.cache_clear()
    for text in (TEXT, LONGER):
        ost.encode(_model("appends EOS"), text)
    assert (
        capsys.readouterr().err.count("note: the tokenizer puts </s> behind a text; it is left out")
        == 1
    )


def test_a_bos_cannot_be_chosen_of_a_chat_or_of_ids() -> None:
    model = _model("gemma")
    refused("bos: expected plain text, found a chat", ost.encode, model, TEXT, chat=True, bos=False)
    ids = ost.tasks.RepeatedIds(ost.encode(model, TEXT).ids.tolist())
    refused("bos: expected text, found token ids", ost.collapse, model, ids, lengths=[1], bos=False)
