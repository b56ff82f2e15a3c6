"""`ostools decodable`, `readout` and `fate`: where an answer is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import (
    Chat,
    Device,
    LoadDtype,
    Mitigated,
    Model,
    Out,
    Seeds,
    Task,
    parse_layers,
    parse_lengths,
)
from ostools.cli.kit.steps import at_work, check, check_precisions, give

if TYPE_CHECKING:
    from ostools import measure
    from ostools.runs.forecast import Unloaded
    from ostools.tasks import Task as Form

Lengths = Annotated[
    str,
    typer.Option(
        metavar="RANGE", help="Both ends included (2:12), or a list (8,16,32), or both; five lengths at least."
    ),
]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", metavar="NAME", help="A precision; repeatable.")]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="number, or token (the answer's first); of decodable also position. Default: the number, where the answer is one.",
    ),
]
RandomWeights = Annotated[
    bool, typer.Option("--random-weights/--no-random-weights", help="The same architecture untrained, as a control.")
]


def decodable(
    task: Task = "count-ones-bernoulli",
    lengths: Lengths = "4,8,12,16,24,32,48,64",
    layers: Annotated[
        str, typer.Option(metavar="NUMBERS", help="'all', or numbers out of 0 ... L, such as 0,2,4.")
    ] = "all",
    dtype: Dtypes = None,
    seed: Seeds = None,
    target: Target = None,
    mitigation: Mitigated = None,
    chat: Chat = None,
    random_weights: RandomWeights = True,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    load_dtype: LoadDtype = "float32",
) -> None:
    """Ask linear probes for the right answer at the last token of every layer, after a begun answer line.

    Probes are trained and tested on different sequences: on the same lengths, on lengths between them, and beyond them.
    Beside them stand shuffled labels, random weights, and the length alone.

    \b
    Example:
      ostools decodable --task count-ones-bernoulli --dtype float32 --dtype bfloat16 --out decodable.png
    """
    from ostools import measure
    from ostools.measure.fate.decodable import probes_bytes
    from ostools.reporting.findings.fate import decodable_findings

    dtypes = tuple(dtype or ("float32",))
    wanted, form, chosen = _asked(out, lengths, task, dtypes, seed)
    kept = parse_layers(layers)

    def memory(on: Unloaded) -> int:
        how: dict[str, Any] = {"lengths": len(wanted), "seeds": len(chosen), "random": random_weights}
        return probes_bytes(on.shape, on.longest(form, wanted), dtypes, **how)

    with at_work("probing", model, device, load_dtype, memory) as (loaded, progress):
        result = measure.decodable(
            loaded,
            form,
            lengths=wanted,
            layers=kept,
            dtypes=dtypes,
            seeds=chosen,
            target=target,
            mitigation=mitigation,
            chat=chat,
            random_weights=random_weights,
            progress=progress,
        )
    columns = ["dtype", "site", "layer", "test", "control", "accuracy", "low", "high", "chance", "selectivity"]
    give(result, out, _show("What linear probes decode", columns, 5, decodable_findings))


def readout(
    task: Task = "count-ones-bernoulli",
    lengths: Lengths = "2:9",
    dtype: Dtypes = None,
    seed: Seeds = None,
    mitigation: Mitigated = None,
    chat: Chat = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    load_dtype: LoadDtype = "float32",
) -> None:
    """Ask whether the output reads the number that a probe decodes: cosines, logit lens, and moving it to the next answer.

    Two answers may not begin with the same token. Where digits are tokens, 1 and 10 do.

    \b
    Example:
      ostools readout --task count-ones-bernoulli --lengths 2:9 --out readout.png
    """
    from ostools import measure
    from ostools.measure.fate.decodable import probes_bytes
    from ostools.reporting.findings.fate import readout_findings

    dtypes = tuple(dtype or ("float32",))
    wanted, form, chosen = _asked(out, lengths, task, dtypes, seed)

    def memory(on: Unloaded) -> int:
        how: dict[str, Any] = {"lengths": len(wanted), "seeds": len(chosen), "random": False}
        return probes_bytes(on.shape, on.longest(form, wanted), dtypes, **how)

    with at_work("reading", model, device, load_dtype, memory) as (loaded, progress):
        result = measure.readout(
            loaded,
            form,
            lengths=wanted,
            dtypes=dtypes,
            seeds=chosen,
            mitigation=mitigation,
            chat=chat,
            progress=progress,
        )
    columns = [
        "dtype",
        "site",
        "layer",
        "direction",
        "cosine",
        "random_low",
        "random_high",
        "arrived",
        "predicted",
        "intervention",
        "followed",
    ]
    give(result, out, _show("What the output reads", [*columns, "rank"], 4, readout_findings))


def fate(
    task: Task = "count-ones-bernoulli",
    lengths: Lengths = "4,8,12,16,24,32,48,64,96,128,144,160",
    dtype: Dtypes = None,
    seed: Seeds = None,
    target: Target = None,
    mitigation: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:OPTIONS]", help="Such as separator:every=3, beside none; repeatable."),
    ] = None,
    chat: Chat = None,
    random_weights: RandomWeights = True,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    load_dtype: LoadDtype = "float32",
) -> None:
    """Say where answers are lost, by a verdict for each length: read, unread, undecodable, or indistinguishable.

    With mitigations it shows the verdicts without them and under each of them, and which verdicts they repair.

    \b
    Example:
      ostools fate --task count-ones-bernoulli --lengths 4,8,16,32,64,128 --out fate.png
      ostools fate --task count-ones --lengths 4,8,16,32,64 --mitigation separator --mitigation sliding-window:window=16
    """
    from ostools import measure
    from ostools.measure.fate.fate import fate_bytes
    from ostools.reporting.findings.fate import fate_findings

    dtypes = tuple(dtype or ("float32", "bfloat16"))
    wanted, form, chosen = _asked(out, lengths, task, dtypes, seed)

    def memory(on: Unloaded) -> int:
        how: dict[str, Any] = {"lengths": len(wanted), "seeds": len(chosen), "random": random_weights}
        return fate_bytes(on.shape, on.longest(form, wanted), dtypes, **how)

    with at_work("judging", model, device, load_dtype, memory) as (loaded, progress):
        result = measure.fate(
            loaded,
            form,
            lengths=wanted,
            dtypes=dtypes,
            seeds=chosen,
            target=target,
            mitigation=mitigation,
            chat=chat,
            random_weights=random_weights,
            progress=progress,
        )
    columns = [
        "mitigation",
        "dtype",
        "length",
        "verdict",
        "prompts",
        "read",
        "unread",
        "undecodable",
        "indistinguishable",
        "status",
    ]
    give(result, out, _show("Where answers are lost", columns, 4, fate_findings))


def _asked(
    out: Any, lengths: str, task: str, dtypes: Sequence[str], seed: list[int] | None
) -> tuple[Any, Form, list[int]]:
    """Lengths, task and seeds; what can be refused before a model is loaded is."""
    from ostools import tasks
    from ostools.measure.fate.decodable import seeds_asked

    check(out)
    check_precisions(dtypes)
    form = tasks.task(task)
    return parse_lengths(lengths), form, seeds_asked(form, seed)


def _show(
    title: str, columns: list[str], words: int, findings: Callable[[Any], list[str]]
) -> Callable[[measure.Decodable | measure.Readout | measure.Fate], None]:
    def show(result: Any) -> None:
        rows = result.frame[columns].itertuples(index=False, name=None)
        output.print_table(f"{title}: {result.frame['task'].iloc[0]}", columns, rows, left=words)
        output.print_text(["", *findings(result)])

    return show
