"""Figures 3 and 6: how far sums and counts are off, with and without chain of thought.

Three panels, as in the figure: the sum 1+...+1, the ones in a sequence of ones, the ones in a Bernoulli(0.7) sequence. Section
3.2 names a fourth task, the word 'car' in a sentence, which is a panel where it is asked for. Three lines: no chain of thought
(CoT), zero-shot (the paper's "CoT-no-shot"), few-shot. An answer from which no one number can be read has no error, and is
counted apart. Figure 6 is Figure 3 of an open model.

Source: Barbero et al. 2024 (arXiv 2406.04267), Figure 3 (there of Gemini 1.5), Figure 6 (of Gemma 7B) and appendix C.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformer_lens.model_bridge import TransformerBridge

from ostools.experiments.figures.answering import (
    common_deviations,
    greedy_answers,
    provenance_of,
    title,
    unread_answers,
)
from ostools.ground.errors import InputError
from ostools.ground.names import checked_name, checked_names
from ostools.ground.progress import Progress
from ostools.ground.whole_numbers import checked_lengths, checked_seeds
from ostools.measure.hosted.answer_file import Hosted
from ostools.measure.measurement import measurement
from ostools.results import Result
from ostools.tasks import AppendixTask
from ostools.tasks.appendix_c import PLACES, SLIPPED, Mode
from ostools.tasks.reasoning import ANSWER_ONLY

LENGTHS = range(5, 151, 5)
SEEDS = tuple(range(5))
PANELS = ("sum-ones", "count-ones", "count-ones-bernoulli")
"""The figure's panels, from left to right."""
TASKS = (*PANELS, "count-word")
"""The tasks of Section 3.2, (i) to (iv)."""
WAYS: tuple[Mode, ...] = ("none", "cot-zero-shot", "cot-few-shot")
"""The ways of asking of Section 3.2, (1) to (3)."""
WITHOUT_COT: tuple[Mode, ...] = ("none", "answer-only")
"""What the first of them may be."""


@dataclass(frozen=True, eq=False)
class Figure3(Result):
    """`frame`: one row a task, mode (none or answer-only | cot-zero-shot | cot-few-shot), length and seed (0 alone where
    nothing is drawn).

    Its columns are those of `ostools.measure.answers.evaluate.Behaviour` but mitigation, status, sample and log_probability;
    absolute_error is NA where the answer held no number.
    """

    @property
    def title(self) -> str:
        """What is drawn, and of which model."""
        return title(self, "absolute error of sums and counts")

    @property
    def deviations(self) -> tuple[str, ...]:
        """In what this figure is not the paper's."""
        return counting_deviations(self, self.frame)


@measurement()
def figure_3(
    model: TransformerBridge | Hosted,
    lengths: Iterable[int] = LENGTHS,
    seeds: Sequence[int] = SEEDS,
    *,
    panels: Sequence[str] = PANELS,
    mode: str = "none",
    examples: str = "before",
    tidy: bool = False,
    number: Literal[3, 6] = 3,
    max_new_tokens: int = 256,
    chat: bool | None = None,
    progress: Progress | None = None,
) -> Figure3:
    """Absolute errors of greedy answers to the prompts of Figure 3 (and 6), at every length and
    seed.

    Args:
        model: a loaded model, or the answers of one that runs elsewhere (`ostools.measure.read_answers`).
        lengths: numbers of items.
        seeds: seeds of the panels that draw their sequences.
        panels: tasks, one panel for each: some of `TASKS`.
        mode: how the panels without chain of thought ask: "none" or "answer-only". "none": the
            prompt of C.1 alone. "answer-only": with an instruction to output the answer only, of
            which Section 3.2 speaks.
        examples: whether the worked examples stand "before" the question or "after" it.
        tidy: whether the slips of C.1 are mended, in the panels that have them (`AppendixTask`).
        number: 6 for the caption of Figure 6. The run is the same.
        max_new_tokens: longest chain of thought of a loaded model, in tokens. What is cut there is
            not an answer, and is counted apart.
        chat: whether the prompt is a user's turn in the tokenizer's chat template; None: if it has one.
        progress: called as progress(done, total) with the number of prompts answered.

    Raises `InputError` for lengths below 1, for an empty list of seeds, for an unknown panel, and for a prompt that leaves no
    room for its answer in the context. Cost: three prompts for each panel, length and seed, two thirds of them with up to
    `max_new_tokens` tokens.
    """
    if number not in (3, 6):
        raise InputError(f"number: expected 3 or 6, the figures of this form, found {number!r}")
    length_list, chosen_seeds = checked_lengths(lengths), checked_seeds(seeds)
    seeds_by_task = asked_tasks(chosen_seeds, panels, mode=mode, examples=examples, tidy=tidy)
    frame, how = greedy_answers(
        model, seeds_by_task, length_list, max_new_tokens=max_new_tokens, chat=chat, progress=progress
    )
    parameters: dict[str, Any] = {
        "measurement": f"figure-{number}",
        "number": number,
        "lengths": length_list,
        "seeds": chosen_seeds,
        "mode": mode,
        "examples": examples,
        "tidy": tidy,
    }
    return Figure3(frame.drop(columns="form"), provenance_of(model, **parameters, **how))


