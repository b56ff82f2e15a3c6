"""Figures 2, 3, 4, 6 and 7: the answers are those of one task at a time, and what held no number is in no error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from transformer_lens.model_bridge import TransformerBridge

from ostools import experiments
from ostools.experiments.figures import answering
from ostools.experiments.figures.figure2 import LENGTHS, PANELS
from ostools.experiments.figures.figure3 import PANELS as COUNTED
from ostools.experiments.figures.figure3 import TASKS, WAYS, Figure3, figure_3
from ostools.experiments.figures.figure4 import figure_4, figure_4_of, frequencies
from ostools.ground.errors import InputError
from ostools.measure.answers.answers import Answer
from ostools.measure.answers.evaluate import evaluate
from ostools.results import Provenance
from ostools.tasks import AppendixTask
from tests.checkpoints import tiny_model
from tests.cli.asking import assert_one_forecast, assert_refused

SAME = ["key", "answer", "ended", "kind", "correct", "number", "tokens", "within_training"]


@pytest.fixture(scope="module")
def long_tiny() -> TransformerBridge:
    return tiny_model("gemma", context=2048)


def plain(frame: Any, columns: list[str]) -> list[tuple[Any, ...]]:
    return list(frame[columns].astype(object).where(frame[columns].notna(), None).itertuples(index=False, name=None))


# --- Figure 2


@pytest.mark.slow
def test_figure_2_is_each_of_its_six_tasks_asked_alone(embedded: TransformerBridge) -> None:
    lengths = [2, 40, 260]
    found: Any = experiments.figure_2(embedded, lengths).frame
    assert len(found) == 6 * len(lengths)
    for panel, asked in PANELS.items():
        for task in asked:
            rows = found[(found["panel"] == panel) & (found["task"] == task.name)]
            alone: Any = evaluate(embedded, task, lengths=lengths, probability=False).frame
            assert plain(rows, SAME) == plain(alone, SAME)
    assert list(found[found["length"] == 260]["within_training"]) == [False] * 6
    # What the model's card says of these tasks inside the trained lengths.
    assert found[found["length"].between(2, 256)]["correct"].all()


def test_figure_2_shows_the_papers_sequences() -> None:
    sequences = {(panel, task.name): task.sequence(task.items(5)) for panel, asked in PANELS.items() for task in asked}
    assert sequences == {
        ("a", "copy-last"): "11110",
        ("a", "copy-first"): "01111",
        ("b", "copy-last"): "11110",
        ("b", "copy-first"): "01111",
        ("c", "copy-last"): "01010",
        ("c", "copy-first"): "01010",
    }
    assert [task.hint for asked in PANELS.values() for task in asked] == [False, False, True, True, False, False]


def test_figure_2_goes_beyond_300_digits() -> None:
    assert LENGTHS[-1] > 300
    assert 300 in LENGTHS


def test_figure_2_says_how_it_was_asked(embedded: TransformerBridge) -> None:
    calls: list[tuple[int, int]] = []
    found = experiments.figure_2(embedded, [3, 5], progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (12, 12)
    assert found.title == "Figure 2 on embedded: copying the last and the first digit of a sequence"
    assert found.deviations[0] == (
        "The paper's is of Gemini 1.5. Here: 2 lengths from 3 to 5, greedy decoding, prompts as plain text."
    )
    assert "always 0" in found.deviations[1]
    parameters = found.provenance.parameters
    assert parameters["lengths"] == [3, 5]
    line = embedded.tokenizer("\nThe answer to your question is: 0", add_special_tokens=False)["input_ids"]  # pyright: ignore[reportOptionalCall]
    assert parameters["max_new_tokens"] == {"none": len(line) + 48}
    assert parameters["stop"] == "the end of the answer"
    assert (parameters["batches"], parameters["batch_tokens"], parameters["cache"]) == ("padded", 4096, True)
    found.plot().to_dict()


# --- Figures 3 and 6


@pytest.mark.slow
def test_figure_3_is_each_of_its_twelve_tasks_asked_alone(embedded: TransformerBridge) -> None:
    lengths, seeds = [4], [0, 2]
    found = figure_3(embedded, lengths, seeds, panels=TASKS, max_new_tokens=12)
    frame: Any = found.frame
    for name in TASKS:
        for mode in WAYS:
            task = AppendixTask(name, mode=mode)
            rows = frame[(frame["task"] == name) & (frame["mode"] == mode)]
            asked = seeds if task.random else [0]
            room = 12 if task.reasons else None
            alone: Any = evaluate(
                embedded, task, lengths=lengths, seeds=asked, max_new_tokens=room, probability=False
            ).frame
            assert plain(rows, [*SAME, "length", "seed", "absolute_error"]) == plain(
                alone, [*SAME, "length", "seed", "absolute_error"]
            )
    assert len(frame) == 3 * (1 + 1 + 2 + 2)
    assert any("The paper's figure has no panel for the word 'car'" in said for said in found.deviations)
    assert frame["absolute_error"].isna().equals(frame["number"].isna())
    known = frame[frame["number"].notna()]
    assert (known["absolute_error"] == (known["number"] - known["key"].astype(int)).abs()).all()
    found.plot().to_dict()


def says(text: Any) -> Any:
    """A stand-in for the model's answers: `text(prompt)` gives text and how it ended."""

    def answers(model: Any, prompts: Any, *, max_new_tokens: int, stops: Any, progress: Any = None) -> list[Answer]:
        if progress is not None:
            progress(len(prompts), len(prompts))
        for prompt, stop in zip(prompts, stops, strict=True):  # reasoning has more room; each answer has its own stop
            assert (max_new_tokens == 256) is ("step by step" in prompt.text)
            assert (stop("\n12\n"), stop("")) == (False, False)
        return [Answer((0,), *text(prompt.text)) for prompt in prompts]

    return answers


