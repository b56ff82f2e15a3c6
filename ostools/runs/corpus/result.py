"""The table of a corpus: profiles of all windows over relative position, and what they say together.

Read back from a directory (`read_corpus`) it is the same to the last bit. Cost: one read of every cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ostools.ground.errors import InputError, short_repr
from ostools.measure.profiles.profile import BETWEEN, NO_SINK
from ostools.results import Frame, Provenance, Result
from ostools.results.table_head import TableHead
from ostools.runs.corpus.pairs import PAIRS, CorpusCollapse, assembled_pairs
from ostools.runs.reading import read
from ostools.theory import profiles
from ostools.theory.profiles import BINS, checked_bins, effective_tokens
from ostools.theory.statistics.intervals import FEWEST

KIND = "corpus-"
"""What the measurements of its cells begin with."""


@dataclass(frozen=True, eq=False)
class Corpus(
    Result,
    chart="corpus:corpus_chart",
    tables=(
        TableHead("summary"),
        TableHead("shapes"),
    ),
):
    """Profiles of many windows over relative position.

    `frame`, one row a length and bin: length, bin, start, end (of the bin, as parts of the window), then the share of the
    bin's tokens over its even share (1: as much as if all tokens were equal): mean over texts with low and high (95%
    bootstrap over texts), and over windows q10, q25, median, q75, q90.

    `summary`, one row a length: length, texts, windows, too_short (texts that were passed over), measure, linearisation,
    method, kind (measured | estimated), quantity; means over texts of sink_share (of the first token), last_share
    and effective_tokens; seconds, tokens_per_second (of the windows, while they were measured).

    `shapes`, one row a length and choice of tokens (`kept`: without the sink | without sink and last), in decades: verdict,
    start_contrast and end_contrast (mean over texts of that third's mean log10 minus the middle one's), each with _low,
    _high (95%, Student's t over texts) and _p.

    `windows`, one row a token of every window: length, window, text (its place in the corpus), start (the piece's first token
    among the text's own), position, token_id, value, share (of the window's sum).
    """

    summary: pd.DataFrame
    shapes: pd.DataFrame
    windows: pd.DataFrame


def read_corpus(directory: str | Path, *, bins: int | None = None) -> Corpus | CorpusCollapse:
    """The corpus that `ost.corpus(..., out=directory)` measured, read without its model. `bins`: of profiles, 32 by default.

    Raises `InputError` for a directory without a corpus, for one that is not complete, and for bins of a corpus of pairs.
    """
    if not isinstance(directory, str | Path):
        raise InputError(f"directory: expected one that ost.corpus made, found {short_repr(directory)}")
    broken: list[str] = []
    reading = read(directory, say=broken.append)
    cells = reading.cells
    if not cells or not all(cell.keyed_cell.cell.measurement.startswith(KIND) for cell in cells):
        raise InputError(f"{directory}: expected a directory that ost.corpus made, found another")
    if broken or (missing_count := len(cells) - len(reading.of("measured"))):
        why = broken[0] if broken else f"{missing_count} of {len(cells)} cells are missing"
        raise InputError(f"{directory}: expected a whole corpus, found that {why}; the same command measures the rest")
    sources = [cell.sources[0] for cell in cells]
    seconds: dict[int, float] = {}
    for cell, source in zip(cells, sources, strict=True):
        (length,) = cell.keyed_cell.cell.lengths
        seconds[length] = seconds.get(length, 0.0) + float(source["parameters"]["cell_seconds"])
    return assembled(reading.rows(cells[0].keyed_cell.cell.measurement), seconds, sources[0], bins)


def assembled(
    rows: Frame, seconds: Mapping[int, float], source: Mapping[str, Any], bins: int | None
) -> Corpus | CorpusCollapse:
    """The result of the rows of all cells; `source`: what a cell's numbers come from, as `Provenance` has it."""
    corpus_parameters = source["parameters"]["corpus"]
    bin_count = bins_of(bins, corpus_parameters["measure"], corpus_parameters["lengths"])
    model, versions, edits = source["model"], source["versions"], tuple(source["edits"])
    parameters = {**corpus_parameters, **({} if bin_count is None else {"bins": bin_count})}
    provenance = Provenance(model, parameters, None, versions, edits, source["time"], source.get("arithmetic", {}))
    if bin_count is None:
        return assembled_pairs(rows, seconds, provenance)
    return _profiles(rows, seconds, provenance, bin_count)


def _profiles(rows: Frame, seconds: Mapping[int, float], provenance: Provenance, bins: int) -> Corpus:
    parameters: Any = provenance.parameters
    frames, summary, shapes, windows = [], [], [], []
    for length in parameters["lengths"]:
        part: Any = rows.loc[rows["length"] == length, COLUMNS].reset_index(drop=True)
        shares, texts = _shares(part, length), part["text"].to_numpy()[::length]
        windows.append(part.assign(share=shares.ravel()))
        frames.append(_binned(shares, texts, length, bins))
        shapes += [
            {"length": length, "kept": kept_tokens} | _shape(shares, texts, kept_tokens)
            for kept_tokens in (NO_SINK, BETWEEN)
        ]
        summary.append(_summary(shares, texts, parameters, length, seconds[length]))
    tables = pd.DataFrame(summary), pd.DataFrame(shapes), pd.concat(windows, ignore_index=True)
    return Corpus(pd.concat(frames, ignore_index=True), provenance, *tables)


COLUMNS = ["length", "window", "text", "start", "position", "token_id", "value"]
"""Of the rows of a cell."""


def bins_of(bins: int | None, measure: str, lengths: Sequence[int]) -> int | None:
    """The bins of a measure of profiles, 32 unless given; None of a measure of pairs, which has none."""
    if measure != PAIRS:
        return checked_bins(BINS if bins is None else bins, lengths)
    if bins is not None:
        raise InputError(f"bins: expected it with a measure of profiles, found {measure!r}: leave it out")
    return None


def _shares(part: Any, length: int) -> np.ndarray:
    values = part["value"].to_numpy(dtype=float).reshape(-1, length)
    total = values.sum(1, keepdims=True)
    if not bool((np.isfinite(total) & (total > 0)).all()):
        raise InputError(
            f"corpus: expected profiles with a sum above 0, found one of length {length} without: it has no shares"
        )
    return values / total


def _binned(shares: np.ndarray, texts: np.ndarray, length: int, bins: int) -> pd.DataFrame:
    binned_shares = profiles.binned(shares, bins)
    means = profiles.text_means(binned_shares, texts)
    low, high = profiles.interval_of_mean(means)
    place = np.arange(bins)
    columns = {"length": length, "bin": place, "start": place / bins, "end": (place + 1) / bins}
    quantiles = {name: np.quantile(binned_shares, part, axis=0) for name, part in profiles.QUANTILES.items()}
    return pd.DataFrame({**columns, "mean": means.mean(0), "low": low, "high": high, **quantiles})


def _summary(shares: np.ndarray, texts: np.ndarray, parameters: Mapping[str, Any], length: int, seconds: float) -> dict:
    spread = np.array([effective_tokens(share) for share in shares])
    means = profiles.text_means(np.stack([shares[:, 0], shares[:, -1], spread], axis=1), texts)
    sink, last, effective = means.mean(0).tolist()
    return {
        "length": length,
        "texts": len(means),
        "windows": len(shares),
        "too_short": parameters["too_short"][str(length)],
        **{name: parameters[name] for name in ("measure", "linearisation", "method", "kind", "quantity")},
        "sink_share": sink,
        "last_share": last,
        "effective_tokens": effective,
        "seconds": seconds,
        "tokens_per_second": shares.size / seconds,
    }


def _shape(shares: np.ndarray, texts: np.ndarray, kept_tokens: str) -> dict[str, Any]:
    """The contrasts of the ends as columns; a verdict in words where there can be none."""
    kept_shares = shares[:, 1:-1] if kept_tokens == BETWEEN else shares[:, 1:]
    count, zeros = len(np.unique(texts)), int((kept_shares == 0).any(1).sum())
    no_contrasts = {
        f"{end}_contrast{part}": float("nan") for end in ("start", "end") for part in ("", "_low", "_high", "_p")
    }
    if kept_shares.shape[1] < profiles.FEWEST_TOKENS:
        return {
            "verdict": f"not tested: {kept_shares.shape[1]} tokens, {profiles.FEWEST_TOKENS} needed",
            **no_contrasts,
        }
    if count < FEWEST:
        return {"verdict": f"not tested: {count} texts, {FEWEST} needed", **no_contrasts}
    if zeros:
        return {"verdict": f"not tested: {zeros} of {len(kept_shares)} windows have tokens of value 0", **no_contrasts}
    contrasts = profiles.ends_over_texts(profiles.text_means(profiles.end_contrasts(np.log10(kept_shares)), texts))
    columns = {"verdict": contrasts.verdict}
    for name, interval in (("start", contrasts.start), ("end", contrasts.end)):
        for field in fields(interval):
            column = f"{name}_contrast" if field.name == "value" else f"{name}_contrast_{field.name}"
            columns[column] = getattr(interval, field.name)
    return columns
