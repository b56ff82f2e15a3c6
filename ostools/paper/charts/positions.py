"""Sensitivity and answers by position, along a chain of thought and of a record to retrieve; and
the sizes of a sliding window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.names import known_norm
from ostools.ground.words import number, title_of
from ostools.paper.chain_of_thought import BY_MODEL, LINE_APPENDED, PARTS, ChainOfThought
from ostools.paper.retrieval import Retrieval
from ostools.paper.windows import WindowStudy
from ostools.reporting.charts.tokens import NORMS
from ostools.reporting.findings import MOST, first_few
from ostools.reporting.forms import Encoding, bars, curve, log_rows, rules, token_rows
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, frame_of
from ostools.theory.statistics.intervals import wilson

_CHAIN_WIDTH, _CHAIN_HEIGHT, _PART_HEIGHT = 640, 200, 24


def chain_of_thought_chart(result: ChainOfThought) -> Chart:
    """Above: the norm of d y_n / d v_i for every token (the operator norm, or a sketch's Frobenius
    norm), coloured by its part. Below: each part's share of the sum, beside its share of the
    tokens. Of the first linearisation measured.
    """
    frame: Frame = frame_of(result)
    table: Frame = result.summary
    name = str(frame["linearisation"].iloc[0])
    frame = frame[frame["linearisation"] == name]
    norm = known_norm(frame["method"])
    table = table[(table["linearisation"] == name) & (table["norm"] == norm)]
    parts_present = [part for part in PARTS if (frame["part"] == part).any()]
    # Without a legend: the rows below name the parts.
    rows, y = log_rows(
        token_rows(frame, series=frame["part"], value=frame[f"{norm}_norm"]),
        f"{NORMS[norm]} ({name})",
    )
    hue, hue_below = (draw.hue(field, parts_present, legend=None) for field in ("series", "name"))
    x = axes.token_axis(rows["token"].tolist())
    tokens = draw.panel(curve(rows, x, y, hue, width=0, points=22), _CHAIN_WIDTH, _CHAIN_HEIGHT)
    below = _parts(table.assign(name=table["part"]), parts_present, hue_below)
    parameters = result.provenance.parameters
    notes = chain_of_thought_findings(result)[:1]
    notes += ["Norms are estimated."] if set(frame["method"]) != {"exact"} else []
    task_words = f"{parameters['task']}, {parameters['length']} items"
    title = (
        f"Sensitivity of the answer to prompt and reasoning: {task_words}, on "
        f"{title_of(result.provenance.model)}"
    )
    return draw.figure([[tokens], [below]], title, notes)


def chain_of_thought_findings(result: ChainOfThought) -> list[str]:
    """What comes next, and each part's share of the sum over all tokens, a sentence a linearisation
    and norm.
    """
    parameters = result.provenance.parameters
    answer, right = (
        theme.short_word(parameters[f"{which}_token"]) for which in ("answer", "right")
    )
    sentences = [f"{_source(parameters)}. Next comes {answer}; the right one is {right}."]
    summary: Frame = result.summary
    for (linearisation, norm), rows in summary.groupby(["linearisation", "norm"], sort=False):
        shares = ", ".join(
            f"{row['part']} {row['share']:.0%} (tokens: {row['tokens']})"
            for row in rows.to_dict("records")
        )
        sentences.append(
            f"{linearisation}, {NORMS[str(norm)]}, share of the sum over all tokens: {shares}."
        )
    return first_few(sentences)


def _source(parameters: Mapping[str, Any]) -> str:
    """Whose the reasoning and the begun line are."""
    source, has_reasoning = parameters["reasoning_source"], bool(parameters["reasoning"])
    if source == BY_MODEL:
        return (
            "The model wrote the reasoning and began the answer line"
            if has_reasoning
            else "The model began the answer line"
        )
    if source == LINE_APPENDED:
        what = "the reasoning" if has_reasoning else "nothing"
        return f"The model wrote {what}; the answer line was begun for it"
    if has_reasoning:
        return "The reasoning was given"
    return "No reasoning; the answer line was begun"


def _parts(table: Frame, parts_present: list[str], hue: Encoding) -> alt.LayerChart:
    """Shares of the sum, and a line across each where it would end if every token were
    felt alike.
    """
    rows = table[["name", "tokens", "total", "mean"]].assign(
        value=table["share"], alike=table["tokens"] / table["tokens"].sum()
    )
    value = axes.linear("share of the sum (line: share of the tokens)", format=".0%", tickCount=5)
    names = axes.names(parts_present, domain=False)
    marks = bars(rows, names, value, hue, height=_PART_HEIGHT / 2)
    alike = draw.rows(rows).mark_tick(thickness=2, size=_PART_HEIGHT * 0.8, color=theme.INK)
    marks.append(alike.encode(x="alike:Q", y=names, tooltip=draw.tooltips(rows)))
    return draw.panel(marks, 400, _PART_HEIGHT * len(parts_present))


_RETRIEVAL_WIDTH, _RETRIEVAL_HEIGHT = 540, 120
_DIGITS = 10
"""Of more records than these, whose values are digits, two hold the same value."""
_TARGET_RECORD, _OTHER_TOKENS = "tokens of the wanted record", "all other tokens"
_QUANTITIES = {"log_probability": "log p (nats)", "log_sensitivity": "log sensitivity (natural)"}


def retrieval_chart(result: Retrieval) -> Chart:
    """Three panels over one axis of positions: the share of seeds that found the value, with
    Wilson's 95% interval; log p of the right answer; the mean norm over the wanted record's tokens,
    and over all others. Thin lines: seeds; thick: their mean.
    """
    frame, parameters = frame_of(result), result.provenance.parameters
    axes.require_finite(frame["sensitivity_mean"], "a retrieval run")
    length = int(frame["length"].iloc[0])
    parts = [
        frame[["position", "seed"]].assign(value=frame[column], series=of)
        for column, of in (
            ("sensitivity_mean", _TARGET_RECORD),
            ("sensitivity_others", _OTHER_TOKENS),
        )
    ]
    norms, y = log_rows(pd.concat(parts, ignore_index=True), f"mean {parameters['norm']} norm")
    likely = frame[["position", "seed"]].assign(
        value=frame["log_probability"], series=_TARGET_RECORD
    )
    log_p = axes.linear("log p(right answer), nats", tickCount=4) | {"scale": alt.Scale(zero=False)}
    panels = [
        _share_found(frame),
        _seed_curves(likely, axes.quiet(_record_axis(frame)), log_p),
        _seed_curves(norms, _record_axis(frame), y),
    ]
    title = (
        f"Retrieving one of {length} records on {title_of(result.provenance.model)}, by where it "
        "stands"
    )
    notes = [*retrieval_notes(result), "Thin: seeds; thick: their mean."]
    return draw.figure([[panel] for panel in panels], title, notes, between=10)


def retrieval_notes(result: Retrieval) -> list[str]:
    """How the run was made, what its numbers may hide, and whether the ends lie above what is
    between.
    """
    frame, parameters = frame_of(result), result.provenance.parameters
    seeds, records = frame["seed"].nunique(), str(parameters["records"])
    kind = {"words": "word and digit", "uuid": "two UUIDs"}.get(records, "from a file")
    notes = [f"Seeds: {seeds} ({kind} a record); within a seed only the wanted record moves."]
    if records == "words" and int(frame["length"].iloc[0]) > _DIGITS:
        notes.append(
            "There are more records than digits: another may hold the wanted value too, and be "
            "what was found."
        )
    norm = f"mean norm of d y_n / d v_i^(0) ({parameters['linearisation']} Jacobian) over tokens i"
    estimated = ", estimated" if (frame["method"] != "exact").any() else ""
    ends = [
        f"{words}, at an end less the mean of the positions between: {'; '.join(ends)}."
        for quantity, words in _QUANTITIES.items()
        if (ends := result.ends_words(quantity))
    ]
    return [*notes, f"Sensitivity: {norm}{estimated}.", *ends][:MOST]


def _record_axis(frame: Frame) -> alt.X:
    title = f"position of the wanted record (0 to {int(frame['length'].iloc[0]) - 1})"
    ticks = sorted(set(frame["position"].tolist()))
    return axes.length_axis(frame["position"], title, "position", 10, log=False, values=ticks)


def _share_found(frame: Frame) -> alt.LayerChart:
    table = frame.groupby("position", as_index=False)["found"].agg(["sum", "size"])
    ends = [
        wilson(int(right), int(count))
        for right, count in zip(table["sum"], table["size"], strict=True)
    ]
    table = table.assign(
        value=table["sum"] / table["size"], low=[e.low for e in ends], high=[e.high for e in ends]
    )
    x, hue = axes.quiet(_record_axis(frame)), alt.value(theme.colour("full"))
    marks = rules(table, "x", x, "low", "high", color=hue)
    marks += curve(table, x, axes.share("share found", values=[0, 0.5, 1]), hue, width=2, points=34)
    return draw.panel(marks, _RETRIEVAL_WIDTH, _RETRIEVAL_HEIGHT * 0.8)


def _seed_curves(rows: Frame, x: alt.X, y: theme.Looks) -> alt.LayerChart:
    """A thin line a seed, and their mean with points."""
    column = "shown" if "shown" in rows else "value"
    means = rows.groupby(["series", "position"], as_index=False)["value"].mean()
    hue = draw.hue(
        "series", {_TARGET_RECORD: "full", _OTHER_TOKENS: "float64"}, symbolStrokeWidth=3
    )
    marks = curve(rows.assign(run=rows["seed"]), x, y, hue, width=0.8, opacity=0.35)
    marks += curve(means.assign(**{column: means["value"]}), x, y, hue, width=2.2, points=30)
    return draw.panel(marks, _RETRIEVAL_WIDTH, _RETRIEVAL_HEIGHT)


# --- sliding windows: answers and collapse against their size


_WINDOWS_WIDTH, _WINDOWS_HEIGHT = 250, 160
_OBJECTIVES = {
    "accuracy": "share of right answers",
    "log_probability": "log p of the right line (nats)",
    "distance": "L2 distance at y, float64",
}


def windows_chart(result: WindowStudy) -> Chart:
    """Accuracy, log probability and the float64 distance against the window; the dashed line is no
    window. A distance with rounding in it has a triangle.
    """
    summary: Frame = result.summary
    panels = [_against(summary, name) for name in _OBJECTIVES if summary[name].notna().all()]
    title = f"Sliding windows on {result.provenance.parameters['task']}: answers against collapse"
    return draw.figure([panels], title, _windows_notes(result), spacing=26)


def _windows_notes(result: WindowStudy) -> list[str]:
    """How it was measured; what the marks are; which windows are best."""
    parameters, summary = result.provenance.parameters, result.summary
    lengths, seeds = parameters["lengths"], len(parameters["seeds"])
    layers = "all layers" if parameters["layers"] == "all" else f"layers {parameters['layers']}"
    how = (
        f"{title_of(result.provenance.model)}; {len(lengths)} lengths from {lengths[0]} to "
        f"{lengths[-1]}, {seeds} seed{'s' * (seeds > 1)}; windows on {layers}, "
        f"{parameters['sinks'] or 'no'} sinks."
    )
    within = set(result.frame["within_training"].astype("boolean").fillna(True))
    if False in within:
        some = True in within
        left_out = (
            "Lengths beyond training are left out" if some else "All lengths are beyond training"
        )
        how += f" {left_out}."
    marks = "Distance: of the questions of n and n + 1 items, geometric mean. Bands: 95% (Wilson)."
    marks += f" {axes.ROUNDING_NOTE}" if bool((summary["floored"] > 0).any()) else ""
    return [how, marks, *windows_findings(result)]


def windows_findings(result: WindowStudy) -> list[str]:
    """The window with most right answers, and that with the largest distance, beside no window."""
    summary: Frame = result.summary
    plain = summary[summary["window"].isna()].iloc[0]
    sized = summary[summary["window"].notna()].astype({"window": int})
    right, farthest = (sized.loc[sized[name].idxmax()] for name in ("accuracy", "distance"))
    return [
        f"Most answers are right with a window of {right['window']:.0f} tokens, "
        f"{right['accuracy']:.0%} of {right['questions']:.0f}; without a window "
        f"{plain['accuracy']:.0%}.",
        f"The distance is largest with a window of {farthest['window']:.0f}, "
        f"{number(farthest['distance'])}; without a window {number(plain['distance'])}.",
    ]


def _measure_axis(summary: Frame, name: str) -> theme.Looks:
    if name == "distance":
        return axes.log_channel(summary["distance"], _OBJECTIVES[name])
    if name == "accuracy":
        return axes.linear(_OBJECTIVES[name], (0, 1.05))
    return axes.linear(_OBJECTIVES[name]) | {"scale": alt.Scale(zero=False, padding=8)}


def _against(summary: Frame, name: str) -> alt.LayerChart:
    """One measure against the window, the model without a window as a dashed line."""
    sized: Frame = summary[summary["window"].notna()]
    none: Frame = summary[summary["window"].isna()]
    rows: Frame = sized[["wilson_low", "wilson_high"]].assign(
        window=sized["window"].astype(int),
        value=sized[name],
        zero=(sized["floored"] > 0) & (name == "distance"),
    )
    x = axes.length_axis(
        rows["window"], "window w (keys seen)", "window", 6, values=rows["window"].tolist()
    )
    bands = [("wilson_low", "wilson_high", 0.18)] if name == "accuracy" else []
    colour = alt.value(theme.colour("window"))
    marks = curve(rows, x, _measure_axis(summary, name), colour, bands=bands, points=24, width=1.8)
    looks: theme.Looks = {"colour": theme.colour("unmitigated"), "dash": [6, 4]}
    marks += draw.line_at("y", "value", float(none[name].iloc[0]), **looks)
    return draw.panel(marks, _WINDOWS_WIDTH, _WINDOWS_HEIGHT)
