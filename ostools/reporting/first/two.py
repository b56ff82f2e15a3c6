"""The first screen of two models: the strip and the headlines of each beside the other's, and small charts that hold both.

The rules are those of one model (`verdicts`, `headlines`). A chart holds both models only where both measured the same
quantity in the same unit: the same task and precision, the same tokens by the same method. What cannot be held so is said.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from ostools.ground.names import METHOD_KINDS
from ostools.measure import Collapse
from ostools.measure.answers.behaviour import Behaviour
from ostools.reporting.first.glance import first_linearisation, means_by_length, norm_words
from ostools.reporting.first.headlines import counted, nearest, task_of
from ostools.reporting.first.right import right_chart, told_apart
from ostools.reporting.first.screen import findings_section
from ostools.reporting.look import axes, draw, theme
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import Part, Section
from ostools.reporting.sections.measurements import Measurements
from ostools.results import Frame, frame_of

Both = tuple[Measurements, Measurements]
Names = tuple[str, str]
WIDTH, HEIGHT = 340, 140
"""Of a chart of both: two stand beside each other."""


def first_screen(both: Both, names: Names, present: tuple[list[str], list[str]]) -> Section:
    """A column for each model, then the charts of both."""
    columns = []
    for found, name, there in zip(both, names, present, strict=True):
        (one,) = findings_section(found, there).parts
        columns.append(Part(title=name, strip=one.strip, first=one.first, findings=one.findings))
    charts, said = _charts(both, names)
    together = Part(title="Both models" if charts or said else "", small=charts, findings=said)
    return Section("findings", "Findings", "Findings", "", [Part(columns=columns), together])


def _charts(both: Both, names: Names) -> tuple[list[Figure], list[str]]:
    """The charts, and the sentences on what they do not hold."""
    made, said = [], []
    for figure, words in (_distances(both, names), _norms(both, names), *_answers(both, names)):
        made += [] if figure is None else [figure]
        said += [words] if words else []
    return made, said


def _distances(both: Both, names: Names) -> tuple[Figure | None, str]:
    """Distance over noise in the precision and task that come nearest to a collapse in one of the two models."""
    one, other = (
        {
            (task_of(result), str(dtype)): result
            for result in found.casts or found.collapses
            for dtype in _dtypes(result)
        }
        for found in both
    )
    if not one or not other:
        return None, "" if not one and not other else "Distances were measured on one model only."
    shared = one.keys() & other.keys()
    ends = [near for found in both if (near := nearest(found.casts or found.collapses))]
    ends = [near for near in ends if (task_of(near[0]), near[1].dtype) in shared]
    if not ends:
        return (
            None,
            "No chart holds the distances of both: what comes nearest to the noise in one was not measured in the other.",
        )
    result, tail = min(ends, key=lambda near: near[1].margin)
    key = (task_of(result), tail.dtype)
    data = _joined([ratios(one[key], key[1]), ratios(other[key], key[1])], names)
    common = set.intersection(*(set(rows["length"]) for _, rows in data.groupby("model")))
    if data["model"].nunique() < 2 or not common:
        return None, "No chart holds the distances of both: they do not share a length with a known noise."
    caption = f"Distance of the pair over the rounding noise of {key[1]}, {key[0]}"
    note = (
        "Below the line at 1 the distance is smaller than the noise of the difference. The distances of two models do not "
        "share a unit."
    )
    picked = "This is the task and the precision in which one of the two models comes nearest to the noise."
    kept = data[data["length"].isin(sorted(common))]
    figure = Figure("both-collapse", ratio_chart(kept, names), caption, f"{caption}. {note}")
    reach = [int(frame_of(found[key])["length"].max()) for found in (one, other)]
    short = ""
    if reach[0] != reach[1]:
        short = f" Lengths go up to {reach[0]} on {names[0]} and up to {reach[1]} on {names[1]}; the chart has those of both."
    return figure, f"Distances: {note} {picked}{short}"


def _dtypes(result: Collapse) -> list[str]:
    return [str(dtype) for dtype in result.measured()["dtype"].unique()]


def ratios(result: Collapse, dtype: str) -> Frame:
    """Mean float64 distance of the pair over the mean noise of the difference, by length; none where the noise is 0."""
    means = means_by_length(result, dtype)
    means = means[means["pair_noise"] > 0]
    return means.assign(value=means["float64_distance"] / means["pair_noise"])[["length", "value"]]


def _joined(tables: list[Frame], names: Names) -> Frame:
    return pd.concat(
        [table.assign(model=theme.inert(name)) for table, name in zip(tables, names, strict=True)], ignore_index=True
    )


def ratio_chart(data: Frame, names: Names) -> alt.LayerChart:
    """Points of both models, and the line under which a distance is lost in the noise."""
    drawn, floor = axes.floored(data)
    base = draw.rows(drawn).encode(
        x=axes.length_axis(drawn["length"], "items of the sequence"),
        y=draw.log_y(pd.concat([drawn["shown"], pd.Series([1.0])]), "distance / noise", floor),
        tooltip=["length:Q", "model:N", draw.VALUE],
    )
    one = draw.rows(pd.DataFrame({"shown": [1.0]})).mark_rule(strokeDash=[3, 3], color=theme.INK).encode(y="shown:Q")
    points = base.mark_point(filled=False, size=22, strokeWidth=1.1, opacity=0.9).encode(**told_apart("model", names))
    return axes.themed(draw.layers(one, points, *draw.zeros(base, floor), width=WIDTH, height=HEIGHT))


def _norms(both: Both, names: Names) -> tuple[Figure | None, str]:
    """Norms over the mean of their model, where the tokens are the same and the norm is known in the same way."""
    one, other = (found.sensitivity for found in both)
    if one is None or other is None:
        return None, "" if one is other else "The sensitivity was measured on one model only."
    if both[0].tokens != both[1].tokens:
        return None, (
            f"The tokenizers cut the prompt differently: {names[0]} reads {len(both[0].tokens)} tokens, {names[1]} reads "
            f"{len(both[1].tokens)}. Tokens that do not correspond are not compared; each model's norms stand in its section."
        )
    tables = [first_linearisation(result) for result in (one, other)]
    how = [(str(table["linearisation"].iloc[0]), str(table["method"].iloc[0])) for table in tables]
    if how[0] != how[1]:
        return None, (
            f"No chart holds the norms of both: those of {names[0]} are {' '.join(how[0])}, those of {names[1]} "
            f"{' '.join(how[1])}. The two are not mixed."
        )
    norm = norm_words(one).lower()
    means = [table[f"{norm}_norm"].astype(float) for table in tables]
    if any(values.isna().any() or not values.mean() > 0 for values in means):
        return None, "No chart holds the norms of both: a norm is not known, or all are 0."
    shares = [
        table.assign(value=values / values.mean())[["position", "token", "value"]]
        for table, values in zip(tables, means, strict=True)
    ]
    word = METHOD_KINDS[how[0][1]]
    caption = f"Sensitivity of the last token to each token, {word}"
    note = (
        f"Each {word} {norm} norm is divided by the mean norm of its own model, as the vectors of two models do not share a "
        "unit. 1 is an even share. Both models read the same tokens."
    )
    figure = Figure("both-sensitivity", norms_chart(_joined(shares, names), names), caption, f"{caption}. {note}")
    return figure, f"Sensitivity: {note}"


def norms_chart(data: Frame, names: Names) -> alt.LayerChart:
    """A point a token and model."""
    drawn, floor = axes.floored(data)
    last = int(drawn["position"].max())
    base = draw.rows(drawn).encode(
        x=alt.X(
            "position:Q",
            title="token of the prompt",
            scale=alt.Scale(domain=[-0.5, last + 0.5], nice=False),
            axis=alt.Axis(grid=False, format="d", values=axes.whole_ticks(0, last)),
        ),
        y=draw.log_y(drawn["shown"], "norm / mean norm", floor),
        tooltip=["position:Q", "token:N", "model:N", draw.VALUE],
    )
    points = base.mark_point(filled=False, size=30, strokeWidth=1.3, opacity=0.9).encode(**told_apart("model", names))
    return axes.themed(draw.layers(points, *draw.zeros(base, floor), width=WIDTH, height=HEIGHT))


def _answers(both: Both, names: Names) -> list[tuple[Figure | None, str]]:
    """A chart for each task that both models answered."""
    one, other = ({task_of(result): result for result in found.behaviours} for found in both)
    made: list[tuple[Figure | None, str]] = []
    for place, task in enumerate(task for task in one if task in other):
        pair = (one[task], other[task])
        caption = f"Right answers by length, {theme.inert(task)}"
        counts = [
            f"{name}: {right} of {asked} right" for name, (right, asked) in zip(names, map(counted, pair), strict=True)
        ]
        chart = right_chart(pair, names, "model", WIDTH, HEIGHT)
        figure = Figure(f"both-answers-{place}", chart, caption, f"{caption}. {'; '.join(counts)}.")
        made.append((figure, _equal(pair, task)))
    alone = sorted({*one} ^ {*other})
    if alone:
        made.append((None, f"Only one model answered {', '.join(map(theme.inert, alone))}: no chart holds both."))
    return made


def _equal(pair: tuple[Behaviour, Behaviour], task: str) -> str:
    """Said where the two lines lie on each other."""
    one, other = ([*map(tuple, result.summary[["length", "right", "asked"]].to_numpy())] for result in pair)
    if one != other:
        return ""
    said = "both models give equally many right ones at every length, so the two lines lie on each other"
    return f"Answers to {theme.inert(task)}: {said}."
