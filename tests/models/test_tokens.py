"""Text to ids: special tokens once, a user's text never one of them, and a string to show for every
id; what stands around a text, for every kind of tokenizer.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedTokenizerFast

import ostools as ost
from ostools.models.tokenizer_calls import fingerprint, note_once
from ostools.models.tokens import _whole_numbers, count_tokens, offsets
from tests.checkpoints import (
    CHAT_TEMPLATE,
    CONTROL,
    SPECIAL,
    Family,
    make_model,
    refused,
    tiny_model,
    write_tokenizer,
)
from tests.tokenizers import TOKENIZERS

TEXTS = (
    "  a",
    "Hello, world! 1 0 1",
    "안녕하세요",
    "<bos>x<eos>",
    "\t\ttabs\t",
    "<|im_start|>user",
)


@cache
def _model(family: Family = "gemma") -> TransformerBridge:
    model = tiny_model(family, context=2048)
    assert model.tokenizer is not None
    model.tokenizer.chat_template = CHAT_TEMPLATE
    return model


def _with(tokenizer: Any, d_vocab: int = 268) -> TransformerBridge:
    """A model with another tokenizer."""
    model = tiny_model("llama", d_vocab=d_vocab, fresh=True)
    model._tokenizer = tokenizer
    return model


def _words() -> PreTrainedTokenizerFast:
    """Whole words, and an unknown token for all others."""
    words = ["<unk>", "<bos>", "a", "red", "ball"]
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.add_special_tokens(["<unk>", "<bos>"])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


@given(
    text=st.text(min_size=1, max_size=200)
    | st.lists(st.sampled_from([*SPECIAL, *CONTROL, " ", "a", "<", "é"]), min_size=1).map("".join)
)
def test_any_text_survives_and_holds_no_special_token(text: str) -> None:
    model = _model()
    prompt = ost.encode(model, text)
    assert model.tokenizer is not None
    assert model.tokenizer.decode(prompt.ids[1:]) == text
    assert prompt.ids[0] == model.tokenizer.bos_token_id
    assert int((prompt.ids < len(SPECIAL) + len(CONTROL)).sum()) == 1
    assert len(prompt.tokens) == len(prompt.ids)
    assert all(prompt.tokens)
    assert prompt.bos
    assert prompt.text == text
    if "<" not in text:
        shown = re.sub(
            rb"<0x([0-9A-F]{2})>",
            lambda byte: bytes([int(byte[1], 16)]),
            "".join(prompt.tokens[1:]).encode(),
        )
        assert shown.decode() == text


@given(text=st.text(st.characters(exclude_characters="<", codec="utf-8"), min_size=1, max_size=100))
def test_ordinary_text_gets_the_tokenizers_own_ids(text: str) -> None:
    for family in ("gemma", "gpt2"):
        model = _model(family)
        assert model.tokenizer is not None
        assert ost.encode(model, text).ids.tolist() == model.tokenizer(text).input_ids


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda model: ost.encode(model, ""), "expected a prompt, found empty text"),
        (
            lambda model: ost.encode(model, "a\ud800b"),
            "expected a tokenizer that can read",
        ),
        (
            lambda model: ost.encode(model, "1" * 2048),
            r"expected at most 2048 tokens \(the model's context\), found 2049",
        ),
        (lambda model: ost.Prompt.from_ids(model, []), "expected at least one token, found none"),
        (
            lambda model: ost.Prompt.from_ids(model, [268]),
            "expected token ids from 0 to 267, found 268",
        ),
        (
            lambda model: ost.Prompt.from_ids(model, [-1]),
            "expected token ids from 0 to 267, found -1",
        ),
        (lambda model: ost.Prompt.from_ids(model, [40] * 2049), "expected at most 2048 tokens"),
        (
            lambda model: ost.Prompt.from_ids(model, [2, 2, 40]),
            "expected one leading '<bos>', found two",
        ),
    ],
)
def test_what_is_no_prompt(make: Callable[[TransformerBridge], ost.Prompt], match: str) -> None:
    refused(match, make, _model())


def test_a_control_token_that_the_tokenizer_cannot_read_as_text_is_refused(tmp_path: Path) -> None:
    """An added token that is not marked special is matched whatever is asked for."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(write_tokenizer(tmp_path))
    tokenizer.add_tokens(
        [AddedToken("<turn>", special=False), AddedToken("<table>", special=False)]
    )
    tokenizer.chat_template = "<turn>{{ messages[0]['content'] }}"
    model = _with(tokenizer, d_vocab=300)
    with pytest.raises(
        ost.InputError,
        match=r"expected plain text, found '<turn>', which this tokenizer can only read as",
    ):
        ost.encode(model, "a <turn> b")
    # one that no template writes is ordinary text
    assert "<table>" in ost.encode(model, "a <table> b").tokens


