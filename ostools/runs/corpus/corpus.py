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
from typing import Any

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

import hooks
import mitigations
from mitigations import Mitigation
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress, part_of, tell
from ostools.ground.whole_numbers import checked_lengths, whole_number
from ostools.measure.measurement import measurement
from ostools.measure.swept import Cell
from ostools.models import context_length, describe
from ostools.models.tokens import tokenizer_of
from ostools.results import Frame, Provenance
from ostools.runs.cell_file import file_of
from ostools.runs.cells import KeyedCell, code_version, digest, sources
from ostools.runs.corpus.measures import Measure
from ostools.runs.corpus.pairs import PAIRS, CorpusCollapse
from ostools.runs.corpus.result import KIND, Corpus, assembled, bins_of, read_corpus
from ostools.runs.corpus.windows import Window, WindowSet, draw, read_texts, texts_hash
from ostools.runs.store import Store

TOKENS_PER_CELL = 1024
"""Tokens of the windows of one cell. They share their passes, and an interrupt loses at most one cell."""
_MOST_SEED = 2**31 - 1


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
    say: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Corpus | CorpusCollapse:
    """Profiles of windows of text over relative position: mean, interval over texts, quantiles, and
    whether it is a U; with `measure="collapse"` how far a window and the window with its last token
    once more are apart, against the noise.

    Args:
        texts: a list of texts, or a file: .jsonl with a key `field`, .parquet with a column
            `field`, or plain text with empty lines between its texts.
        lengths: tokens of a window, special tokens included. Texts that are too short are passed
            over and counted. Padding is not used.
        measure: "sensitivity", "attention" (the last token's, mean over layers and heads) or
            "collapse" (the pair of Theorem 4.2). An estimated sensitivity is the Frobenius norm.
        linearisation: what the sensitivity holds constant, as in `ost.sensitivity`; "full" if None.
        method: of the sensitivity's norms; if None, "exact" or "sketch" by the model's width.
        dtypes: of "collapse", each compared with float64; if None, float32 and bfloat16.
        count: how many texts for each length; None: all that are long enough.
        per_text: the most windows of one text. They do not overlap.
        field: the key or column that holds the texts.
        bins: bins of relative position, 32 by default; "collapse" has none.
        seed: of the texts, the windows, and an estimate, whose k-th cell takes seed + k.
        mitigation: of the forward pass. It has to change a logit of every window; where cells are
            stored, its name with options ("sliding-window:window=16") has to make it again.
        out: a directory that keeps every cell (some 1,024 tokens). The same call resumes, and
            `runs.read_corpus` reads it without the model. A directory holds one corpus.
        max_memory: bytes that the run may take beside the model; the default is what is free.
        say: called with one line for texts that are passed over, and for broken files.
        interrupted: asked after each cell; if so that cell is dropped, by KeyboardInterrupt.

    For untrained models, pass `ost.untrained_model(model)` and another directory. Raises `InputError` for
    texts that cannot be read or are all too short, for `out` while edits are active (a stored cell
    would not know of them), and for what the measurement refuses. Cells measured before stay.
    """
    described = describe(model)
    what = Measure.from_options(measure, linearisation, method, dtypes, described.d_model, mitigation)
    length_list, seed = _checked_lengths(model, lengths, measure), whole_number("seed", seed)
    if seed > _MOST_SEED:
        raise InputError(f"seed: expected at most {_MOST_SEED}, found {seed}")
    bins_of(bins, measure, length_list)
    if out is not None:
        _require_storable(model, what.mitigation)
    window_sets, drawn_by = _sampled(model, read_texts(texts, field), length_list, count, per_text, seed, say)
    question = {**drawn_by, **what.as_dict, "weights": described.weight_hash, "config": described.config_hash}
    run = _Run(model, what, seed, max_memory, Provenance.collect(model, corpus=question))
    batches = list(_batches(run, window_sets, question))
    if out is None:
        return _assembled(list(_measured(run, batches, progress, interrupted)), bins)
    _store_all(run, batches, Store(Path(out), say), progress, interrupted)
    return read_corpus(out, bins=bins)


def _checked_lengths(model: TransformerBridge, lengths: int | Sequence[int], measure: str) -> list[int]:
    length_list, most, words = checked_lengths(lengths), context_length(model), "the context"
    if measure == PAIRS:
        most, words = most - 1, "the context, less the token that is repeated"
    if (longest := length_list[-1]) > most:
        raise InputError(f"lengths: expected at most {most} tokens ({words}), found {longest}")
    return length_list


def _require_storable(model: TransformerBridge, mitigation: Mitigation | None) -> None:
    """Refuse what the key of a cell would not know of: edits, and a mitigation that its label does not make again."""
    if edits := hooks.active_edits(model):
        raise InputError(
            f"corpus: expected a model without edits where cells are stored, found {edits[0].kind!r} at {edits[0].where}: "
            "leave its block, or leave out away"
        )
    if mitigation is not None and not _made_by_name(mitigation):
        raise InputError(
            f"corpus: expected a mitigation that its name makes where cells are stored, found {mitigation!r}: give a "
            "name with options, or leave out away"
        )


