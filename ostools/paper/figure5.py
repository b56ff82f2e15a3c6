"""Figure 5 whole: representational collapse on the paper's four prompts, averaged over heads.

(a) "How many ones are in the following sequences?" and n ones; (b) the same and n uniform digits,
of which v ends in a single one and v* in two; (c) "Can you copy the following number?" and n ones;
(d) the same with a comma after every third digit. Each compares the last token of v with that of
v*, v with its last token once more (Theorem 4.2 / B.3). (d) has a second pair, drawn
apart: "one-more-digit", the number with one digit more where a comma comes before it, 111 and
111,1. Those prompts differ by two tokens, and no theorem speaks of them.

Drawn is what section 4 reports: "their difference in representation at the last layer", ||v^(L) -
v*^(L)||_inf, before the final norm, "averaged out over each head, alongside the minimum and maximum
over each head". What a head is of v^(L), which has none, is open: here v^(L) is cut into chunks of
d_model / H numbers (`ostools.measure.collapse.verdicts`). Every other site and norm stands in
`Figure5.curves`.

The paper's text of (b) is "digits sampled uniformly ending with either a single one or two ones":
`ostools.tasks.pairs`. Source: arXiv 2406.04267, Figure 5 and section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Literal, get_args

import pandas as pd

import ostools as ost
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import distinct
from ostools.ground.progress import Progress, part_of
from ostools.ground.whole_numbers import Lengths, checked_lengths, checked_seeds
from ostools.ground.words import title_of
from ostools.measure import Collapse, Reading
from ostools.paper.drawn_result import PaperFigure
from ostools.results import Frame, Provenance
from ostools.results.table_head import TableHead
from ostools.tasks import FIGURE_5, ItemsAs

Panel = Literal["a", "b", "c", "d"]
PANELS: tuple[Panel, ...] = get_args(Panel)
PAPERS_MODEL = "Gemma 7B"
FIGURE_5_READING = Reading("residual", "head-chunk", "linf")
"""What section 4 reports, with one reading of what a head of v^(L) is."""
_KEY = ["panel", "task", "pair", "dtype", "length"]


@dataclass(frozen=True, eq=False)
class Figure5(PaperFigure):
    """One row per panel, pair, dtype and length.

    Columns: panel (a to d), task, pair (theorem | one-more-digit), dtype, length (items of v),
    seeds (how many); mean, the Linf distance of v^(L) averaged over heads and seeds; head_minimum
    and head_maximum, the least and the greatest of any head and seed; seed_minimum and
    seed_maximum, the same of the seeds' averages over heads; noise, pair_noise and machine_line,
    averaged alike.

    v^(L) has no heads, over which the paper averages: here it is cut into chunks of d_model / H
    numbers (the paper may also mean the outputs of the last block's heads). In (b) the digit before
    the one or two ones is never a one; the paper names no seeds, and its bars are over heads. The
    pair of one digit more, after a comma, is ours.

    `verdicts`: over which lengths the pairs are hidden, per panel, pair, seed and dtype, as
    `Collapse.verdicts` says, of the quantity that is drawn. A dtype that overflows has its verdict
    alone. `curves`: the whole measurement of each panel, with every other distance and site.
    """

    tables: ClassVar = (
        TableHead(columns="panel pair dtype length mean head_minimum head_maximum"),
    )

    verdicts: pd.DataFrame
    curves: Mapping[str, Collapse]

    @property
    def deviations(self) -> list[str]:
        """Model and lengths beside the paper's, in a sentence."""
        model, lengths = self.provenance.model, self.provenance.parameters["lengths"]
        return [
            f"The paper's is of {PAPERS_MODEL}. Here: {title_of(model)}, loaded in "
            f"{model['dtype']}, {len(lengths)} lengths from {lengths[0]} to {lengths[-1]}."
        ]


@ost.measure.measurement()
def figure_5(
    model: TransformerBridge,
    panels: Panel | Sequence[Panel] = PANELS,
    lengths: Lengths = range(1, 257),
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    seeds: Sequence[int] = tuple(range(5)),
    *,
    items: ItemsAs = "text",
    progress: Progress | None = None,
) -> Figure5:
    """Distances of the pairs of Figure 5's four panels, at every length and dtype, and for (b) at
    every seed.

    Args:
        panels: some of "abcd".
        lengths: numbers of digits.
        dtypes: precisions that are compared with float64, as in `collapse`.
        seeds: digit streams of (b). The other panels do not draw digits.
        items: how digits are put in: as "text", or each by its own token ("ids"). The latter if the
            tokenizer would merge them.
        progress: called as progress(done, total) after each forward pass.

    Raises `InputError` for an unknown panel, for heads that do not divide d_model, and for whatever
    `collapse` refuses. Cost: one `collapse` for each panel, and for each seed of (b) one pass for
    each dtype.
    """
    names = distinct("panels", panels)
    if model.cfg.d_model % model.cfg.n_heads:
        raise InputError(
            f"figure 5: {model.cfg.n_heads} heads do not divide d_model = {model.cfg.d_model} into "
            "chunks; collapse has whole vectors"
        )
    length_list, seeds = checked_lengths(lengths), checked_seeds(seeds)
    runs = {panel: FIGURE_5[f"figure-5{panel}"](items) for panel in sorted(names)}
    # Panels take as many passes as they have seeds.
    streams = {panel: seeds if task.random else [0] for panel, task in runs.items()}
    ends = list(accumulate(map(len, streams.values()), initial=0))
    curves = {
        panel: ost.collapse(
            model,
            task,
            lengths=length_list,
            dtypes=dtypes,
            seeds=streams[panel],
            progress=part_of(progress, ends[place], ends[place + 1], ends[-1]),
        )
        for place, (panel, task) in enumerate(runs.items())
    }
    tables = [_summary(panel, result) for panel, result in curves.items()]
    provenance = Provenance.collect(
        model,
        measurement="figure-5",
        seeds=seeds,
        panels="".join(runs),
        prompts={panel: task.example for panel, task in runs.items()},
        items=items,
        lengths=length_list,
        dtypes=list(dtypes),
    )
    frame = pd.concat(tables, ignore_index=True)
    return Figure5(frame, provenance, _verdicts(curves), curves)


def _summary(panel: str, result: Collapse) -> pd.DataFrame:
    """Rows of one panel: each pair, dtype and length, over heads and seeds."""
    frame: Frame = FIGURE_5_READING.of(result.measured()).assign(panel=panel)
    grouped = frame.groupby(_KEY, sort=False, as_index=False, observed=True)
    return grouped.agg(
        seeds=("seed", "nunique"),
        mean=("mean", "mean"),
        head_minimum=("minimum", "min"),
        head_maximum=("maximum", "max"),
        seed_minimum=("mean", "min"),
        seed_maximum=("mean", "max"),
        noise=("noise", "mean"),
        pair_noise=("pair_noise", "mean"),
        machine_line=("machine_line", "mean"),
    )


def _verdicts(curves: Mapping[str, Collapse]) -> pd.DataFrame:
    """`Collapse.verdicts` of every panel, on the quantity that is drawn."""
    tables = {
        panel: result.verdicts(FIGURE_5_READING.per, FIGURE_5_READING.norm)
        for panel, result in curves.items()
    }
    table: Frame = pd.concat(tables, names=["panel"]).reset_index("panel")
    return table[table["site"] == FIGURE_5_READING.site].reset_index(drop=True)
