"""Figures 3 and 6: how far sums and counts are off, with and without chain of thought.

Four columns: the sum 1+...+1, the ones in a sequence of ones, the ones in a Bernoulli(0.7) sequence, the word 'car' in a
sentence. Three lines: no chain of thought (CoT), zero-shot, few-shot. An answer from which no one number can be read has no
error, and is counted apart. Figure 6 is Figure 3 of an open model.

Source: Barbero et al. 2024 (arXiv 2406.04267), Figure 3 (there of Gemini 1.5), Figure 6 (of Gemma 7B) and appendix C.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformer_lens.model_bridge import TransformerBridge

from ostools.experiments.figures.answering import answered, common_deviations, cut_answers, provenance_of, title
from ostools.ground.progress import Progress
from ostools.ground.whole_numbers import checked_lengths, checked_seeds
from ostools.measure.hosted.given import Hosted
from ostools.results import Result
from ostools.tasks import AppendixTask
from ostools.tasks.appendix_c import MODES

LENGTHS = range(5, 151, 5)
SEEDS = tuple(range(5))
TASKS = ("sum-ones", "count-ones", "count-ones-bernoulli", "count-word")
"""The columns, in the paper's order."""


@dataclass(frozen=True, eq=False)
class Figure3(Result):
    """`frame`: one row a task, mode (none | cot-zero-shot | cot-few-shot), length and seed (0 alone where nothing is drawn).

    Its columns are those of `ostools.measure.answers.behaviour.Behaviour` but mitigation, status, sample and log_probability;
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


def figure_3(
    model: TransformerBridge | Hosted,
    lengths: Iterable[int] = LENGTHS,
    seeds: Sequence[int] = SEEDS,
    *,
    number: Literal[3, 6] = 3,
    max_new_tokens: int = 256,
    chat: bool | None = None,
    progress: Progress | None = None,
) -> Figure3:
    """|answer - right answer| of greedy answers to the twelve prompts of Figure 3, at every length and seed.

    Args:
        model: a model here, or the answers of one that runs elsewhere (`ostools.measure.read_answers`).
        lengths: numbers of items.
        seeds: of the two columns that draw their sequences.
        number: 6 for the caption of Figure 6; the run is the same.
        max_new_tokens: of a chain of thought, by a model here; what is cut there is no answer, and counted apart.
        chat: whether as a user's turn in the tokenizer's chat template; None: where it has one.
        progress: called as progress(done, total) with the number of prompts answered.

    Raises `InputError` for lengths below 1, no seeds, and a prompt that leaves no room for its answer in the context.
    Cost: 6 + 6 prompts a seed at every length, two thirds of them with up to `max_new_tokens` tokens.
    """
    wanted, chosen = checked_lengths(lengths), checked_seeds(seeds)
    frame, how = answered(
        model, asked_tasks(chosen), wanted, max_new_tokens=max_new_tokens, chat=chat, progress=progress
    )
    parameters: dict[str, Any] = {
        "measurement": f"figure-{number}",
        "number": number,
        "lengths": wanted,
        "seeds": chosen,
    }
    return Figure3(frame.drop(columns="form"), provenance_of(model, **parameters, **how))


def asked_tasks(seeds: Sequence[int] = SEEDS) -> dict[AppendixTask, tuple[int, ...]]:
    """The twelve tasks of the figure, with the seeds of each."""
    tasks = [AppendixTask(name, mode=mode) for name in TASKS for mode in MODES]
    return {task: tuple(seeds) if task.random else (0,) for task in tasks}


def counting_deviations(result: Result, answers: Any) -> tuple[str, ...]:
    """What Figures 3, 4, 6 and 7 say of themselves."""
    said = [
        *common_deviations(result),
        "Few-shot examples beyond the paper's sum of twelve ones, and the other words of the sentences, are ours; the "
        "zero-shot request is the opening of the paper's few-shot one.",
    ]
    if set(TASKS) <= set(result.provenance.model.get("trained_lengths") or {}):
        said.append("This model was trained on these prompts without CoT, and never on CoT.")
    cut = cut_answers(answers)
    if cut:
        limit = result.provenance.parameters["max_new_tokens"]["cot-few-shot"]
        where = "by the server" if limit is None else f"at {limit} tokens"
        said.append(f"{cut} answers were cut {where} and hold no number.")
    return tuple(said)
