"""`ostools attention`: load, capture once or twice, then save to a file or show on the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mitigations
import ostools as ost
from ostools.commands import output
from ostools.commands.loading import check, load, saved, told_written

if TYPE_CHECKING:
    from ostools.measure import Attention, AttentionDifference

SHOWN = 10


@dataclass(frozen=True)
class Asked:
    """What the model is to read: a text, or a task with its length."""

    prompt: str | None
    task: str | None
    length: int | None
    seed: int

    def check(self) -> None:
        """Raises `InputError` before a model is loaded."""
        if (self.prompt is None) == (self.task is None):
            raise ost.InputError("expected --prompt, or --task with --length")
        if (self.task is None) != (self.length is None):
            raise ost.InputError("--task and --length go together: expected both, found one")
        if self.task is not None:
            ost.tasks.task(self.task)

    def of(self, model: Any, **options: Any) -> Attention:
        return ost.attention(model, self.prompt, task=self.task, length=self.length, seed=self.seed, **options)


@dataclass(frozen=True)
class Against:
    """What it is compared with; at most one of these."""

    mitigation: str | None
    prompt: str | None
    model: str | None

    def check(self) -> None:
        """Raises `InputError` before a model is loaded."""
        named = {"--mitigation": self.mitigation, "--against-prompt": self.prompt, "--against-model": self.model}
        given = [name for name, value in named.items() if value is not None]
        if len(given) > 1:
            raise ost.InputError(f"{' and '.join(given)} exclude each other: compare one thing at a time")
        if self.prompt == "":
            raise ost.InputError("--against-prompt: expected text, found nothing; give at least one character")
        if self.mitigation is not None:
            mitigations.mitigation(self.mitigation)


def attention(model: str, asked: Asked, against: Against, out: Path | None, device: str, dtype: str) -> None:
    """`ostools attention`."""
    check(out, asked.prompt)
    asked.check()
    against.check()
    loaded = load(model, device, dtype)
    first = asked.of(loaded)
    second = _second(loaded, asked, against, device, dtype)
    if out is not None and out.suffix.lower() == ".html":
        told_written(first.view(second).save(out))
        return
    result = first if second is None else ost.attention_difference(first, second)
    if not saved(result, out):
        _show(result)


def _second(model: Any, asked: Asked, against: Against, device: str, dtype: str) -> Attention | None:
    if against.mitigation is not None:
        return asked.of(model, mitigation=against.mitigation)
    if against.prompt is not None:
        return ost.attention(model, against.prompt)
    if against.model is not None:
        return asked.of(load(against.model, device, dtype))
    return None


def _show(result: Attention | AttentionDifference) -> None:
    from ostools.measure import AttentionDifference
    from ostools.reporting.charts.attention.cells import attention_findings, difference_findings
    from ostools.reporting.look.theme import display_token

    frame: Any = result.frame
    compared = isinstance(result, AttentionDifference)
    column, place = ("difference", "second_position") if compared else ("weight", "position")
    columns = ["layer.head", "token", "position", *(["first", "second", "difference"] if compared else ["weight"])]
    greatest = frame.reindex(frame[column].abs().sort_values(ascending=False, kind="stable").index).head(SHOWN)
    rows = [
        [
            f"{row['layer']}.{row['head']}",
            display_token(row["token"]),
            row[place],
            *(float(row[name]) for name in columns[3:]),
        ]
        for row in greatest.to_dict(orient="records")
    ]
    words = (
        f"{result.labels[0]} against {result.labels[1]}: the greatest differences"
        if compared
        else "The greatest weights"
    )
    output.stdout().print(output.table(f"{words} of the last token's attention", columns, rows, left=2))
    output.print_text(["", *(difference_findings(result) if compared else attention_findings(result))])
