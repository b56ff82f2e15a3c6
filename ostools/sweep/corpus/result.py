"""The tables of a corpus: what all windows say together. Every text has one window of each length
and counts once.

Read back from a directory (`read_corpus`) they are the same to the last bit. Cost: one read of
every cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ostools.ground.errors import InputError
from ostools.measure.collapse.verdicts import is_hidden
from ostools.measure.profiles.profile import BETWEEN, NO_SINK
from ostools.results import Chart, Frame, Provenance, Result
from ostools.results.table_head import TableHead
from ostools.sweep.corpus.measures import PAIRS
from ostools.sweep.reading import read
from ostools.theory import profiles
from ostools.theory.profiles import BINS, TestedValue, effective_tokens
from ostools.theory.statistics.intervals import FEWEST, wilson

_NOT_TESTED = TestedValue(*[float("nan")] * 4)
KIND = "corpus-"
"""What the measurements of its cells begin with."""
_COLUMNS = ["length", "window", "text", "start", "position", "token_id", "value"]
_PAIR_COLUMNS = [
    *("length", "window", "text", "start", "token_id", "compared", "distance", "relative"),
    *("float64_distance", "noise", "pair_noise", "weight_shift", "same_top_token"),
]


@dataclass(frozen=True, eq=False)
class Corpus(Result):
    """Profiles of windows of many texts over relative position.

    `frame`, one row a length and bin (32, or as many as the shortest window has tokens): length,
    bin, start, end (of the bin, as parts of the window), then the share of the bin's tokens over
    its even share (1: as much as if all tokens were equal): mean over texts with low and high (95%
    bootstrap over texts), and q10, q25, median, q75, q90 of the texts.

    `summary`, one row a length: length, texts, too_short (texts that were passed over), measure,
    linearisation, method, kind (measured | estimated), quantity; means over texts of sink_share (of
    the first token), last_share and effective_tokens.

    `shapes`, one row a length and choice of tokens (`kept`: without the sink | without sink and
    last), in decades: verdict, start_contrast and end_contrast (mean over texts of that third's
    mean log10 minus the middle one's), each with _low, _high (95%, Student's t over texts) and _p.

    `windows`, one row a token of every window: length, window, text (its place in the corpus),
    start (the piece's first token among the text's own), position, token_id, value, share (of the
    window's sum).
    """

    tables: ClassVar = (
        TableHead("summary"),
        TableHead("shapes"),
    )

    summary: pd.DataFrame
    shapes: pd.DataFrame
    windows: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.reporting.charts.corpus import corpus_chart

        return corpus_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.charts.corpus import corpus_findings

        return corpus_findings(self)


@dataclass(frozen=True, eq=False)
class CorpusCollapse(Result):
    """How far each window and the same window with its last token once more are apart: ||y -
    y*||_2, against the noise.

    `frame`, one row a length and dtype: length, dtype, texts, too_short (texts that were passed
    over); of the distance in float64 with the weights as that dtype stores them: mean over texts
    with low and high (95% bootstrap over texts), and q10, q25, median, q75, q90 of the texts;
    pair_noise (the median of what running in that dtype does to y - y*); hidden_share (texts whose
    distance is below this noise of their own, or is 0) with hidden_low and hidden_high (95%,
    Wilson's), same_top_token_share.

    `windows`, one row a window and dtype: length, window, text (its place in the corpus), start
    (the piece's first token among the text's own), token_id (what is repeated), dtype, distance (in
    that dtype) and relative (to ||y||), float64_distance,
    noise, pair_noise, weight_shift, same_top_token, hidden: as in `measure.Collapse`, at y, in L2.
    """

    windows: pd.DataFrame

    def chart(self) -> Chart:
        from ostools.reporting.charts.corpus import corpus_collapse_chart

        return corpus_collapse_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.charts.corpus import corpus_collapse_findings

        return corpus_collapse_findings(self)


def read_corpus(directory: str | Path) -> Corpus | CorpusCollapse:
    """The corpus that `ost.sweep.corpus(..., cells=directory)` measured, read without its model.

    Raises `InputError` for a directory without a corpus, and for one that is not complete.
    """
    broken: list[str] = []
    reading = read(directory, say=broken.append)
    cells = reading.cells
    if not cells or not all(cell.keyed_cell.cell.measurement.startswith(KIND) for cell in cells):
        raise InputError(
            f"{directory}: expected a directory that ost.sweep.corpus made, found another"
        )
    if missing := len(cells) - len(reading.of("measured")):
        why = broken[0] if broken else f"{missing} of {len(cells)} cells are missing"
        raise InputError(
            f"{directory}: expected a whole corpus, found that {why}; the same command measures the rest"
        )
    source = cells[0].sources[0]
    edits, arithmetic = tuple(source["edits"]), source.get("arithmetic", {})
    settings: dict[str, Any] = source["parameters"]["corpus"]
    provenance = Provenance(
        source["model"], settings, None, source["versions"], edits, source["time"], arithmetic
    )
    rows = reading.rows(cells[0].keyed_cell.cell.measurement)
    return _pairs(rows, provenance) if settings["measure"] == PAIRS else _profiles(rows, provenance)


def _profiles(rows: Frame, provenance: Provenance) -> Corpus:
    settings: Any = provenance.parameters
    bins = min(BINS, *settings["lengths"])
    frames, summary, shapes, windows = [], [], [], []
    for length in settings["lengths"]:
        part: Any = rows.loc[rows["length"] == length, _COLUMNS].reset_index(drop=True)
        shares = _shares(part, length)
        windows.append(part.assign(share=shares.ravel()))
        shares = shares[np.argsort(part["text"].to_numpy()[::length])]
        frames.append(_binned(shares, length, bins))
        shapes += [
            {"length": length, "kept": choice} | _shape(shares, choice)
            for choice in (NO_SINK, BETWEEN)
        ]
        summary.append(_summary(shares, settings, length))
    tables = pd.DataFrame(summary), pd.DataFrame(shapes), pd.concat(windows, ignore_index=True)
    return Corpus(pd.concat(frames, ignore_index=True), provenance, *tables)


def _shares(part: Any, length: int) -> np.ndarray:
    values = part["value"].to_numpy(dtype=float).reshape(-1, length)
    total = values.sum(1, keepdims=True)
    if not bool((np.isfinite(total) & (total > 0)).all()):
        raise InputError(
            f"corpus: expected profiles with a sum above 0, found one of length {length} without: it has no shares"
        )
    return values / total


def _binned(shares: np.ndarray, length: int, bins: int) -> pd.DataFrame:
    binned_shares = profiles.binned(shares, bins)
    low, high = profiles.interval_of_mean(binned_shares)
    place = np.arange(bins)
    columns = {"length": length, "bin": place, "start": place / bins, "end": (place + 1) / bins}
    quantiles = {
        name: np.quantile(binned_shares, part, axis=0) for name, part in profiles.QUANTILES.items()
    }
    return pd.DataFrame(
        {**columns, "mean": binned_shares.mean(0), "low": low, "high": high, **quantiles}
    )


def _summary(shares: np.ndarray, settings: Mapping[str, Any], length: int) -> dict[str, Any]:
    names = ("measure", "linearisation", "method", "kind", "quantity")
    spread = np.array([effective_tokens(share) for share in shares])
    sink, last, effective = np.stack([shares[:, 0], shares[:, -1], spread], axis=1).mean(0).tolist()
    return {
        "length": length,
        "texts": len(shares),
        "too_short": settings["too_short"][str(length)],
        **{name: settings[name] for name in names},
        "sink_share": sink,
        "last_share": last,
        "effective_tokens": effective,
    }


def _shape(shares: np.ndarray, choice: str) -> dict[str, Any]:
    """The contrasts of the ends as columns; a verdict in words where there can be none."""
    kept_shares = shares[:, 1:-1] if choice == BETWEEN else shares[:, 1:]
    count, tokens = kept_shares.shape
    zeros = int((kept_shares == 0).any(1).sum())
    too_few = ""
    if tokens < profiles.FEWEST_TOKENS:
        too_few = f"{tokens} tokens, {profiles.FEWEST_TOKENS} needed"
    elif count < FEWEST:
        too_few = f"{count} texts, {FEWEST} needed"
    elif zeros:
        too_few = f"{zeros} of {count} windows have tokens of value 0"
    verdict, start, end = f"not tested: {too_few}", _NOT_TESTED, _NOT_TESTED
    if not too_few:
        contrasts = profiles.ends_over_texts(profiles.end_contrasts(np.log10(kept_shares)))
        verdict, start, end = contrasts.verdict, contrasts.start, contrasts.end
    columns: dict[str, Any] = {"verdict": verdict}
    for name, contrast in (("start", start), ("end", end)):
        for field, value in asdict(contrast).items():
            ending = "" if field == "value" else f"_{field}"
            columns[f"{name}_contrast{ending}"] = value
    return columns


def _pairs(rows: Frame, provenance: Provenance) -> CorpusCollapse:
    settings: Any = provenance.parameters
    table = rows[_PAIR_COLUMNS].rename(columns={"compared": "dtype"})
    hidden = is_hidden(table["float64_distance"], table["pair_noise"], table["distance"])
    table = table.assign(hidden=hidden).reset_index(drop=True)
    frame = []
    for length in settings["lengths"]:
        for dtype in settings["dtypes"]:
            part = table[(table["length"] == length) & (table["dtype"] == dtype)]
            too_short = {"too_short": settings["too_short"][str(length)]}
            over_texts = _over_texts(part.sort_values("text"))
            frame.append({"length": length, "dtype": dtype, **over_texts, **too_short})
    return CorpusCollapse(pd.DataFrame(frame), provenance, table)


def _over_texts(rows: Any) -> dict[str, Any]:
    distances = rows["float64_distance"].to_numpy(dtype=float)
    low, high = (float(end[0]) for end in profiles.interval_of_mean(distances[:, None]))
    hidden_low, hidden_high = map(float, wilson(float(rows["hidden"].sum()), len(rows)))
    return {
        "texts": len(rows),
        "mean": float(distances.mean()),
        "low": low,
        "high": high,
        **{
            name: float(rows["float64_distance"].quantile(part))
            for name, part in profiles.QUANTILES.items()
        },
        "pair_noise": float(rows["pair_noise"].median()),
        "hidden_share": float(rows["hidden"].mean()),
        "hidden_low": hidden_low,
        "hidden_high": hidden_high,
        "same_top_token_share": float(rows["same_top_token"].mean()),
    }
