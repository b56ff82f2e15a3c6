"""Answers that were made anywhere, read from JSON Lines and matched to the questions that they answer; their table.

One object a line: `id` (of `Question.id`) and `text` (all that the model wrote; null where none came). May stand beside them:
`prompt` (compared with the question's), `finish_reason`, `model`, `prompt_tokens`, `seconds`, and how the model was asked
(`endpoint`, `temperature`, `max_tokens`). Everything else is ignored.

A token that ends a text (`STOP_TOKENS`) and was left standing at its end is no part of it, and is taken off.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from ostools import tasks
from ostools.ground.errors import InputError, did_you_mean, short_repr, unknown_name
from ostools.ground.files import TABLE_LIMIT, read_text
from ostools.hooks.errors import checked_arguments
from ostools.measure.answers.answers import Answer
from ostools.measure.answers.judging import answer_columns
from ostools.measure.answers.reading import UNANSWERED
from ostools.measure.answers.result import COLUMNS, LEVEL, Evaluation, summarise
from ostools.results import Provenance, Result
from ostools.tasks.questions import Question, checked_questions

FINISHES = ("stop", "length", "content_filter")
"""Why a model ended, as OpenAI-compatible servers say it: by itself, cut at a limit, withheld by a filter."""
SETTINGS = ("model", "endpoint", "temperature", "max_tokens")
"""How answers were made: one way for all answers of a file."""
UNKNOWN = "unknown model"
STOP_TOKENS = (
    *("</s>", "<eos>", "<end_of_turn>"),
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<|end|>"),
)
"""With what Llama, Gemma, Qwen, Phi and GPT end a text or a turn. A tokenizer here knows its own, so that no text holds it."""
_LARGEST = 1e15  # of seconds and temperatures: what is larger is a mistake, and a float may not hold it
_REVERSED_ENDING = re.compile(rf"\s*+(?:(?:{'|'.join(re.escape(token[::-1]) for token in STOP_TOKENS)})\s*+)++")
"""Stop tokens and blanks from a text's end backwards: searched from its beginning, they would take a square of its length."""


@dataclass(frozen=True)
class HostedAnswer:
    """One answer. `ended`: "stop" (the model ended) or "length" (cut). tokens: of the prompt, as the server counted them."""

    text: str
    ended: Literal["stop", "length"]
    tokens: int | None = None
    seconds: float = math.nan

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> HostedAnswer:
        seconds, tokens = row.get("seconds"), row.get("prompt_tokens")
        ended = "length" if row.get("finish_reason") == "length" else "stop"
        return cls(without_stop_tokens(row["text"]), ended, tokens, math.nan if seconds is None else float(seconds))


@dataclass(frozen=True)
class Hosted:
    """A model that runs elsewhere: the questions that it was asked, and what it answered.

    answer_by_id: by the question's id; a question without an entry has no answer, and is counted as such. settings: what the
    answers say of how they were made (`SETTINGS`), and `served`, the names that the server gave.
    """

    name: str
    questions: tuple[Question, ...]
    answer_by_id: Mapping[str, HostedAnswer]
    settings: Mapping[str, Any]

    def only(self, expected_questions: Sequence[Question]) -> Sequence[Question]:
        """Return `expected_questions` if these are the questions that were asked, in any order; else raise `InputError`."""
        mine, theirs = ({question.id for question in listed} for listed in (self.questions, expected_questions))
        if mine != theirs:
            more, less = len(mine - theirs), len(theirs - mine)
            odd = min(mine ^ theirs)
            raise InputError(
                f"expected answers to the {len(theirs)} questions of this table, found answers to others: {more} too many, "
                f"{less} not asked, such as {odd!r}; ask for the same lengths and seeds"
            )
        return expected_questions

    def part(self, questions: Sequence[Question]) -> Hosted:
        """Return these of its questions, with their answers."""
        ids = {question.id for question in questions}
        mine = tuple(question for question in self.questions if question.id in ids)
        answer_by_id = {name: answer for name, answer in self.answer_by_id.items() if name in ids}
        return replace(self, questions=mine, answer_by_id=answer_by_id)

    def provenance(self, **parameters: Any) -> Provenance:
        """Where the numbers come from: the model by its name alone, as nothing else is known of it."""
        how = {**self.settings, "hosted": True, "unanswered": len(self.questions) - len(self.answer_by_id)}
        return replace(Provenance.without_model(**parameters, **how), model={"name": self.name})


