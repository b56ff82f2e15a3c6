"""`ostools study` and `ostools windows`: load, compare, then save to a file or show on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import mitigations
import ostools as ost
from ostools.commands import output
from ostools.commands.loading import check, load, saved
from ostools.commands.options import layer_numbers, parse_lengths

if TYPE_CHECKING:
    from ostools.experiments import Study, WindowStudy

DTYPES = ("float32", "bfloat16")
THE_PAPERS = ("separator:every=3", "hint", "interleave")


@dataclass(frozen=True)
class Chosen:
    """Options of `ost.study` by their names."""

    seeds: tuple[int, ...]
    dtypes: tuple[str, ...]
    chat: bool | None
    level: float
    sensitivity_lengths: int


@dataclass(frozen=True)
class Window:
    """The options of `ostools windows`."""

    sizes: str | None
    layers: str
    sinks: int
    pairs: str | None
    seeds: tuple[int, ...]
    chat: bool | None

    def parsed_sizes(self) -> list[int] | None:
        """The sizes; the refusal names the option that it is about."""
        if self.sizes is None:
            return None
        try:
            return parse_lengths(self.sizes)
        except ost.InputError as error:
            raise ost.InputError(str(error).replace("--lengths", "--windows").replace("lengths", "windows")) from None

    def parsed_layers(self) -> Literal["all", "alternate"] | list[int]:
        if self.layers == "all" or self.layers == "alternate":
            return self.layers
        return layer_numbers(self.layers, "'all', 'alternate' or numbers such as 0,2")


def study(
    model: str,
    task: str,
    given: Sequence[str] | None,
    lengths: str,
    chosen: Chosen,
    out: Path | None,
    device: str,
    dtype: str,
) -> None:
    """`ostools study`."""
    from ostools.measure.passes.precisions import Precision

    check(out)
    # Before a model is loaded: what is no task, no mitigation, no length and no dtype.
    wanted, form = parse_lengths(lengths), ost.tasks.task(task)
    compared = [mitigations.mitigation(one) for one in given or THE_PAPERS]
    for name in chosen.dtypes:
        Precision.named(name)
    loaded = load(model, device, dtype)
    with output.progress("comparing") as progress:
        result = ost.study(loaded, form, mitigations=compared, lengths=wanted, progress=progress, **asdict(chosen))
    if not saved(result, out):
        _show_study(result)


def windows(model: str, task: str, lengths: str, window: Window, out: Path | None, device: str, dtype: str) -> None:
    """`ostools windows`."""
    check(out)
    wanted, form = parse_lengths(lengths), ost.tasks.task(task)
    sizes, layers = window.parsed_sizes(), window.parsed_layers()
    loaded = load(model, device, dtype)
    with output.progress("sliding") as progress:
        result = ost.windows(
            loaded,
            form,
            lengths=wanted,
            windows=sizes,
            seeds=window.seeds,
            layers=layers,
            sinks=window.sinks,
            pairs=window.pairs,
            chat=window.chat,
            progress=progress,
        )
    if not saved(result, out):
        _show_windows(result)


def _show_study(result: Study) -> None:
    from ostools.experiments.study.verdicts import ABOUT, QUANTITIES, in_words

    parameters = result.provenance.parameters
    verdicts: Any = result.verdicts
    effects: Any = result.effects
    rows = verdicts[["mitigation", *ABOUT]].itertuples(index=False, name=None)
    title = f"Mitigations against none on {parameters['task']}: verdicts"
    output.stdout().print(output.table(title, ["mitigation", *ABOUT], rows, left=4))
    said = [
        (
            row["mitigation"],
            QUANTITIES[row["quantity"]].words + (f", {row['dtype']}" if isinstance(row["dtype"], str) else ""),
            row["kind"],
            in_words(row) if row["pairs"] else "-",
            row["lengths"],
            f"{row['inactive']} inactive" if row["inactive"] else row["reason"][:60],
        )
        for row in effects.to_dict("records")
    ]
    names = ["mitigation", "quantity", "kind", f"effect, {parameters['level']:.0%} interval", "lengths", ""]
    output.stdout().print(output.table("Effects: with the mitigation against without", names, said, left=4))
    output.print_text(["", *verdicts["sentence"], *notes(result)])


def notes(result: Study) -> list[str]:
    """How the verdicts are to be read."""
    parameters = result.provenance.parameters
    count = 3 * len(parameters["mitigations"])
    said = [
        f"Verdicts are read from {parameters['verdict_level']:.2%} intervals and a sign-flip test at that level, so that all "
        f"{count} of them hold together at {parameters['level']:.0%} (Bonferroni). Intervals are over lengths, on this model "
        "and task. Seconds are this machine's, of one forward pass each."
    ]
    within: Any = result.frame["within_training"]
    if not within.any():
        said.append("Every length is beyond the trained ones: a failure there says nothing of over-squashing.")
    elif not within.all():
        said.append("Lengths beyond the trained ones are measured, and left out of effects and verdicts.")
    return said


def _show_windows(result: WindowStudy) -> None:
    parameters = result.provenance.parameters
    table: Any = result.summary
    title = f"Sliding windows on {parameters['task']}: answers against collapse (L2 at y, float64, of {parameters['pairs']})"
    columns = ["active", "questions", "accuracy", "wilson_low", "wilson_high", "log_probability", "distance"]
    fronts = ["front", "front_probability"]
    names = ["window", "acted", "of", "right", "95% from", "to", "log p", "distance", "front", "front (log p)"]
    table = table.assign(window=table["window"].astype("string").fillna("none"))
    rows = [
        (row["window"], *(row[name] for name in columns), *("*" if row[name] else "" for name in fronts))
        for row in table.to_dict("records")
    ]
    output.stdout().print(output.table(title, names, rows))
    output.print_text(["", "*: no other window is better in one and as good in the other (point estimates)."])
