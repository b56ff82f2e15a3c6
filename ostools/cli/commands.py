"""The commands: `ostools VERB [WHAT]`, each with the public function that it runs.

A measurement's command comes from its `@measurement(...)` (`ground.records`); here are those that put several functions
together, and those that measure nothing. Options, their help and their defaults are read from the function's signature and
docstring (`signature`, `options`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ostools.ground.records import Record, records

_SENSITIVITY = "measure.jacobian.sensitivity:sensitivity"
_BOUNDS = "measure.bounds.bounds:bounds"
_ATTENTION = "measure.attention.attention:attention"
_FAITHFULNESS = "measure.faithfulness.faithfulness:faithfulness"
_FIGURES = "experiments.figures"
_FIGURE_3 = f"{_FIGURES}.counting:figure_3"


@dataclass(frozen=True, eq=False)
class Command(Record):
    """One command: its record, and the function of ostools that it runs, written "module:function".

    fixed: arguments that the command gives itself.
    loads_model: the function loads its model itself, and is given what was written.
    draws: the result is saved by --out.
    """

    target: str = ""
    fixed: Mapping[str, object] = field(default_factory=dict)
    loads_model: bool = False
    draws: bool = True

    @property
    def name(self) -> str:
        """The words of the command line."""
        return self.command

    @property
    def words(self) -> tuple[str, ...]:
        """The name, word by word."""
        return tuple(self.command.split(" "))

    @property
    def function(self) -> str:
        """The function with the package's name."""
        return f"ostools.{self.target}"

    @property
    def example_lines(self) -> tuple[str, ...]:
        """Command lines to type."""
        return tuple(f"ostools {self.command} {options}".rstrip() for options in self.examples)


def _figure(number: int, maker: str, options: tuple[str, ...], memory: str = "") -> Command:
    """One of the paper's figures; those of answers may be given by a model that runs elsewhere."""
    is_counting = number in (3, 4, 6, 7)
    has_answers = is_counting or number == 2
    return Command(
        f"reproduce figure {number}",
        options,
        target=f"experiments.figures.{maker}",
        fixed={"number": number} if is_counting else {},
        lines_of=(_FIGURE_3,) if maker == "counting:figure_4" else (),
        memory=f"{_FIGURE_3}_memory" if is_counting else memory,
        hosted="figure_questions" if has_answers else None,
        of_questions=("lengths", *(("seeds", "panels") if is_counting else ())) if has_answers else (),
    )


VERBS = {
    "sensitivity": "Measure how much the last token depends on each token.",
    "bounds": "Bound sensitivity (Theorem 5.1) from one forward pass.",
    "collapse": "Measure representational collapse (Theorem 4.2).",
    "attention": "Show what the last token attends to, and how that differs between runs.",
    "evaluate": "Ask a model the paper's tasks: what it answers, here or elsewhere.",
    "probe": "Say where an answer is lost: decoded, read, or gone.",
    "ablate": "Take parts of a model, or tokens, out and measure what changes.",
    "mitigate": "Compare what may help with doing nothing.",
    "reproduce": "Judge every claim of the paper on a model; draw its figures.",
    "sweep": "Measure many cells, or many texts, and resume.",
    "report": "Measure everything, write one HTML file.",
    "explore": "Look at a prompt in the browser, as you type it.",
    "list": "List models, tasks, mitigations and measurements.",
    "doctor": "Say what this installation has, and what is missing.",
}
"""The fourteen verbs, in the order of `ostools --help`."""

