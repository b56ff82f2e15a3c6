"""Figures 4 and 7: which numbers a model answers when it counts, and how often; the paper finds that 100 is a favourite.

The answers are those of Figures 3 and 6. How often a number is the right answer stands beside how often it was given: a
favourite shows only against that.

Source: Barbero et al. 2024 (arXiv 2406.04267), Figure 4 (there of Gemini 1.5) and Figure 7 (of Gemma 7B).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

from ostools.experiments.figures.answering import title
from ostools.experiments.figures.figure3 import LENGTHS, PANELS, SEEDS, Figure3, counting_deviations, figure_3
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress
from ostools.measure.hosted.answer_file import Hosted
from ostools.measure.measurement import measurement
from ostools.results import Result


@dataclass(frozen=True, eq=False)
class Figure4(Result):
    """`frame`: one row a task, mode and number. Columns: task, mode, output (NA: no number to be read), answers (how often it
    was the answer), right (how often it was the right one; 0 for NA). `answers`: the rows of Figure 3 behind them.
    """

    answers: pd.DataFrame

    @property
    def title(self) -> str:
        """What is drawn, and of which model."""
        return title(self, "frequency of each answer to sums and counts")

    @property
    def deviations(self) -> tuple[str, ...]:
        """In what this figure is not the paper's."""
        return counting_deviations(self, self.answers)


@measurement()
def figure_4(
    model: TransformerBridge | Hosted,
    lengths: Iterable[int] = LENGTHS,
    seeds: Sequence[int] = SEEDS,
    *,
    panels: Sequence[str] = PANELS,
    mode: str = "none",
    examples: str = "before",
    tidy: bool = False,
    number: Literal[4, 7] = 4,
    max_new_tokens: int = 256,
    chat: bool | None = None,
    progress: Progress | None = None,
) -> Figure4:
    """Frequencies of each number among the answers to the prompts of Figure 3, and of its being
    right (Figures 4 and 7).

    Arguments, errors and cost are those of `figure_3`. `figure_4_of` makes it from a Figure 3 that you have, at no cost.
    """
    _check(number)
    options: dict[str, Any] = {"panels": panels, "mode": mode, "examples": examples, "tidy": tidy}
    error_figure = figure_3(
        model, lengths, seeds, **options, max_new_tokens=max_new_tokens, chat=chat, progress=progress
    )
    return figure_4_of(error_figure, number)


def figure_4_of(figure: Figure3, number: Literal[4, 7] = 4) -> Figure4:
    """Figure 4 (or 7), made from the answers of Figure 3."""
    _check(number)
    parameters = {**figure.provenance.parameters, "measurement": f"figure-{number}", "number": number}
    provenance = replace(figure.provenance, parameters=parameters)
    return Figure4(frequencies(figure.frame), provenance, figure.frame)


def _check(number: object) -> None:
    if number not in (4, 7):
        raise InputError(f"number: expected 4 or 7, the figures of this form, found {number!r}")


def frequencies(answers: pd.DataFrame) -> pd.DataFrame:
    """The columns of `Figure4.frame`, out of task, mode, number (the answer, or NA) and key (the right one, as text)."""
    came: Any = answers["correct"].notna().astype(int)  # of a hosted model; what never came is in no frequency
    answer_rows: Any = answers[["task", "mode"]].assign(output=answers["number"].astype("Int64"), answers=came, right=0)
    right: Any = answers[["task", "mode"]].assign(output=answers["key"].astype("Int64"), answers=0, right=came)
    both_rows: Any = pd.concat([answer_rows, right], ignore_index=True)
    both_rows = both_rows[(both_rows["answers"] + both_rows["right"] > 0) | both_rows["output"].isna()]
    counts = both_rows.groupby(["task", "mode", "output"], sort=False, dropna=False, as_index=False).sum()
    return counts.sort_values(["task", "mode", "output"], key=_in_order(both_rows), kind="stable", ignore_index=True)


def _in_order(rows: Any) -> Any:
    """Tasks and modes in the order in which they were asked, numbers by size."""
    first = {name: rank for column in ("task", "mode") for rank, name in enumerate(dict.fromkeys(rows[column]))}
    return lambda column: column if column.name == "output" else column.map(first)
