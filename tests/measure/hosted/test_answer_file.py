"""Answers that were made elsewhere give the table that the same texts give here, and no question is
lost.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from transformer_lens.model_bridge import TransformerBridge

from ostools import measure, paper, tasks
from ostools.ground.errors import InputError
from ostools.measure.hosted.answer_file import Hosted, read_answers, without_stop_tokens
from ostools.tasks import Question

MATHS = "The final answer to your maths question is: "
OWN = {
    "tokens",
    "log_probability",
    "within_training",
    "ended",
    "elicitation",
}
"""Columns that say how an answer was made, and those that only a model here has."""


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def asked(*lengths: int, spec: str = "count-ones") -> list[Question]:
    return tasks.questions(spec, lengths=lengths)


def read(tmp_path: Path, questions: list[Question], *rows: dict[str, Any]) -> Hosted:
    return read_answers(write(tmp_path / "answers.jsonl", *rows), questions)


# --- the table


@pytest.mark.parametrize("mitigation", [None, "separator:every=2"])
def test_the_texts_of_a_model_here_give_its_table(
    embedded: TransformerBridge, tmp_path: Path, mitigation: str | None
) -> None:
    form, lengths, seeds = "count-ones-bernoulli", [2, 7, 30], [0, 4]
    here: Any = measure.evaluate(
        embedded, form, lengths=lengths, seeds=seeds, mitigation=mitigation
    )
    questions = tasks.questions(form, lengths=lengths, seeds=seeds, mitigation=mitigation)
    frame: Any = here.frame
    found: Any = measure.hosted_evaluation(as_answers(frame, questions, tmp_path / "a"))
    same = [name for name in frame.columns if name not in OWN]
    pd.testing.assert_frame_equal(found.frame[same], frame[same])
    unknown = ["within_training", "active", "probability", "log_probability"]
    pd.testing.assert_frame_equal(
        found.summary.drop(columns=unknown), here.summary.drop(columns=unknown)
    )
    assert set(found.frame["status"]) == (
        {"none"} if mitigation is None else {"active", "inactive"}
    )


def test_what_was_never_answered_is_counted_and_in_no_number(tmp_path: Path) -> None:
    questions = tasks.questions("count-ones-bernoulli", lengths=[4, 5], seeds=[0, 1, 2])
    right, wrong, lost, *none = questions
    hosted = read(
        tmp_path,
        questions,
        {"id": right.id, "text": right.line, "prompt_tokens": 40},
        {"id": wrong.id, "text": MATHS + "9"},
        {"id": lost.id, "text": None},
        {"id": none[0].id, "text": "I may not", "finish_reason": "content_filter"},
    )
    found = measure.hosted_evaluation(hosted)
    assert found.frame["ended"].tolist() == ["stop", "stop", *["unanswered"] * 4]
    assert found.frame["correct"].isna().tolist() == [False, False, *[True] * 4]
    assert found.frame["tokens"].isna().tolist() == [False, *[True] * 5]
    counts = ["prompts", "asked", "right", "unanswered"]
    assert found.summary[counts].to_numpy().tolist() == [[3, 2, 1, 1], [3, 0, 0, 3]]
    assert found.summary["accuracy"].fillna(-1).tolist() == [0.5, -1]
    assert found.provenance.parameters["unanswered"] == 4
    assert "4 of 6 prompts have no answer" in json.dumps(found.plot().to_dict())
    none_came = read(tmp_path, questions, *({"id": one.id, "text": None} for one in questions))
    told = measure.hosted_evaluation(none_came).findings()[-1]
    assert told.startswith("0 answers to 6 prompts, made elsewhere at a temperature that is not ")
    assert "recorded. 6 of 6 prompts have no answer" in told  # they were drawn


@pytest.mark.parametrize(
    ("text", "left"),
    [
        *(
            ("12<|eot_id|>", "12"),
            ("12\n<|im_end|>", "12"),
            ("12 <end_of_turn> <eos>\n", "12"),
            ("</s>", ""),
        ),
        *(("12\n", "12\n"), ("</s> 12", "</s> 12"), ("1</s>2", "1</s>2"), ("x < /s>", "x < /s>")),
    ],
)
def test_a_stop_token_left_at_the_end_is_no_part_of_a_text(
    tmp_path: Path, text: str, left: str
) -> None:
    (one,) = asked(12)
    hosted = read(tmp_path, [one], {"id": one.id, "text": text})
    assert without_stop_tokens(text) == left
    assert measure.hosted_evaluation(hosted).frame["text"].item() == left


def test_of_one_file_comes_one_table(tmp_path: Path) -> None:
    several = [*asked(2), *asked(2, spec="sum-ones")]
    hosted = read(tmp_path, several, {"id": several[0].id, "text": "2"})
    with pytest.raises(InputError, match="questions of one task"):
        measure.hosted_evaluation(hosted)


# --- the figures


def as_answers(frame: Any, questions: list[Question], path: Path, lost: int = 0) -> Hosted:
    """The texts of a frame as a file, in another order; the last `lost` of them missing."""
    rows = [
        {
            "id": one.id,
            "text": row.text,
            "finish_reason": "length" if row.ended == "length" else "stop",
            "model": "m",
        }
        for one, row in zip(questions, frame.itertuples(), strict=True)
    ]
    return read_answers(write(path, *reversed(rows[: len(rows) - lost])), questions)


def test_figure_2_of_the_texts_of_a_model_here_is_its_figure(
    embedded: TransformerBridge, tmp_path: Path
) -> None:
    here: Any = paper.figure_2(embedded, [3, 12])
    questions = paper.figure_prompts(2, [3, 12])
    found: Any = paper.figure_2(as_answers(here.frame, questions, tmp_path / "a"), [3, 12])
    same = [name for name in here.frame.columns if name not in OWN]
    pd.testing.assert_frame_equal(found.frame[same], here.frame[same], check_dtype=False)
    assert found.title.startswith("Figure 2 on m:")
    assert "answers of a hosted model at a temperature that is not recorded" in found.deviations[0]
    lacking = paper.figure_2(as_answers(here.frame, questions, tmp_path / "b", lost=2), [3, 12])
    assert lacking.deviations[1].startswith(
        "In no share and no error: 2 prompts without an answer."
    )
    assert "nothing came" in json.dumps(lacking.plot().to_dict())


def test_a_figure_takes_the_answers_to_its_own_prompts_alone(tmp_path: Path) -> None:
    questions = paper.figure_prompts(2, [3])
    hosted = read(tmp_path, questions, {"id": questions[0].id, "text": "0"})
    with pytest.raises(InputError, match="6 not asked"):
        paper.figure_2(hosted, [3, 4])


# --- refusals


def test_one_line_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    one, other = asked(2, 3)
    good = {"id": one.id, "text": "x"}
    wrong: list[tuple[list[Any], str]] = [
        ([], "at least one line"),
        ([good, good], "line 2: expected every id once"),
        (
            [{"id": "count-ones n=9 seed=0 mitigation=none #0", "text": "x"}],
            "not among the 2 questions",
        ),
        ([good | {"prompt": one.text + " "}], "changed prompt"),
        ([{"id": one.id, "txt": "x"}], "line 1: text: field required"),
        ([{"id": one.id, "text": 3}], "line 1: text: input should be a valid string"),
        ([good | {"finish_reason": "lenght"}], "finish_reason: input should be 'stop', 'length'"),
        ([good | {"seconds": float("nan")}], "seconds: input should be a finite number"),
        ([good | {"temperature": True}], "temperature: input should be a valid number"),
        (
            [good, {"id": other.id, "text": "x", "prompt_tokens": -1}],
            "line 2: prompt_tokens: input should be greater",
        ),
        ([good, {"id": other.id, "text": "half \ud83d"}], "line 2: the line: invalid JSON"),
        ([good | {"model": "a"}, {"id": other.id, "text": "x", "model": "b"}], "made in one way"),
        (["x"], "line 1: the line: input should be an object"),
    ]
    for rows, words in wrong:
        with pytest.raises(InputError) as refused:
            read(tmp_path, [one, other], *rows)
        said = str(refused.value)
        assert words in said
        assert "\n" not in said
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{")
    for path, words in (
        (tmp_path / "bytes", "utf-8"),
        (tmp_path / "absent", "No such file"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(InputError, match=words):
            read_answers(path, [one])
    with pytest.raises(InputError, match="answers of 'other', found answers of 'm'"):
        read_answers(write(tmp_path / "m", good | {"model": "m"}), [one], model="other")
