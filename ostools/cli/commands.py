"""The commands: `ostools VERB [WHAT]`, each with the public function that it runs.

Options, their help and their defaults are read from that function's signature and docstring
(`signature`, `options`). A row says only what a signature cannot: examples, defaults of what Python
requires, and which parameters are Python's alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_SENSITIVITY = "measure.jacobian.sensitivity:sensitivity"
_BOUNDS = "measure.bounds.bounds:bounds"
_ATTENTION = "measure.attention.attention:attention"
_FAITHFULNESS = "measure.faithfulness.faithfulness:faithfulness"
_EVALUATION = "measure.answers.evaluate:evaluate"
_DECODABLE = "measure.probes.probe:probe"
_FIGURE_3 = "experiments.figures.figure3:figure_3"
_LOADED = "a result in memory, which a command line has not"
_OF_A_PROMPT = "goes with a `Prompt` in place of a task"
LISTS = ("models", "tasks", "mitigations", "measurements")


@dataclass(frozen=True, eq=False)
class Command:
    """One command, and the function of ostools that it runs, written "module:function".

    options: of its examples, a text each.
    defaults: of parameters that Python requires, as they would be written.
    renamed: options with another name than their parameter.
    fixed: arguments that the command gives itself.
    python_only: parameters that are no options, each with the reason.
    lines_of: functions whose docstrings have the lines of parameters that are handed to them.
    check: a function of `checks` that refuses arguments before a model is loaded.
    hosted: a function of `own.hosted` that makes the questions for a model that runs elsewhere.
    of_questions: the parameters that such a model leaves to choose.
    pairs: its tasks are pairs of prompts, which its check knows.
    own: the function loads its model itself, and is given what was written.
    draws: the result is saved by --out.
    """

    name: str
    target: str
    options: tuple[str, ...]
    defaults: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    python_only: Mapping[str, str] = field(default_factory=dict)
    lines_of: tuple[str, ...] = ()
    check: str | None = None
    hosted: str | None = None
    of_questions: tuple[str, ...] = ()
    pairs: bool = False
    own: bool = False
    draws: bool = True

    @property
    def words(self) -> tuple[str, ...]:
        """The name, word by word."""
        return tuple(self.name.split(" "))

    @property
    def function(self) -> str:
        """The function with the package's name."""
        return f"ostools.{self.target}"

    @property
    def examples(self) -> tuple[str, ...]:
        """Command lines to type."""
        return tuple(f"ostools {self.name} {options}".rstrip() for options in self.options)


