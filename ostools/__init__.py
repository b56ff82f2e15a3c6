"""Measure representational collapse and over-squashing in decoder-only language models.

    import ostools as ost

    model = ost.load_model()                       # embedded; or "google/gemma-7b", or a directory
    profile = ost.sensitivity(model, "...")        # measured: d y_n / d v_i, for every token i
    paths = ost.bounds(model, "...")               # Theorem 5.1: certified; the paper's forms
    ost.compare(profile, paths).plot()
    ost.profile(profile).plot()                    # which tokens matter; is it a U?
    ost.collapse(model, ost.tasks.figure_5a(), lengths=range(1, 257)).plot()
    ost.sweep.run(ost.sweep.read_sweep("sweep.yaml"), "sweep")  # many models, tasks, texts
    ost.report(model, out="report.html")
    ost.paper.reproduce(model, out="paper")        # every claim of the paper, judged

Attributes are loaded on first use, so that `import ostools` and `ostools --help` stay fast.
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

from ostools.ground.errors import InputError as InputError

if _TYPE_CHECKING:  # each is imported from its module when it is first used (`_HOME`)
    from ostools import hooks as hooks
    from ostools import measure as measure
    from ostools import mitigations as mitigations
    from ostools import models as models
    from ostools import paper as paper
    from ostools import sweep as sweep
    from ostools import tasks as tasks
    from ostools import theory as theory
    from ostools.explorer import explore as explore
    from ostools.measure import ablation as ablation
    from ostools.measure import attention as attention
    from ostools.measure import attribution as attribution
    from ostools.measure import bounds as bounds
    from ostools.measure import collapse as collapse
    from ostools.measure import compare as compare
    from ostools.measure import evaluate as evaluate
    from ostools.measure import influence_by_distance as influence_by_distance
    from ostools.measure import patch as patch
    from ostools.measure import probe as probe
    from ostools.measure import profile as profile
    from ostools.measure import sensitivity as sensitivity
    from ostools.measure import study as study
    from ostools.measure import token_homogenization as token_homogenization
    from ostools.models import Prompt as Prompt
    from ostools.models import adopt as adopt
    from ostools.models import encode as encode
    from ostools.models import load_model as load_model
    from ostools.reporting.report.report import report as report
    from ostools.results import load_result as load_result

_HOME = {
    "explore": "ostools.explorer",
    "load_result": "ostools.results",
    "report": "ostools.reporting.report.report",
    **dict.fromkeys(("Prompt", "adopt", "encode", "load_model"), "ostools.models"),
    **dict.fromkeys(
        (
            *("ablation", "attention", "attribution", "bounds", "collapse", "compare", "evaluate"),
            *("influence_by_distance", "patch", "probe", "profile", "sensitivity", "study"),
            "token_homogenization",
        ),
        "ostools.measure",
    ),
}
"""Module of each public name: what the imports above say to type checkers, and a test holds against
them.
"""
_ROOMS = ("hooks", "measure", "mitigations", "models", "paper", "sweep", "tasks", "theory")

__all__ = sorted(["InputError", *_HOME, *_ROOMS])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name in _HOME:
        globals()[name] = value = getattr(_importlib.import_module(_HOME[name]), name)
        return value
    if name in _ROOMS:
        return _importlib.import_module(f"ostools.{name}")
    from ostools.ground.errors import did_you_mean

    advice = f": {did_you_mean(name, __all__)}".rstrip(": ")
    for room in () if name.startswith("_") else _ROOMS:  # else a tool asks: no room is imported
        if hasattr(_importlib.import_module(f"ostools.{room}"), name):
            advice = f": it is ostools.{room}.{name}"
    raise AttributeError(f"module 'ostools' has no attribute {name!r}{advice}")


def __dir__() -> list[str]:
    return list(__all__)
