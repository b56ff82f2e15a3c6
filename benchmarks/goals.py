"""How long people wait, in one table: what was measured, the goal, and whether it was met.

    python -m benchmarks.goals [WORD ...]

A row is the seconds of a whole command, or a ratio of two times of this run. With words, only the
rows whose names contain one of them. The real models must be installed (`make real`). Whole
commands take the machine as it is: other work on it counts.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM

import ostools as ost
from benchmarks.commands import ran
from benchmarks.sensitivity import _flops, _matmul_rate
from benchmarks.timing import in_turn
from ostools.explorer.views import ViewRequest
from ostools.measure.answers.answers import answer_log_probability, answers
from ostools.measure.position import answer_text
from ostools.measure.task_prompt import render_prompt
from ostools.models import Prompt
from ostools.models.files.config import quiet
from ostools.models.files.sources import locate

GEMMA, SMOLLM2 = "gemma-3-270m", "smollm2-135m-instruct"
SENTENCE = (
    "The old man had two sons, and every evening they wrote to one another what the day had been. "
)
PROMPT = "What is the capital of France?"
_COMMAND = "from ostools.cli import main; import sys; sys.argv[0] = 'ostools'; main()"
_OURS = "import sys, ostools as ost; ost.load_model(sys.argv[1], dtype='bfloat16', device='cpu')"
_THEIRS = """import sys, torch, transformers
transformers.AutoTokenizer.from_pretrained(sys.argv[1])
transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)(torch.tensor([[2]]))
"""
_NOTEBOOK = f"import ostools as ost; ost.sensitivity(ost.load_model(), {PROMPT!r}).frame"
ROUNDS = 3


@dataclass(frozen=True)
class Goal:
    """One row: its name, the goal, the unit ("s", or "x" of a ratio), what measures it; `at_least`:
    more is better.
    """

    name: str
    goal: float
    unit: str
    measure: Callable[[], float]
    at_least: bool = False

    def row(self) -> str:
        value = self.measure()
        met = value >= self.goal if self.at_least else value <= self.goal
        return f"  {self.name:62s} {value:8.2f} {self.unit}   goal {self.goal:6.2f}   {'met' if met else 'missed'}"


def _python(code: str, *arguments: str) -> float:
    """Seconds of a process of its own, which may end in a refusal."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=False)
    return time.perf_counter() - start


def _command(line: str) -> Callable[[], float]:
    """Seconds of `ostools` with these arguments; `{out}` is a folder that is deleted afterwards."""

    def measure() -> float:
        with tempfile.TemporaryDirectory() as out:
            return _python(_COMMAND, *line.replace("{out}", out).split())

    return measure


@cache
def _model(name: str) -> TransformerBridge:
    return ost.load_model(name, dtype="float32", device="cpu")


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _prompt(tokens: int) -> Prompt:
    ids = ost.models.encode(_model(GEMMA), SENTENCE * (tokens // 8)).ids.tolist()
    return Prompt.from_ids(_model(GEMMA), ids[:tokens])


def _forward(model: TransformerBridge, prompt: Prompt) -> Callable[[], object]:
    def plain() -> None:
        with torch.no_grad():
            model(prompt.ids[None], logits_to_keep=1)

    return plain


def _ratio(numerator: Callable[[], object], denominator: Callable[[], object]) -> float:
    for work in (numerator, denominator):  # the first run of each pays for imports
        work()
    seconds = in_turn({"numerator": numerator, "denominator": denominator}, ROUNDS)
    return seconds["numerator"] / seconds["denominator"]


def _load() -> float:
    """Load a bfloat16 folder against transformers' own, whose weights a first pass reads; each in a
    process of its own.
    """
    with tempfile.TemporaryDirectory() as folder, quiet():
        source = locate(GEMMA, None).directory
        AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(folder)
        _model(GEMMA).tokenizer.save_pretrained(folder)
        return _ratio(lambda: _python(_OURS, folder), lambda: _python(_THEIRS, folder))


def _gguf_again() -> float:
    """Load the packaged GGUF file, converted before, against the folder that it was converted to."""
    folder = locate(GEMMA, None).directory
    return _ratio(
        lambda: ost.load_model(GEMMA, dtype="float32", device="cpu"),
        lambda: ost.load_model(folder, dtype="float32", device="cpu"),
    )


def _answers() -> float:
    model, original = _model(GEMMA), cast(Any, _model(GEMMA).original_model)
    prompts = [_prompt(tokens) for tokens in range(32, 64, 4)]
    longest = max(len(prompt.ids) for prompt in prompts)
    ids, mask = (
        torch.zeros(len(prompts), longest, dtype=torch.long),
        torch.zeros(len(prompts), longest).long(),
    )
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt.ids) :], mask[row, longest - len(prompt.ids) :] = (
            prompt.ids,
            1,
        )
    return _ratio(
        lambda: answers(model, prompts, max_new_tokens=48),
        lambda: original.generate(ids, attention_mask=mask, max_new_tokens=48, do_sample=False),
    )