def _made_by_name(mitigation: Mitigation) -> bool:
    try:
        return mitigations.mitigation(mitigations.label(mitigation)) == mitigation
    except mitigations.MitigationError:
        return False


def _sampled(
    model: TransformerBridge,
    texts: Sequence[str],
    lengths: Sequence[int],
    count: int | None,
    per_text: int,
    seed: int,
    say: Callable[[str], None],
) -> tuple[list[WindowSet], dict[str, Any]]:
    """The windows of each length, and what they were drawn by. Tells of texts that are passed over."""
    count = None if count is None else whole_number("count", count, 1)
    per_text = whole_number("per_text", per_text, 1)
    window_sets = draw(tokenizer_of(model), texts, lengths, count=count, per_text=per_text, seed=seed)
    for window_set in window_sets:
        text_count = len({window.text for window in window_set.windows})
        if window_set.too_short or (count is not None and text_count < count):
            asked_for = "" if count is None else f" of {count} asked for"
            say(
                f"length {window_set.length}: {text_count} texts{asked_for}; {window_set.too_short} were too short "
                "and passed over"
            )
    settings = {"texts_sha256": texts_hash(texts), "of_texts": len(texts), "count": count, "per_text": per_text}
    too_short = {str(window_set.length): window_set.too_short for window_set in window_sets}
    return window_sets, {**settings, "seed": seed, "lengths": list(lengths), "too_short": too_short}


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
        """The rows of a batch; and what they come from, with the seconds that they took. An estimate draws directions of its
        own in every batch, so that its errors are not the same in all."""
        start = time.perf_counter()
        how: dict[str, Any] = {"seed": self.seed + batch.number, "max_memory": self.max_memory}
        table = self.measure.rows(self.model, batch.windows, batch.first, **how, progress=progress)
        took = {**self.provenance.parameters, "cell_seconds": time.perf_counter() - start}
        return table, replace(self.provenance, parameters=took)


def _batches(run: _Run, window_sets: Sequence[WindowSet], question: dict[str, Any]) -> Iterator[_Batch]:
    """The cells: windows of one length, as many as `TOKENS_PER_CELL` tokens hold, each under a key of all that
    defines its rows."""
    number, code, provenance, mitigation = 0, code_version("runs/corpus"), run.provenance, run.measure.mitigation
    label, source_hashes = mitigations.label(mitigation), sources(list(mitigations.parts(mitigation)))
    name, dtype = str(provenance.model["name"]), str(provenance.model["dtype"])
    device = next(run.model.parameters()).device.type
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


_Measured = tuple[_Batch, Frame, Provenance]


def _measured(
    run: _Run, batches: Sequence[_Batch], progress: Progress | None, interrupted: Callable[[], bool]
) -> Iterator[_Measured]:
    for index, batch in enumerate(batches):
        rows, provenance = run.rows(batch, part_of(progress, index, index + 1, len(batches), units=100))
        if interrupted():
            raise KeyboardInterrupt
        yield batch, rows, provenance


def _assembled(measured_batches: Sequence[_Measured], bins: int | None) -> Corpus | CorpusCollapse:
    """The result of batches that were not stored."""
    seconds: dict[int, float] = {}
    for batch, _, provenance in measured_batches:
        seconds[batch.length] = seconds.get(batch.length, 0.0) + provenance.parameters["cell_seconds"]
    rows = pd.concat([table for _, table, _ in measured_batches], ignore_index=True)
    return assembled(rows, seconds, measured_batches[0][2].as_dict(), bins)


def _store_all(
    run: _Run,
    batches: Sequence[_Batch],
    store: Store,
    progress: Progress | None,
    interrupted: Callable[[], bool],
) -> None:
    """Measure and store every cell that is not there. Each appears whole or not at all."""
    with store.locked():
        identities = {batch.keyed_cell.identity for batch in batches}
        if any(keyed_cell.identity not in identities for keyed_cell in store.planned_cells()):
            raise InputError(
                f"{store.directory}: expected a new directory or that of this corpus, found another corpus or sweep: give "
                "another directory, or ask the same of the same texts and model"
            )
        if replaced := store.ask([batch.keyed_cell for batch in batches]):
            store.say(f"{replaced} cells were measured before with other code or versions, and are measured again")
        stored = store.stored()
        pending = [batch for batch in batches if batch.keyed_cell.missing(stored.get(batch.keyed_cell.base, []))]
        tell(progress, 0, max(len(pending), 1))
        code = code_version("runs/corpus")
        for batch, rows, provenance in _measured(run, pending, progress, interrupted):
            store.add(batch.keyed_cell, file_of(batch.keyed_cell, rows, provenance, code=code, checkpoint=""))
