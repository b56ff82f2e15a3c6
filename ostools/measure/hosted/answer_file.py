"""Read answers that were made anywhere from JSON Lines, match them to their questions, and make
their table.

One object a line, of `AnswerRow`'s keys; `id` (of `Question.id`) and `text` have to be there. Keys
of other names are ignored. A token that ends a text (`STOP_TOKENS`) and was left standing at its
end is no part of it, and is taken off.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ostools import tasks
from ostools.ground import InputError, checked_arguments
from ostools.measure.answers.answers import Answer
from ostools.measure.answers.judging import Grade, answer_columns, grade_name
from ostools.measure.answers.reading import UNANSWERED
from ostools.measure.answers.result import COLUMNS, LEVEL, Evaluation
from ostools.mitigations.named import NONE
from ostools.results import Frame, Provenance, Result, frame_of
from ostools.tasks import Question
from ostools.tasks.questions import checked_questions

SETTINGS = ("model", "endpoint", "temperature", "max_tokens")
"""How answers were made: one way for all answers of a file."""
STOP_TOKENS = (
    *("</s>", "<eos>", "<end_of_turn>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    *("<|im_end|>", "<|endoftext|>", "<|end|>"),
)
"""Tokens with which Llama, Gemma, Qwen, Phi and GPT end a text or a turn. A tokenizer here knows
its model's, so that no text of a model here holds one."""

Count = Annotated[int, Field(ge=0, lt=2**62)]  # as a column of Int64 holds it
Amount = Annotated[float, Field(ge=0)]


class AnswerRow(BaseModel):
    """One line of a file of answers.

    Attributes:
        text: all that the model wrote; None where no answer came.
        finish_reason: why the model ended, as OpenAI-compatible servers say it: by itself, cut at a
            limit, withheld by a filter. None reads as "stop".
        prompt: where it is given, it has to be the question's.
        prompt_tokens: tokens of the prompt, as the server counted them.
        served: the name under which the server answered.
        model, endpoint, temperature, max_tokens: how the model was asked.
    """

    # Strict: "7" is no count and true is no number. What JSON can hold and no table can (half of a
    # surrogate pair, NaN) is refused by pydantic. Keys of a user's own stay in the file.
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, extra="allow")

    id: str
    text: str | None
    finish_reason: Literal["stop", "length", "content_filter"] | None = None
    prompt: str | None = None
    prompt_tokens: Count | None = None
    seconds: Amount | None = None
    served: str | None = None
    model: str | None = None
    endpoint: str | None = None
    temperature: Amount | None = None
    max_tokens: Count | None = None


@dataclass(frozen=True)
class Hosted:
    """A model that runs elsewhere: the questions that it was asked, and what it answered.

    answer_by_id: by the question's id; a question without an entry has no answer, and is counted as
    such. settings: what the answers say of how they were made (`SETTINGS` but the model), and
    `served`, the names that the server gave.
    """

    name: str
    questions: tuple[Question, ...]
    answer_by_id: Mapping[str, AnswerRow]
    settings: Mapping[str, object]

    def only(self, expected_questions: Sequence[Question]) -> None:
        """Raise `InputError` where other questions were asked."""
        ids, expected_ids = (
            {question.id for question in listed} for listed in (self.questions, expected_questions)
        )
        if ids != expected_ids:
            raise InputError(
                f"expected answers to the {len(expected_ids)} questions of this table, found "
                f"answers to others: {len(ids - expected_ids)} too many, "
                f"{len(expected_ids - ids)} not asked, such as {min(ids ^ expected_ids)!r}; ask "
                "for the same lengths and seeds"
            )

    def part(self, questions: Sequence[Question]) -> "Hosted":
        """Return these of its questions, with their answers."""
        ids = {question.id for question in questions}
        return replace(
            self,
            questions=tuple(question for question in self.questions if question.id in ids),
            answer_by_id={name: row for name, row in self.answer_by_id.items() if name in ids},
        )

    def provenance(self, **parameters: object) -> Provenance:
        """Return where the numbers come from: of the model nothing but its name is known."""
        missing = len(self.questions) - len(self.answer_by_id)
        how = {**self.settings, "hosted": True, "unanswered": missing}
        return replace(Provenance.without_model(**parameters, **how), model={"name": self.name})