COMPOSED = (
    Command(
        "sensitivity profile",
        ('--prompt "The capital of France is"', '--prompt "The capital of France is" --position -2'),
        target="cli.verbs.composed:profile",
        lines_of=(_SENSITIVITY, "measure.profiles.profile:profile"),
        memory="measure.jacobian.memory:sensitivity_memory",
    ),
    Command(
        "collapse",
        (
            "--task figure-5a --lengths 1:512 --dtype bfloat16 --out x.html",
            "--task figure-5c --layers all --out layers.png",
            '--prompt "Once upon a time" --item " and" --no-bos --dtype int8-kv',
        ),
        target="cli.verbs.composed:collapse",
        lines_of=("measure.collapse.collapse:collapse",),
        memory="cli.verbs.composed:pairs_memory",
    ),
    Command(
        "attention difference",
        ("--task copy-last --length 12 --mitigation separator:every=3 --out compared.png",),
        target="cli.verbs.composed:difference",
        lines_of=(_ATTENTION, "measure.attention.difference:attention_difference"),
        loads_model=True,
    ),
    Command(
        "evaluate prompts",
        ("--task copy-last --lengths 10:300 --out prompts.jsonl",),
        target="cli.verbs.hosted:prompts",
        lines_of=(_FIGURE_3,),
        loads_model=True,
        draws=False,
    ),
    Command(
        "ablate faithfulness",
        ('--prompt "Once upon a time, a girl named Ann had a" --out use.png',),
        target="cli.verbs.composed:faithfulness",
        lines_of=(_FAITHFULNESS, _SENSITIVITY, _BOUNDS),
        memory="measure.faithfulness.deletion:faithfulness_memory",
    ),
    _figure(
        2, "answering:figure_2", ("--lengths 10:600 --out figure2.pdf",), memory=f"{_FIGURES}.answering:figure_2_memory"
    ),
    _figure(3, "counting:figure_3", ("--answers answers.jsonl --out figure3.pdf",)),
    _figure(4, "counting:figure_4", ("--seeds 0 --lengths 5:50 --out x.pdf",)),
    _figure(
        5,
        "figure5:figure_5",
        ("--panel b --site y --norm l2 --out figure5.pdf",),
        memory=f"{_FIGURES}.figure5:figure_5_memory",
    ),
    _figure(6, "counting:figure_3", ("--model google/gemma-7b --seeds 0,1 --out figure6.pdf",)),
    _figure(7, "counting:figure_4", ("--seeds 0 --lengths 5:50 --out x.pdf",)),
    _figure(8, "synthetic:figure_8", ("--block pre-ln --out figure8.pdf",)),
    _figure(9, "synthetic:figure_9", ("--out figure9.pdf",)),
)


def _unmeasured(name: str, target: str, *examples: str) -> Command:
    """A command that gives no result: it loads its models itself, or needs none."""
    return Command(name, examples or ("",), target=f"cli.verbs.{target}", loads_model=True, draws=False)


UNMEASURED = (
    _unmeasured(
        "reproduce",
        "pages:reproduce",
        *("--out paper", "--figures 5,9 --out figures", "--recipe examples/gemma-7b.yaml --out gemma"),
    ),
    _unmeasured("sweep run", "sweeps:run", "examples/sweep.yaml --out sweep --workers 2"),
    _unmeasured("sweep results", "sweeps:results", "sweep --out table.csv"),
    _unmeasured(
        "report",
        "pages:report",
        "",
        '--model ./my-model --prompt "The capital of France is" --out x.html',
        "--model embedded --model embedded-short --out both.html",
        "--section collapse --section precision --lengths 1:128",
        "--run sweep --out sweep.html",
    ),
    _unmeasured("explore", "pages:explore", '--prompt "The capital of France is" --port 8765'),
    *(_unmeasured(f"list {what}", f"listings:{what}") for what in ("models", "tasks", "mitigations", "measurements")),
    _unmeasured("doctor", "listings:doctor"),
)


_MEASUREMENTS = (Command(**vars(record), target=target) for target, record in records().items() if record.command)

MEASURED = (*_MEASUREMENTS, *COMPOSED)
"""The commands that measure, and give a result."""

COMMANDS = {
    command.words: command
    for verb in VERBS
    for command in sorted((*MEASURED, *UNMEASURED), key=lambda command: command.words)
    if command.words[0] == verb
}
"""Every command by its words, in the order of the verbs."""