def asked_tasks(
    seeds: Sequence[int] = SEEDS,
    panels: Sequence[str] = PANELS,
    *,
    mode: str = "none",
    examples: str = "before",
    tidy: bool = False,
) -> dict[AppendixTask, tuple[int, ...]]:
    """The tasks of the figure's panels, each in three ways of asking, with the seeds of each."""
    checked_name("mode without chain of thought", mode, WITHOUT_COT)
    checked_name("place of the examples", examples, PLACES)
    if not isinstance(tidy, bool):
        raise InputError(f"tidy: expected true or false, found {tidy!r}")
    tasks = [_form(name, way, mode, examples, tidy) for name in _checked_panels(panels) for way in WAYS]
    return {task: tuple(seeds) if task.random else (0,) for task in tasks}


def _form(name: str, way: Mode, mode: str, examples: str, tidy: bool) -> AppendixTask:
    """One panel in one way of asking, with what of the options it has."""
    options: dict[str, Any] = {"mode": mode if way == "none" else way, "tidy": tidy and name in SLIPPED}
    options |= {"examples": examples} if way == "cot-few-shot" else {}
    return AppendixTask(name, **options)


def _checked_panels(panels: Sequence[str]) -> list[str]:
    chosen_panels = checked_names("panel", panels, TASKS)
    return [name for name in TASKS if name in chosen_panels]


def counting_deviations(result: Result, answers: Any) -> tuple[str, ...]:
    """What Figures 3, 4, 6 and 7 say of themselves."""
    parameters = result.provenance.parameters
    sentences = [*common_deviations(result)]
    if set(PANELS) <= set(result.provenance.model.get("trained_lengths") or {}):
        sentences.append("This model was trained on these prompts without CoT. It was not trained on CoT.")
    sentences += [
        "The worked examples of the sum are the paper's. Those of the other tasks are ours. They stand "
        f"{parameters.get('examples', 'before')} the question.",
        "The zero-shot request is the opening of the paper's few-shot one. The paper does not name seeds.",
        _panels_in_words(answers),
        _without_cot(parameters),
    ]
    if parameters.get("tidy"):
        sentences.append(
            "The slips of C.1's prompts are mended: 'answer..' at a sum, the quote that is not closed at a count."
        )
    return (*sentences, *unread_answers(result, answers))


def _without_cot(parameters: Mapping[str, Any]) -> str:
    if parameters.get("mode") == "answer-only":
        return (
            f"Without CoT '{ANSWER_ONLY.strip()}' stands after C.1's prompt. Section 3.2 speaks of such an instruction. Its "
            "words are ours."
        )
    return "Without CoT the prompt is C.1's alone. In Section 3.2 the model is told to output the answer only."


def _panels_in_words(answers: Any) -> str:
    if (answers["task"] == "count-word").any():
        return "The paper's figure has no panel for the word 'car', the fourth task of its Section 3.2."
    return "The fourth task of Section 3.2, counting a word, has no panel in the paper's figure."