@checked_arguments(InputError)
def read_answers(
    path: str | Path, questions: Iterable[Question], *, model: str | None = None
) -> Hosted:
    """Read the answers in a file to `questions`.

    Args:
        path: JSON Lines of `AnswerRow`'s keys.
        questions: every question, also those without an answer. Those are counted, but are not part
            of any mean.
        model: what the model is called, if the answers do not say it.

    Raises `InputError`, with the line, for a file that is not of this form, an id that does not
    belong to a question, an id twice, a prompt that is not the question's, answers made in several
    ways (`SETTINGS`), answers of another model, and a file without a row. A file in which every
    text is null is read: all its questions are counted as unanswered.
    """
    question_by_id = questions_by_id(questions)
    return hosted_of(Path(path), read_rows(Path(path), question_by_id), question_by_id, model)


def questions_by_id(questions: Iterable[Question]) -> dict[str, Question]:
    """Return the questions by their ids. Raises `InputError` for a question that is there twice."""
    question_list = checked_questions(questions)
    by_id = {question.id: question for question in question_list}
    if len(by_id) != len(question_list):
        raise InputError(
            f"expected every question once, found {len(question_list)} of which {len(by_id)} differ"
        )
    return by_id


def read_rows(file: Path, question_by_id: Mapping[str, Question]) -> list[AnswerRow]:
    """Read the rows of a file of answers. Errors: those of `read_answers` for one row."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: expected answers in JSON Lines: {error}") from None
    rows: dict[str, AnswerRow] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{file} line {number}"
        row = row_of(line, place)
        if (question := question_by_id.get(row.id)) is None:
            raise InputError(
                f"{place}: id {row.id[:200]!r} is not among the {len(question_by_id)} questions "
                f"asked here, such as {next(iter(question_by_id), None)!r}: give the options with "
                "which `ostools evaluate prompts` wrote it, or ask again where the prompt changed"
            )
        if row.id in rows:
            raise InputError(f"{place}: expected every id once, found {row.id!r} again")
        if row.prompt not in (None, question.text):
            raise InputError(
                f"{place}: expected the prompt of {row.id!r} as `ostools evaluate prompts` writes "
                "it, found another: an answer to a changed prompt answers another question"
            )
        rows[row.id] = row
    return list(rows.values())


def row_of(text: str, place: str) -> AnswerRow:
    """Read a line of JSON. Raises `InputError` with its first fault in words, without the value,
    which may hold a key.
    """
    try:
        return AnswerRow.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"])) or "the line"
        words = f"{fault['msg'][:1].lower()}{fault['msg'][1:]}"
        raise InputError(f"{place}: {where}: {words}") from None


def require_one_way(file: Path, rows: Sequence[AnswerRow]) -> None:
    """Refuse answers of several models, or that were asked for in several ways."""
    for row, name in product(rows, SETTINGS):
        first, value = getattr(rows[0], name), getattr(row, name)
        if value != first:
            raise InputError(
                f"{file}: expected answers made in one way, found {name} {first!r} and {value!r}; "
                "one file for each"
            )


def hosted_of(
    file: Path,
    rows: Sequence[AnswerRow],
    question_by_id: Mapping[str, Question],
    model: str | None,
) -> Hosted:
    """Return the model that gave the rows. Raises `InputError` for none, and for several models or
    ways to ask."""
    if not rows:
        raise InputError(f"{file}: expected at least one line with 'id' and 'text', found none")
    require_one_way(file, rows)
    settings: dict[str, Any] = {name: getattr(rows[0], name) for name in SETTINGS}
    model_name = settings.pop("model")
    if None not in (model_name, model) and model_name != model:
        raise InputError(f"{file}: expected answers of {model!r}, found answers of {model_name!r}")
    settings["served"] = sorted({row.served for row in rows if row.served is not None})
    # What a filter withheld is no answer of the model.
    answer_by_id = {
        row.id: row
        for row in rows
        if row.text is not None and row.finish_reason != "content_filter"
    }
    questions = tuple(question_by_id.values())
    return Hosted(model_name or model or "unknown model", questions, answer_by_id, settings)


def without_stop_tokens(text: str) -> str:
    """Return the text without stop tokens at its end and the blanks around them."""
    while text.rstrip().endswith(STOP_TOKENS):
        text = text[: text.rindex("<")].rstrip()
    return text


def asked_elsewhere(result: Result) -> str:
    """Return temperature and endpoint of the answers in words, as far as they are recorded."""
    how = result.provenance.parameters
    where = "made elsewhere" if how.get("endpoint") is None else "given over an API"
    if how.get("temperature") is None:
        return f"{where} at a temperature that is not recorded"
    return f"{where} at temperature {how['temperature']:g}"


def unanswered(result: Result) -> list[str]:
    """Return one sentence where questions have no answer, else none."""
    missing = int(frame_of(result)["correct"].isna().sum())
    words = "have no answer: the shares, errors and frequencies leave them out."
    return [f"{missing} of {len(result.frame)} prompts {words}"] if missing else []


@checked_arguments(InputError)
def hosted_evaluation(hosted: Hosted, *, grade: Grade | None = None) -> Evaluation:
    """Return table, summary and chart of `ostools.evaluate` for a hosted model's answers.

    Every question has a row. One without an answer has `kind` "unanswered" and nothing else known:
    it is counted in the summary's `unanswered`, and in no share, error or interval. `tokens` are
    the server's count, NA where it gave none. `status` says whether the mitigation changed the
    text.

    Args:
        grade: as of `ostools.evaluate`.

    Raises `InputError` for questions of several tasks or mitigations.
    """
    kinds = {(tasks.label(question.task), question.mitigation) for question in hosted.questions}
    if len(kinds) != 1:
        raise InputError(
            f"expected questions of one task and one mitigation, found {sorted(kinds)}: read them "
            "one by one"
        )
    ((task_name, mitigation_name),) = kinds
    form = hosted.questions[0].task
    rows = [
        _row(question, hosted.answer_by_id.get(question.id), grade) for question in hosted.questions
    ]
    mode = str(getattr(form, "mode", "none"))
    frame: Frame = pd.DataFrame(rows).assign(
        task=task_name, mitigation=mitigation_name, mode=mode, elicitation="chat"
    )
    frame = frame.reindex(columns=list(COLUMNS)).astype(COLUMNS | {"tokens": "Int64"})
    provenance = hosted.provenance(
        measurement="evaluate",
        task=task_name,
        mitigation=mitigation_name,
        lengths=sorted({question.length for question in hosted.questions}),
        seeds=sorted({question.seed for question in hosted.questions}),
        chat=None,
        max_new_tokens=hosted.settings.get("max_tokens"),
        probability=False,
        rewritten=any(question.rewritten for question in hosted.questions),
        trained_length=None,
        random=form.random,
        level=LEVEL,
        **({} if grade is None else {"grade": grade_name(grade)}),
    )
    return Evaluation(frame, provenance)


def _row(question: Question, row: AnswerRow | None, grade: Grade | None) -> dict[str, Any]:
    """Return what is known of a question and of its answer, where it has one."""
    status = "active" if question.rewritten else "inactive"
    about = {
        "length": question.length,
        "seed": question.seed,
        "key": question.key,
        "status": NONE if question.mitigation == NONE else status,
    }
    if row is None or row.text is None:
        return about | {"kind": UNANSWERED, "ended": UNANSWERED}
    ended = "length" if row.finish_reason == "length" else "stop"
    answer = Answer((), without_stop_tokens(row.text), ended)
    return answer_columns(question, answer, grade) | about | {"tokens": row.prompt_tokens}