def test_what_holds_no_number_or_was_cut_is_in_no_error(
    monkeypatch: pytest.MonkeyPatch, long_tiny: TransformerBridge
) -> None:
    def text(prompt: str) -> tuple[str, str]:
        if "Here are a few examples" in prompt:
            return "\n(1 + 1 + 1 + 1 + 1) + 1 is 6", "length"  # few-shot: cut while reasoning
        if "step by step" in prompt:
            return "\nI cannot count.", "eos"
        return "\nThe final answer to your maths question is: 100", "eos"

    monkeypatch.setattr(answering, "answers", says(text))
    found = figure_3(long_tiny, [3, 100], [0])
    assert "The fourth task of Section 3.2, counting a word, has no panel" in found.deviations[3]
    frame: Any = found.frame
    errors = frame[frame["mode"] == "none"]["absolute_error"]
    assert errors.notna().all()
    assert set(frame[frame["task"] == "count-ones"]["absolute_error"].dropna()) == {97, 0}
    reasoned = frame[frame["mode"] != "none"]
    assert reasoned["absolute_error"].isna().all()
    assert not reasoned["correct"].any()
    assert found.deviations[-1] == (
        "These have no answer, so they are not in the errors: 6 of cot-few-shot cut off at 256 tokens before an answer; 6 "
        "that wrote something else than was asked for."
    )
    assert reasoned.groupby("mode", sort=False)["kind"].unique().map(list).to_dict() == {
        "cot-zero-shot": ["something else"],
        "cot-few-shot": ["cut off"],
    }
    counted: Any = figure_4_of(found).frame
    missing = counted[counted["output"].isna()]
    assert (
        list(zip(missing["mode"], missing["answers"], missing["right"], strict=True))
        == [
            ("cot-zero-shot", 2, 0),
            ("cot-few-shot", 2, 0),
        ]
        * 3
    )


def test_figure_6_is_figure_3_with_another_caption(
    monkeypatch: pytest.MonkeyPatch, long_tiny: TransformerBridge
) -> None:
    monkeypatch.setattr(answering, "answers", says(lambda prompt: ("\n12", "eos")))
    three, six = (figure_3(long_tiny, [5], [1], number=number) for number in (3, 6))
    pd.testing.assert_frame_equal(three.frame, six.frame)
    assert (three.title[:8], six.title[:8]) == ("Figure 3", "Figure 6")
    assert "Gemini 1.5" in three.deviations[0]
    assert "The paper's is of Gemma 7B. Here: length 5," in six.deviations[0]
    seven = figure_4_of(six, 7)
    assert seven.title.startswith("Figure 7 on ")
    assert "Gemma 7B" in seven.deviations[0]
    limits = seven.provenance.parameters["max_new_tokens"]
    assert limits["none"] != limits["cot-few-shot"] == limits["cot-zero-shot"] == 256
    assert "The zero-shot request is the opening of the paper's few-shot one" in six.deviations[2]
    # A model without a card of trained lengths is not said to have been trained on anything.
    assert not any("trained" in said for said in six.deviations)


def test_only_a_model_whose_card_lists_the_three_tasks_was_trained_on_them() -> None:
    frame: Any = pd.DataFrame({"task": ["sum-ones"], "mode": ["none"], "kind": ["answered"]})
    parameters = {"number": 3, "lengths": [1], "chat": False}
    for trained, said in ((dict.fromkeys(COUNTED, 9), True), ({"copy-last": 9, "sum-ones": 9}, False), (None, False)):
        provenance = Provenance({"name": "made", "trained_lengths": trained}, parameters, None, {})
        assert any("was trained on these" in text for text in Figure3(frame, provenance).deviations) is said


