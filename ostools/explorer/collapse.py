"""What the page shows of a collapse: at each length and in each dtype the distance, its floors, and whether it is hidden."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ostools.measure import Collapse
from ostools.measure.collapse.verdicts import Reading
from ostools.reporting.findings.collapse import collapse_findings
from ostools.results import Frame

_COLUMNS = {"distance": "mean", "float64": "float64_distance", "noise": "pair_noise", "step": "machine_line"}


def lengths(result: Collapse) -> dict[str, Any]:
    """The distance at y in L2 (whole vectors), by dtype and length; with it the float64 distance, the rounding noise of the
    difference and one representable step. `hidden`: the float64 distance is below that noise, or y and y* are the same numbers.
    `from`: where the first range of hidden lengths begins, None without one; `status`: the verdict in words. A dtype that
    overflows has no row here; the findings say so."""
    rows: Frame = Reading.with_defaults("y", None, "l2").of(result.measured())
    ends: Any = result.verdicts().query("site == 'y'").set_index("dtype")
    hidden: Any = result.hidden().query("site == 'y'")
    dtypes = []
    for name, dtype_rows in rows.groupby("dtype", sort=False):
        dtype_rows, end = dtype_rows.sort_values("length"), ends.loc[name]
        at = hidden[hidden["dtype"] == name].sort_values("length")
        dtypes.append(
            {
                "dtype": str(name),
                **{key: dtype_rows[column].tolist() for key, column in _COLUMNS.items()},
                "hidden": at["hidden"].tolist(),
                "from": None if pd.isna(end["first"]) else int(end["first"]),
                "status": str(end["status"]),
            }
        )
    return {"lengths": sorted(set(rows["length"].tolist())), "dtypes": dtypes}


def findings(result: Collapse) -> list[str]:
    """The findings, as the command says them."""
    return collapse_findings(result, result.provenance.model.get("trained_lengths"))
