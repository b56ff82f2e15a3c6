"""Collapse over a corpus: of every window the pair of Theorem 4.2, the window and the window with its last token once more.

What stands before the repeated token is text that people wrote, and differs from window to window. The theorem says that the
two come together as windows grow longer, whatever stands in them. Cost: `measure.collapse` of one pair, times the windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

from mitigations import Mitigation
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.distances import collapse_bytes
from ostools.measure.collapse.verdicts import VECTOR, is_hidden
from ostools.measure.mitigated_prompts import MitigatedPrompts, acting_bytes
from ostools.measure.passes.precisions import checked_precisions
from ostools.models import Prompt
from ostools.models.shape import Shape
from ostools.results import Frame, Provenance, Result
from ostools.runs.corpus.windows import Window
from ostools.tasks.repeats import RepeatedIds
from ostools.theory import profiles
from ostools.theory.statistics.intervals import wilson

PAIRS = "collapse"
"""The measure of pairs; all others give profiles."""
DTYPES = ("float32", "bfloat16")
_READ = ["distance", "relative", "float64_distance", "noise", "pair_noise", "weight_shift"]
COLUMNS = ["length", "window", "text", "start", "token_id", "compared", *_READ, "same_top_token"]
"""Of the rows of a cell, whose own `dtype` is the model's; `compared` is the dtype of a row."""


@dataclass(frozen=True, eq=False)
class CorpusCollapse(Result, chart="corpus:corpus_collapse_chart"):
    """How far each window and the same window with its last token once more are apart: ||y - y*||_2, against the noise.

    `frame`, one row a length and dtype: length, dtype, texts, windows, too_short (texts that were passed over); of the
    distance in float64 with the weights as that dtype stores them: mean over texts with low and high (95% bootstrap over
    texts), and over windows q10, q25, median, q75, q90; pair_noise (the median over windows of what running in that dtype
    does to y - y*); hidden_share (windows whose distance is below this noise of their own, or is 0; mean over texts) with
    hidden_low and hidden_high (95%, Wilson's, over texts), same_top_token_share; seconds and
    tokens_per_second (of all windows of that length, in all dtypes).

    `windows`, one row a window and dtype: length, window, text (its place in the corpus), start (the piece's first token among
    the text's own), token_id (what is repeated), dtype, distance (in that dtype) and relative (to ||y||), float64_distance,
    noise, pair_noise, weight_shift, same_top_token, hidden: as in `measure.Collapse`, at y, in L2.
    """

    windows: pd.DataFrame


def checked_dtypes(dtypes: Sequence[str] | None) -> tuple[str, ...]:
    """Their names; float64 is what every one is held against, and cannot be one of them."""
    names = tuple(precision.name for precision in checked_precisions(DTYPES if dtypes is None else dtypes))
    if "float64" in names:
        raise InputError("dtypes: expected ones that are held against float64, found 'float64' itself: leave it out")
    return names


def pair_rows(
    model: TransformerBridge,
    windows: Sequence[Window],
    first: int,
    dtypes: Sequence[str],
    mitigation: Mitigation | None,
    progress: Progress | None,
) -> Frame:
    """The rows of windows of one length, the first of which is number `first` of that length.

    Raises `InactiveMitigationError` for a mitigation that does not change a logit of one with its last token once more.
    """
    if mitigation is not None:
        longer = [Prompt.from_ids(model, (*window.ids, window.ids[-1])) for window in windows]
        MitigatedPrompts.of("corpus", model, longer, mitigation).require_acting(model)
    tasks = [RepeatedIds(window.ids, name=f"window {first + index}") for index, window in enumerate(windows)]
    results = collapse(model, tasks, lengths=[1], dtypes=dtypes, mitigation=mitigation, progress=progress or False)
    for result in results:
        result.require_finite("corpus")
    tables = []
    for index, (window, result) in enumerate(zip(windows, results, strict=True)):
        frame: Any = result.frame
        vector_rows = frame[(frame["per"] == VECTOR) & (frame["norm"] == "l2")]
        at_y, logits = (
            vector_rows[vector_rows["site"] == site].set_index("dtype").loc[list(dtypes)] for site in ("y", "logits")
        )
        window_columns = {
            "length": len(window.ids),
            "window": first + index,
            "text": window.text,
            "start": window.start,
        }
        read = at_y.rename(columns={"mean": "distance"})[_READ].reset_index(names="compared")
        same = logits["same_top_token"].to_numpy(dtype=bool)
        tables.append(read.assign(**window_columns, token_id=window.ids[-1], same_top_token=same))
    return pd.concat(tables, ignore_index=True)[COLUMNS]


def pairs_bytes(shape: Shape, length: int, dtypes: Sequence[str], mitigation: Mitigation | None = None) -> int:
    """What the pair of a window of so many tokens holds."""
    return max(collapse_bytes(shape, length + 1, 1, dtypes), acting_bytes(shape, length + 1, mitigation))


def assembled_pairs(rows: Frame, seconds: Mapping[int, float], provenance: Provenance) -> CorpusCollapse:
    """The result of the rows of all cells."""
    table: Any = rows[COLUMNS].rename(columns={"compared": "dtype"})
    hidden = is_hidden(table["float64_distance"], table["pair_noise"], table["distance"])
    table = table.assign(hidden=hidden)
    parameters: Any = provenance.parameters
    frame = [
        {"length": length, "dtype": dtype}
        | _over_texts(table[(table["length"] == length) & (table["dtype"] == dtype)])
        | {"too_short": parameters["too_short"][str(length)], "seconds": seconds[length]}
        for length in parameters["lengths"]
        for dtype in parameters["dtypes"]
    ]
    summary: Any = pd.DataFrame(frame)
    summary = summary.assign(tokens_per_second=summary["length"] * summary["windows"] / summary["seconds"])
    return CorpusCollapse(summary, provenance, table.reset_index(drop=True))


def _over_texts(rows: Frame) -> dict[str, Any]:
    """One length and dtype. Every text counts once, by the mean of its windows."""
    texts = rows["text"].to_numpy()
    flags = rows[["hidden", "same_top_token"]].to_numpy(dtype=float)
    means = profiles.text_means(np.column_stack([rows["float64_distance"].to_numpy(dtype=float), flags]), texts)
    mean, hidden, same = means.mean(0).tolist()
    low, high = (float(end[0]) for end in profiles.interval_of_mean(means[:, :1]))
    hidden_low, hidden_high = map(float, wilson(float(means[:, 1].sum()), len(means)))
    quantiles = {name: float(rows["float64_distance"].quantile(part)) for name, part in profiles.QUANTILES.items()}
    return {
        "texts": len(means),
        "windows": len(rows),
        **{"mean": mean, "low": low, "high": high, **quantiles, "pair_noise": float(rows["pair_noise"].median())},
        **{"hidden_share": hidden, "hidden_low": hidden_low, "hidden_high": hidden_high},
        "same_top_token_share": same,
    }