def test_the_chat_template_can_be_switched(monkeypatch: pytest.MonkeyPatch, long_tiny: TransformerBridge) -> None:
    from tests.checkpoints import CHAT_TEMPLATE

    model = tiny_model("gemma", context=2048)
    model.tokenizer.chat_template = CHAT_TEMPLATE  # pyright: ignore[reportOptionalMemberAccess]
    seen: list[str] = []
    limits: list[int] = []
    monkeypatch.setattr(answering, "answers", says(lambda prompt: (seen.append(prompt), ("\n12", "eos"))[1]))
    for chat, shown in ((None, True), (True, True), (False, False)):
        seen.clear()
        found = experiments.figure_2(model, [3], chat=chat)
        assert all(("<start_of_turn>" in prompt) is shown for prompt in seen)
        assert ("in the chat template" in found.deviations[0]) is shown
        limits.append(found.provenance.parameters["max_new_tokens"]["none"])
    assert limits[0] == limits[1] == limits[2] - 1  # in a chat the line is open already


# --- Figures 4 and 7


def test_frequencies_by_hand() -> None:
    rows = [("a", "none", 3, "3"), ("a", "none", 100, "4"), ("a", "none", 100, "5"), ("a", "none", None, "3")]
    rows += [("b", "none", 7, "100")]
    answers: Any = pd.DataFrame(rows, columns=pd.Index(["task", "mode", "number", "key"])).astype({"number": "Int64"})
    found: Any = frequencies(answers.assign(correct=False))
    assert plain(found, ["task", "output", "answers", "right"]) == [
        ("a", 3, 1, 2),
        ("a", 4, 0, 1),
        ("a", 5, 0, 1),
        ("a", 100, 2, 0),
        ("a", None, 1, 0),
        ("b", 7, 1, 0),
        ("b", 100, 0, 1),
    ]


def test_every_answer_and_every_key_is_counted_once(embedded: TransformerBridge) -> None:
    found = figure_4(embedded, [9], [0], max_new_tokens=12)
    frame: Any = found.frame
    sums = frame.groupby(["task", "mode"])[["answers", "right"]].sum()
    asked = found.answers.groupby(["task", "mode"]).size()
    assert np.array_equal(sums["answers"], asked[sums.index])
    assert np.array_equal(sums["right"], asked[sums.index])
    assert list(dict.fromkeys(frame["task"])) == list(COUNTED)
    found.plot().to_dict()


# --- what is refused


def test_bad_arguments(long_tiny: TransformerBridge) -> None:
    with pytest.raises(InputError, match="lengths: expected whole numbers of at least 1, found 0"):
        experiments.figure_2(long_tiny, [0])
    with pytest.raises(InputError, match="seeds: expected whole numbers of at least 0, found none"):
        figure_3(long_tiny, [3], [])
    with pytest.raises(InputError, match="unknown panel 'count-wrod': did you mean 'count-word'"):
        figure_3(long_tiny, [3], panels=["count-wrod"])
    with pytest.raises(InputError, match="expected at least one panel of sum-ones"):
        figure_3(long_tiny, [3], panels=[])
    with pytest.raises(InputError, match="expected at most 256 tokens"):
        experiments.figure_2(tiny_model("gemma"), [500])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["2", "--seeds", "0"], ["No such option", "ostools reproduce figure 2 --help"]),
        (["5", "--chat"], ["No such option"]),
        (["3", "--panel", "sum"], ["unknown panel 'sum': did you mean 'sum-ones'"]),
        (["4", "--max-new-tokens", "0"], ["--max-new-tokens: expected a whole number of at least 1, found 0"]),
        (["2", "--lengths", "9000"], ["expected at most 8192 tokens"]),
    ],
)
def test_options_that_a_figure_does_not_have(run: Any, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    assert_refused(run("reproduce", "figure", *arguments, "--out", "x.pdf"), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_line_draws_and_tells(run: Any, tmp_path: Path) -> None:
    code, out, err = run("reproduce", "figure", "2", "--lengths", "5,9")
    assert code == 0
    assert_one_forecast(err)
    assert "copy-first" in out
    assert "The paper's is of Gemini 1.5" in out
    assert (
        run("reproduce", "figure", "6", "--lengths", "4", "--seeds", "3", "--max-new-tokens", "12", "--out", "x.svg")[0]
        == 0
    )
    picture = (tmp_path / "x.svg").read_text()
    assert "Figure 6 on embedded" in picture
    assert "Gemma 7B" in picture
    code, out, err = run("reproduce", "figure", "7", "--lengths", "4", "--seeds", "3", "--max-new-tokens", "12")
    assert code == 0
    assert_one_forecast(err)
    assert "Figure 4, by answers" in out
