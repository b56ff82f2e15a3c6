"""What is no task, mitigation, panel, length or seed is an `InputError` in every function that takes one; and an argument of
another type than its annotation says in every public call.

Asked in processes of their own: here the calls are checked by beartype, which would refuse them before the function does.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_ASK = """
import json, sys, tempfile, warnings
warnings.filterwarnings("ignore")
from ostools import experiments as e, measure as m
from ostools.ground.errors import InputError
from mitigations import MitigationError
from ostools.models import load_model
from ostools.reporting.reproduction.reproduce import reproduce

model = load_model("embedded")
TASK = "count-ones"
SOUND = {
    e.chain_of_thought: dict(task=TASK, length=3, max_new_tokens=4, reasoning="so"),
    e.figure_2: dict(lengths=[3]),
    e.figure_3: dict(lengths=[3], seeds=[0], panels=["sum-ones"], max_new_tokens=2),
    e.figure_4: dict(lengths=[3], seeds=[0], panels=["sum-ones"], max_new_tokens=2),
    e.figure_5: dict(lengths=[3], panels="a", dtypes=["float32"], seeds=[0], site="y"),
    e.figure_prompts: dict(number=2, lengths=[3]),
    e.repeats: dict(prompts=["letters"], lengths=[3], dtypes=["float32"]),
    e.retrieval: dict(positions=[0], length=2, seeds=[0], records="words"),
    e.position_effect: dict(passages=3, tokens=6, untrained=False),
    e.study: dict(task=TASK, mitigations=["hint"], lengths=[3], seeds=[0], dtypes=["float32"]),
    e.windows: dict(task=TASK, lengths=[3], seeds=[0], windows=[4], pairs="figure-5a", layers="all"),
    m.attention: dict(task=TASK, length=3, mitigation="hint", seed=0),
    m.attention_variation: dict(task="figure-5a", lengths=[3], seeds=[0], mitigation=None),
    m.evaluate: dict(task=TASK, lengths=[3], seeds=[0], mitigation=None),
    m.collapse: dict(task=TASK, lengths=[3], seeds=[0], dtypes=["float32"], mitigation=None),
    m.counting: dict(task=TASK, lengths=[3], dtypes=["float32"]),
    m.head_scores: dict(prompts=["1 1"]),
}
OPEN = {"number", "max_new_tokens"}  # checked elsewhere
NONE_IS_FINE = {"mitigation", "reasoning", "positions", "pairs", "encodings", "windows", "passages"}
A_NUMBER_IS_FINE = {"lengths", "seeds", "length", "seed", "depths", "windows", "passages"}
A_TEXT_IS_FINE = {"reasoning"}


class Odd:
    def __repr__(self):
        return "Odd"


def outcome(make, arguments):
    try:
        make(**arguments)
    except (InputError, MitigationError) as error:
        return str(error)
    except Exception as error:
        return f"!{type(error).__name__}: {error}"
    return "!ran"


said = []
for make, sound in SOUND.items():
    first = {} if make is e.figure_prompts else {"model": model}
    for name in sound.keys() - OPEN:
        for wrong in (None, 3, "name", [3.5], [["x"]], Odd()):
            if wrong is None and name in NONE_IS_FINE or wrong == 3 and name in A_NUMBER_IS_FINE:
                continue
            if wrong == "name" and name in A_TEXT_IS_FINE or make is m.head_scores and wrong == "name":
                continue
            if make is e.figure_prompts and wrong is None:
                continue
            if make is m.attention and name == "task" and wrong is None:
                continue
            said.append((f"{make.__name__}({name}={wrong!r})", outcome(make, {**first, **sound, name: wrong})))
for wrong in (None, "embedded", 3):
    said.append((f"reproduce({wrong!r})", outcome(reproduce, {"model": wrong, "out": sys.argv[1] + "/made"})))
