"""The last token's attention is the model's own, and two are subtracted only where their tokens are
known to be the same.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ostools as ost
from ostools import hooks
from ostools.ground.pooling import bins_of, max_pool
from ostools.measure.attention.attention import SIDE, attention
from ostools.measure.attention.difference import aligned, attention_difference
from ostools.measure.prompts import partners
from ostools.mitigations import Mitigation, SlidingWindow
from ostools.models import encode
from tests.checkpoints import tiny_model

LONG = "Consider the following sequence: 1111111111111111111111111111111110. What is the last digit in this sequence?"


@given(st.integers(1, 3000), st.integers(2, 64))
def test_bins_cover_every_position_once_and_keep_the_last_alone(length: int, most: int) -> None:
    bins = bins_of(length, most)
    assert len(bins) <= most
    assert [place for start, end in bins for place in range(start, end)] == list(range(length))
    assert bins[-1] == (length - 1, length)


@pytest.mark.parametrize("family", ["gemma", "gemma3", "gpt2"])
def test_the_last_row_is_the_models_own(family: Any) -> None:
    model = tiny_model(family)
    prompt = encode(model, LONG)
    found = attention(model, prompt)
    with torch.no_grad(), hooks.capture(model, "pattern") as record:
        model(prompt.ids[None])
    assert len(prompt.ids) > SIDE
    # Exact: read out of one pass over the same ids, and the greatest of some numbers is one of
    # them.
    for layer, pattern in record["pattern"].items():
        assert torch.equal(found.last[layer], pattern[0, :, -1])
        # The last row of a square is the last token's own, pooled over keys alone.
        assert torch.equal(found.squares[layer][:, -1], max_pool(pattern[0, :, -1], found.bins))
    assert found.last.sum(-1).allclose(torch.ones(()), atol=1e-5)
    row: Any = found.frame.iloc[len(prompt.ids) + 5]
    assert (row["layer"], row["head"], row["position"]) == (0, 1, 5)
    assert (row["token"], row["token_id"]) == (prompt.tokens[5], int(prompt.ids[5]))
    assert row["weight"] == float(record["pattern"][0][0, 1, -1, 5])
    assert found.tokens == prompt.tokens


def test_a_mitigation_acts_on_what_is_captured_and_says_whether_it_did() -> None:
    model = tiny_model("llama")
    seen = attention(model, "12345678", mitigation=SlidingWindow(3))
    assert (seen.last[..., :-3] == 0).all()
    assert seen.provenance.parameters["status"] == "active"
    wide = attention(model, "12345678", mitigation="sliding-window:window=500")
    assert wide.provenance.parameters["status"] == "inactive"
    # Exact: a mask that hides nothing changes no score.
    assert torch.equal(wide.last, attention(model, "12345678").last)
    hinted = attention(model, "12345678", mitigation="repeat-prompt")
    assert hinted.provenance.parameters["status"] == "active"
    assert len(hinted.tokens) > len(wide.tokens)


def test_a_text_whose_rewritten_part_the_template_strips_is_inactive() -> None:
    """The tokens are those of the plain prompt, and so is every weight."""
    model = tiny_model("llama", fresh=True)
    model.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] | trim }}{% endfor %}"  # pyright: ignore[reportOptionalMemberAccess]
    prompt = encode(model, "12345678", chat=True)
    blank = type("Blank", (Mitigation,), {"prompt": lambda self, text: f"{text} "})()
    inputs: tuple[dict[str, Any], ...] = ({"prompt": prompt}, {"task": "copy-last", "length": 4})
    for arguments in inputs:
        plain = attention(model, **arguments)
        stripped = attention(model, **arguments, mitigation=blank)
        assert stripped.tokens == plain.tokens
        assert stripped.provenance.parameters["status"] == "inactive"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "expected a prompt, or a task with its length"),
        (
            {"prompt": "1", "task": "copy-last", "length": 3},
            "expected a prompt, or a task with its length",
        ),
        ({"prompt": "1", "seed": -1}, "seed: expected a whole number of at least 0, found -1"),
        ({"task": "copy-last"}, "expected a prompt, or a task with its length"),
        (
            {"prompt": "1", "mitigation": "separator:every=3"},
            "rewrites the sequence, .*: give a task and its length",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ost.InputError, match=words):
        attention(tiny_model("llama"), **arguments)


# --- differences


def test_the_same_prompt_is_subtracted_token_by_token() -> None:
    model = tiny_model("llama")
    first, second = (
        attention(model, "12345"),
        attention(model, "12345", mitigation="sliding-window:window=2"),
    )
    found = attention_difference(first, second)
    count = len(first.tokens)
    assert found.pairs == [(place, place) for place in range(count)]
    assert len(found.frame) == count * first.last.shape[0] * first.last.shape[1]
    expected = (second.last - first.last).flatten()
    assert torch.equal(torch.tensor(found.frame["difference"].to_numpy()), expected)
    assert found.labels == ("mitigation: none", "mitigation: sliding-window:window=2")
    row: Any = found.frame.iloc[count * 1 + 2]
    assert (row["layer"], row["head"], row["second_position"]) == (0, 1, 2)
    assert found.provenance.parameters["first"]["parameters"]["mitigation"] == "none"


def test_items_are_held_against_each_other_whatever_was_inserted() -> None:
    model = tiny_model("gemma")
    first = attention(model, task="copy-last", length=7)
    second = attention(model, task="copy-last", length=7, mitigation="separator:every=2")
    pairs = aligned(first, second)
    assert len(second.tokens) > len(first.tokens)
    # Every token of the plain prompt has its partner.
    assert [one for one, _ in pairs] == list(range(len(first.tokens)))
    assert [first.tokens[one] for one, _ in pairs] == [second.tokens[other] for _, other in pairs]
    assert all(
        str(first.frame["item"][one]) == str(second.frame["item"][other]) for one, other in pairs
    )
    without = set(range(len(second.tokens))) - {other for _, other in pairs}
    assert {second.tokens[place] for place in without} == {","}


def test_prompts_of_as_many_tokens_are_subtracted_where_the_token_is_the_same() -> None:
    model = tiny_model("llama")
    assert aligned(attention(model, "12345"), attention(model, "12945")) == [
        (0, 0),
        (1, 1),
        (2, 2),
        (4, 4),
        (5, 5),
    ]
    one, other = attention(model, "12345"), attention(model, "129945")
    found = attention_difference(one, other, corresponding=True)
    assert (
        found.pairs
        == partners(one.tokens, other.tokens)
        == [(0, 0), (1, 1), (2, 2), (4, 5), (5, 6)]
    )
    assert torch.equal(
        torch.tensor(found.frame["second"].to_numpy()), other.last[..., [0, 1, 2, 5, 6]].flatten()
    )


def test_what_does_not_align_is_refused_with_the_reason() -> None:
    model, other = tiny_model("llama"), tiny_model("llama", n_layers=1)
    with pytest.raises(
        ost.InputError, match=r"found 4 tokens and 3, and none known to be the same"
    ):
        attention_difference(attention(model, "123"), attention(model, "12"))
    with pytest.raises(
        ost.InputError, match=r"found 2 layers of \d heads and 1 layers of \d heads"
    ):
        attention_difference(attention(model, "123"), attention(other, "123"))
    roomy = tiny_model("llama", context=1024)
    repeated = attention(roomy, task="copy-last", length=3, mitigation="repeat-prompt")
    items: Any = repeated.frame["item"]
    assert items.isna().all()  # two copies: which is meant is not known
    with pytest.raises(ost.InputError, match="none known to be the same"):
        attention_difference(attention(roomy, task="copy-last", length=3), repeated)
