"""Every result has its chart: a row in one table, by its class."""

from __future__ import annotations

import importlib
import pkgutil

import altair as alt
import pandas as pd
import pytest

import ostools
from ostools.ground.errors import InputError
from ostools.reporting.charts import CHARTS, chart_of
from ostools.results import Result
from tests.reporting.made import PROVENANCE


def results_of(kind: type[Result]) -> set[type[Result]]:
    """Every class of this package derived from `kind`, at whatever distance."""
    found = {one for child in kind.__subclasses__() for one in ({child} | results_of(child))}
    return {one for one in found if one.__module__.startswith("ostools.")}


def test_every_result_of_the_package_has_a_row_and_every_row_a_result() -> None:
    for module in pkgutil.walk_packages(ostools.__path__, "ostools."):
        if not module.name.endswith("__main__"):  # a program: it runs when it is imported
            importlib.import_module(module.name)
    assert results_of(Result) == set(CHARTS)


def test_a_result_without_a_row_is_refused_and_a_derived_one_is_drawn_as_its_own_kind() -> None:
    class Unknown(Result):
        """No chart knows it."""

    with pytest.raises(InputError, match=r"found Unknown: add its chart there, or give the class a `plot` of its own"):
        Unknown(pd.DataFrame(), PROVENANCE).plot()

    class Derived(Unknown):
        """Drawn as its own kind, once that has a row."""

    with pytest.MonkeyPatch.context() as patch:
        drawn = alt.Chart()
        patch.setitem(CHARTS, Unknown, lambda result: drawn)
        assert chart_of(Derived(pd.DataFrame(), PROVENANCE)) is drawn
