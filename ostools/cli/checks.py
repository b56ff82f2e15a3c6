"""Refusals before a model is loaded: names that there are not, and options that exclude each other.

Each check takes the arguments that were given, by parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostools.cli.prompts import Prompts, rewritten, texts_of
from ostools.ground.errors import InputError
from ostools.ground.names import PRECISION_NAMES, checked_name, checked_names

Arguments = Mapping[str, Any]

_NAMES = {
    "linearisation": ("linearisation", "ostools.measure.jacobian.routes:LINEARISATIONS"),
    "linearisations": ("linearisation", "ostools.measure.jacobian.routes:LINEARISATIONS"),
    "kinds": ("kind of untrained model", "ostools.models.untrained:KINDS"),
    "untrained": ("kind of untrained model", "ostools.models.untrained:KINDS"),
    "ways": ("way", "ostools.measure.faithfulness.deletion:WAYS"),
    "measures": ("measure", "ostools.experiments.ablation.questions:MEASURES"),
}
"""Parameters whose names are known without a model: how they are called, and where they stand. They are read from the
source where it spells them out: importing torch and TransformerLens takes seconds, and a refusal none."""


_AT_LEAST = {"seed": 0} | dict.fromkeys(("max_new_tokens", "length", "samples", "count", "per_text", "bins", "top"), 1)
"""Whole numbers, and the least that each may be."""


def check_names(arguments: Arguments) -> None:
    """Refuse what many commands have: unknown mitigations, dtypes and variants, numbers that are too small."""
    from ostools.cli.signature import names_in

    for name, (kind, target) in _NAMES.items():
        if arguments.get(name) is not None:
            checked_names(kind, arguments[name], names_in(target))
    for name, least in _AT_LEAST.items():
        if (number := arguments.get(name)) is not None and number < least:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option}: expected a whole number of at least {least}, found {number}")
    prompts = arguments.get("prompt", arguments.get("prompts"))
    if isinstance(prompts, Prompts):
        rewritten(prompts, arguments.get("mitigation"))
    for name in ("mitigation", "mitigations"):
        from mitigations import mitigation

        for spec in texts_of(arguments.get(name)):
            mitigation(spec)
    if arguments.get("dtypes") is not None:
        checked_names("dtype", arguments["dtypes"], PRECISION_NAMES)
    if arguments.get("variants") is not None:
        from ostools.measure.bounds.variants import checked_variants

        checked_variants(arguments["variants"])


def check_task(arguments: Arguments) -> None:
    """Refuse a question that there is not."""
    if arguments.get("task") is not None:
        from ostools import tasks

        tasks.task(arguments["task"])


def sensitivity(arguments: Arguments) -> None:
    """A logit is one token's, or the difference of two; it is measured exactly."""
    logit, method = arguments.get("logit"), arguments.get("method")
    if logit is None:
        return
    if not isinstance(logit, str) and len(logit) > 2:
        raise InputError(f"--logit: expected one token, or two for the difference of their logits, found {len(logit)}")
    if str(method).startswith(("sketch", "estimate")):
        raise InputError(f"--logit: a logit's sensitivity is exact, found --method {method}: leave --method out")
    if "detached" in arguments.get("linearisations", ()):
        raise InputError(
            "--logit: found --linearisation detached: use `ostools sensitivity attribution "
            "--logit`, which has its parts"
        )


def collapse(arguments: Arguments) -> None:
    """A task, or a prompt of one's own; a reading that there is."""
    prompts = arguments.get("prompt")
    prompt = None if prompts is None else prompts.values[0]
    pairs_of(arguments.get("task"), prompt, arguments.get("item"), arguments.get("items", "text"))
    names = (arguments.get(name) for name in ("site", "per", "norm"))
    reading_of(*names, by_layer="layers" in arguments)


