"""Every result has its chart: a row in one table, by its class."""

import importlib
import pkgutil
import subprocess
import sys

import ostools as ost
from ostools.reporting import charts
from ostools.results import Result
from tests.reporting.made import made_sensitivity


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


def test_a_chart_is_imported_when_it_is_drawn() -> None:
    assert (
        modules_loaded_by("import sys\nimport ostools.measure, ostools.paper", "ostools.reporting")
        == set()
    )


def modules_loaded_by(code: str, prefix: str) -> set[str]:
    """Modules of that prefix that the last line of the code loads, in a process of its own."""
    *before, last = code.strip().splitlines()
    program = "\n".join(
        [
            "import sys",
            *before,
            "first = set(sys.modules)",
            last,
            "print(*(set(sys.modules) - first))",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return {name for name in done.stdout.split() if name.startswith(prefix)}


def test_charts_of_measurements_import_no_paper_and_no_sweeps() -> None:
    names = [module.name for module in pkgutil.iter_modules(charts.__path__)]
    loaded = modules_loaded_by(
        f"import ostools.measure\nimport {', '.join(f'ostools.reporting.charts.{name}' for name in names)}",
        "ostools.",
    )
    assert not {name for name in loaded if name.startswith(("ostools.paper", "ostools.sweep"))}


def test_the_first_plot_of_a_sensitivity_loads_at_most_fifteen_modules() -> None:
    frame = made_sensitivity({"full": [1.0, 2.0], "frozen": [2.0, 1.0]}).frame.to_dict("list")
    code = f"""
import pandas as pd, ostools.measure
from math import nan
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.reporting import charts
from ostools.results import Provenance
model = {{"name": "made", "dtype": "float32"}}
made = Sensitivity(pd.DataFrame({frame!r}), Provenance(model, {{}}, None, {{}}))
made.plot()
"""
    assert 0 < len(modules_loaded_by(code, "ostools")) <= 15