@checked_arguments(InputError)
def read_answers(path: str | Path, questions: Iterable[Question], *, model: str | None = None) -> Hosted:
    """The answers in a file to `questions`.

    Args:
        path: JSON Lines; this module lists the keys. `finish_reason` is taken as "stop" if a row has none.
        questions: every question, also those without an answer. Those are counted, but are not part of any mean.
        model: what the model is called, if the answers do not say it.

    Raises `InputError`, with the line, for a file that is not of this form, an id that does not belong to a question, an id
    twice, a prompt that is not the question's, answers made in several ways (`SETTINGS`), answers of another model, and a file
    without a row. A file in which every text is null is read: all its questions are counted as unanswered.
    """
    file, asked_questions = Path(path), checked_questions(questions)
    question_by_id = {question.id: question for question in asked_questions}
    if len(question_by_id) != len(asked_questions):
        raise InputError(
            f"expected every question once, found {len(asked_questions)} of which {len(question_by_id)} differ"
        )
    rows = list(_checked(file, question_by_id))
    if not rows:
        raise InputError(f"{file}: expected at least one line with 'id' and 'text', found none")
    # What a filter withheld is no answer of the model.
    came = (row for _, row in rows if row["text"] is not None and row.get("finish_reason") != "content_filter")
    answer_by_id = {row["id"]: HostedAnswer.of(row) for row in came}
    settings = _settings(file, rows)
    model_name = settings.pop("model", None)
    if None not in (model_name, model) and model_name != model:
        raise InputError(f"{file}: expected answers of {model!r}, found answers of {model_name!r}")
    return Hosted(model_name or model or UNKNOWN, asked_questions, answer_by_id, settings)