def test_unknown_words_are_refused() -> None:
    assert ost.encode(_with(_words()), "a red ball").tokens[1:] == (" red", " ball")
    with pytest.raises(ost.InputError, match=r"found 2 unknown tokens in 'a blue red green'"):
        ost.encode(_with(_words()), "a blue red green")


@pytest.mark.parametrize(
    "ids", [[1.5], [[1, 2]], torch.tensor(3), torch.tensor([True]), ["a"], None]
)
def test_what_is_no_row_of_integers(ids: object) -> None:
    refused("expected one row of", _whole_numbers, ids)


def test_sentencepiece_tokens_keep_their_spaces_and_show_their_bytes() -> None:
    prompt = ost.encode(_with(TOKENIZERS["llama2"]()), "t t\nh é <s>")
    # The tokenizer itself puts the first space there.
    start = ("<s>", " t", " t", "\n", "h", " ", "<0xC3>", "<0xA9>", " ")
    assert prompt.tokens == (*start, "<", "s", ">")


TEXT, LONGER = "the hen", "the other hen, there"


@cache
def _of_tokenizer(name: str) -> Any:
    """A tiny Llama with a tokenizer of that kind, as a user has both."""
    tokenizer: Any = TOKENIZERS[name]()
    return ost.adopt(make_model("llama", d_vocab=len(tokenizer)), tokenizer=tokenizer)


def _own_ids(name: str, text: str, **options: Any) -> list[int]:
    """The tokenizer's own ids, without an EOS that it appends."""
    ids = list(TOKENIZERS[name]()(text, **options).input_ids)
    return ids[:-1] if "appends" in name and options.get("add_special_tokens", True) else ids


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_bridge_cuts_a_text_as_encode_and_the_tokenizer_do(name: str) -> None:
    model = _of_tokenizer(name)
    ids = _own_ids(name, TEXT)
    assert (ost.encode(model, TEXT).ids.tolist(), model.to_tokens(TEXT).tolist()) == (ids, [ids])
    tokenizer: Any = TOKENIZERS[name]()
    assert model.to_str_tokens(TEXT) == [tokenizer.decode([index]) for index in ids]
    assert model.to_string(model.to_tokens(TEXT)[0]) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("bos", [True, False])
def test_a_bos_that_was_chosen_stands_there_or_not(name: str, bos: bool) -> None:
    model, tokenizer = _of_tokenizer(name), TOKENIZERS[name]()
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
    said = {name: ost.encode(_of_tokenizer(name), TEXT).provenance for name in TOKENIZERS}
    assert said["gpt2"] == {"bos_not_added": "<|endoftext|>"}
    assert said["smollm2"] == {"bos_not_added": "<|im_start|>"}
    assert said["appends EOS"] == said["appends EOS and pads"] == {"left_out": ("</s>",)}
    assert said["appends EOS alone"] == {"bos_not_added": "<|begin|>", "left_out": ("<|end|>",)}
    assert said["llama2"] == said["llama3"] == said["gemma"] == said["qwen"] == said["no EOS"] == {}
    capsys.readouterr()
    note_once.cache_clear()
    for text in (TEXT, LONGER):
        ost.encode(_of_tokenizer("appends EOS"), text)
    assert (
        capsys.readouterr().err.count("note: the tokenizer puts </s> behind a text; it is left out")
        == 1
    )


def test_a_bos_cannot_be_chosen_of_a_chat_or_of_ids() -> None:
    model = _of_tokenizer("gemma")
    refused("bos: expected plain text, found a chat", ost.encode, model, TEXT, chat=True, bos=False)
    ids = ost.tasks.RepeatedIds(ost.encode(model, TEXT).ids.tolist())
    refused("bos: expected text, found token ids", ost.collapse, model, ids, lengths=[1], bos=False)


def test_a_fingerprint_is_of_the_tokenizer_and_not_of_its_last_call() -> None:
    tokenizer: Any = _of_tokenizer("appends EOS and pads").tokenizer
    before = fingerprint(tokenizer)
    tokenizer([TEXT, LONGER], padding=True, truncation=True, max_length=4)
    assert fingerprint(tokenizer) == before
    assert len({tuple(fingerprint(_of_tokenizer(name).tokenizer)) for name in TOKENIZERS}) > 1
