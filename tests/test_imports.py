"""`import ostools` is light, its names are where they are said to be, and every package is typed."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ostools
from ostools import hooks, mitigations
from ostools.ground import lens

HEAVY = {"torch", "transformer_lens", "transformers", "pandas", "altair"}
ONLY_FOR_PROBES_AND_STATISTICS = {"sklearn.linear_model", "statsmodels", "scipy.stats"}


def imported_by(code: str, names: set[str]) -> set[str]:
    """Those of the modules that this code imports, in a process of its own."""
    code = f"{code}\nimport sys\nprint(*sys.modules.keys() & {names})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.splitlines()[-1].split())


def test_importing_ostools_and_its_ground_and_refusing_a_name_imports_nothing_heavy() -> None:
    code = """
import importlib, pkgutil, sys
import ostools.ground
for module in pkgutil.iter_modules(ostools.ground.__path__, "ostools.ground."):
    importlib.import_module(module.name)
from ostools.cli import main
for line in ("evaluate --task nosuch", "collapse --task nosuch", "mitigate --mitigations nosuch", "colapse"):
    sys.argv = ["ostools", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, line
"""
    assert imported_by(code, HEAVY) == set()


@pytest.mark.slow
def test_a_forecast_needs_none_of_the_libraries_that_load_a_model() -> None:
    code = (
        "import sys\nfrom ostools.cli import main\n"
        "sys.argv = ['ostools', 'sensitivity', '--ids', '2,40,50', '--dry-run']\n"
    )
    code += "try:\n    main()\nexcept SystemExit:\n    pass"
    assert imported_by(code, {"transformer_lens", "transformers", "scipy"}) == set()


@pytest.mark.parametrize(
    "name", sorted(name for name, kind in vars(lens).items() if hasattr(kind, "home"))
)
def test_a_class_named_before_its_library_is_imported_is_that_of_the_library(name: str) -> None:
    named = getattr(lens, name)
    library_class = getattr(importlib.import_module(named.home), name)
    assert issubclass(library_class, named)
    assert isinstance(library_class.__new__(library_class), named)
    assert not isinstance(object(), named)


def test_the_names_that_type_checkers_see_are_those_that_are_imported_at_first_use() -> None:
    source = ast.parse(Path(str(ostools.__file__)).read_text("utf-8"))
    (for_checkers,) = (part for part in source.body if isinstance(part, ast.If))
    lines = [
        part
        for part in for_checkers.body
        if isinstance(part, ast.ImportFrom) and part.module != "ostools"
    ]
    assert {str(line.names[0].asname): str(line.module) for line in lines} == ostools._HOME


@pytest.mark.slow
def test_the_first_result_leaves_what_only_statistics_need_and_the_users_log_level() -> None:
    """TransformerLens sets the level of transformers to ERROR when it is imported."""
    code = """
from transformers.utils import logging
logging.set_verbosity_info()
import ostools
ostools.sensitivity(ostools.load_model(), 'Once upon a time')
assert logging.get_verbosity() == 20
"""
    assert imported_by(code, ONLY_FOR_PROBES_AND_STATISTICS) == set()


def test_every_public_name_resolves() -> None:
    for package in (hooks, mitigations, ostools):
        for name in package.__all__:
            assert getattr(package, name) is not None
        assert (Path(str(package.__file__)).parent / "py.typed").is_file()
    assert not hasattr(ostools, "sensitivty")
    assert set(ostools.__all__) <= set(dir(ostools))
