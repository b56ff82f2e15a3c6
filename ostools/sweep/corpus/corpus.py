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
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ostools import hooks, mitigations
from ostools.ground.errors import OF_A_LEFT_HOOK, InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import Linearisation, SketchedMethod
from ostools.ground.progress import Progress, tell
from ostools.ground.whole_numbers import checked_lengths, whole_number
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.swept import Cell
from ostools.mitigations import Mitigation
from ostools.models import context_length, describe
from ostools.models.tokens import tokenizer_of
from ostools.results import Provenance
from ostools.sweep.cell_file import file_of
from ostools.sweep.cells import KeyedCell, code_version, digest, sources
from ostools.sweep.corpus.measures import PAIRS, MeasureName, WindowMeasure
from ostools.sweep.corpus.result import KIND, Corpus, CorpusCollapse, read_corpus
from ostools.sweep.corpus.texts import Window, WindowSet, draw, read_texts, texts_hash
from ostools.sweep.store import Store

TOKENS_PER_CELL = 1024
"""Tokens of the windows of one cell. An interrupt loses at most one cell."""


@measurement(
    command="sweep corpus",
    examples=(
        "--texts texts.jsonl --lengths 64,256 --cells kept --out x.png",
        "--texts texts.jsonl --measure collapse --dtypes bfloat16",
    ),
    lines_of=(sensitivity,),
    memory=["rows"],
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

    Raises `InputError` for texts that cannot be read or are all too short, and for `cells` while
    edits are active (a stored cell would not know of them). Cells measured before stay.
    """
    described = describe(model)
    what = WindowMeasure.from_options(
        measure, linearisation, method, dtypes, described.d_model, mitigation
    )
    length_list = _checked_lengths(model, lengths, measure)
    seed = whole_number("seed", seed, most=2**31 - 1)
    if cells is not None:
        _require_storable(model, what.mitigation)
    text_list, count = read_texts(texts), None if count is None else whole_number("count", count, 1)
    window_sets = draw(tokenizer_of(model), text_list, length_list, count=count, seed=seed)
    question = {
        "texts_sha256": texts_hash(text_list),
        "of_texts": len(text_list),
        "count": count,
        "seed": seed,
        "lengths": length_list,
        "too_short": {str(windows.length): windows.too_short for windows in window_sets},
        **what.as_dict,
        **{"weights": described.weight_hash, "config": described.config_hash},
    }
    run = CorpusRun(model, what, seed, Provenance.collect(model, corpus=question))
    with tempfile.TemporaryDirectory() if cells is None else nullcontext(cells) as directory:
        run.measure_missing(Store(Path(directory)), list(run.batches(window_sets)), progress)
        return read_corpus(directory)


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
    if mitigation is not None and mitigations.label(mitigation) == repr(mitigation):
        raise InputError(
            f"corpus: expected a mitigation that its name makes where cells are stored, found {mitigation!r}: give a "
            "name with options, or leave cells away"
        )


class Batch(NamedTuple):
    """Windows of one length, the first of which is number `first` of that length, as a cell of the
    store; `number` of all cells."""

    keyed_cell: KeyedCell
    number: int
    first: int
    windows: tuple[Window, ...]


@dataclass(frozen=True)
class CorpusRun:
    """Measures batches of windows with a model in memory. What a batch raises ends the run."""

    model: TransformerBridge
    what: WindowMeasure
    seed: int
    provenance: Provenance

    def batches(self, window_sets: Sequence[WindowSet]) -> Iterator[Batch]:
        """Windows of one length, as many as `TOKENS_PER_CELL` tokens hold, each batch under a key
        of all that defines its rows."""
        described, label = self.provenance.model, mitigations.label(self.what.mitigation)
        key = {
            "code": code_version(),
            "device": next(self.model.parameters()).device.type,
            "attention": described["attention_implementation"],
            "sources": sources(list(mitigations.parts(self.what.mitigation))),
        }
        number = 0
        for window_set in window_sets:
            step = max(1, TOKENS_PER_CELL // window_set.length)
            for first in range(0, len(window_set.windows), step):
                part = window_set.windows[first : first + step]
                windows = digest([asdict(window) for window in part])
                options = {**self.provenance.parameters, "batch": number, "windows": windows}
                cell = Cell(
                    str(described["name"]),
                    "corpus",
                    str(described["dtype"]),
                    label,
                    self.seed,
                    KIND + self.what.name,
                    json.dumps(options, sort_keys=True),
                    (window_set.length,),
                )
                base = digest({**key, **cell.columns, "options": cell.options})
                yield Batch(KeyedCell(cell, base), number, first, part)
                number += 1

    def measure_missing(
        self, store: Store, batches: Sequence[Batch], progress: Progress | None
    ) -> None:
        """Measure and store the batches that the store lacks, in their order."""
        keyed_cells = [batch.keyed_cell for batch in batches]
        with store.locked():
            identities = {keyed_cell.identity for keyed_cell in keyed_cells}
            if any(stored.identity not in identities for stored in store.planned_cells()):
                raise InputError(
                    f"{store.directory}: expected a new directory or that of this corpus, found another corpus or sweep: "
                    "give another directory, or ask the same of the same texts and model"
                )
            store.ask(keyed_cells)
            stored = store.files({keyed_cell.base for keyed_cell in keyed_cells})
            for done, batch in enumerate(batches):
                tell(progress, done, len(batches))
                if batch.keyed_cell.base in stored:
                    continue
                # An estimate draws directions of its own in every batch, so that its errors are not
                # the same in all.
                seed = self.seed + batch.number
                start = time.perf_counter()
                rows = self.what.rows(self.model, batch.windows, batch.first, seed)
                took = {**self.provenance.parameters, "cell_seconds": time.perf_counter() - start}
                source = replace(self.provenance, parameters=took)
                content = file_of(
                    batch.keyed_cell, rows, source, code=code_version(), checkpoint=""
                )
                store.add(batch.keyed_cell, content)
            tell(progress, len(batches), len(batches))
