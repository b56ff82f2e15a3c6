"""`ostools figure`: refuse what a figure does not have, run it, then save to a file or show on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ostools as ost
from ostools.commands import output
from ostools.commands.loading import check, load, saved
from ostools.commands.options import parse_lengths

_MODEL = ("--model", "--device")
_COUNTING = (*_MODEL, "--seed", "--max-new-tokens", "--chat/--no-chat")


@dataclass(frozen=True)
class _Known:
    """A figure: what its table holds, the function that makes it, and the options that it has beside `--lengths`."""

    title: str
    maker: str
    options: tuple[str, ...]

    @property
    def on_model(self) -> bool:
        return "--model" in self.options


FIGURES = {
    2: _Known("right answers to copying one digit", "figure_2", (*_MODEL, "--chat/--no-chat")),
    3: _Known("absolute error of sums and counts", "figure_3", _COUNTING),
    4: _Known("the most frequent answers to sums and counts", "figure_4", _COUNTING),
    5: _Known("Linf distance of the last representations, over heads and seeds", "figure_5", (*_MODEL, "--seed", "--dtype")),
    6: _Known("absolute error of sums and counts", "figure_3", _COUNTING),
    7: _Known("the most frequent answers to sums and counts", "figure_4", _COUNTING),
    8: _Known("L1 distance of the last representations after one attention layer, over seeds", "figure_8", ("--seed",)),
    9: _Known("total variation delta of a softmax, over seeds", "figure_9", ("--seed",)),
}  # fmt: skip
_ARGUMENTS = {"--seed": "seeds", "--dtype": "dtypes", "--max-new-tokens": "max_new_tokens", "--chat/--no-chat": "chat"}
_FAVOURITES = 3  # answers shown a task and way of asking; a file gets all


def figure(number: int, given: Mapping[str, Any], out: Path | None) -> None:
    """`ostools figure`; `given`: the values of the options by their names, None for those left out."""
    if number not in FIGURES:
        raise ost.InputError(f"unknown figure {number}: known are {', '.join(map(str, FIGURES))}")
    known = FIGURES[number]
    for name, value in given.items():
        if value is not None and name not in (*known.options, "--lengths"):
            raise ost.InputError(f"figure {number} has no {_lacks(known, name)}, and so no {name}: leave it out")
    check(out)
    chosen: dict[str, Any] = {
        _ARGUMENTS[name]: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if name in _ARGUMENTS and value is not None
    }
    if given["--lengths"] is not None:
        chosen["lengths"] = parse_lengths(given["--lengths"])
    if known.maker in ("figure_3", "figure_4"):
        chosen["number"] = number
    result = _drawn(known, given, chosen)
    if not saved(result, out):
        _SHOW[known.maker](number, result)


def _lacks(known: _Known, option: str) -> str:
    """What a figure without this option does not have."""
    words = {"--seed": "randomness", "--dtype": "precisions", "--max-new-tokens": "chain of thought"}
    return words.get(option, "questions to a model") if known.on_model else "model"


def _drawn(known: _Known, given: Mapping[str, Any], chosen: dict[str, Any]) -> Any:
    if "dtypes" in chosen:
        from ostools.theory.distances import dtype_named

        for name in chosen["dtypes"]:
            dtype_named(name)
    on = [load(given["--model"] or "embedded", given["--device"] or "auto", "float32")] if known.on_model else []
    from ostools import experiments

    with output.progress("asking" if known.maker in ("figure_2", "figure_3", "figure_4") else "computing") as progress:
        options = chosen | ({"progress": progress} if on else {})
        return getattr(experiments, known.maker)(*on, **options)


def _title(number: int, part: str = "") -> str:
    return f"Figure {number}: {FIGURES[number].title}{part}"


def _show_copying(number: int, result: Any) -> None:
    """A row a panel and digit: how often it was right, and where it first was not."""
    from ostools.reporting.look.answer_marks import OTHER_WORDS, outcomes

    rows = []
    for (panel, task), here in result.frame.groupby(["panel", "task"], sort=False):
        wrong = here[~here["correct"].astype(bool)]
        first = int(wrong["length"].min()) if len(wrong) else "none"
        words, none = int((outcomes(here) == OTHER_WORDS).sum()), int((~here["parsable"]).sum())
        rows.append((panel, task, len(here), int(here["correct"].sum()), words, none, first))
    names = ["panel", "task", "asked", "right", "in other words", "no answer", "first n not right"]
    output.stdout().print(output.table(_title(number), names, rows, left=2))
    output.print_text(["", *result.deviations])


def _show_errors(number: int, result: Any) -> None:
    """A row a task and way of asking."""
    rows = []
    for (task, mode), here in result.frame.groupby(["task", "mode"], sort=False):
        error = here["absolute_error"].astype("Float64")
        unread = int(error.isna().sum())
        mean = float(error.mean()) if unread < len(here) else None
        most = int(error.max()) if unread < len(here) else None
        rows.append((task, mode, len(here), int(here["correct"].sum()), unread, mean, most))
    names = ["task", "mode", "asked", "right", "no number", "mean error", "greatest"]
    output.stdout().print(output.table(_title(number), names, rows, left=2))
    output.print_text(["", *result.deviations])


def _show_frequencies(number: int, result: Any) -> None:
    """The most frequent answers of each task and way of asking, and how often each of them is right."""
    rows = []
    for (task, mode), here in result.frame.groupby(["task", "mode"], sort=False):
        most = here[here["answers"] > 0].sort_values("answers", ascending=False, kind="stable").head(_FAVOURITES)
        asked = int(here["answers"].sum())
        for row in most.itertuples():
            output_ = "no number" if str(row.output) == "<NA>" else int(row.output)
            rows.append((task, mode, output_, f"{row.answers} of {asked}", row.right))
    names = ["task", "mode", "answer", "given", "is right"]
    output.stdout().print(output.table(_title(number), names, rows, left=2))
    output.print_text(["", *result.deviations])


def _show_distances(number: int, result: Any) -> None:
    """At some lengths the mean, least and greatest; then the fitted laws in words."""
    frame, by = result.frame, {5: ["panel", "pair", "dtype"], 8: ["reading"], 9: []}[number]
    value = {5: "mean", 8: "l1", 9: "delta"}[number]
    shown, part = output.some_of(frame["length"])
    table = frame[frame["length"].isin(shown)].groupby([*by, "length"], sort=False)
    if number == 5:
        rows = table.agg({"mean": "mean", "head_minimum": "min", "head_maximum": "max"})
    else:
        rows = table[value].agg(["mean", "min", "max"])
    keys = [key if isinstance(key, tuple) else (key,) for key in rows.index]
    cells = ((*key, *map(float, row)) for key, row in zip(keys, rows.to_numpy(), strict=True))
    names = [*by, "n", "mean", "least", "greatest"]
    output.stdout().print(output.table(_title(number, part), names, cells, left=len(by) + 1))
    if number != 5:
        from ostools.reporting.charts.figures.figure8_and_9 import figure_9_notes, in_words

        fits = result.fits.to_dict("records")
        laws = (f"{' '.join(map(str, [*(fit[k] for k in by), fit['quantity']]))}: {in_words(fit)}" for fit in fits)
        output.print_text(["", *laws, *(figure_9_notes(result) if number == 9 else [])])


_SHOW = {
    "figure_2": _show_copying,
    "figure_3": _show_errors,
    "figure_4": _show_frequencies,
    "figure_5": _show_distances,
    "figure_8": _show_distances,
    "figure_9": _show_distances,
}
