"""What is no mitigation, no text and no number is refused in words, whoever is given it.

Asked in a process of its own: here beartype would refuse the calls before the functions do.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_ASK = """
import json, tempfile
import pandas as pd, torch
import mitigations as m, ostools as ost
from hooks import HookError
from mitigations import MitigationError
from ostools import runs, tasks
from ostools.ground.errors import InputError
from ostools.measure import ask_endpoint, hosted_evaluation, read_answers
from ostools.measure.prompts import checked_layers
from ostools.models import load_model
from ostools.results import load_result
from ostools.runs.ray_connection import checked_address

class Odd:
    def __repr__(self):
        return "Odd"

model, ids = load_model("embedded"), torch.tensor([1, 2])
below = tempfile.mkdtemp()
result = ost.attention(model, "1 0")
sweep = runs.sweep_of({"tasks": "copy-last", "lengths": "3:4", "measurements": "evaluate"})
run = lambda **given: runs.plan(**{"sweep": sweep, "directory": below} | given)
CALLS = {
    **{f"{kind.__name__}.text": (lambda wrong, kind=kind: kind(text=wrong)) for kind in (
        m.Separator, m.Hint, m.PositionalHint, m.Numbered)},
    "RepeatPrompt.between": lambda wrong: m.RepeatPrompt(between=wrong),
    "RepeatPrompt.times": lambda wrong: m.RepeatPrompt(times=wrong if type(wrong) is not int else None),
    "SlidingWindow.layers": lambda wrong: m.SlidingWindow(4, layers=wrong if type(wrong) is not list else ()),
    "Upcast.parts": lambda wrong: m.Upcast(wrong),
    "Composed": lambda wrong: m.Composed(wrong),
    "compose": lambda wrong: m.compose(wrong),
    "acts": lambda wrong: m.acts(model, wrong, ids) if wrong is not None else m.compose(wrong),
    "changes_pass": lambda wrong: m.changes_pass(wrong) if wrong is not None else m.compose(wrong),
    "running": lambda wrong: m.running(model, wrong).__enter__() if wrong is not None else m.compose(wrong),
    "insert": lambda wrong: m.insert(wrong, ["1", "0"]),
    "insert.items": lambda wrong: m.insert(m.Hint(), wrong if type(wrong) is not list else None),
    "insert.key": lambda wrong: m.insert(m.Hint(), ["1"], key=wrong if wrong is not None else 3),
    "rewrite": lambda wrong: m.rewrite(wrong, "a b"),
    "tasks.letters": lambda wrong: tasks.letters(wrong),
    "tasks.figure_5a": lambda wrong: tasks.figure_5a(wrong),
    "tasks.last_token": lambda wrong: tasks.last_token(wrong),
    "tasks.repeating": lambda wrong: tasks.repeating(wrong),
    "tasks.task_pairs": lambda wrong: tasks.task_pairs(wrong),
    "tasks.TaskPairs": lambda wrong: tasks.TaskPairs(wrong),
    "tasks.AppendixTask": lambda wrong: tasks.AppendixTask(wrong),
    "tasks.AppendixTask.hint": lambda wrong: tasks.AppendixTask("copy-last", hint=wrong),
    "tasks.prompts_jsonl": lambda wrong: tasks.prompts_jsonl(wrong if type(wrong) is not list else None),
    "runs.plan": lambda wrong: run(sweep=wrong),
    "runs.plan.directory": lambda wrong: run(directory=wrong),
    "runs.plan.executor": lambda wrong: run(executor=wrong if wrong is not None else 3),
    "runs.plan.say": lambda wrong: run(say=wrong),
    "runs.run": lambda wrong: runs.run(wrong, below),
    "runs.read_sweep": lambda wrong: runs.read_sweep(wrong),
    "runs.results": lambda wrong: runs.results(wrong),
    "load_result": lambda wrong: load_result(wrong),
    "Result.save": lambda wrong: result.save(wrong),
    "Ray address": lambda wrong: checked_address(wrong),
    "hosted_evaluation": lambda wrong: hosted_evaluation(wrong),
    "read_answers.path": lambda wrong: read_answers(wrong, ()),
    "read_answers.asked": lambda wrong: read_answers("x", wrong or None if type(wrong) is list else wrong),
    "ask_endpoint": lambda wrong: ask_endpoint(wrong, "m", (), "x"),
}
said = {}
for name, call in CALLS.items():
    for wrong in (None, 3, 2.5, b"x", [], [3], {"a": 1}, Odd(), pd.Series([0, 1])):
        try:
            call(wrong)
            outcome = "!ran"
        except (InputError, MitigationError, HookError) as error:
            outcome = str(error)
        except Exception as error:
            outcome = f"!{type(error).__name__}: {error}"
        said[" ".join(f"{name}({wrong!r})".split())] = outcome
assert checked_layers(model, pd.Series([0, 1])) == (0, 1)  # numbers are numbers, whatever holds them
print(json.dumps(said))
"""


@pytest.mark.slow
def test_what_is_of_another_type_is_refused_in_words() -> None:
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said: dict[str, str] = json.loads(done.stdout)
    assert {call: outcome for call, outcome in said.items() if outcome.startswith("!")} == {}
    assert [call for call, outcome in said.items() if "found" not in outcome and "unknown" not in outcome] == []
