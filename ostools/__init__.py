"""Measure representational collapse and over-squashing in decoder-only language models.

    import ostools as ost

    model = ost.load_model()                       # embedded; or "google/gemma-7b", or a directory
    profile = ost.sensitivity(model, "...")        # measured: d y_n / d v_i, for every token i
    paths = ost.bounds(model, "...")             # Theorem 5.1: certified bounds, the paper's forms
    ost.compare(profile, paths).plot()
    ost.profile(profile).plot()                    # which tokens matter; is it a U?
    ost.spectra(model, "...", measured=profile)    # Lemma B.6, B.7, Proposition 5.2 on the real patterns
    ost.collapse(model, ost.tasks.figure_5a(), lengths=range(1, 257)).plot()
    ost.corpus(model, "texts.jsonl", cells="corpus")  # the same of many texts
    ost.report(model, out="report.html")
    ost.reproduce(model, out="paper")              # every claim of the paper: its words, what was measured, the verdict

Attributes are loaded on first use, so that `import ostools` and `ostools --help` stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ostools.ground.errors import InputError as InputError
from ostools.ground.errors import did_you_mean

if TYPE_CHECKING:  # the public names, each imported from its module when it is first used (`_HOME`)
    from ostools import hooks as hooks
    from ostools import measure as measure
    from ostools import mitigations as mitigations
    from ostools import models as models
    from ostools import paper as paper
    from ostools import reporting as reporting
    from ostools import sweep as sweep
    from ostools import tasks as tasks
    from ostools import theory as theory
    from ostools.explorer import explore as explore
    from ostools.measure import ablation as ablation
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
    from ostools.measure import influence_by_distance as influence_by_distance
    from ostools.measure import linear_range as linear_range
    from ostools.measure import patch as patch
    from ostools.measure import position_effect as position_effect
    from ostools.measure import probe as probe
    from ostools.measure import probe_intervention as probe_intervention
    from ostools.measure import profile as profile
    from ostools.measure import sensitivity as sensitivity
    from ostools.measure import spectra as spectra
    from ostools.measure import study as study
    from ostools.measure import token_homogenization as token_homogenization
    from ostools.measure import untrained_baselines as untrained_baselines
    from ostools.models import Prompt as Prompt
    from ostools.models import adopt as adopt
    from ostools.models import describe as describe
    from ostools.models import encode as encode
    from ostools.models import load_model as load_model
    from ostools.models import untrained_model as untrained_model
    from ostools.paper import chain_of_thought as chain_of_thought
    from ostools.paper import retrieval as retrieval
    from ostools.paper import windows as windows
    from ostools.paper.reproduction.reproduce import reproduce as reproduce
    from ostools.reporting.report.report import report as report
    from ostools.results import load_result as load_result
    from ostools.sweep import corpus as corpus


_HOME = (
    dict.fromkeys(("explore",), "ostools.explorer")
    | dict.fromkeys(
        (
            "ablation",
            "attention",
            "attention_baselines",
            "attention_difference",
            "attention_variation",
            "attribution",
            "bounds",
            "collapse",
            "compare",
            "counting",
            "evaluate",
            "failure_stage",
            "faithfulness",
            "head_scores",
            "hops",
            "influence_by_distance",
            "linear_range",
            "patch",
            "position_effect",
            "probe",
            "probe_intervention",
            "profile",
            "sensitivity",
            "spectra",
            "study",
            "token_homogenization",
            "untrained_baselines",
        ),
        "ostools.measure",
    )
    | dict.fromkeys(
        (
            "Prompt",
            "adopt",
            "describe",
            "encode",
            "load_model",
            "untrained_model",
        ),
        "ostools.models",
    )
    | dict.fromkeys(("chain_of_thought", "retrieval", "windows"), "ostools.paper")
    | dict.fromkeys(("report",), "ostools.reporting.report.report")
    | dict.fromkeys(("reproduce",), "ostools.paper.reproduction.reproduce")
    | dict.fromkeys(("load_result",), "ostools.results")
    | dict.fromkeys(("corpus",), "ostools.sweep")
)
"""Module of each public name: what the imports above say to type checkers, and a test holds against them."""
_ROOMS = ("hooks", "measure", "mitigations", "models", "paper", "reporting", "sweep", "tasks", "theory")

__all__ = sorted(["InputError", *_HOME, *_ROOMS])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"ostools.{name}")
    question = did_you_mean(name, __all__).rstrip()
    raise AttributeError(f"module 'ostools' has no attribute {name!r}" + (f": {question}" if question else ""))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
