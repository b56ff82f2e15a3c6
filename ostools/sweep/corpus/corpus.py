"""A measurement over a corpus: the profile of a window of each of many texts, in one run that can
be interrupted.

Purpose: what a profile looks like in general, where one prompt shows one. It is a sweep whose
prompts come from texts: its cells are kept in the same store, and resumed by the same call. Cost:
that of the measurement, times the windows.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ostools import hooks, mitigations
from ostools.ground.errors import OF_A_LEFT_HOOK, InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import Linearisation, SketchedMethod
from ostools.ground.progress import Progress
from ostools.ground.whole_numbers import checked_lengths, whole_number
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.swept import Cell
from ostools.measure.unloaded import Unloaded
from ostools.mitigations import Mitigation, optional
from ostools.models import context_length, describe
from ostools.models.tokens import tokenizer_of
from ostools.results import Provenance
from ostools.sweep.cells import KeyedCell, code_version, digest, sources
from ostools.sweep.corpus.measures import PAIRS, Measure, MeasureName
from ostools.sweep.corpus.result import KIND, Corpus, CorpusCollapse, read_corpus
from ostools.sweep.corpus.texts import Window, draw, read_texts, texts_hash
from ostools.sweep.executor import CellOutcome, Executor, Job, Terms
from ostools.sweep.run import measure_missing, plan_of
from ostools.sweep.store import Store

TOKENS_PER_CELL = 1024
"""Tokens of the windows of one cell. An interrupt loses at most one cell."""
_MOST_SEED = 2**31 - 1


@measurement(
    command="sweep corpus",
    examples=(
        "--texts texts.jsonl --lengths 64,256 --cells kept --out x.png",
        "--texts texts.jsonl --measure collapse --dtypes bfloat16",
    ),
    lines_of=(sensitivity,),
    memory=lambda: corpus_memory,
)
def corpus(
    model: TransformerBridge,
    texts: str | Path | Sequence[str],
    *,
    lengths: int | Sequence[int] = (64, 256, 1024),
    measure: MeasureName = "sensitivity",
    linearisation: Linearisation | None = None,
    method: SketchedMethod | None = None,
    dtypes: Sequence[str] | None = None,
    count: int | None = None,
    seed: int = 0,
    mitigation: Mitigation | str | None = None,
    cells: str | Path | None = None,
    progress: Progress | None = None,
) -> Corpus | CorpusCollapse:
    """Profiles of windows of text over relative position, with intervals over texts; or with
    `measure="collapse"` how far a window and the window with its last token once more are apart.

    Args:
        texts: a list of texts, or a file: .jsonl with a key "text", .parquet with a column "text",
            or plain text with empty lines between its texts. Of each text one window is taken.
        lengths: tokens of a window, special tokens included. Texts that are too short are passed
            over and counted (`too_short`). Padding is not used.
        measure: "sensitivity", or "collapse" (the pair of Theorem 4.2). An estimated sensitivity is
            the Frobenius norm.
        linearisation: what the sensitivity holds constant, as in `ost.sensitivity`; "full" if None.
        method: of the sensitivity's norms; if None, "exact" or "sketch" by the model's width.
        dtypes: of "collapse", each compared with float64; if None, float32 and bfloat16.
        count: how many texts for each length; None: all that are long enough.
        seed: of the texts, the windows, and an estimate, whose k-th cell takes seed + k.
        mitigation: of the forward pass. It has to change a logit of every window; where cells are
            stored, its name with options ("sliding-window:window=16") has to make it again.
        cells: a directory that keeps every cell (some 1,024 tokens). The same call resumes, and
            `sweep.read_corpus` reads it without the model. A directory holds one corpus.

    Raises `InputError` for texts that cannot be read or are all too short, for `cells` while edits
    are active (a stored cell would not know of them), and for what the measurement refuses. Cells
    measured before stay.
    """
    described = describe(model)
    what = Measure.from_options(
        measure, linearisation, method, dtypes, described.d_model, mitigation
    )
    length_list, seed = _checked_lengths(model, lengths, measure), whole_number("seed", seed)
    if seed > _MOST_SEED:
        raise InputError(f"seed: expected at most {_MOST_SEED}, found {seed}")
    if cells is not None:
        _require_storable(model, what.mitigation)
    text_list, count = read_texts(texts), None if count is None else whole_number("count", count, 1)
    window_sets = draw(tokenizer_of(model), text_list, length_list, count=count, seed=seed)
    question = {
        "texts_sha256": texts_hash(text_list),
        "of_texts": len(text_list),
        "count": count,
        "seed": seed,
    }
    too_short = {str(window_set.length): window_set.too_short for window_set in window_sets}
    question |= {"lengths": length_list, "too_short": too_short}
    question |= {**what.as_dict, "weights": described.weight_hash, "config": described.config_hash}
    windows = _Windows(model, what, seed, Provenance.collect(model, corpus=question))
    batches = list(_batches(windows, [window_set.windows for window_set in window_sets]))
    if cells is not None:
        return _measured(windows, batches, Path(cells), progress)
    with tempfile.TemporaryDirectory(prefix="ostools-corpus-") as directory:
        return _measured(windows, batches, Path(directory), progress)


def _checked_lengths(
    model: TransformerBridge, lengths: int | Sequence[int], measure: str
) -> list[int]:
    length_list, most, words = checked_lengths(lengths), context_length(model), "the context"
    if measure == PAIRS:
        most, words = most - 1, "the context, less the token that is repeated"
    if (longest := length_list[-1]) > most:
        raise InputError(f"lengths: expected at most {most} tokens ({words}), found {longest}")
    return length_list


def _require_storable(model: TransformerBridge, mitigation: Mitigation | None) -> None:
    """Refuse what the key of a cell would not know of: edits, and a mitigation that its label does
    not make again.
    """
    if edits := hooks.active_edits(model):
        raise InputError(
            f"corpus: expected a model without edits where cells are stored, found {edits[0].kind!r} at {edits[0].where}: "
            f"leave its block, or leave cells away{OF_A_LEFT_HOOK}"
        )
    made = None
    with suppress(mitigations.MitigationError):
        made = mitigations.mitigation(mitigations.label(mitigation))
    if mitigation is not None and made != mitigation:
        raise InputError(
            f"corpus: expected a mitigation that its name makes where cells are stored, found {mitigation!r}: give a "
            "name with options, or leave cells away"
        )


@dataclass(frozen=True)
class _Batch:
    """Windows of one length, the first of which is number `first` of that length, as a cell of the
    store.
    """

    keyed_cell: KeyedCell
    number: int
    first: int
    windows: tuple[Window, ...]


@dataclass(frozen=True)
class _Windows(Executor):
    """Measures batches with a model in memory. What a batch raises ends the run, and is not
    recorded.
    """

    model: TransformerBridge
    what: Measure
    seed: int
    provenance: Provenance
    batches: tuple[_Batch, ...] = ()

    def device(self, device: str = "") -> str:
        return next(self.model.parameters()).device.type

    def measure(self, jobs: Sequence[Job], terms: Terms) -> Generator[CellOutcome, None, None]:
        batch_by_cell = {batch.keyed_cell: batch for batch in self.batches}
        for job in jobs:
            batch, start = batch_by_cell[job.keyed_cell], time.perf_counter()
            # An estimate draws directions of its own in every batch, so that its errors are not the
            # same in all.
            rows = self.what.rows(self.model, batch.windows, batch.first, self.seed + batch.number)
            took = {**self.provenance.parameters, "cell_seconds": time.perf_counter() - start}
            yield job.keyed_cell, (rows, replace(self.provenance, parameters=took))


def _batches(windows: _Windows, window_sets: Sequence[Sequence[Window]]) -> Iterator[_Batch]:
    """The cells: windows of one length, as many as `TOKENS_PER_CELL` tokens hold, each under a key
    of all that defines its rows."""
    number, code, provenance, mitigation = (
        0,
        code_version(),
        windows.provenance,
        windows.what.mitigation,
    )
    label, source_hashes = (
        mitigations.label(mitigation),
        sources(list(mitigations.parts(mitigation))),
    )
    name, dtype, question = (
        str(provenance.model["name"]),
        str(provenance.model["dtype"]),
        provenance.parameters,
    )
    key = {"code": code, "device": windows.device(), **source_hashes}
    key |= {"attention": provenance.model["attention_implementation"]}
    for window_set in window_sets:
        length = len(window_set[0].ids)
        step = max(1, TOKENS_PER_CELL // length)
        for first in range(0, len(window_set), step):
            part = tuple(window_set[first : first + step])
            batch_options = {
                "batch": number,
                "windows": digest([asdict(window) for window in part]),
            }
            options = json.dumps({**question, **batch_options}, sort_keys=True)
            cell = Cell(
                name,
                "corpus",
                dtype,
                label,
                windows.seed,
                KIND + windows.what.name,
                options,
                (length,),
            )
            yield _Batch(
                KeyedCell(cell, digest({**key, **cell.columns, "options": options})),
                number,
                first,
                part,
            )
            number += 1


def _measured(
    windows: _Windows, batches: Sequence[_Batch], directory: Path, progress: Progress | None
) -> Corpus | CorpusCollapse:
    store, keyed_cells = Store(directory), [batch.keyed_cell for batch in batches]
    windows = replace(windows, batches=tuple(batches))
    with store.locked():
        identities = {keyed_cell.identity for keyed_cell in keyed_cells}
        if any(keyed_cell.identity not in identities for keyed_cell in store.planned_cells()):
            raise InputError(
                f"{directory}: expected a new directory or that of this corpus, found another corpus or sweep: give "
                "another directory, or ask the same of the same texts and model"
            )
        terms = Terms(windows.device(), {keyed_cells[0].cell.model: ""}, code_version())
        measure_missing(store, plan_of(store, keyed_cells, terms), windows, progress=progress)
    return read_corpus(directory)


def corpus_memory(
    model: Unloaded,
    *,
    lengths: Sequence[int],
    measure: MeasureName = "sensitivity",
    linearisation: Linearisation | None = None,
    method: SketchedMethod | None = None,
    dtypes: Sequence[str] | None = None,
    mitigation: Mitigation | str | None = None,
) -> int:
    """Bytes of a window of the greatest length."""
    d_model = model.shape.d_model
    measured = Measure.from_options(
        measure, linearisation, method, dtypes, d_model, optional(mitigation)
    )
    return max(measured.memory(model.shape, length, model.limit) for length in lengths)
