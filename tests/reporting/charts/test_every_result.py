"""Every result has its chart: a row in one table, by its class."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest

import ostools as ost
from ostools.ground.errors import InputError
from ostools.ground.words import number
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.results import Result
from tests.reporting.every import EVERY, model, prompt
from tests.reporting.made import PROVENANCE, made_sensitivity


def results_of(kind: type[Result]) -> set[type[Result]]:
    """Every class of this package derived from `kind`, at whatever distance."""
    found = {one for child in kind.__subclasses__() for one in ({child} | results_of(child))}
    return {one for one in found if one.__module__.startswith("ostools.")}


def test_every_result_of_the_package_has_a_chart_of_its_own() -> None:
    for module in pkgutil.walk_packages(ost.__path__, "ostools."):
        if not module.name.endswith("__main__"):  # a program: it runs when it is imported
            importlib.import_module(module.name)
    for kind in results_of(Result):
        assert kind.chart is not Result.chart, kind


def test_the_sentences_of_a_change_and_of_bounds_have_the_numbers_of_their_tables() -> None:
    change: Any = EVERY["Change"]()
    paths: Any = EVERY["Bounds"]()
    row = change.summary.iloc[0]
    assert f"{row['source']}, operator norm: second / first is {number(row['median_ratio'])} in" in change.findings()[0]
    values = paths.frame[paths.frame["variant"] == "local"]["value"]
    assert f"from {number(values.min())} at token" in paths.findings()[0]
    assert f"to {number(values.max())} at token" in paths.findings()[0]


def test_the_attention_beside_each_linearisation_has_a_sentence_of_its_own() -> None:
    measured: Any = EVERY["Sensitivity"]()
    compared: Any = ost.compare(measured, ost.attention(model(), prompt()))
    assert [row["spearman"] for row in compared.summary.to_dict("records")] == pytest.approx(
        [float(sentence.rpartition("Spearman ")[2].rstrip(").")) for sentence in compared.findings()], abs=0.005
    )


def test_a_chart_is_imported_when_it_is_drawn() -> None:
    code = (
        "import sys, ostools.measure, ostools.results; "
        "print(sorted(name for name in sys.modules if name.startswith('ostools.reporting')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_result_without_a_chart_is_refused_and_a_derived_one_is_drawn_as_its_own_kind() -> None:
    class Unknown(Result):
        """No chart knows it."""

    with pytest.raises(InputError, match="found Unknown: give the class a `chart` method"):
        Unknown(pd.DataFrame(), PROVENANCE).plot()

    class Derived(Sensitivity):
        """Drawn as a sensitivity."""

    made = made_sensitivity({"full": [1.0, 2.0]})
    assert Derived(made.frame, made.provenance).plot().to_dict() == made.plot().to_dict()
