"""Figures 2, 3, 4, 6 and 7: the answers are those of one task at a time, and what held no number is
in no error.
"""

from importlib import import_module
from typing import Any

import pandas as pd
import pytest
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import paper
from ostools.measure.answers.answers import Answer
from ostools.paper.behaviour import (
    FIGURE_2_LENGTHS,
    FIGURE_2_PANELS,
    TASKS,
    WAYS,
    figure_3,
    figure_4_of,
    figure_prompts,
    frequencies,
)
from tests.checkpoints import tiny_model

SAME = ["key", "answer", "ended", "kind", "correct", "number", "tokens", "within_training"]
SAME += ["length", "seed", "absolute_error"]


@pytest.fixture(scope="module")
def long_tiny() -> TransformerBridge:
    return tiny_model("gemma", context=2048)


def plain(frame: Any, columns: list[str]) -> list[tuple[Any, ...]]:
    return list(
        frame[columns]
        .astype(object)
        .where(frame[columns].notna(), None)
        .itertuples(index=False, name=None)
    )


# --- Figure 2


def test_figure_2_shows_the_papers_sequences() -> None:
    sequences = {
        panel: [task.sequence(task.items(5)) for task in asked]
        for panel, asked in FIGURE_2_PANELS.items()
    }
    assert sequences == {"a": ["11110", "01111"], "b": ["11110", "01111"], "c": ["01010", "01010"]}
    assert all(
        [task.name for task in asked] == ["copy-last", "copy-first"]
        for asked in FIGURE_2_PANELS.values()
    )
    assert [task.hint for asked in FIGURE_2_PANELS.values() for task in asked] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_figure_2_goes_beyond_300_digits() -> None:
    assert FIGURE_2_LENGTHS[-1] > 300
    assert 300 in FIGURE_2_LENGTHS


# --- Figures 3 and 6


@pytest.mark.slow
def test_figure_3_is_each_of_its_twelve_tasks_asked_alone(embedded: TransformerBridge) -> None:
    lengths, seeds = [4], [0, 2]
    frame: Any = figure_3(embedded, lengths, seeds, panels=TASKS, max_new_tokens=12).frame
    for name in TASKS:
        for mode in WAYS:
            task = ost.tasks.AppendixTask(name, mode=mode)
            rows = frame[(frame["task"] == name) & (frame["mode"] == mode)]
            how: Any = {
                "seeds": seeds if task.random else [0],
                "max_new_tokens": 12 if task.reasons else None,
            }
            assert plain(rows, SAME) == plain(
                ost.evaluate(embedded, task, lengths=lengths, **how).frame, SAME
            )
    assert len(frame) == 3 * (1 + 1 + 2 + 2)
    assert frame["absolute_error"].isna().equals(frame["number"].isna())
    known = frame[frame["number"].notna()]
    assert (known["absolute_error"] == (known["number"] - known["key"].astype(int)).abs()).all()


def says(text: Any) -> Any:
    """A stand-in for the model's answers: `text(prompt)` gives text and how it ended."""

    def answers(
        model: Any,
        prompts: Any,
        *,
        max_new_tokens: int,
        stops: Any,
        progress: Any = None,
        **options: Any,
    ) -> list[Answer]:
        if progress is not None:
            progress(len(prompts), len(prompts))
        for prompt, stop in zip(
            prompts, stops, strict=True
        ):  # reasoning has more room; each answer has its own stop
            assert (max_new_tokens == 256) is ("step by step" in prompt.text)
            assert (stop("\n12\n"), stop("")) == (False, False)
        return [Answer((0,), *text(prompt.text)) for prompt in prompts]

    return answers


def answering(monkeypatch: pytest.MonkeyPatch, answers: Any) -> None:
    monkeypatch.setattr(import_module("ostools.measure.answers.evaluate"), "answers", answers)


def test_figure_3_has_five_seeds_where_a_sequence_is_drawn_and_one_elsewhere() -> None:
    seeds = {(question.task.name, question.seed) for question in figure_prompts(3, [5])}
    drawn = {("count-ones-bernoulli", seed) for seed in range(5)}
    assert seeds == {("sum-ones", 0), ("count-ones", 0), *drawn}