def _right_answers() -> float:
    """The log probability of 20 right answers against a plain pass over each prompt."""
    model = _model(GEMMA)
    posed = [render_prompt(model, ost.tasks.task("count-ones"), n) for n in range(4, 84, 4)]
    prompts, lines = (
        [question.prompt for question in posed],
        [answer_text(question) for question in posed],
    )
    return _ratio(
        lambda: answer_log_probability(model, prompts, lines),
        lambda: [_forward(model, prompt)() for prompt in prompts],
    )


def _profile() -> float:
    return _seconds(lambda: ost.sensitivity(_model(GEMMA), _prompt(38)))


def _rate(threads: int) -> float:
    """Share of the machine's float32 products that an exact profile reaches."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model, prompt = _model(GEMMA), _prompt(13)
        taken = _seconds(
            lambda: ost.sensitivity(
                model, prompt, linearisations=["full"], method="exact", progress=False
            )
        )
        return _flops(model, prompt.ids) / taken / _matmul_rate()
    finally:
        torch.set_num_threads(before)


def _explorer(view: str) -> Callable[[], float]:
    """Seconds from a request of the page to its numbers."""

    def measure() -> float:
        model = _model(GEMMA)
        text = model.tokenizer.decode(_prompt(40).ids.tolist(), skip_special_tokens=True)
        request = ViewRequest(view, text)
        return statistics.median(
            _seconds(lambda: request.run(model, lambda done, total: None)) for _ in range(ROUNDS)
        )

    return measure


def _memory(line: str) -> Callable[[], float]:
    """The peak of a command without that of the libraries, over the 16-bit weights."""

    def measure() -> float:
        weights = 2 * sum(weight.numel() for weight in _model(GEMMA).parameters())
        return (ran(f"{line} --model {GEMMA} --load-dtype bfloat16").peak - 560 * 2**20) / weights

    return measure


def _pairs() -> float:
    panels, as_stored = list(ost.tasks.FIGURE_5), ost.load_model(GEMMA, device="cpu")
    return _seconds(
        lambda: [
            ost.collapse(as_stored, panel, lengths=range(1, 257), dtypes=["bfloat16"])
            for panel in panels
        ]
    )


GOALS = (
    Goal("ostools --help", 0.3, "s", _command("--help")),
    Goal(
        "refusal of an unknown option", 1, "s", _command(f"sensitivity --prmpt a --model {GEMMA}")
    ),
    Goal(
        "refusal of an unknown task",
        1,
        "s",
        _command(f"evaluate --task copy-lst --lengths 4 --model {GEMMA}"),
    ),
    Goal(
        "--dry-run on Gemma",
        2.5,
        "s",
        _command(f"sensitivity --prompt a --model {GEMMA} --dry-run"),
    ),
    Goal(
        "refusal of a layer that Gemma lacks",
        2.5,
        "s",
        _command(f"sensitivity --prompt a --model {GEMMA} --layers 0:99"),
    ),
    Goal("load the bfloat16 folder / transformers' from_pretrained", 1.2, "x", _load),
    Goal("load the GGUF file again / its folder", 1.0, "x", _gguf_again),
    Goal("first result in a notebook, embedded model", 3, "s", lambda: _python(_NOTEBOOK)),
    Goal("answers, 8 prompts x 48 tokens / generate", 1.05, "x", _answers),
    Goal("log probability of 20 right answers / plain passes", 1, "x", _right_answers),
    Goal("sensitivity, 38 tokens of Gemma", 15, "s", _profile),
    Goal("exact profile / matmul rate, one thread", 0.9, "x", lambda: _rate(1), at_least=True),
    Goal("exact profile / matmul rate, two threads", 0.9, "x", lambda: _rate(2), at_least=True),
    Goal("explorer, 40 tokens: attention", 0.5, "s", _explorer("attention")),
    Goal("explorer, 40 tokens: sketch", 1.5, "s", _explorer("sketch-full")),
    Goal(
        "memory / 16-bit weights: a sketch", 1.3, "x", _memory(f"sensitivity --prompt {PROMPT!r}")
    ),
    Goal("collapse 1:256, four pairs of Gemma as stored", 20, "s", _pairs),
    Goal(
        "study copy-last 4:12 of SmolLM2",
        60,
        "s",
        _command(f"mitigate --lengths 4:12 --model {SMOLLM2}"),
    ),
    Goal(
        "report --quick on Gemma",
        45,
        "s",
        _command(f"report --model {GEMMA} --quick --out {{out}}/r.html"),
    ),
    Goal("report on Gemma", 100, "s", _command(f"report --model {GEMMA} --out {{out}}/r.html")),
)


def main(words: list[str] | None = None) -> None:
    print(f"\ngoals, {torch.get_num_threads()} threads")
    for goal in GOALS:
        if not words or any(word in goal.name for word in words):
            print(goal.row(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
