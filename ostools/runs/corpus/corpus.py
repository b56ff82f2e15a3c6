"""A measurement over a corpus: the profile of every window that is drawn from many texts, in one run that can be interrupted.

Purpose: what a profile looks like in general, where one prompt shows one. Cost: that of the measurement, times the windows;
of the sensitivity windows of one length share their forward passes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

import hooks
import mitigations
from mitigations import Mitigation
from ostools.ground.errors import InputError, short_repr
from ostools.ground.progress import Progress, part_of, tell
from ostools.ground.whole_numbers import checked_lengths, whole_number
from ostools.measure.measurement import measurement
from ostools.models import context_length, describe
from ostools.models.tokens import tokenizer_of
from ostools.results import Frame, Provenance
from ostools.runs.asked.cells import code_version, digest, sources
from ostools.runs.corpus.measures import Measure
from ostools.runs.corpus.pairs import PAIRS, CorpusCollapse
from ostools.runs.corpus.result import KIND, Corpus, assembled, bins_of, read_corpus
from ostools.runs.corpus.texts import read_texts, texts_hash
from ostools.runs.corpus.windows import Window, WindowSet, draw
from ostools.runs.measurements.record import Cell
from ostools.runs.stored.store import KeyedCell, Store, file_of, missing

TOKENS_PER_CELL = 1024
"""Tokens of the windows of one cell. They share their passes, and an interrupt loses at most one cell."""
_MOST_SEED = 2**31 - 1


@dataclass(frozen=True)
class _Batch:
    """Windows of one length, the first of which is number `first` of that length, as a cell of the store."""

    keyed_cell: KeyedCell
    number: int
    first: int
    windows: tuple[Window, ...]

    @property
    def length(self) -> int:
        return len(self.windows[0].ids)


@dataclass(frozen=True)
class _Run:
    """What every batch is measured with."""

    model: TransformerBridge
    measure: Measure
    seed: int
    max_memory: int | None
    provenance: Provenance

    def rows(self, batch: _Batch, progress: Progress | None) -> tuple[Frame, Provenance]:
        """What was measured; and what it comes from, with the seconds that it took. An estimate draws directions of its own
        in every batch, so that its errors are not the same in all."""
        start = time.perf_counter()
        how: dict[str, Any] = {"seed": self.seed + batch.number, "max_memory": self.max_memory}
        table = self.measure.rows(self.model, batch.windows, batch.first, **how, progress=progress)
        took = {**self.provenance.parameters, "cell_seconds": time.perf_counter() - start}
        return table, replace(self.provenance, parameters=took)


def _nothing_said(text: str) -> None:
    pass


def _never() -> bool:
    return False


@overload
def corpus(
    model: TransformerBridge,
    texts: str | Path | Sequence[str],
    *,
    measure: Literal["collapse"],
    lengths: int | Sequence[int] = ...,
    dtypes: Sequence[str] | None = ...,
    count: int | None = ...,
    per_text: int = ...,
    field: str = ...,
    seed: int = ...,
    mitigation: Mitigation | str | None = ...,
    out: str | Path | None = ...,
    say: Callable[[str], None] = ...,
    progress: Progress | None = ...,
    interrupted: Callable[[], bool] = ...,
) -> CorpusCollapse: ...


@overload
def corpus(
    model: TransformerBridge,
    texts: str | Path | Sequence[str],
    *,
    lengths: int | Sequence[int] = ...,
    measure: str = ...,
    linearisation: str | None = ...,
    method: str | None = ...,
    dtypes: Sequence[str] | None = ...,
    count: int | None = ...,
    per_text: int = ...,
    field: str = ...,
    bins: int | None = ...,
    seed: int = ...,
    mitigation: Mitigation | str | None = ...,
    out: str | Path | None = ...,
    max_memory: int | None = ...,
    say: Callable[[str], None] = ...,
    progress: Progress | None = ...,
    interrupted: Callable[[], bool] = ...,
) -> Corpus: ...


@measurement(
    command="sweep corpus",
    examples=(
        "--texts texts.jsonl --lengths 64,256 --cells kept --out x.png",
        "--texts texts.jsonl --measure collapse --dtype bfloat16",
    ),
    renamed={"out": "cells"},
    lines_of=("measure.jacobian.sensitivity:sensitivity",),
    check="corpus",
)
def corpus(
    model: TransformerBridge,
    texts: str | Path | Sequence[str],
    *,
    lengths: int | Sequence[int] = (64, 256, 1024),
    measure: str = "sensitivity",
    linearisation: str | None = None,
    method: str | None = None,
    dtypes: Sequence[str] | None = None,
    count: int | None = None,
    per_text: int = 1,
    field: str = "text",
    bins: int | None = None,
    seed: int = 0,
    mitigation: Mitigation | str | None = None,
    out: str | Path | None = None,
    max_memory: int | None = None,
    say: Callable[[str], None] = _nothing_said,
    progress: Progress | None = None,
    interrupted: Callable[[], bool] = _never,
) -> Corpus | CorpusCollapse:
    """Profiles of windows of text over relative position: mean, interval over texts, quantiles, and
    whether it is a U.

    With `measure="collapse"`: how far a window and the same window with its last token once more are apart, against the noise.

    Args:
        texts: a file of texts, or a list of them. A file is `.jsonl` with a key `field`, `.parquet`
            with a column `field`, or plain text with empty lines between its texts.
        lengths: tokens of a window, including the special tokens that the tokenizer puts around any text. Texts that are too
            short for a window are passed over and counted. Padding is not used.
        measure: what is measured of a window: sensitivity, attention or collapse. "sensitivity" is
            ||d y_n / d v_i^(0)||: the operator norm, or the Frobenius norm for an estimate.
            "attention" is the last token's weights, the mean over layers and heads. "collapse" is
            the pair of Theorem 4.2.
        linearisation: what the sensitivity holds constant, as in `ost.sensitivity`; of that measure
            alone. The default is "full".
        method: how norms are taken, as in `ost.sensitivity`; of that measure alone. The default,
            "exact" or "sketch", goes by the model's width, and not by the memory that is free.
        dtypes: precisions, as in `ost.collapse`; of that measure alone. The default is float32 and
            bfloat16. Each is compared with float64.
        count: how many texts for each length; None: all that are long enough.
        per_text: the most windows of one text. They do not overlap.
        field: the key or column that holds the texts.
        bins: bins of relative position, 32 by default, and at most the tokens of the shortest
            window. "collapse" has no bins.
        seed: seed of the texts, of the windows in them, and of an estimate. The k-th cell of an
            estimate draws its directions by seed + k.
        mitigation: a `mitigations.Mitigation` of the forward pass or its name with options ("sliding-window:window=16"). It
            has to change a logit of every window (of the longer prompt, for a pair), so a sliding window at least as wide as
            the windows of text is refused. If cells are stored, its name has to make it again.
        out: a directory in which every cell (some 1,024 tokens) is kept once it is measured. The same call resumes, and
            `runs.read_corpus` reads it without the model. A directory holds one corpus. None: cells are not kept.
        max_memory: bytes that the run may take beside the model; the default is what is free.
        say: called with one line for texts that are passed over, and for broken files.
        interrupted: asked after each cell. If it says so, that cell is dropped, and KeyboardInterrupt is raised.

    For untrained models, pass `ost.untrained_model(model)` and another directory. Raises `InputError` for texts that cannot be
    read, if all texts are too short, for unknown names, for a directory that holds something else, for `out` while edits are
    active (a stored cell would not know of them), and for whatever the measurement refuses. Cells that were measured before
    stay.
    """
    described = describe(model)
    what = Measure.from_options(measure, linearisation, method, dtypes, described.d_model, mitigation)
    length_list, seed = checked_lengths(lengths), whole_number("seed", seed)
    if seed > _MOST_SEED:
        raise InputError(f"seed: expected at most {_MOST_SEED}, found {seed}")
    most, words = context_length(model), "the context"
    if measure == PAIRS:
        most, words = most - 1, "the context, less the token that is repeated"
    if (longest := length_list[-1]) > most:
        raise InputError(f"lengths: expected at most {most} tokens ({words}), found {longest}")
    bins_of(bins, measure, length_list)
    if not isinstance(out, str | Path | None):
        raise InputError(f"out: expected a directory or None, found {short_repr(out)}")
    edits = hooks.active_edits(model)
    if out is not None and edits:
        raise InputError(
            f"corpus: expected a model without edits where cells are stored, found {edits[0].kind!r} at {edits[0].where}: "
            "leave its block, or leave out away"
        )
    if out is not None and what.mitigation is not None and not _made_by_name(what.mitigation):
        raise InputError(
            f"corpus: expected a mitigation that its name makes where cells are stored, found {what.mitigation!r}: give a "
            "name with options, or leave out away"
        )
    sample = sample_windows(tokenizer_of(model), read_texts(texts, field), length_list, count, per_text, seed, say)
    question = {**sample.question, **what.as_dict, "weights": described.weight_hash, "config": described.config_hash}
    provenance = Provenance.collect(model, corpus=question)
    device = next(model.parameters()).device.type
    batches = list(_batches(sample.window_sets, question, what.mitigation, provenance, device))
    run = _Run(model, what, seed, max_memory, provenance)
    if out is None:
        measured_batches = [
            run.rows(batch, part_of(progress, k, k + 1, len(batches), units=100)) for k, batch in enumerate(batches)
        ]
        seconds = dict.fromkeys(length_list, 0.0)
        for batch, (_, batch_provenance) in zip(batches, measured_batches, strict=True):
            seconds[batch.length] += batch_provenance.parameters["cell_seconds"]
        rows = pd.concat([table for table, _ in measured_batches], ignore_index=True)
        return assembled(rows, seconds, measured_batches[0][1].as_dict(), bins)
    _store_all(run, batches, Store(Path(out), say), say, progress, interrupted)
    return read_corpus(out, bins=bins)


def _made_by_name(mitigation: Mitigation) -> bool:
    """Whether the label, which stands in the keys of cells, makes an equal mitigation."""
    try:
        return mitigations.mitigation(mitigations.label(mitigation)) == mitigation
    except mitigations.MitigationError:
        return False


@dataclass(frozen=True)
class WindowSample:
    """Windows that were drawn, and what they were drawn by."""

    window_sets: tuple[WindowSet, ...]
    question: dict[str, Any]


def sample_windows(
    tokenizer: Any,
    texts: Sequence[str],
    lengths: Sequence[int],
    count: int | None,
    per_text: int,
    seed: int,
    say: Callable[[str], None] = _nothing_said,
) -> WindowSample:
    """The windows of a corpus, by its tokenizer alone: no model is loaded for a forecast."""
    count = None if count is None else whole_number("count", count, 1)
    per_text = whole_number("per_text", per_text, 1)
    window_sets = tuple(draw(tokenizer, texts, lengths, count=count, per_text=per_text, seed=seed))
    for window_set in window_sets:
        text_count = len({window.text for window in window_set.windows})
        if window_set.too_short or (count is not None and text_count < count):
            asked_for = "" if count is None else f" of {count} asked for"
            say(
                f"length {window_set.length}: {text_count} texts{asked_for}; {window_set.too_short} were too short "
                "and passed over"
            )
    settings = {"texts_sha256": texts_hash(texts), "of_texts": len(texts), "count": count, "per_text": per_text}
    short = {str(window_set.length): window_set.too_short for window_set in window_sets}
    return WindowSample(window_sets, {**settings, "seed": seed, "lengths": list(lengths), "too_short": short})


def _batches(
    window_sets: Sequence[WindowSet],
    question: dict[str, Any],
    mitigation: Mitigation | None,
    provenance: Provenance,
    device: str,
) -> Iterator[_Batch]:
    """The cells: windows of one length, as many as `TOKENS_PER_CELL` tokens hold, each under a key of all that
    defines its rows."""
    number, code = 0, code_version("runs/corpus")
    label, source_hashes = mitigations.label(mitigation), sources(list(mitigations.parts(mitigation)))
    name, dtype = str(provenance.model["name"]), str(provenance.model["dtype"])
    for window_set in window_sets:
        step = max(1, TOKENS_PER_CELL // window_set.length)
        for first in range(0, len(window_set.windows), step):
            windows = window_set.windows[first : first + step]
            batch_options = {"batch": number, "windows": digest([asdict(window) for window in windows])}
            options = json.dumps({"corpus": question, **batch_options}, sort_keys=True)
            kind = KIND + question["measure"]
            cell = Cell(name, "corpus", dtype, label, question["seed"], kind, options, (window_set.length,))
            key = {**cell.columns, "options": options, "code": code, "device": device, **source_hashes}
            key |= {"attention": provenance.model["attention_implementation"]}
            yield _Batch(KeyedCell(cell, digest(key)), number, first, windows)
            number += 1


def _store_all(
    run: _Run,
    batches: Sequence[_Batch],
    store: Store,
    say: Callable[[str], None],
    progress: Progress | None,
    interrupted: Callable[[], bool],
) -> None:
    """Measure and store every cell that is not there. Each appears whole or not at all."""
    with store.locked():
        ours = {batch.keyed_cell.identity for batch in batches}
        if any(keyed_cell.identity not in ours for keyed_cell in store.planned_cells()):
            raise InputError(
                f"{store.directory}: expected a new directory or that of this corpus, found another corpus or sweep: give "
                "another directory, or ask the same of the same texts and model"
            )
        if replaced := store.ask([batch.keyed_cell for batch in batches]):
            say(f"{replaced} cells were measured before with other code or versions, and are measured again")
        stored = store.stored()
        pending = [
            batch for batch in batches if missing(batch.keyed_cell, stored.get(batch.keyed_cell.base, [])) is not None
        ]
        tell(progress, 0, max(len(pending), 1))
        for batches_done, batch in enumerate(pending):
            rows, provenance = run.rows(
                batch, part_of(progress, batches_done, batches_done + 1, len(pending), units=100)
            )
            if interrupted():
                raise KeyboardInterrupt
            store.add(
                batch.keyed_cell,
                file_of(batch.keyed_cell, rows, provenance, code=code_version("runs/corpus"), checkpoint=""),
            )