def _figure(number: int, maker: str, options: tuple[str, ...], check: str | None = None) -> Command:
    """One of the paper's figures; those of answers may be given by a model that runs elsewhere."""
    target = f"experiments.figures.{maker.replace('_', '')}:{maker}"
    form = ("seeds", "panels", "mode", "examples", "tidy")
    asked, counted = number in (2, 3, 4, 6, 7), number in (3, 4, 6, 7)
    return Command(
        f"reproduce figure {number}",
        target,
        options,
        fixed={"number": number} if counted else {},
        lines_of=(_FIGURE_3,) if maker == "figure_4" else (),
        check="asked_panels" if counted else check,
        hosted="figure_questions" if asked else None,
        of_questions=("lengths", *(form if counted else ())) if asked else (),
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

MEASURED = (
    Command(
        "sensitivity",
        _SENSITIVITY,
        (
            '--prompt "The capital of France is" --out france.html',
            '--prompt "The capital of France is" --layers all --out x.png',
            "--prompts prompts.jsonl --out norms.parquet",
            "--ids 2,40,50 --model ./my-model",
            '--prompt "Once upon a" --logit " time" --logit " day"',
        ),
        check="sensitivity",
    ),
    Command(
        "sensitivity profile",
        "cli.own.composed:profile",
        ('--prompt "The capital of France is"', '--prompt "The capital of France is" --position -2'),
        lines_of=(_SENSITIVITY, "measure.profiles.profile:profile"),
    ),
    Command(
        "sensitivity attribution",
        "measure.attribution.attribution:attribution",
        ('--prompt "Once upon a" --out parts.png',),
    ),
    Command(
        "sensitivity untrained",
        "measure.profiles.untrained:untrained_baselines",
        ('--prompt "Once upon a time" --kind initialised --kind shuffled --out untrained.png',),
        lines_of=(_SENSITIVITY,),
    ),
    Command("bounds", _BOUNDS, ('--prompt "The capital of France is" --variant local --out bounds.png',)),
    Command(
        "bounds spectra",
        "measure.profiles.spectra:spectra",
        ('--prompt "The capital of France is" --out spectra.png',),
        python_only={"measured": _LOADED},
    ),
    Command(
        "collapse",
        "cli.own.composed:collapse",
        (
            "--task figure-5a --lengths 1:512 --dtype bfloat16 --out x.html",
            "--task figure-5c --layers all --out layers.png",
            '--prompt "Once upon a time" --item " and" --no-bos --dtype int8-kv',
        ),
        lines_of=("measure.collapse.collapse:collapse",),
        check="collapse",
        pairs=True,
    ),
    Command(
        "collapse repeats",
        "experiments.repeats:repeats",
        ("--lengths 1:128 --out repeats.png", "--task figure-5a --untrained initialised --out before.png"),
        renamed={"prompts": "task"},
        check="repeats",
    ),
    Command(
        "collapse variation",
        "measure.attention.variation:attention_variation",
        ("--task figure-5c --lengths 1:200 --out variation.png",),
        defaults={"lengths": "1:128"},
        check="variation",
        pairs=True,
    ),
    Command(
        "attention",
        _ATTENTION,
        ('--prompt "Can you copy the following number?1111" --out x.html', "--task copy-last --length 12"),
        check="attention",
    ),
    Command(
        "attention difference",
        "cli.own.attention:difference",
        ("--task copy-last --length 12 --mitigation separator:every=3 --out compared.png",),
        lines_of=(_ATTENTION, "measure.attention.difference:attention_difference"),
        own=True,
    ),
    Command("attention heads", "measure.attention.heads:head_scores", ('--prompt "Once upon a time" --out heads.png',)),
    Command(
        "evaluate",
        _EVALUATION,
        (
            "--task count-ones --lengths 1:64 --mitigation separator:every=3",
            "--task copy-last --endpoint http://localhost:8000/v1 --model NAME --answers answers.jsonl",
        ),
        defaults={"task": "count-ones", "lengths": "1:64"},
        hosted="questions",
        of_questions=("task", "lengths", "seeds", "mitigation"),
    ),
    Command(
        "evaluate counting",
        "measure.answers.counting:counting",
        ("--task count-ones --dtype float32 --out counting.png",),
        check="counting",
    ),
    Command(
        "evaluate retrieval",
        "experiments.retrieval:retrieval",
        (
            "--length 9 --seeds 0,1 --out retrieval.png",
            "--model google/gemma-7b --records uuid --length 75 --method sketch",
        ),
        lines_of=(_SENSITIVITY,),
        check="retrieval",
    ),
    Command(
        "evaluate chain-of-thought",
        "experiments.reasoning.chain_of_thought:chain_of_thought",
        ('--task count-ones:mode=cot-zero-shot --length 8 --reasoning "11111 and 111" --out chain.png',),
        defaults={"task": "count-ones:mode=cot-few-shot", "length": "12"},
        lines_of=(_SENSITIVITY,),
    ),
    Command(
        "evaluate prompts",
        "cli.own.hosted:prompts",
        ("--task copy-last --lengths 10:300 --out prompts.jsonl",),
        lines_of=(_FIGURE_3,),
        own=True,
        draws=False,
    ),
    Command(
        "probe",
        _DECODABLE,
        ("--task count-ones-bernoulli --dtype bfloat16 --out probe.png",),
        defaults={"task": "count-ones-bernoulli", "lengths": "4,8,12,16,24,32,48,64"},
        check="drawn",
    ),
    Command(
        "probe intervention",
        "measure.probes.intervention:probe_intervention",
        ("--task count-ones-bernoulli --lengths 2:9 --out intervention.png",),
        defaults={"task": "count-ones-bernoulli", "lengths": "2:9"},
        lines_of=(_DECODABLE,),
        check="drawn",
    ),
    Command(
        "probe stage",
        "measure.probes.failure_stage:failure_stage",
        (
            "--task count-ones-bernoulli --lengths 4,8,16,32,64 --out stage.png",
            "--task count-ones --lengths 4,8,16,32,64 --mitigation separator --mitigation sliding-window:window=16",
        ),
        defaults={"task": "count-ones-bernoulli", "lengths": "4,8,12,16,24,32,48,64,96,128,144,160"},
        lines_of=(_DECODABLE,),
        check="drawn",
    ),
    Command(
        "ablate",
        "experiments.ablation.ablation:ablation",
        (
            "--task copy-first --lengths 20 --what heads --measure answers --measure collapse --out ablate.png",
            "--what edges --target 2.0:64:7",
        ),
        defaults={"task": "copy-first", "lengths": "20"},
        python_only={"carriers": _OF_A_PROMPT, "answer": _OF_A_PROMPT},
        check="ablation",
    ),
    Command(
        "ablate faithfulness",
        "cli.own.composed:faithfulness",
        ('--prompt "Once upon a time, a girl named Ann had a" --out use.png',),
        lines_of=(_FAITHFULNESS, _SENSITIVITY, _BOUNDS),
    ),
    Command(
        "mitigate",
        "experiments.study.study:study",
        ("--task count-ones --mitigation separator:every=3 --mitigation hint --lengths 4:64 --out study.html",),
        defaults={"task": "copy-last", "mitigations": "separator:every=3 hint interleave", "lengths": "4:64"},
        lines_of=(_EVALUATION,),
    ),
    Command(
        "mitigate windows",
        "experiments.study.windows:windows",
        ("--task copy-last --lengths 32 --windows 2:64 --out x.png",),
        defaults={"task": "copy-last", "lengths": "8,16,32"},
        lines_of=(_EVALUATION,),
    ),
    _figure(2, "figure_2", ("--lengths 10:600 --out figure2.pdf",)),
    _figure(3, "figure_3", ("--answers answers.jsonl --out figure3.pdf",)),
    _figure(4, "figure_4", ("--seeds 0 --lengths 5:50 --out x.pdf",)),
    _figure(5, "figure_5", ("--panel b --site y --norm l2 --out figure5.pdf",), check="figure_5"),
    _figure(6, "figure_3", ("--model google/gemma-7b --seeds 0,1 --out figure6.pdf",)),
    _figure(7, "figure_4", ("--seeds 0 --lengths 5:50 --out x.pdf",)),
    _figure(8, "figure_8", ("--block pre-ln --out figure8.pdf",)),
    _figure(9, "figure_9", ("--out figure9.pdf",)),
    Command(
        "sweep corpus",
        "runs.corpus.corpus:corpus",
        (
            "--texts texts.jsonl --lengths 64,256 --cells kept --out x.png",
            "--texts texts.jsonl --measure collapse --dtype bfloat16",
        ),
        renamed={"out": "cells"},
        lines_of=(_SENSITIVITY,),
        check="corpus",
    ),
)

OWN = (
    Command(
        "reproduce",
        "cli.own.reproduce:reproduce",
        ("--out paper", "--figures 5,9 --out figures", "--recipe examples/gemma-7b.yaml --out gemma"),
        own=True,
        draws=False,
    ),
    Command("sweep run", "cli.own.sweep:run", ("examples/sweep.yaml --out sweep --workers 2",), own=True, draws=False),
    Command(
        "sweep results", "cli.own.results:results", ("sweep --out table.csv", "sweep --follow"), own=True, draws=False
    ),
    Command(
        "report",
        "cli.own.report:report",
        (
            "",
            '--model ./my-model --prompt "The capital of France is" --out x.html',
            "--model embedded --model embedded-short --out both.html",
            "--section collapse --section precision --lengths 1:128",
            "--run sweep --out sweep.html",
        ),
        own=True,
        draws=False,
    ),
    Command(
        "explore",
        "cli.own.explore:explore",
        ('--prompt "The capital of France is" --port 8765',),
        own=True,
        draws=False,
    ),
    *(Command(f"list {what}", f"cli.own.listings:{what}", ("",), own=True, draws=False) for what in LISTS),
    Command("doctor", "cli.own.doctor:doctor", ("",), own=True, draws=False),
)


COMMANDS = {command.words: command for verb in VERBS for command in (*MEASURED, *OWN) if command.words[0] == verb}
"""Every command by its words, in the order of the verbs."""
