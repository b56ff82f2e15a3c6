"""Measure representational collapse and over-squashing in decoder-only language models.

    import ostools as ost

    model = ost.load_model()                       # embedded; or "google/gemma-7b", or a directory
    profile = ost.sensitivity(model, "...")        # measured: d y_n / d v_i, for every token i
    paths = ost.bounds(model, "...")             # Theorem 5.1: certified bounds, the paper's forms
    ost.compare(profile, paths).plot()
    ost.profile(profile).plot()                    # which tokens matter; is it a U?
    ost.spectra(model, "...", measured=profile)    # Lemma B.6, B.7, Proposition 5.2 on the real patterns
    ost.collapse(model, ost.tasks.figure_5a(), lengths=range(1, 257)).plot()
    ost.corpus(model, "texts.jsonl", out="corpus")  # the same of many texts
    ost.report(model, out="report.html")
    ost.reproduce(model, out="paper")              # every claim of the paper: its words, what was measured, the verdict

Attributes are loaded on first use, so that `import ostools` and `ostools --help` stay fast.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ostools.ground.errors import InputError as InputError
from ostools.ground.errors import did_you_mean

if TYPE_CHECKING:  # the public names, each imported from its module when it is first used (`_homes`)
    import hooks as hooks
    import mitigations as mitigations
    from ostools import experiments as experiments
    from ostools import measure as measure
    from ostools import models as models
    from ostools import reporting as reporting
    from ostools import sweep as sweep
    from ostools import tasks as tasks
    from ostools import theory as theory
    from ostools.experiments import ablation as ablation
    from ostools.experiments import position_effect as position_effect
    from ostools.experiments import study as study
    from ostools.experiments import windows as windows
    from ostools.explorer import explore as explore
    from ostools.measure import attention as attention
    from ostools.measure import attention_baselines as attention_baselines
    from ostools.measure import attention_difference as attention_difference
    from ostools.measure import attention_variation as attention_variation
    from ostools.measure import attribution as attribution
    from ostools.measure import bounds as bounds
    from ostools.measure import collapse as collapse
    from ostools.measure import compare as compare
    from ostools.measure import counting as counting
    from ostools.measure import evaluate as evaluate
    from ostools.measure import failure_stage as failure_stage
    from ostools.measure import faithfulness as faithfulness
    from ostools.measure import head_scores as head_scores
    from ostools.measure import hops as hops
    from ostools.measure import linear_range as linear_range
    from ostools.measure import probe as probe
    from ostools.measure import probe_intervention as probe_intervention
    from ostools.measure import profile as profile
    from ostools.measure import sensitivity as sensitivity
    from ostools.measure import spectra as spectra
    from ostools.measure import untrained_baselines as untrained_baselines
    from ostools.models import Prompt as Prompt
    from ostools.models import adopt as adopt
    from ostools.models import describe as describe
    from ostools.models import encode as encode
    from ostools.models import load_model as load_model
    from ostools.models import untrained_model as untrained_model
    from ostools.reporting.report.report import report as report
    from ostools.reporting.reproduction.reproduce import reproduce as reproduce
    from ostools.results import load_result as load_result
    from ostools.sweep import corpus as corpus


def _homes() -> dict[str, str]:
    """Module of each public name: what the imports above say to type checkers."""
    (block,) = (part for part in ast.parse(Path(__file__).read_text(encoding="utf-8")).body if isinstance(part, ast.If))
    imports = (line for line in block.body if isinstance(line, ast.ImportFrom) and line.module != "ostools")
    return {str(alias.asname): str(line.module) for line in imports for alias in line.names}


def _measurements() -> dict[str, str]:
    """Module of each measurement that has a command, by its name: `ostools.ground.records`."""
    from ostools.ground.records import records

    targets = [target.partition(":") for target, record in records().items() if record.command]
    return {name: f"ostools.{module}" for module, _, name in targets}


_HOME = _homes() | _measurements()
_BESIDE = ("hooks", "mitigations")
_ROOMS = ("experiments", "measure", "models", "reporting", "sweep", "tasks", "theory")

__all__ = sorted(["InputError", *_HOME, *_ROOMS, *_BESIDE])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"ostools.{name}")
    if name in _BESIDE:
        return importlib.import_module(name)
    question = did_you_mean(name, __all__).rstrip()
    raise AttributeError(f"module 'ostools' has no attribute {name!r}" + (f": {question}" if question else ""))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Beside:
    """Imports `ostools.hooks` and `ostools.mitigations`, and all inside them, as the modules `hooks` and `mitigations`.

    `from ostools.hooks import capture` works, and there is no second copy of a module.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_ours = name.startswith(tuple(f"ostools.{room}" for room in _BESIDE)) and name.split(".")[1] in _BESIDE
        return ModuleSpec(name, self) if is_ours else None  # pyright: ignore[reportArgumentType]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.name.removeprefix("ostools."))
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the other name's in its place


def _refuse_shadowed() -> None:
    """A user's own hooks.py beside the script would be imported in place of the package of that name."""
    for name in _BESIDE:
        spec = importlib.util.find_spec(name)
        found = None if spec is None else spec.origin
        own = Path(__file__).parents[1] / name / "__init__.py"
        if found is None or not own.samefile(found):
            raise ImportError(
                f"expected the package '{name}' of oversquashing-tools, found {found} in its way: give that file another "
                f"name, or move it; in your code write `from ostools.{name} import ...`"
            )


_refuse_shadowed()
sys.meta_path.insert(0, _Beside())  # pyright: ignore[reportArgumentType]