print(json.dumps(said))
"""


@pytest.mark.slow
def test_a_wrong_task_mitigation_panel_length_or_seed_is_an_input_error_in_every_function(tmp_path):
    asked = subprocess.run(
        [sys.executable, "-c", _ASK, str(tmp_path)], check=False, capture_output=True, text=True, timeout=300
    )
    assert asked.returncode == 0, asked.stderr
    said = dict(json.loads(asked.stdout.splitlines()[-1]))
    assert len(said) > 200
    assert not {call: error for call, error in said.items() if error.startswith("!")}
    assert not {call: error for call, error in said.items() if "\n" in error or len(error) < 20}
    assert said["figure_5(panels=3)"].startswith("unknown panel of figure 5 3: ")
    assert said["attention_variation(task=None)"] == (
        "expected a task, its name, such as 'figure-5a', or a Prompt, found NoneType"
    )
    assert said["attention_variation(mitigation='name')"].startswith(
        "unknown mitigation 'name': did you mean 'numbered'"
    )
    assert said["chain_of_thought(reasoning=3)"] == ("reasoning: expected a text or None, found 3")
    assert said["reproduce(None)"] == ("model: expected a model, as ostools.load_model gives it, found None")
    assert not (tmp_path / "made").exists()


_WALK = """
import inspect, json, sys, typing, warnings
warnings.filterwarnings("ignore")
import ostools as ost, torch
from beartype.door import is_bearable
from mitigations import MitigationError
from ostools import hooks, models
from ostools.ground.errors import InputError

model = ost.load_model()
prompt, ids = "count 1 1", torch.tensor([[1, 2, 3, 4, 5, 6]])
measured, paths = ost.sensitivity(model, prompt), ost.bounds(model, prompt)
task = dict(model=model, task="count-ones", lengths=[3])
one = dict(model=model, prompt=prompt)
SOUND = {
    ost.attribution: one, ost.untrained_baselines: {**one, "seeds": [0]}, ost.untrained_model: dict(model=model),
    ost.faithfulness: dict(model=model, profiles=measured),
    ost.corpus: dict(model=model, texts=["one two three four"], lengths=[8], bins=4, measure="attention"),
    ost.sensitivity: one, ost.bounds: one, ost.spectra: one,
    ost.compare: dict(first=measured, second=paths),
    ost.profile: dict(measured=measured), ost.head_scores: dict(model=model, prompts=["1 1"]),
    ost.attention: dict(model=model, task="count-ones", length=3), ost.evaluate: task,
    ost.attention_variation: {**task, "task": "figure-5a", "seeds": [0]},
    ost.collapse: {**task, "task": "figure-5a", "dtypes": ["float32"]}, ost.counting: {**task, "dtypes": ["float32"]},
    ost.encode: dict(model=model, text=prompt), ost.load_model: {}, models.describe: dict(model=model),
    models.context_length: dict(model=model), models.view_in: dict(model=model, dtype=torch.float64),
    hooks.ablate_heads: dict(model=model, heads=[(0, 0)]), hooks.ablate_layers: dict(model=model, layers=[0]),
    hooks.ablate_edges: dict(model=model, edges=[(0, 0, 3, 1)]),
    hooks.mask_scores: dict(model=model, allowed=lambda q, k: q - k < 4), hooks.scale_scores: dict(model=model, factor=2.0),
    hooks.frozen: dict(model=model), hooks.held: dict(model=model), hooks.exact_arithmetic: dict(model=model),
    hooks.available_sites: dict(model=model), hooks.norms: dict(model=model), hooks.active_edits: dict(model=model),
    hooks.rounded: dict(model=model, part="residual", format="bfloat16"),
}
# A number by itself is a list of one, or a number with a point.
A_NUMBER_IS_FINE = {"layers", "lengths", "seeds", "relative_error", "confidence", "factor", "temperature"}


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
    hints = typing.get_type_hints(inspect.unwrap(function))
    for name in inspect.signature(function).parameters:
        for wrong in (None, 3, "name", [3.5], Odd(), model, (1, 2, 3)):
            if wrong == 3 and name in A_NUMBER_IS_FINE or is_bearable(wrong, hints[name]):
                continue
            if function is hooks.ablate_layers and wrong is None:
                continue  # all of them, as everywhere
            said[f"{function.__name__}({name}={type(wrong).__name__})"] = outcome(function, {**sound, name: wrong})
print(json.dumps(said))
"""


@pytest.mark.slow
def test_an_argument_of_another_type_is_refused_in_one_line_by_every_public_call() -> None:
    asked = subprocess.run([sys.executable, "-c", _WALK], check=False, capture_output=True, text=True, timeout=300)
    assert asked.returncode == 0, asked.stderr
    said = json.loads(asked.stdout.splitlines()[-1])
    assert len(said) > 400
    assert not {call: error for call, error in said.items() if error.startswith("!")}
    assert not {call: error for call, error in said.items() if "\n" in error or not 20 < len(error) < 500}
    assert said["sensitivity(model=str)"] == "model: expected a model, as ostools.load_model gives it, found 'name'"
    assert said["sensitivity(progress=int)"] == "progress: expected a function or True or False or None, found 3"
    assert said["ablate_heads(heads=tuple)"] == "heads: expected (layer, head) such as [(0, 1)], found (1, 2, 3)"