def pairs_of(task: str | None, prompt: Any, item: str | None, items: Any) -> Any:
    """The task of that name, or the pairs of a text or of ids, whose end is repeated.

    Raises `InputError` for options that exclude each other.
    """
    from ostools import tasks

    is_text = isinstance(prompt, str)
    if item is not None and not is_text:
        raise InputError("--item is what --prompt repeats: give --prompt too")
    if prompt is None:
        name = task or "figure-5a"
        spec = name if items == "text" or ":items=" in name else f"{name}:items={items}"
        return tasks.task(spec, tasks.CollapseTask)
    if task is not None:
        option = "--prompt" if is_text else "--ids"
        raise InputError(f"--task and {option} exclude each other: leave one out")
    if not is_text:
        return tasks.RepeatedIds(prompt, name="prompt")
    # Without an item the text's own last token is repeated, which is done on ids.
    return tasks.RepeatTask("prompt", prompt, item, items if item else "ids")


def reading_of(site: str | None, per: str | None, norm: str | None, *, by_layer: bool) -> Any:
    """The distance that is shown, None for the default. Raises `InputError` for an unknown one."""
    from ostools.measure.collapse.verdicts import Reading

    if not by_layer and not (site or per or norm):
        return None
    reading = Reading.with_defaults(site or ("residual" if by_layer else "y"), per, norm or "l2")
    if by_layer and reading.site != "residual":
        raise InputError(
            f"--layers compares v^(l) after each block: expected --site residual or none, found {reading.site}"
        )
    return reading


def variation(arguments: Arguments) -> None:
    """A task of which v* is v with its last token once more."""
    from ostools import tasks

    if "task" in arguments:
        tasks.repeating(arguments["task"])


def attention(arguments: Arguments) -> None:
    """A prompt, or a task with its length."""
    if ("prompt" in arguments) == ("task" in arguments):
        raise InputError("expected --prompt or --ids, or --task with --length")
    if ("task" in arguments) != ("length" in arguments):
        raise InputError("--task and --length go together: expected both, found one")


def counting(arguments: Arguments) -> None:
    """A task whose answer is a count."""
    from ostools.tasks.counting import COUNTING

    checked_name("counting task", arguments.get("task", "count-ones"), COUNTING)


def retrieval(arguments: Arguments) -> None:
    """Records that are some."""
    from ostools.tasks.retrieve import RetrieveTask

    RetrieveTask(records=arguments.get("records", "words"))


def seeds_drawn(arguments: Arguments) -> None:
    """Seeds of a task that draws its sequence."""
    from ostools import tasks
    from ostools.measure.probes.probe import seeds_asked

    seeds_asked(tasks.task(arguments["task"]), arguments.get("seeds"))


def ablation(arguments: Arguments) -> None:
    """Parts that there are, and what may stand in for them."""
    from ostools.experiments.ablation.targets import checked_method

    checked_method(arguments.get("what", "heads"), arguments.get("method", "zero"))


def panels(arguments: Arguments) -> None:
    """Panels of Figures 3, 4, 6 and 7."""
    from ostools.experiments.figures.counting import PANELS, figure_tasks

    figure_tasks(panels=arguments.get("panels", PANELS))


def figure_5(arguments: Arguments) -> None:
    """A distance that there is, and a way of putting digits in."""
    from ostools.measure.collapse.verdicts import Reading

    checked_name("items", arguments.get("items", "text"), ("text", "ids"))
    names = {"site": "residual", "per": None, "norm": "linf"}
    Reading.with_defaults(*(arguments.get(name, usual) for name, usual in names.items()), over_heads=True)


def corpus(arguments: Arguments) -> None:
    """Texts that can be read, and a measure with options of its own."""
    from mitigations import optional
    from ostools.runs.corpus.measures import PAIRS, PROFILES, Measure
    from ostools.runs.corpus.texts import read_texts
    from ostools.runs.store import Store

    measure, dtypes = arguments.get("measure", PROFILES), arguments.get("dtypes")
    if dtypes and measure != PAIRS:
        raise InputError(f"--dtype: expected it with --measure {PAIRS} alone; --load-dtype loads the model in a dtype")
    method = (arguments.get("linearisation"), arguments.get("method"), dtypes)
    Measure.from_options(measure, *method, 1, optional(arguments.get("mitigation")))
    read_texts(arguments["texts"])
    if "out" in arguments:
        Store(Path(arguments["out"])).require_ours()
