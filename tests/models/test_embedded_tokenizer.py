"""The shipped tokenizer: lossless on any text, digits one by one, `<bos>` once."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

import ostools
from ostools.tasks.appendix_c import NAMES, AppendixTask

PAD_ID, EOS_ID, BOS_ID = 0, 1, 2
EMBEDDED = Path(str(ostools.__file__)).parent / "models" / "embedded"


@cache
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED)


def encode(text: str) -> list[int]:
    return tokenizer()(text, split_special_tokens=True)["input_ids"]


@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
@example(text="<bos>hello<eos><pad>")
@example(text="a , b . c 's do n't ?\r\n\t\x0b\u2028\ufeff")
@example(text="\u2581 nul\0 e\u0301 \U0010ffff <0x0A>")
def test_any_text_comes_back_unchanged(text: str) -> None:
    ids = encode(text)
    assert ids[0] == BOS_ID
    assert not {BOS_ID, EOS_ID, PAD_ID} & set(ids[1:])
    assert tokenizer().decode(ids[1:]) == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 200])
def test_one_more_one_is_one_more_token_and_changes_no_other(name: str, length: int) -> None:
    """The pair of Theorem 4.2 exists on ids: every run of n ones is n tokens, and the words around it never merge with it."""
    task = AppendixTask(name)
    before, _, after = task.parts(("1",))
    head, tail = encode(before), encode(after)[1:]
    one = tokenizer().convert_tokens_to_ids("1")
    assert encode(before + "1" * length + after) == head + [one] * length + tail
