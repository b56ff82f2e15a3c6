"""`ostools ablate`: parts of a model taken out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import Device, Dtype, Model, Out, Seed
from ostools.cli.kit.steps import at_work, check, give
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.experiments import Ablation
    from ostools.runs.forecast import Unloaded

SHOWN = 10
_FORMS = {
    "heads": (r"(\d{1,5})\.(\d{1,5})", "layer.head, such as 2.0"),
    "edges": (r"(\d{1,5})\.(\d{1,5}):(\d{1,7}):(\d{1,7})", "layer.head:query:key, such as 2.0:64:7"),
    "layers": (r"(\d{1,5})\.([a-z]+)", "layer.attention or layer.mlp, such as 2.mlp"),
}


def ablate(
    task: Annotated[
        str, typer.Option(metavar="NAME[:OPTIONS]", help="Such as copy-first or count-ones; ostools tasks lists them.")
    ] = "copy-first",
    length: Annotated[int, typer.Option(metavar="N", help="Items of the sequence.")] = 20,
    seed: Seed = 0,
    what: Annotated[str, typer.Option(metavar="KIND", help="heads, edges or layers.")] = "heads",
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            help="A head 2.0 (layer.head), an edge 2.0:64:7 (query, key) or a sublayer 2.mlp; repeatable. Default: all; of the "
            "edges those to which the last token attends most.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", help="How many edges, where none is named.")] = 32,
    method: Annotated[str, typer.Option(metavar="NAME", help="What stands in: zero, or for heads mean.")] = "zero",
    measure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="sensitivity, collapse, answers; repeatable. Default: all that there can be."
        ),
    ] = None,
    begun: Annotated[
        bool, typer.Option("--begun", help="Read at the right answer's line, begun, and not at the question's end.")
    ] = False,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Take heads, edges or layers out: the real effect, and the predicted one.

    It measures what each does to the sensitivity of the tokens that carry the answer, to the distance of n and n + 1 items,
    and to the probability of the right answer. Beside it stands the first-order prediction, from one backward pass for all of
    them.

    \b
    Example:
      ostools ablate --task copy-first --length 20 --what heads --measure answers --measure collapse --out ablate.png
    """
    from ostools import experiments, tasks
    from ostools.experiments.ablation.questions import MEASURES
    from ostools.experiments.ablation.targets import checked_method
    from ostools.ground.names import checked_names
    from ostools.measure.passes.memory import patterns_bytes

    check(out)
    form = tasks.task(task)
    checked_method(what, method)
    measures = checked_names("measure", measure, MEASURES) if measure else None
    targets = _parsed(target, what) if target else None

    def memory(on: Unloaded) -> int:
        return patterns_bytes(on.shape, on.longest(form, [length]).tokens)

    with at_work(f"taking {what} out", model, device, dtype, memory) as (loaded, progress):
        result = experiments.ablation(
            loaded,
            form,
            lengths=[length],
            seeds=[seed],
            what=what,
            targets=targets,
            top=top,
            method=method,
            measures=measures,
            prefilled=begun,
            progress=progress,
        )
    give(result, out, _show)


def _parsed(targets: Sequence[str], what: str) -> list[tuple[Any, ...]]:
    """Raises `InputError` for text that names no part."""
    form, words = _FORMS[what]
    found = []
    for text in targets:
        match = re.fullmatch(form, text.strip(), flags=re.ASCII)
        if match is None:
            raise InputError(f"--target {text!r}: expected {words}")
        found.append(tuple(int(word) if word.isdigit() else word for word in match.groups()))
    return found


def _show(result: Ablation) -> None:
    from ostools.reporting.findings.ablation import WORDS, ablation_findings, beliefs

    output.print_text([*beliefs(result), ""])
    names = ["part", "without", "with it out", "real effect", "predicted"]
    greatest: Any = result.top(SHOWN)
    for quantity, table in greatest.groupby("quantity", sort=False):
        rows = table[["target", "value", "ablated", "effect", "predicted_effect"]].itertuples(index=False, name=None)
        title = f"{WORDS[quantity]}: the {len(table)} greatest real effects"
        output.print_table(title, names, rows)
        output.print_text([""])
    output.print_text(ablation_findings(result))
