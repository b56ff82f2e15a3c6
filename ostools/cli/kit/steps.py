"""The steps of every command: refuse what can be refused, load, work under a bar, give the result."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ostools.cli.kit import output
from ostools.cli.kit.manners import MANNERS
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress

_SHOWN = 4
"""Parts of a prompt whose means are shown on a terminal."""

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from ostools.cli.kit.limits import Memory
    from ostools.runs.forecast import Forecast


def check(out: Path | None, asked: str = "--out") -> None:
    """Refuse a path that no result can be written to, and a size of what is no picture, before a model is loaded; in the words
    of the option that asked for it."""
    from ostools.results import FIXED, checked_output

    if out is not None:
        checked_output(out, option=asked)
    if MANNERS.size is not None and (out is None or out.suffix.lower() not in FIXED):
        endings = " ".join(FIXED)
        raise InputError(f"--size is of a picture: expected {asked} with a name ending in {endings}, found {out}")


def check_precisions(names: Sequence[str] | None) -> None:
    """Refuse an unknown one before a model is loaded."""
    from ostools.measure.passes.precisions import Precision

    for name in names or ():
        Precision.of_name(name)


@contextmanager
def at_work(
    doing: str,
    model: str,
    device: str,
    dtype: str = "float32",
    memory: Memory | None = None,
    *,
    counted: bool = True,
) -> Iterator[tuple[TransformerBridge, Progress]]:
    """The model, loaded, and what moves a bar that says what is being done; the bar goes when the block ends.

    Before it is loaded the forecast of `memory`, the bytes of the work, is told and held against the limits: what is free, and
    `--max-memory`. With `--dry-run` the command ends there: exit 0 where the work would begin.
    While it works no more is given than is free: where that runs out, `InsufficientMemoryError`. Work whose first steps show
    that it takes longer than `--max-time` ends (`InputError`); `counted`: its steps are told.
    """
    from ostools.cli.kit.limits import Clock, foreseen, require_counted

    if not counted:
        require_counted(doing)
    forecast = None if memory is None else foreseen(model, device, dtype, memory)
    if MANNERS.dry_run:
        _end_with(forecast)
    with _at_work(doing, model, device, dtype, forecast) as (loaded, bar):
        yield loaded, Clock().progress(doing, bar)


@contextmanager
def _at_work(
    doing: str, model: str, device: str, dtype: str, forecast: Forecast | None
) -> Iterator[tuple[TransformerBridge, Callable[[int, int], None]]]:
    from ostools.cli.kit.limits import within_limits, within_time

    with within_time(), within_limits(device, forecast):
        loaded = _loaded(model, device, dtype)
        with output.progress(doing) as progress:
            yield loaded, progress


def each_at_work(
    doing: str, models: Sequence[str], device: str, dtype: str, memory: Memory
) -> tuple[Iterator[TransformerBridge], Progress]:
    """The same of several models, each loaded when the one before it is let go; and what moves the bar of the one at work.

    All are forecast, and told, before the first is loaded; `--dry-run` ends there. `--max-time` holds for all together.
    It ends the work within `limits.within_time`.
    """
    from ostools.cli.kit.limits import Clock, foreseen

    forecasts = [foreseen(model, device, dtype, memory) for model in models]
    if MANNERS.dry_run:
        _end_with(*forecasts)
    bars: list[Callable[[int, int], None]] = []

    def each() -> Iterator[TransformerBridge]:
        for model, forecast in zip(models, forecasts, strict=True):
            with _at_work(f"{doing} {model}", model, device, dtype, forecast) as (loaded, bar):
                bars.append(bar)
                yield loaded
            del loaded
            gc.collect()  # a model is in circles: without this it stays beside the next

    return each(), Clock().progress(doing, lambda done, total: bars[-1](done, total))


def _end_with(*forecasts: Forecast | None) -> NoReturn:
    """The end of a dry run. The forecast itself was told as a note; programs get its numbers, of several models a list."""
    import typer

    found = [one for one in forecasts if one is not None]
    if len(found) < len(forecasts):
        raise InputError(
            "--dry-run: expected a model and a prompt that can be forecast, found that something is wrong with one of them: "
            "leave --dry-run out, and the command says what"
        )
    if MANNERS.json:
        numbers = [{"memory": one.memory, "work": one.work} for one in found]
        output.print_json(numbers[0] if len(numbers) == 1 else numbers)
    raise typer.Exit


def _loaded(model: str, device: str, dtype: str) -> TransformerBridge:
    import torch

    from ostools.models import load_model
    from ostools.models.shape import one_is_enough

    with output.progress("loading the model"):
        loaded = load_model(model, dtype=dtype, device=device, device_map=MANNERS.device_map, base=MANNERS.base)
    if one_is_enough(loaded):
        torch.set_num_threads(1)
    return loaded


def give(
    result: Any, out: Path | None, show: Callable[[Any], None], finding: Callable[[Any], list[str]] | None = None
) -> None:
    """The result to the file asked for, and as JSON if asked for; shown on the terminal where neither was.

    finding: its one or two lines, said beside the file that was written.
    """
    written = None if out is None else result.save(out, size=MANNERS.size)
    if MANNERS.json:
        output.print_json(result.as_json())
    elif written is not None:
        tell_written(written)
        if finding is not None and not MANNERS.quiet:
            output.print_text(finding(result))
    else:
        _tell_mitigation(result)
        show(result)


def give_all(found: Any, out: Path | None, show: Callable[[Any], None]) -> None:
    """The same of the result of a list: of one prompt its own, of several each by itself and then their mean."""

    def show_each(several: Any) -> None:
        for number, result in enumerate(several, start=1):
            output.print_text(["", f"prompt {number} of {len(several)}"])
            show(result)
        shortest = min(result.frame["position"].nunique() for result in several)
        table = several.over_position(min(_SHOWN, shortest))
        columns = ["source", "norm", "layer", "start", "end", "mean", "low", "high"]
        output.print_text([""])
        title = f"Mean over {len(several)} prompts of the share of a part of the prompt over its even share"
        output.print_table(title, columns, table[columns].itertuples(index=False, name=None), left=2)

    give(found[0] if len(found) == 1 else found, out, show if len(found) == 1 else show_each)


def _tell_mitigation(result: Any) -> None:
    """Under what all of it was measured, where that is one mitigation."""
    if (under := result.provenance.under) is not None:
        output.print_text([f"under the mitigation {under}", ""])


def tell_written(path: Path) -> None:
    """Say what was written, unless nothing is to be said."""
    if MANNERS.json:
        output.print_json({"written": str(path)})
    elif not MANNERS.quiet:
        output.print_text([f"wrote {path}"])
