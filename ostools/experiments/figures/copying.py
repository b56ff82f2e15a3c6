"""Figure 2: is the last digit of 1...10, or the first of 01...1, copied?

(a) as it stands; (b) with the paper's hint; (c) with zeros and ones in turn. The right answer is always 0, in (a) by the
paper's words: the figure cannot tell a model that looks from one that always says 0 (`AppendixTask(..., uniform=True)` can).

Source: Barbero et al. 2024 (arXiv 2406.04267), Figure 2 (there of Gemini 1.5), section 3.1 and appendix C.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

from ostools.experiments.figures.answering import common_deviations, greedy_answers, provenance_of, title
from ostools.ground.progress import Progress
from ostools.ground.whole_numbers import checked_lengths
from ostools.measure.answers.evaluate import evaluate_memory
from ostools.measure.hosted.answer_file import Hosted
from ostools.measure.measurement import measurement
from ostools.measure.unloaded import Unloaded
from ostools.results import Result
from ostools.results.table_head import TableHead
from ostools.tasks import AppendixTask

LENGTHS = range(20, 601, 20)
"""Twice as far as the 300 elements at which the paper's model "starts to output 'one'"."""
PANELS = {
    "a": (AppendixTask("copy-last"), AppendixTask("copy-first")),
    "b": (AppendixTask("copy-last", hint=True), AppendixTask("copy-first", hint=True)),
    "c": (AppendixTask("copy-last", interleave=True), AppendixTask("copy-first", interleave=True)),
}


@dataclass(frozen=True, eq=False)
class Figure2(
    Result,
    chart="experiments.figures:figure_2_chart",
    findings=("charts.experiments.figures:figure_2_findings",),
    tables=(TableHead(columns="correct", groups="panel task"),),
):
    """`frame`: one row a panel (a to c), task and length.

    Its other columns are those of `ostools.measure.Evaluation` but mitigation, status, sample and log_probability.
    """

    @property
    def title(self) -> str:
        """Caption with the model's name."""
        return title(self, "copying the last and the first digit of a sequence")

    @property
    def deviations(self) -> tuple[str, ...]:
        """Differences from the paper's figure, a sentence each."""
        return (
            *common_deviations(self),
            "The right answer is always 0, in (a) by the paper's words. A model that always says 0 would be right everywhere.",
            "The first digit is asked of 01…1, as in the paper's caption. The paper's Section 3.1 says 1…10 there too.",
        )


@measurement()
def figure_2(
    model: TransformerBridge | Hosted,
    lengths: Iterable[int] = LENGTHS,
    *,
    chat: bool | None = None,
    progress: Progress | None = None,
) -> Figure2:
    """Greedy answers to the six prompts of Figure 2 at every length.

    Args:
        model: a loaded model, or the answers of one that runs elsewhere (`ostools.measure.read_answers`).
        lengths: numbers of digits.
        chat: whether the prompt is a user's turn in the tokenizer's chat template; None: if it has one.
        progress: called as progress(done, total) with the number of prompts answered.

    Raises `InputError` for lengths below 1 and for a prompt longer than the context. Cost: six prompts for each length, some 20
    tokens each.
    """
    length_list = checked_lengths(lengths)
    frame, settings = greedy_answers(model, figure_tasks(), length_list, chat=chat, progress=progress)
    panels = pd.Series({task: panel for panel, panel_tasks in PANELS.items() for task in panel_tasks})
    frame.insert(0, "panel", frame.pop("form").map(panels))
    provenance = provenance_of(model, measurement="figure-2", number=2, lengths=length_list, **settings)
    return Figure2(frame, provenance)


def figure_tasks() -> dict[AppendixTask, Sequence[int]]:
    """The six tasks of the figure, with the seeds of each."""
    return dict.fromkeys((task for panel in PANELS.values() for task in panel), (0,))


def figure_2_memory(model: Unloaded, *, lengths: Sequence[int] = LENGTHS) -> int:
    """Bytes of the answers to the longest of the six prompts."""
    return max(evaluate_memory(model, task, lengths, seeds=seeds) for task, seeds in figure_tasks().items())
