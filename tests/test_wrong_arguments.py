"""An argument of another type than its annotation says, or a name of nothing, is refused in one
line by every public call.

Called in a process of its own: here beartype checks the calls, and would refuse them before the
function does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_WALK = """
import importlib, inspect, json, sys, typing, warnings
warnings.filterwarnings("ignore")
import numpy as np, ostools as ost, pandas as pd, torch
from beartype.door import is_bearable
from ostools import mitigations as m
from ostools.ground.arguments import full_hints
from ostools.mitigations import MitigationError
from ostools import paper as e, hooks, models, sweep as sweep_room, tasks
from ostools.ground.errors import InputError
from ostools.measure.measurement import RECORDS
from ostools.measure import ask_endpoint, hosted_evaluation, read_answers
from ostools.paper.reproduction.reproduce import reproduce

model = ost.load_model()
prompt, ids = "count 1 1", torch.tensor([[1, 2, 3, 4, 5, 6]])
measured, paths = ost.sensitivity(model, prompt), ost.bounds(model, prompt)
task = dict(model=model, task="count-ones", lengths=[3])
SOUND = {
    ost.models.untrained_model: dict(model=model),
    ost.measure.faithfulness: dict(model=model, profiles=measured),
    ost.sweep.corpus: dict(model=model, texts=["one two three four"], lengths=[8]),
    ost.compare: dict(first=measured, second=paths),
    ost.profile: dict(measured=measured), ost.measure.head_scores: dict(model=model, prompts=["1 1"]),
    ost.attention: dict(model=model, task="count-ones", length=3),
    ost.measure.attention_variation: {**task, "task": "figure-5a", "seeds": [0]},
    ost.collapse: {**task, "task": "figure-5a", "dtypes": ["float32"]},
    e.chain_of_thought: dict(model=model, task="count-ones", length=3, max_new_tokens=4, reasoning="so"),
    e.figure_2: dict(model=model, lengths=[3]),
    e.figure_3: dict(model=model, lengths=[3], seeds=[0], panels=["sum-ones"], max_new_tokens=2),
    e.figure_4: dict(model=model, lengths=[3], seeds=[0], panels=["sum-ones"], max_new_tokens=2),
    e.figure_5: dict(model=model, lengths=[3], panels="a", dtypes=["float32"], seeds=[0], site="y"),
    e.figure_prompts: dict(number=2, lengths=[3]),
    e.retrieval: dict(model=model, positions=[0], length=2, seeds=[0], records="words"),
    ost.measure.position_effect: dict(model=model, passages=3, tokens=6, untrained=False),
    ost.study: dict(model=model, task="count-ones", mitigations=["hint"], lengths=[3], seeds=[0], dtypes=["float32"]),
    e.windows: dict(model=model, task="count-ones", lengths=[3], seeds=[0], windows=[4], layers="all"),
    ost.encode: dict(model=model, text=prompt), ost.load_model: {}, models.describe: dict(model=model),
    models.context_length: dict(model=model), models.view_in: dict(model=model, dtype=torch.float64),
    hooks.ablate_heads: dict(model=model, heads=[(0, 0)]), hooks.ablate_layers: dict(model=model, layers=[0]),
    hooks.ablate_edges: dict(model=model, edges=[(0, 0, 3, 1)]),
    hooks.mask_scores: dict(model=model, allowed=lambda q, k: q - k < 4), hooks.scale_scores: dict(model=model, factor=2.0),
    hooks.frozen: dict(model=model), hooks.exact_arithmetic: dict(model=model),
    hooks.available_sites: dict(model=model), hooks.norms: dict(model=model), hooks.active_edits: dict(model=model),
    hooks.rounded: dict(model=model, part="residual", format="bfloat16"),
}
# A measurement that takes what most take needs no line above.
USUAL = dict(model=model, prompt=prompt, task="count-ones", lengths=[3], seeds=[0], dtypes=["float32"])
for function in (record.function for record in RECORDS.values()):
    if function.__module__.startswith("ostools.reporting"):
        continue
    names = inspect.signature(function).parameters
    SOUND.setdefault(function, {name: value for name, value in USUAL.items() if name in names})
# A number by itself is a list of one, or a number with a point.
A_NUMBER_IS_FINE = {"layers", "lengths", "seeds", "factor", "temperature"}
A_NUMBER_IS_FINE |= {"passages", "windows"}
# A text by its type, of which "name" names nothing.
NAMES = {"task", "mitigation", "mitigations", "panels", "pairs"}
NESTED = [["x"]]
class Odd:
    def __repr__(self):
        return "Odd"


def outcome(function, arguments):
    try:
        made = function(**arguments)
        if hasattr(made, "__enter__"):
            with made:
                model(ids)
    except (InputError, hooks.HookError, MitigationError) as error:
        return str(error)
    except Exception as error:
        return f"!{type(error).__name__}: {error}"
    return "!ran"


said = {}
for function, sound in SOUND.items():
    hints = full_hints(function)
    for name in inspect.signature(function).parameters:
        for wrong in (None, 3, "name", [3.5], NESTED, Odd(), model, (1, 2, 3)):
            no_name = wrong == "name" and name in NAMES
            if wrong == 3 and name in A_NUMBER_IS_FINE:
                continue
            if function is hooks.ablate_layers and wrong is None:
                continue  # all of them, as everywhere
            if no_name or not is_bearable(wrong, hints[name]):
                key = f"{function.__name__}({name}={'nested' if wrong is NESTED else type(wrong).__name__})"
                said[key] = outcome(function, {**sound, name: wrong})
for wrong in (None, "embedded", 3):
    said[f"reproduce({wrong!r})"] = outcome(reproduce, {"model": wrong, "out": sys.argv[1] + "/made"})