def text_of(file: Path) -> str:
    """Text of the file. Raises `InputError` where it cannot be read."""
    try:
        return read_text(file, TABLE_LIMIT)
    except InputError as error:  # a pipe, a device, a directory
        raise InputError(f"{file}: expected answers in JSON Lines: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"{file}: expected answers in JSON Lines, which cannot be read: {reason}") from None


def rows_of(file: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every line that is not blank: where it stands, and its object. Raises `InputError` for what is none."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{file} line {number}"
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{place}: expected a JSON object with 'id' and 'text', found {line.strip()[:40]!r}")
        yield place, row


def _checked(file: Path, question_by_id: Mapping[str, Question]) -> Iterator[tuple[str, dict[str, Any]]]:
    place_by_id: dict[str, str] = {}
    for place, row in rows_of(file, text_of(file)):
        for key in ("id", "text"):
            if key not in row:
                near = did_you_mean(key, tuple(row)) if row else ""
                raise InputError(f"{place}: expected the key {key!r}: {near}found {', '.join(row) or 'none'}")
        name = row["id"]
        if not isinstance(name, str) or name not in question_by_id:
            raise _not_asked(place, name, question_by_id)
        if name in place_by_id:
            raise InputError(f"{place}: expected every id once, found {name!r} again (first in {place_by_id[name]})")
        place_by_id[name] = place
        if row.get("prompt") not in (None, question_by_id[name].text):
            raise InputError(
                f"{place}: expected the prompt of {name!r} as `ostools evaluate prompts` writes it, found another: "
                "an answer to a changed prompt answers another question"
            )
        check_values(place, row)
        yield place, row


def _not_asked(place: str, name: object, question_by_id: Mapping[str, Question]) -> InputError:
    """The nearest question; the same question with another text is one that has changed."""
    if not isinstance(name, str):
        return InputError(f"{place}: expected an id as `ostools evaluate prompts` writes it, found {name!r}")
    id_stem, _, _ = name.partition(" #")
    if same := [item_id for item_id in question_by_id if item_id.partition(" #")[0] == id_stem]:
        return InputError(
            f"{place}: expected id {same[0]!r}, found {name!r}: the prompt has changed since; write the prompts and ask again"
        )
    return InputError(
        f"{place}: id {name[:200]!r} is not among the {len(question_by_id)} questions asked here, such as "
        f"{next(iter(question_by_id), None)!r}: give the options with which `ostools evaluate prompts` wrote it"
    )


def check_values(place: str, row: Mapping[str, Any]) -> None:
    """Raises `InputError`, with the place, for a row that no table can hold: before it is stored, and when it is read."""
    text, reason = row["text"], row.get("finish_reason")
    if not isinstance(text, str | None):
        raise InputError(f"{place}: expected text, or null where no answer came, found {type(text).__name__}")
    if reason is not None and reason not in FINISHES:
        raise InputError(f"{place}: {unknown_name('finish_reason', reason, FINISHES)}")
    for key in ("text", "model", "endpoint", "served"):
        value = row.get(key)
        if not isinstance(value, str | None):
            raise InputError(f"{place}: expected {key} to be text, found {short_repr(value)}")
        if value is not None and not _is_unicode(value):
            raise InputError(
                f"{place}: expected {key} to be text in Unicode, found half of a character in {short_repr(value)}"
            )
    for key in ("prompt_tokens", "max_tokens"):
        value = row.get(key)
        if value is not None and (type(value) is not int or not 0 <= value < 2**62):
            raise InputError(f"{place}: expected {key} to be a whole number of at least 0, found {short_repr(value)}")
    for key in ("seconds", "temperature"):
        value = row.get(key)
        if value is not None and (type(value) not in (int, float) or not 0 <= value <= _LARGEST):
            raise InputError(f"{place}: expected {key} to be a number of at least 0, found {short_repr(value)}")


def _is_unicode(text: str) -> bool:
    """False for half of a pair of surrogates, which JSON can hold and no file, table or page."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def without_stop_tokens(text: str) -> str:
    """A text without the tokens that end it, where they were left at its end, and the blanks before them."""
    ending = _REVERSED_ENDING.match(text[::-1])
    return text if ending is None else text[: len(text) - ending.end()]


def _settings(file: Path, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Settings that all rows share, and the names under which the server answered."""
    settings: dict[str, Any] = {}
    for key in SETTINGS:
        values = {json.dumps(row.get(key)): place for place, row in rows}
        if len(values) > 1:
            (first_value, _), (second_value, place), *_ = values.items()
            raise InputError(
                f"{file}: expected answers made in one way, found {key} {first_value} and {second_value} ({place}); one file "
                "for each"
            )
        settings[key] = rows[0][1].get(key)
    served = {row.get("served") for _, row in rows} - {None}
    return settings | {"served": sorted(map(str, served))}


def asked_elsewhere(result: Result) -> str:
    """Temperature and endpoint of the answers in words, as far as they are recorded."""
    how: Any = result.provenance.parameters
    temperature, endpoint = how.get("temperature"), how.get("endpoint")
    temperature_words = "a temperature that is not recorded" if temperature is None else f"temperature {temperature:g}"
    return f"made elsewhere at {temperature_words}" if endpoint is None else f"given over an API at {temperature_words}"


def unanswered(result: Result) -> list[str]:
    """One sentence where questions have no answer."""
    frame: Any = result.frame if "correct" in result.frame else getattr(result, "answers", result.frame)
    missing = int(frame["correct"].isna().sum())
    if not missing:
        return []
    return [f"{missing} of {len(frame)} prompts have no answer: the shares, errors and frequencies leave them out."]


@checked_arguments(InputError)
def hosted_evaluation(hosted: Hosted) -> Evaluation:
    """Table, summary and chart of `ostools.evaluate` for the answers of a model that runs elsewhere to one task's questions.

    Every question has a row. One without an answer has `kind` "unanswered" and nothing else known: it is counted in the
    summary's `unanswered`, and in no share, error or interval. `tokens` are the server's count, NA where it gave none. `status`
    says whether the mitigation changed the text.

    Raises `InputError` for questions of several tasks or mitigations.
    """
    kinds = {(tasks.label(question.task), question.mitigation) for question in hosted.questions}
    if len(kinds) != 1:
        raise InputError(
            f"expected questions of one task and one mitigation, found {sorted(kinds)}: read them one by one"
        )
    form = hosted.questions[0].task
    names = dict(zip(("task", "mitigation"), next(iter(kinds)), strict=True))
    frame: Any = hosted_rows(hosted, hosted.questions).assign(
        **names, mode=str(getattr(form, "mode", "none")), elicitation="chat"
    )
    frame = frame[list(COLUMNS)].astype(COLUMNS | {"tokens": "Int64"})
    provenance = hosted.provenance(
        measurement="evaluate",
        **names,
        lengths=sorted({question.length for question in hosted.questions}),
        seeds=sorted({question.seed for question in hosted.questions}),
        samples=1,
        chat=None,
        max_new_tokens=hosted.settings.get("max_tokens"),
        probability=False,
        rewritten=any(question.rewritten for question in hosted.questions),
        trained_length=None,
        level=LEVEL,
    )
    sampled = bool(hosted.settings.get("temperature"))
    return Evaluation(frame, provenance, summarise(frame, random=form.random, sampled=sampled))


def hosted_rows(hosted: Hosted, question_list: Sequence[Question]) -> pd.DataFrame:
    """A row a question, with the columns of `Evaluation` but task, mode and mitigation."""
    return pd.DataFrame([_row(question, hosted.answer_by_id.get(question.id)) for question in question_list])


def _row(question: Question, hosted_answer: HostedAnswer | None) -> dict[str, Any]:
    answer = hosted_answer or HostedAnswer("", "length")
    common_columns = {
        "status": "none" if question.mitigation == "none" else "active" if question.rewritten else "inactive",
        "sample": 0,
        "tokens": answer.tokens,
        "log_probability": math.nan,
        "rank": None,
        "seconds": answer.seconds,
        "within_training": None,
    }
    columns = answer_columns(question, Answer((), answer.text, answer.ended))
    if hosted_answer is None:
        key_columns = {name: columns[name] for name in ("length", "seed", "key")}
        columns = dict.fromkeys(columns) | key_columns | {"kind": UNANSWERED, "ended": UNANSWERED}
    return columns | common_columns
