"""What a report asks of a model: its sections, their tasks, lengths and formats; what is measured only where it is named."""

from __future__ import annotations

from functools import partial

from ostools.measure.fate.cost import fate_cost
from ostools.measure.jacobian.estimate import choose_method
from ostools.measure.jacobian.memory import sensitivity_cost
from ostools.measure.passes.cost import Cost, PromptTokens, machine
from ostools.measure.paths.cost import path_sum_cost
from ostools.measure.paths.variants import VARIANTS
from ostools.measure.profiles.looseness import CHAIN
from ostools.models.shape import Shape

CASTS = ("float32", "bfloat16")
FORMATS = (*CASTS, "float16", "bfloat16-weights", "int8-weights", "bfloat16-residual", "int8-kv", "float8_e4m3fn-kv")
"""What the section on precision compares on one prompt."""
BEHAVIOUR = ("copy-last:uniform=true", "count-ones-bernoulli")
"""Tasks whose prompts are drawn. A share of right answers then has an interval, and knowing the task does not give the
answer."""
ANSWERED, SEEDS = (4, 8, 16, 32, 64), tuple(range(8))
JUDGED = "count-ones-bernoulli"
"""The task by which the section on fate asks where answers are lost: counting, where the paper expects that."""
JUDGED_LENGTHS, JUDGED_SEEDS, JUDGED_DTYPES = (4, 8, 16, 32, 64), tuple(range(12)), ("float32",)
STUDY_LENGTHS, STUDY_SEEDS = tuple(range(4, 33, 4)), tuple(range(4))
"""The lengths and seeds of the study of mitigations. Its task is that of `BEHAVIOUR` with a share of right answers nearest to
one half."""
MITIGATIONS = ("separator:every=3", "hint")
"""The paper's comma (Section 4, against collapse) and its hint (Section 3.1, for copying); so few that eight lengths can
decide."""
UNASKED = {"fate": 120.0, "looseness": 120.0, "layers": 1800.0, "sensitivity": 1800.0}
"""Seconds on this machine. What is forecast to take longer is measured only where it is asked for by name."""
_QUESTION = 80  # tokens, of the prompts whose fate is asked, where no tokenizer is at hand
# Certified bounds of the real derivative: norms for every pair of tokens, which would take longer than all the rest.
DEAR = ("local-full", "edge-full")
NOT_BOUNDED = (
    f"certified bounds of the real derivative ({', '.join(DEAR)}) are not computed in a report, because they would "
    "take longer than all the rest; `ostools path-sum --variant local-full` gives them"
)

PASSAGES, PASSAGE_TOKENS = 6, 48
"""How many natural passages, two of each kind, show whether the middle of a text counts for less; tokens of each."""
NAMES = (
    "collapse",
    "precision",
    "position",
    "sensitivity",
    "looseness",
    "layers",
    "attention",
    "behaviour",
    "fate",
    "mitigations",
    "theory",
)
"""What a report can be asked for, in its order; `looseness` is shown within the section on sensitivity."""


def profile_costs(shape: Shape, pos: int, limit: int | None = None) -> dict[str, Cost]:
    """Of the sections that may take long: the profile with its bounds, at every layer too, and the split of the looseness, with
    an exact profile where the other one is estimated. `limit`: bytes that a profile may take beside the model."""
    cheap = [name for name in VARIANTS if name not in (*DEAR, *CHAIN[2:])]
    profile = partial(sensitivity_cost, shape, pos, max_memory=limit)
    estimated = choose_method(shape.d_model, exact_fits=True).method != "exact"
    return {
        "sensitivity": profile() + path_sum_cost(shape, pos, cheap),
        "layers": profile(layers=shape.n_layers + 1),
        "looseness": path_sum_cost(shape, pos, CHAIN) + (profile(method="exact") if estimated else Cost()),
    }


def unasked(shape: Shape, pos: int) -> dict[str, str]:
    """The sections that are left out where nobody asks for them by name, with the reason."""
    here = machine(shape)
    # Before a model is loaded nothing tokenizes: at a token an item, the question after it.
    tokens = PromptTokens(tuple(n + _QUESTION for n in JUDGED_LENGTHS), _QUESTION, 2)
    judged = fate_cost(shape, tokens, tokens, JUDGED_DTYPES, target="number", seeds=len(JUDGED_SEEDS))
    costs = profile_costs(shape, pos) | {"fate": judged}
    seconds = {name: cost.seconds(here) for name, cost in costs.items()}
    return {
        name: f"forecast about {forecast / 60:.0f} min on this machine. A report takes at most {UNASKED[name] / 60:.0f} min "
        f"for it, unless it is asked for by name: --section {name}"
        for name, forecast in seconds.items()
        if forecast > UNASKED[name]
    }
