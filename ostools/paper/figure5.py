"""Figure 5 whole: representational collapse on the paper's four prompts, averaged over heads; and
Corollary 6.2, what a model answers where a pair of counts is hidden.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import pandas as pd

import ostools as ost
from ostools.ground import (
    InputError,
    Lengths,
    Progress,
    TransformerBridge,
    checked_lengths,
    checked_seeds,
    distinct,
    part_of,
    title_of,
)
from ostools.measure import Collapse, Reading
from ostools.measure.position import read_at
from ostools.models.tokens import token_text
from ostools.paper.drawn_result import PaperResult
from ostools.results import Frame, Provenance, Result, TableHead, frame_of
from ostools.tasks import FIGURE_5, AppendixTask, ItemsAs

Panel = Literal["a", "b", "c", "d"]
PANELS: tuple[Panel, ...] = get_args(Panel)
PAPERS_MODEL = "Gemma 7B"
FIGURE_5_READING = Reading("residual", "head-chunk", "linf")
"""What section 4 reports, with one reading of what a head of v^(L) is."""
_KEY = ["panel", "task", "pair", "dtype", "length"]


@dataclass(frozen=True, eq=False)
class Figure5(PaperResult):
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
    total, start, curves = sum(map(len, streams.values())), 0, {}
    for panel, task in runs.items():
        end = start + len(streams[panel])
        curves[panel] = ost.collapse(
            model,
            task,
            lengths=length_list,
            dtypes=dtypes,
            seeds=streams[panel],
            progress=part_of(progress, start, end, total),
        )
        start = end
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
    verdicts = _by_panel(
        {panel: result.verdicts(*FIGURE_5_READING[1:]) for panel, result in curves.items()}
    )
    verdicts = verdicts[verdicts["site"] == FIGURE_5_READING.site].reset_index(drop=True)
    measured = _by_panel({panel: result.measured() for panel, result in curves.items()})
    return Figure5(_summary(FIGURE_5_READING.of(measured)), provenance, verdicts, curves)


def _by_panel(tables: Mapping[str, pd.DataFrame]) -> Frame:
    return pd.concat(tables, names=["panel"]).reset_index("panel").reset_index(drop=True)


def _summary(frame: Frame) -> pd.DataFrame:
    """Each panel, pair, dtype and length, over heads and seeds."""
    return frame.groupby(_KEY, sort=False, as_index=False, observed=True).agg(
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


def counting(
    model: TransformerBridge,
    *,
    lengths: Sequence[int],
    dtypes: Sequence[str],
    progress: Progress | None = None,
) -> dict[str, Collapse | Result]:
    """Collapse of counting ones after the begun answer line, and `hidden_counts`."""
    task, right_tokens = AppendixTask("count-ones"), {}
    curve = ost.collapse(model, task, lengths=lengths, dtypes=dtypes, chat=False, progress=progress)
    for n in lengths:
        prompt = ost.measure.render_prompt(model, task, n, chat=False)
        right_tokens[n] = token_text(model.tokenizer, read_at(model, prompt).token)
    return {"collapse": curve, "counting": hidden_counts(curve, right_tokens)}


def hidden_counts(curve: Collapse, right_tokens: Mapping[int, str]) -> Result:
    """A row a dtype. `right_tokens`: the first token of each count's right answer.

    Columns: dtype, impossible_status (where the pair is hidden, in words), tested_pairs (hidden
    pairs n, n + 1 whose right answers begin with different tokens), right_once and right_twice (of
    them: one first token is right, both are).
    """
    logits: Frame = frame_of(curve).query("site == 'logits'")
    verdicts = {
        dtype: verdict
        for (_, dtype, site, _), verdict in curve.verdicts_over_seeds().items()
        if site == "y"
    }
    rows = []
    for dtype, verdict in verdicts.items():
        tokens = logits[logits["dtype"] == dtype].set_index("length")["next_token"]
        right_in_pair = [
            int(tokens[n] == right_tokens[n]) + int(tokens[n + 1] == right_tokens[n + 1])
            for n in verdict.hidden_in_ranges
            if n + 1 in tokens.index and right_tokens[n] != right_tokens[n + 1]
        ]
        rows.append(
            {
                "dtype": dtype,
                "impossible_status": verdict.words,
                "tested_pairs": len(right_in_pair),
                "right_once": right_in_pair.count(1),
                "right_twice": right_in_pair.count(2),
            }
        )
    return Result(pd.DataFrame(rows), curve.provenance)
