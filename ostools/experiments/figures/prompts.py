"""Every prompt of one of the paper's figures of behaviour as text, for a model that runs elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ostools.experiments.figures import figure2, figure3
from ostools.experiments.figures.answering import PAPERS, figure_questions
from ostools.ground.errors import InputError
from ostools.ground.whole_numbers import checked_lengths, checked_seeds
from ostools.tasks.questions import Question

ASKING = {"panels", "mode", "examples", "tidy"}


def figure_prompts(
    number: int, lengths: Iterable[int] | None = None, seeds: Sequence[int] | None = None, **asking: Any
) -> list[Question]:
    """The prompts that Figure 2, 3, 4, 6 or 7 asks. 3, 4, 6 and 7 ask the same prompts: one set of answers serves all four.

    Args:
        lengths: numbers of items; None: those of the figure.
        seeds: of the sequences that are drawn; None: those of the figure. Figure 2 does not draw sequences.
        asking: for Figures 3, 4, 6 and 7 also panels, mode, examples and tidy, as in `figure_3`.

    Raises `InputError` for another figure, for lengths below 1, and for seeds with Figure 2.
    """
    if type(number) is not int or number not in PAPERS:
        raise InputError(f"expected a figure of answers, {', '.join(map(str, PAPERS))}, found {number!r}")
    if number == 2 and seeds is not None:
        raise InputError("figure 2 has no randomness, and so no seeds: leave them out")
    if wrong := asking.keys() - (set() if number == 2 else ASKING):
        raise InputError(f"figure {number} has no {sorted(wrong)[0]} to choose: leave it out")
    seeds_by_task: Mapping[Any, Sequence[int]]
    if number == 2:
        seeds_by_task, default_lengths = figure2.asked_tasks(), figure2.LENGTHS
    else:
        seeds_by_task, default_lengths = (
            figure3.asked_tasks(figure3.SEEDS if seeds is None else checked_seeds(seeds), **asking),
            figure3.LENGTHS,
        )
    return figure_questions(seeds_by_task, checked_lengths(default_lengths if lengths is None else lengths))
