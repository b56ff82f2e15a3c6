"""Collapse as rows that can be stored and read back: the float64 distances stand beside what they are the reference of."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ostools.measure.collapse.result import Collapse
from ostools.measure.collapse.run import CURVE
from ostools.measure.collapse.verdicts import MEASURED
from ostools.results import Column, Frame, Provenance

_PAIR = [name for name in CURVE if name != "weights"]
_RELATIVE = {"relative": "float64_relative"}
_STORED = {"distance": "float64_distance"} | _RELATIVE
_AS_GIVEN = {"distance": "given_distance", "relative": "given_relative"}


def as_rows(result: Collapse) -> pd.DataFrame:
    """`result.frame` with three columns more: the size of `float64_distance` relative to v's (`float64_relative`), and the L2
    distance in float64 of the weights as given, and its relative size (`given_distance`, `given_relative`).

    On the L2 rows of whole vectors; NA elsewhere, as a reference has no other.
    """
    frame, reference = result.frame, result.reference
    reference_rows: Any = reference[reference["weights"] == "given"].drop(columns="weights")
    stored: Any = reference.drop(columns="distance").rename(columns=_RELATIVE)
    rows: Any = frame.merge(stored, on=CURVE, how="left", validate="many_to_one")
    rows = rows.merge(reference_rows.rename(columns=_AS_GIVEN), on=_PAIR, how="left", validate="many_to_one")
    of_vectors = _of_vectors(rows)
    for name in (*_RELATIVE.values(), *_AS_GIVEN.values()):
        rows[name] = rows[name].where(of_vectors)
    return rows


def _of_vectors(rows: Frame) -> Column:
    """Where a reference has a distance too: after the last block."""
    last = rows["layer"] == rows["layer"].max() if "layer" in rows else True
    return (rows["per"] == "vector") & (rows["norm"] == "l2") & last


def from_rows(rows: pd.DataFrame, provenance: Provenance) -> Collapse:
    """The result that `as_rows` was given, or several of them as one; of rows without those columns, with no reference."""
    columns = ["task", "pair", "seed", "weights", "length", "site", "distance", "relative"]
    added = [name for name in (*_RELATIVE.values(), *_AS_GIVEN.values()) if name in rows]
    frame: Any = rows.drop(columns=added)
    parts = []
    for names, weights in ((_STORED, None), (_AS_GIVEN, "given")):
        if set(names.values()) <= set(rows.columns):
            part: Any = rows[_of_vectors(rows) & rows[names["distance"]].notna()]
            part = part if weights is None else part.assign(weights=weights)
            parts.append(part[[*CURVE, *names.values()]].rename(columns={new: old for old, new in names.items()}))
    # Rows of an earlier version: of the last layer alone, and some without the distance that collapse lengths are read from.
    earlier = {"layer": provenance.model.get("n_layers", 0), "float64_distance": float("nan"), "status": MEASURED}
    frame = frame.assign(**{name: value for name, value in earlier.items() if name not in frame})
    reference: Any = pd.concat(parts) if parts else frame.iloc[:0].assign(distance=0.0, relative=0.0)
    reference = reference.drop_duplicates(CURVE, ignore_index=True)
    return Collapse(frame.reset_index(drop=True), provenance, reference[columns])
