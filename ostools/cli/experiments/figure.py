"""`ostools figure`: refuse what a figure does not have, run it, then save to a file or show on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.hosted import Answers, Endpoint, answered, refuse_with_answers
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.options import (
    RANGE,
    AskedWithout,
    Examples,
    Norm,
    Out,
    Per,
    Site,
    Tidy,
    checked_items,
    parse_lengths,
)
from ostools.cli.kit.steps import at_work, check, give
from ostools.ground.errors import InputError

_MODEL = ("--model", "--base", "--device", "--device-map", "--dry-run")
_COLLAPSE = ("--dtype", "--site", "--per", "--norm", "--items", "--load-dtype")
_ASKED = (*_MODEL, "--chat/--no-chat", "--answers", "--endpoint")
_COUNTING = (*_ASKED, "--seed", "--panel", "--mode", "--examples", "--tidy", "--max-new-tokens")


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
    2: _Known("right answers to copying one digit", "figure_2", _ASKED),
    3: _Known("absolute error of sums and counts", "figure_3", _COUNTING),
    4: _Known("the most frequent answers to sums and counts", "figure_4", _COUNTING),
    5: _Known("distance of the last representations, mean over heads", "figure_5", (*_MODEL, "--seed", *_COLLAPSE)),
    6: _Known("absolute error of sums and counts", "figure_3", _COUNTING),
    7: _Known("the most frequent answers to sums and counts", "figure_4", _COUNTING),
    8: _Known("L1 distance of the last representations after one layer, over seeds", "figure_8", ("--seed", "--block")),
    9: _Known("total variation delta of a softmax, over seeds", "figure_9", ("--seed",)),
}  # fmt: skip
_ARGUMENTS = {
    "--seed": "seeds",
    "--panel": "panels",
    "--mode": "mode",
    "--examples": "examples",
    "--tidy": "tidy",
    "--dtype": "dtypes",
    "--max-new-tokens": "max_new_tokens",
    "--chat/--no-chat": "chat",
    "--site": "site",
    "--per": "per",
    "--norm": "norm",
    "--items": "items",
    "--block": "block",
}
_FAVOURITES = 3  # answers shown a task and way of asking; a file gets all


def figure(
    number: Annotated[int, typer.Argument(metavar="2..9", help="Which of the paper's figures.")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Figures 2 to 7: 'embedded', a directory, a hub id; or a hosted model's name."
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(metavar="RANGE", help=RANGE.format("1:512", "1:64,128")),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", help="All but figure 2: a seed; repeatable. Default: 0 to 4.")
    ] = None,
    panel: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK",
            help="Figures 3, 4, 6, 7: sum-ones, count-ones, count-ones-bernoulli or count-word; repeatable. Default: the first "
            "three.",
        ),
    ] = None,
    mode: AskedWithout = None,
    examples: Examples = None,
    tidy: Tidy = False,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Figure 5: a precision; repeatable. Default: float32 and bfloat16."),
    ] = None,
    site: Site = None,
    per: Per = None,
    norm: Norm = None,
    items: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="Figure 5: text, or ids: each digit by its own token. Default: text."),
    ] = None,
    load_dtype: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Figure 5: the dtype to load the model in, whose weights are the given ones."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Figures 3, 4, 6, 7: longest chain of thought in tokens. Default: 256."),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Figures 2 to 4, 6, 7: the chat template. Default: where there is one."),
    ] = None,
    block: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Figure 8: post-ln (Vaswani et al.), pre-ln (Section 2), or attention alone."
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Figures 2 to 7: 'auto' (cuda, else cpu) or a torch device.")
    ] = None,
    answers: Answers = None,
    endpoint: Endpoint = None,
    out: Out = None,
) -> None:
    """Draw one of the paper's figures on a model (2 to 7), or on numbers (8, 9).

    \b
    2: copying the last or first digit, plain, with a hint, interleaved.
    3, 6: absolute error of sums and counts, with and without chain of thought (6: the paper's of an open model).
    4, 7: how often each number is the answer to them (7: the paper's of an open model).
    5: collapse (Theorem 4.2), Linf at v^(L), mean over heads; or by --site, --per, --norm.
    8: collapse of one layer. 9: total variation of a softmax (Lemma 4.1).

    \b
    Example:
      ostools figure 2 --lengths 10:600 --out figure2.pdf
      ostools figure 3 --answers answers.jsonl --out figure3.pdf
      ostools figure 6 --model google/gemma-7b --seed 0 --seed 1 --max-new-tokens 1024 --device cuda --out figure6.pdf
    """
    if number not in FIGURES:
        raise InputError(f"unknown figure {number}: known are {', '.join(map(str, FIGURES))}")
    known = FIGURES[number]
    given = {
        "--model": model,
        "--lengths": lengths,
        "--seed": tuple(seed or ()) or None,
        "--dtype": tuple(dtype or ()) or None,
        "--panel": tuple(panel or ()) or None,
        "--mode": mode,
        "--examples": examples,
        "--tidy": tidy or None,
        "--site": site,
        "--per": per,
        "--norm": norm,
        "--items": items,
        "--load-dtype": load_dtype,
        "--max-new-tokens": max_new_tokens,
        "--chat/--no-chat": chat,
        "--block": block,
        "--device": device,
        **MANNERS.of_model,
        "--answers": answers,
        "--endpoint": endpoint,
    }
    for name, value in given.items():
        if value is not None and name not in (*known.options, "--lengths"):
            raise InputError(f"figure {number} has no {_lacks(known, name)}, so {name} does not apply: leave it out")
    check(out)
    local = {"--chat/--no-chat": chat, "--device": device, **MANNERS.of_model}
    refuse_with_answers(answers, endpoint, local | ({} if endpoint else {"--max-new-tokens": max_new_tokens}))
    chosen: dict[str, Any] = {to: given[name] for name, to in _ARGUMENTS.items() if given[name] is not None}
    if lengths is not None:
        chosen["lengths"] = parse_lengths(lengths)
    if known.maker in ("figure_3", "figure_4"):
        chosen["number"] = number
    if known.maker in ("figure_3", "figure_4"):
        _check_asking(chosen)
    if known.maker == "figure_5":
        _check_figure_5(site, per, norm, items)
    if answers is None:
        result = _drawn(known, model or "embedded", device or "auto", chosen, load_dtype or "float32")
    else:
        chosen.pop("max_new_tokens", None)
        result = _drawn_of(
            known, number, chosen, lambda asked: answered(asked, answers, endpoint, model, max_new_tokens)
        )
    give(result, out, lambda result: _SHOW[known.maker](number, result))


def _lacks(known: _Known, option: str) -> str:
    """What a figure without this option does not have."""
    words = {
        "--seed": "randomness",
        "--panel": "panels to choose",
        **dict.fromkeys(("--mode", "--examples", "--tidy"), "other form of its prompts"),
        "--max-new-tokens": "chain of thought",
        "--load-dtype": "choice of dtype",
    }
    words |= {"--dtype": "precisions", "--items": "pairs", **dict.fromkeys(("--site", "--per", "--norm"), "distances")}
    if option == "--block":
        return "synthetic layer"
    return words.get(option, "questions to a model") if known.on_model else "model"


def _check_asking(chosen: dict[str, Any]) -> None:
    """Before a model is loaded."""
    from ostools.experiments.figures.figure3 import asked_tasks

    asked_tasks(**{name: chosen[name] for name in ("panels", "mode", "examples", "tidy") if name in chosen})


def _check_figure_5(site: str | None, per: str | None, norm: str | None, items: str | None) -> None:
    """What can be refused before a model is loaded."""
    from ostools.experiments.figures.figure5 import checked_reading

    checked_reading(site or "residual", per, norm or "linf")
    checked_items(items or "text")


def _drawn(known: _Known, model: str, device: str, chosen: dict[str, Any], dtype: str) -> Any:
    from ostools import experiments
    from ostools.cli.kit import largest
    from ostools.theory.distances import dtype_named

    for name in (dtype, *chosen.get("dtypes", ())):
        dtype_named(name)
    make = getattr(experiments, known.maker)
    if not known.on_model:
        with output.progress("computing"):
            return make(**chosen)
    doing = "asking" if "--chat/--no-chat" in known.options else "computing"
    held = partial(largest.figure, maker=known.maker, chosen=chosen)
    with at_work(doing, model, device, dtype, held) as (loaded, progress):
        return make(loaded, progress=progress, **chosen)


def _drawn_of(known: _Known, number: int, chosen: dict[str, Any], answered: Callable[[Any], Any]) -> Any:
    """The figure out of a hosted model's answers to its prompts."""
    from ostools import experiments

    form = {name: chosen[name] for name in ("mode", "examples", "tidy") if name in chosen}
    asked = experiments.figure_prompts(number, chosen.get("lengths"), chosen.get("seeds"), **form)
    return getattr(experiments, known.maker)(answered(asked), **chosen)


def _title(number: int, part: str = "") -> str:
    return f"Figure {number}: {FIGURES[number].title}{part}"


def _show_copying(number: int, result: Any) -> None:
    """A row a panel and digit: how often it was right, and where it first was not."""
    from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
    from ostools.reporting.look.answer_marks import OTHER_WORDS, outcomes

    rows = []
    for (panel, task), here in result.frame.groupby(["panel", "task"], sort=False):
        here = here[here["correct"].notna()]
        wrong = here[~here["correct"].astype(bool)]
        first = int(wrong["length"].min()) if len(wrong) else "none"
        found = outcomes(here)
        counts = (int((found == kind).sum()) for kind in (OTHER_WORDS, SOMETHING_ELSE, CUT_OFF))
        rows.append((panel, task, len(here), int(here["correct"].sum()), *counts, first))
    names = ["panel", "task", "asked", "right", "in other words", "something else", "cut off", "first n not right"]
    output.print_table(_title(number), names, rows, left=2)
    output.print_text(["", *result.deviations])


def _show_errors(number: int, result: Any) -> None:
    """A row a task and way of asking."""
    from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE

    rows = []
    for (task, mode), here in result.frame.groupby(["task", "mode"], sort=False):
        here = here[here["correct"].notna()]
        error = here["absolute_error"].astype("Float64")
        mean, most = (None, None) if error.isna().all() else (float(error.mean()), int(error.max()))
        counts = (int((here["kind"] == kind).sum()) for kind in (SOMETHING_ELSE, CUT_OFF))
        rows.append((task, mode, len(here), int(here["correct"].sum()), *counts, mean, most))
    names = ["task", "mode", "asked", "right", "something else", "cut off", "mean error", "greatest"]
    output.print_table(_title(number), names, rows, left=2)
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
    output.print_table(_title(number), names, rows, left=2)
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
    title = f"Figure 5: {result.reading.words}{part}" if number == 5 else _title(number, part)
    output.print_table(title, names, cells, left=len(by) + 1)
    if number == 5:
        output.print_text(["", *result.deviations])
    else:
        from ostools.reporting.charts.figures.figure8_and_9 import figure_8_notes, figure_9_notes, in_words

        fits = result.fits.to_dict("records")
        laws = (f"{' '.join(map(str, [*(fit[k] for k in by), fit['quantity']]))}: {in_words(fit)}" for fit in fits)
        output.print_text(["", *laws, *(figure_9_notes(result) if number == 9 else figure_8_notes(result))])


_SHOW = {
    "figure_2": _show_copying,
    "figure_3": _show_errors,
    "figure_4": _show_frequencies,
    "figure_5": _show_distances,
    "figure_8": _show_distances,
    "figure_9": _show_distances,
}
