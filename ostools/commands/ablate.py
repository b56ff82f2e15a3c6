"""`ostools ablate`: load, take parts out, then save to a file or show on the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ostools as ost
from ostools.commands import output
from ostools.commands.loading import check, load, saved

if TYPE_CHECKING:
    from ostools.experiments import Ablation

SHOWN = 10
_FORMS = {
    "heads": (r"(\d{1,5})\.(\d{1,5})", "layer.head, such as 2.0"),
    "edges": (r"(\d{1,5})\.(\d{1,5}):(\d{1,7}):(\d{1,7})", "layer.head:query:key, such as 2.0:64:7"),
    "layers": (r"(\d{1,5})\.([a-z]+)", "layer.attention or layer.mlp, such as 2.mlp"),
}


@dataclass(frozen=True)
class Parts:
    """The options of `ostools ablate` that say what is taken out."""

    what: str
    targets: Sequence[str] | None
    top: int
    method: str

    def parsed(self) -> list[tuple[Any, ...]] | None:
        """The targets as tuples; None stays None. Raises `InputError` for text that names no part."""
        if not self.targets:
            return None
        form, words = _FORMS[self.what]
        found = []
        for text in self.targets:
            match = re.fullmatch(form, text.strip(), flags=re.ASCII)
            if match is None:
                raise ost.InputError(f"--target {text!r}: expected {words}")
            found.append(tuple(int(word) if word.isdigit() else word for word in match.groups()))
        return found


def ablate(
    model: str,
    task: str,
    length: int,
    seed: int,
    parts: Parts,
    measures: Sequence[str] | None,
    begun: bool,
    out: Path | None,
    device: str,
    dtype: str,
) -> None:
    """`ostools ablate`."""
    from ostools.experiments.ablation.questions import MEASURES
    from ostools.experiments.ablation.targets import checked_method
    from ostools.measure.prompts import checked_names

    check(out)
    form = ost.tasks.task(task)
    checked_method(parts.what, parts.method)
    names = checked_names("measure", measures, MEASURES) if measures else None
    targets = parts.parsed()
    loaded = load(model, device, dtype)
    with output.progress(f"taking {parts.what} out") as progress:
        result = ost.ablation(
            loaded,
            form,
            lengths=[length],
            seeds=[seed],
            what=parts.what,
            targets=targets,
            top=parts.top,
            method=parts.method,
            measures=names,
            begun=begun,
            progress=progress,
        )
    if not saved(result, out):
        _show(result)


def _show(result: Ablation) -> None:
    from ostools.reporting.findings.ablation import WORDS, ablation_findings

    names = ["part", "without", "with it out", "real effect", "predicted"]
    greatest: Any = result.top(SHOWN)
    for quantity, table in greatest.groupby("quantity", sort=False):
        rows = table[["target", "value", "ablated", "effect", "predicted_effect"]].itertuples(index=False, name=None)
        title = f"{WORDS[quantity]}: the {len(table)} greatest real effects"
        output.stdout().print(output.table(title, names, rows))
        output.print_text([""])
    output.print_text(ablation_findings(result))
