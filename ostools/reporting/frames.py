"""The tables of the results, for code that selects and groups all the time.

pandas' own annotations call every selection a DataFrame, a Series or an array, so that a type checker objects to each step.
Here it sees `Any`; at run time (and under beartype in the tests) the names are what they say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

if TYPE_CHECKING:
    from ostools.results import Result

    Frame: TypeAlias = Any
    Column: TypeAlias = Any
    Row: TypeAlias = Any
else:
    Frame = pd.DataFrame
    Column = pd.Series
    Row = pd.Series


def frame_of(result: Result) -> Frame:
    """The table of a result."""
    return result.frame
