"""Token ids in place of text: everywhere the numbers of the text, and a model without a tokenizer
takes nothing else.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ostools as ost
from tests.checkpoints import refused, write_checkpoint

TEXT = "the 1211"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """One checkpoint, loaded with its tokenizer and without."""
    directory = write_checkpoint(tmp_path_factory.mktemp("ids") / "model", "gemma3", context=96)
    whole = ost.load_model(directory)
    for pattern in ("tokenizer*", "chat_template*"):
        for file in directory.glob(pattern):
            file.unlink()
    return whole, ost.load_model(directory), directory


@pytest.mark.parametrize("measure", [ost.sensitivity, ost.attention])
def test_ids_give_the_numbers_of_their_text(pair, measure: Callable[[Any, Any], Any]) -> None:
    whole, bare, _ = pair
    ids = ost.encode(whole, TEXT).ids
    expected, with_labels, without = (
        measure(model, prompt).frame.drop(
            columns=["origin", "first_origin", "last_to_text"], errors="ignore"
        )
        for model, prompt in (
            (whole, TEXT),
            (whole, ost.Prompt.from_ids(whole, ids)),
            (bare, ost.Prompt.from_ids(bare, ids)),
        )
    )  # whose a token is, only the text says
    pd.testing.assert_frame_equal(with_labels, expected, check_exact=True)
    labels = [
        column for column in expected if "token" in str(column) and expected[column].dtype == "str"
    ]
    pd.testing.assert_frame_equal(
        without.drop(columns=labels), expected.drop(columns=labels), check_exact=True
    )
    if "token" in expected:
        assert set(without["token"]) <= {f"<{index}>" for index in ids.tolist()}


def test_collapse_over_ids_is_collapse_over_their_text(pair) -> None:
    whole, bare, _ = pair
    before = ost.encode(whole, "the ").ids.tolist()
    (item,) = ost.encode(whole, "1").ids.tolist()[1:]
    options: dict[str, Any] = {"lengths": [1, 2], "dtypes": ["float32"]}
    expected = ost.collapse(
        whole, ost.tasks.RepeatTask("prompt", "the ", "1", "ids"), **options
    ).frame
    written = {n: ([*before, *[item] * n], [*before, *[item] * (n + 1)]) for n in (1, 2)}
    for task in (
        ost.Prompt.from_ids(bare, [*before, item]),
        ost.tasks.PairsOfIds(written, name="prompt"),
    ):
        frame = ost.collapse(bare, task, **options).frame
        assert frame["next_token"].dropna().str.fullmatch(r"<\d+>").all()  # an id has no text here
        pd.testing.assert_frame_equal(
            frame.drop(columns="next_token"), expected.drop(columns="next_token"), check_exact=True
        )


@pytest.mark.parametrize(
    ("ids", "length", "options", "match"),
    [
        (
            [2, 40],
            1,
            {"bos": False},
            "bos: expected text, found token ids of ids, which stand as they are",
        ),
        ([2, 268], 1, {}, "expected token ids from 0 to 267, found 268"),
        (
            [2, 40],
            10**9,
            {},
            r"ids at length 1000000000 does not fit the model's context of 96 tokens",
        ),
        ([2, 40], 95, {}, r"ids at length 95 does not fit the model's context of 96 tokens"),
    ],
)
def test_ids_that_collapse_cannot_take(
    pair, ids: list[int], length: int, options: Any, match: str
) -> None:
    refused(match, ost.collapse, pair[1], ost.tasks.RepeatedIds(ids), lengths=[length], **options)


NEEDS_TEXT: dict[str, Callable[[Any], Any]] = {
    "encode": lambda model: ost.encode(model, TEXT),
    "sensitivity": lambda model: ost.sensitivity(model, TEXT),
    "evaluate": lambda model: ost.evaluate(model, "count-ones", lengths=[2]),
    "collapse": lambda model: ost.collapse(model, "figure-5a", lengths=[2]),
    "report": lambda model: ost.report(model),
}


@pytest.mark.parametrize("name", NEEDS_TEXT)
def test_whatever_needs_text_says_what_to_do(pair, name: str) -> None:
    refused(
        r"found a model without one: give token ids \(ost\.Prompt\.from_ids",
        NEEDS_TEXT[name],
        pair[1],
    )


def test_a_prompt_of_another_model_is_refused(pair) -> None:
    whole, bare, _ = pair
    prompt = ost.encode(whole, TEXT)
    with pytest.raises(
        ost.InputError, match=r"found one of another: its token 2 is '<bos>', here it is '<2>'"
    ):
        ost.sensitivity(bare, prompt)
