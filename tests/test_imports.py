"""`import ostools` is light, its names are where they are said to be, and every package is typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hooks
import mitigations
import ostools

HEAVY = ("torch", "transformer_lens", "transformers", "pandas", "altair")


def test_importing_ostools_and_its_ground_imports_nothing_heavy() -> None:
    code = f"""
import importlib, pkgutil, sys
import ostools.ground
for module in pkgutil.iter_modules(ostools.ground.__path__, "ostools.ground."):
    importlib.import_module(module.name)
print(sorted(sys.modules.keys() & {set(HEAVY)}))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_first_result_imports_nothing_that_only_probes_and_statistics_need() -> None:
    code = """
import sys, ostools
model = ostools.load_model()
ostools.sensitivity(model, "Once upon a time")
print(sorted(sys.modules.keys() & {"sklearn.linear_model", "statsmodels", "scipy.stats"}))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_known_names_are_read_without_torch() -> None:
    code = """
import sys
from ostools.cli import options, signature
spelled_out = {name: signature.names_in(target) for name, (_, target) in options.NAMES.items()}
assert not sys.modules.keys() & {"torch", "transformers", "transformer_lens"}
for name, (_, target) in options.NAMES.items():
    assert spelled_out[name] == tuple(signature.imported(target)), name
print("as imported")
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "as imported"


def test_a_task_or_mitigation_that_there_is_not_is_refused_without_torch() -> None:
    code = """
import sys
from ostools.cli import main
for line in ("evaluate --task nosuch", "collapse --task nosuch", "mitigate --mitigation nosuch"):
    sys.argv = ["ostools", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, line
assert not sys.modules.keys() & {"torch", "transformers", "transformer_lens"}
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr.count("unknown") == 3


def test_every_public_name_resolves() -> None:
    for package in (hooks, mitigations, ostools):
        for name in package.__all__:
            assert getattr(package, name) is not None
        assert (Path(str(package.__file__)).parent / "py.typed").is_file()


def test_unknown_attributes_are_attribute_errors() -> None:
    assert not hasattr(ostools, "sensitivty")
    assert set(ostools.__all__) <= set(dir(ostools))


@pytest.mark.slow
def test_hooks_and_mitigations_are_one_module_under_both_names() -> None:
    code = """
from ostools.hooks.edit import ablate_heads
from ostools.mitigations import SlidingWindow
import hooks, hooks.edit, hooks.register, importlib, mitigations, ostools, ostools.hooks.register, sys
assert ostools.hooks is hooks is sys.modules["ostools.hooks"] and ostools.mitigations is mitigations
assert ablate_heads is hooks.ablate_heads is hooks.edit.ablate_heads
assert ostools.hooks.register is hooks.register and hooks.register.__spec__.name == "hooks.register"
assert SlidingWindow is mitigations.SlidingWindow
try:
    import ostools.hooks.nothing
except ModuleNotFoundError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "No module named 'hooks.nothing'"