def test_what_holds_no_number_or_was_cut_is_in_no_error(
    monkeypatch: pytest.MonkeyPatch, long_tiny: TransformerBridge
) -> None:
    def text(prompt: str) -> tuple[str, str]:
        if "Here are a few examples" in prompt:
            return "\n(1 + 1 + 1 + 1 + 1) + 1 is 6", "length"  # few-shot: cut while reasoning
        if "step by step" in prompt:
            return "\nI cannot count.", "eos"
        return "\nThe final answer to your maths question is: 100", "eos"

    answering(monkeypatch, says(text))
    found = figure_3(long_tiny, [3, 100], [0])
    frame: Any = found.frame
    assert frame[frame["mode"] == "none"]["absolute_error"].notna().all()
    assert set(frame[frame["task"] == "count-ones"]["absolute_error"].dropna()) == {97, 0}
    reasoned = frame[frame["mode"] != "none"]
    assert reasoned["absolute_error"].isna().all()
    assert not reasoned["correct"].any()
    assert found.deviations[-1] == (
        "In no share and no error: 0 prompts without an answer. In no error: 6 answers that were "
        "cut off, 6 that wrote something else than was asked for."
    )
    assert reasoned.groupby("mode", sort=False)["kind"].unique().map(list).to_dict() == {
        "cot-zero-shot": ["something else"],
        "cot-few-shot": ["cut off"],
    }
    counted: Any = figure_4_of(found).frame
    missing = counted[counted["output"].isna()]
    rows = [("cot-zero-shot", 2, 0), ("cot-few-shot", 2, 0)] * 3
    assert plain(missing, ["mode", "answers", "right"]) == rows


def test_figure_6_is_figure_3_with_another_caption(
    monkeypatch: pytest.MonkeyPatch, long_tiny: TransformerBridge
) -> None:
    answering(monkeypatch, says(lambda prompt: ("\n12", "eos")))
    three, six = (figure_3(long_tiny, [5], [1], number=number) for number in (3, 6))
    pd.testing.assert_frame_equal(three.frame, six.frame)
    assert (three.title[:8], six.title[:8]) == ("Figure 3", "Figure 6")
    assert "Gemini 1.5" in three.deviations[0]
    assert "The paper's is of Gemma 7B. Here: 1 lengths from 5 to 5," in six.deviations[0]
    seven = figure_4_of(six, 7)
    assert seven.title.startswith("Figure 7 on ")
    limits = seven.provenance.parameters["max_new_tokens"]
    assert limits["none"] != limits["cot-few-shot"] == limits["cot-zero-shot"] == 256


def test_the_chat_template_can_be_switched(
    monkeypatch: pytest.MonkeyPatch, long_tiny: TransformerBridge
) -> None:
    from tests.checkpoints import CHAT_TEMPLATE

    model = tiny_model("gemma", context=2048)
    model.tokenizer.chat_template = CHAT_TEMPLATE  # pyright: ignore[reportOptionalMemberAccess]
    seen: list[str] = []
    limits = []
    monkeypatch.setattr(
        import_module("ostools.measure.answers.evaluate"),
        "answers",
        says(lambda prompt: (seen.append(prompt), ("\n12", "eos"))[1]),
    )
    for chat, shown in ((None, True), (True, True), (False, False)):
        seen.clear()
        found = paper.figure_2(model, [3], chat=chat)
        assert all(("<start_of_turn>" in prompt) is shown for prompt in seen)
        assert ("in the chat template" in found.deviations[0]) is shown
        limits.append(found.provenance.parameters["max_new_tokens"]["none"])
    assert limits[0] == limits[1] == limits[2] - 1  # in a chat the line is open already


# --- Figures 4 and 7


def test_frequencies_by_hand() -> None:
    rows = [
        ("a", "none", 3, "3"),
        ("a", "none", 100, "4"),
        ("a", "none", 100, "5"),
        ("a", "none", None, "3"),
    ]
    rows += [("b", "none", 7, "100")]
    answers: Any = pd.DataFrame(rows, columns=pd.Index(["task", "mode", "number", "key"])).astype(
        {"number": "Int64"}
    )
    found: Any = frequencies(answers.assign(correct=False))
    of_a = [("a", 3, 1, 2), ("a", 4, 0, 1), ("a", 5, 0, 1), ("a", 100, 2, 0), ("a", None, 1, 0)]
    assert plain(found, ["task", "output", "answers", "right"]) == [
        *of_a,
        ("b", 7, 1, 0),
        ("b", 100, 0, 1),
    ]