# Numbers of numpy and pandas are numbers, in every place that takes several layers, heads or lengths; others are told apart.
as_arrays = {
    f"{function.__name__}({name}={kind.__name__})": outcome(function, {**SOUND[function], name: kind([value])})
    for kind in (np.array, pd.Series)
    for function, name, value in (
        (hooks.mask_scores, "layers", 0), (hooks.mask_scores, "heads", 0), (hooks.ablate_layers, "layers", 0),
        (ost.sensitivity, "layers", 1), (ost.evaluate, "lengths", 3), (ost.evaluate, "seeds", 0),
    )
}
WRONG = {"a float": np.array([0.5]), "no axis": np.array(9), "truths": np.array([True]), "too far": pd.Series([9])}
for name, wrong in WRONG.items():
    said[f"array {name}"] = outcome(hooks.mask_scores, {**SOUND[hooks.mask_scores], "layers": wrong})
    said[f"array of streams, {name}"] = outcome(ost.sensitivity, {**SOUND[ost.sensitivity], "layers": wrong})
# What is no mitigation, no text and no number, where a hint alone does not say what is sound.
below = sys.argv[1] + "/below"
sweep = sweep_room.sweep_of({"tasks": "copy-last", "lengths": "3:4", "measurements": "evaluate"})
run = lambda **given: sweep_room.plan(**{"sweep": sweep, "directory": below} | given)
CALLS = {
    "compose": lambda wrong: m.compose(wrong),
    "acts": lambda wrong: m.acts(model, wrong, ids[0]) if wrong is not None else m.compose(wrong),
    "changes_pass": lambda wrong: m.changes_pass(wrong) if wrong is not None else m.compose(wrong),
    "running": lambda wrong: m.running(model, wrong).__enter__() if wrong is not None else m.compose(wrong),
    "insert": lambda wrong: m.insert(wrong, ["1", "0"]),
    "rewrite": lambda wrong: m.rewrite(wrong, "a b"),
    "tasks.repeating": lambda wrong: tasks.repeating(wrong),
    "tasks.AppendixTask": lambda wrong: tasks.AppendixTask(wrong),
    "tasks.AppendixTask.hint": lambda wrong: tasks.AppendixTask("copy-last", hint=wrong),
    "sweep.plan": lambda wrong: run(sweep=wrong),
    "sweep.plan.directory": lambda wrong: run(directory=wrong),
    "sweep.plan.executor": lambda wrong: run(executor=wrong if wrong is not None else 3),
    "sweep.plan.say": lambda wrong: run(say=wrong),
    "sweep.run": lambda wrong: sweep_room.run(wrong, below),
    "sweep.read_sweep": lambda wrong: sweep_room.read_sweep(wrong),
    "sweep.results": lambda wrong: sweep_room.results(wrong),
    "sweep.results.long": lambda wrong: sweep_room.results("x" * 5000),
    "hooks.gated.targets": lambda wrong: hooks.gated(model, wrong, torch.ones(1)).__enter__(),
    "hooks.gated.gates": lambda wrong: hooks.gated(model, [], wrong).__enter__(),
    "load_model.device": lambda wrong: ost.load_model(device=wrong),
    "from_chat_text": lambda wrong: ost.Prompt.from_chat_text(model, wrong),
    "load_result": lambda wrong: ost.load_result(wrong),
    "Result.save": lambda wrong: measured.save(wrong),
    "hosted_evaluation": lambda wrong: hosted_evaluation(wrong),
    "read_answers.path": lambda wrong: read_answers(wrong, ()),
    "read_answers.asked": lambda wrong: read_answers("x", wrong or None if type(wrong) is list else wrong),
    "ask_endpoint": lambda wrong: ask_endpoint(wrong, "m", (), "x"),
}
by_hand = {
    " ".join(f"{name}({wrong!r})".split()): outcome(call, {"wrong": wrong})
    for name, call in CALLS.items()
    for wrong in (None, 3, 2.5, b"x", [], [3], {"a": 1}, Odd(), pd.Series([0, 1]))
}
print(json.dumps([said, by_hand, as_arrays]))
"""


@pytest.mark.slow
def test_an_argument_of_another_type_is_refused_in_one_line_by_every_public_call(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", _WALK, str(tmp_path)]
    walk = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert walk.returncode == 0, walk.stderr
    refusals, by_hand, as_arrays = json.loads(walk.stdout.splitlines()[-1])
    assert set(as_arrays.values()) == {"!ran"}, as_arrays
    assert len(as_arrays) == 12
    assert len(refusals) > 1500
    assert not {
        call: error for call, error in (refusals | by_hand).items() if error.startswith("!")
    }
    assert not [
        call for call, error in by_hand.items() if "found" not in error and "unknown" not in error
    ]
    assert not {
        call: error
        for call, error in refusals.items()
        if "\n" in error or not 20 < len(error) < 500
    }
    model = "model: expected a model, as ostools.load_model gives it, found"
    expected = {
        "sensitivity(model=str)": f"{model} 'name'",
        "reproduce(None)": f"{model.removesuffix(', found')} or a Hosted, found None",
        "sensitivity(progress=int)": "progress: expected a function or True or False or None, found 3",
        "ablate_heads(heads=tuple)": "heads: expected (layer, head) such as [(0, 1)], found (1, 2, 3)",
        "chain_of_thought(reasoning=int)": "reasoning: expected a text or None, found 3",
    }
    assert {call: refusals[call] for call in expected} == expected
    assert refusals["evaluate(mitigation=str)"].startswith(
        "unknown mitigation 'name': did you mean 'numbered'"
    )
    assert not (tmp_path / "made").exists()
