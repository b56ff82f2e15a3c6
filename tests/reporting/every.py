"""A small result of every class, measured on tiny random models with the real functions: for what
must hold of them all.
"""

import inspect
import os
import pickle
from collections.abc import Callable
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

from filelock import FileLock
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.measure.measurement import RECORDS
from ostools.paper.reproduction.reproduce import CLAIMS, judged
from ostools.results import Result
from tests.checkpoints import tiny_model

SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_key_value_heads": 1,
    "d_mlp": 16,
    "context": 1024,
}
IDS = [2, 40, 50, 60, 60, 61, 70]
PAPER = ost.paper
FOLDER = "OSTOOLS_TEST_RESULTS"
"""The variable of the environment that names the folder of results which all workers of a run of
the tests share.
"""


@cache
def model() -> TransformerBridge:
    return tiny_model("llama", seed=1, **SMALL)


@cache
def prompt() -> Any:
    return ost.Prompt.from_ids(model(), IDS)


@cache
def corrupt() -> Any:
    return ost.Prompt.from_ids(model(), [*IDS[:1], 33, *IDS[2:]])


@cache
def _sensitivity() -> Any:
    return ost.sensitivity(model(), prompt())


@cache
def _chain() -> Any:
    variants = ["local", "windowed(1)", "proof", "theorem-5.1"]
    return ost.bounds(model(), prompt(), variants=variants)


def _ablated() -> Any:
    with ost.hooks.ablate_heads(model(), [(0, 1)]):
        return ost.sensitivity(model(), prompt())


@cache
def _evaluated(mitigation: str | None = None) -> Any:
    how: dict[str, Any] = {"lengths": [2, 4], "max_new_tokens": 4, "elicitation": "zero-shot"}
    return ost.evaluate(model(), "count-ones", mitigation=mitigation, **how)


@cache
def _figure_3() -> Any:
    return PAPER.figure_3(model(), [2, 3], [0, 1], max_new_tokens=4, chat=False)


def _probes() -> Any:
    return _failure_stage().probes


@cache
def _failure_stage() -> Any:
    task = "count-ones-bernoulli:tidy=true"
    return ost.measure.failure_stage(
        model(), task, lengths=range(3, 8), seeds=range(9), dtypes=["float32"]
    )


EVERY: dict[str, Callable[[], Result]] = {
    "Sensitivity": _sensitivity,
    "Bounds": _chain,
    "Sensitivities": lambda: ost.sensitivity(
        model(), [prompt(), "the cat in"], linearisations=["frozen"]
    ),
    "Comparison": lambda: ost.compare(_sensitivity(), _chain()),
    "Change": lambda: ost.compare(_sensitivity(), _ablated()),
    "Profile": lambda: ost.profile(_sensitivity()),
    "AttentionVariation": lambda: ost.measure.attention_variation(
        model(), "figure-5b", lengths=[1, 3, 8], seeds=[0, 1]
    ),
    "HeadScores": lambda: ost.measure.head_scores(model(), prompt()),
    "Collapse": lambda: ost.collapse(
        model(), "figure-5a", lengths=range(1, 13), dtypes=["float32", "bfloat16"]
    ),
    "Faithfulness": lambda: ost.measure.faithfulness(model(), [_sensitivity(), _chain()]),
    "Decodability": lambda: _probes(),
    "FailureStage": lambda: _failure_stage(),
    "Evaluation": lambda: _evaluated(),
    "AnswerDifference": lambda: ost.compare(_evaluated(), _evaluated("hint")),
    "PositionEffect": lambda: ost.measure.position_effect(model(), passages=3, tokens=6),
    "Study": lambda: ost.study(
        model(),
        "copy-last",
        mitigations=["separator:every=2"],
        lengths=[3, 4],
        dtypes=["bfloat16"],
        chat=False,
    ),
    "Patching": lambda: ost.patch(model(), prompt(), corrupt(), logit=(7, 9)),
    "Ablation": lambda: ost.ablation(model(), "copy-first", lengths=[3]),
    "Retrieval": lambda: PAPER.retrieval(model(), [0, 1, 2], 3, [0, 1], chat=False),
    "Figure2": lambda: PAPER.figure_2(model(), [2, 3], chat=False),
    "Figure3": _figure_3,
    "Figure4": lambda: PAPER.figure_4_of(_figure_3()),
    "Figure5": lambda: PAPER.figure_5(model(), lengths=[2, 3, 4], seeds=range(2)),
    "Figure8": lambda: PAPER.figure_8([1, 2, 7, 30, 60], [0, 1]),
    "Figure9": lambda: PAPER.figure_9([1, 200, *range(20_000, 30_000, 1000)], [0, 1]),
    "Reproduction": lambda: PAPER.Reproduction(
        judged(CLAIMS, {}, {}),
        PAPER.figure_9([1, 5], [0]).provenance,
        {},
        {},
        {},
        Path("report.html"),
    ),
}
"""By the name of the class; each is measured once."""


def _of_one_prompt() -> dict[str, Callable[[], Result]]:
    """Cases of the measurements of a prompt that have none above: a new measurement needs no line
    here.
    """
    functions: list[Any] = [
        RECORDS[name].function for name in sorted(RECORDS) if RECORDS[name].command
    ]
    signatures = {function: inspect.signature(function) for function in functions}
    return {
        getattr(signature.return_annotation, "__name__", "a union"): partial(_measured, measurement)
        for measurement, signature in signatures.items()
        if {"model", "prompt"} <= signature.parameters.keys()
    }


def _measured(measurement: Callable[..., Result]) -> Result:
    return measurement(model(), prompt())


EVERY = {**{name: case for name, case in _of_one_prompt().items() if name.isidentifier()}, **EVERY}


def _stored(name: str, measure: Callable[[], Result]) -> Callable[[], Result]:
    """`measure`, which reads the result that another worker of this run of the tests has measured
    and stored.
    """

    @wraps(measure)
    def result() -> Result:
        if FOLDER not in os.environ:
            return measure()
        path = Path(os.environ[FOLDER]) / f"{name}.pickle"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                path.write_bytes(pickle.dumps(measure()))
        return pickle.loads(path.read_bytes())

    return cache(result)


EVERY.update({name: _stored(name, measure) for name, measure in EVERY.items()})


@cache
def chart(name: str) -> Any:
    """The chart of the result, drawn once: that takes longer than making most of them."""
    return EVERY[name]().plot()


@cache
def spec(name: str) -> dict[str, Any]:
    """The whole specification of that chart, which nobody may change."""
    return chart(name).to_dict(validate=False)
