"""How tables, their parts and charts are called in annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

if TYPE_CHECKING:
    import altair as alt

    # pandas' own annotations call every selection a DataFrame, a Series or an array, so that a type
    # checker objects to each step. It sees `Any` here; at run time (and under beartype in the
    # tests) the names are what they say.
    Frame: TypeAlias = Any
    Column: TypeAlias = Any
    Row: TypeAlias = Any
    Chart: TypeAlias = alt.TopLevelMixin
else:
    Frame, Column, Row = pd.DataFrame, pd.Series, pd.Series
    Chart = object  # Altair is imported when something is drawn
Looks: TypeAlias = dict[str, Any]
"""Properties of an Altair object by name, and parts of a specification: what Altair itself types as
anything.
"""
