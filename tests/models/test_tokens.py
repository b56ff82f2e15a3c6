"""Text to ids: special tokens once, a user's text never one of them, and a string to show for every
id.
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
from ostools.models.tokens import _whole_numbers
from tests.checkpoints import (
    CHAT_TEMPLATE,
    CONTROL,
    SPECIAL,
    Family,
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
