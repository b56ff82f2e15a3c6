"""Precision: over which lengths a cast, or a part stored in few bits, hides the pair."""

from __future__ import annotations

from ostools.ground.words import number
from ostools.measure import Collapse
from ostools.measure.collapse.verdicts import IDENTICAL
from ostools.reporting.charts.collapse.precision import precision_chart
from ostools.reporting.findings.collapse import main_pair, precision_summary, verdicts_at_y
from ostools.reporting.findings.precision import precision_findings, tails
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import Part, Section, Table
from ostools.reporting.sections.measurements import Measurements
from ostools.results import frame_of

LEAD = (
    "Over which lengths does rounding move the difference of the two sequences by more than their distance? Weights stored in "
    "few bits move both sequences alike, which does not hide the pair. What counts is the rounding while the model runs, of "
    "activations or of keys and values. A part of that rounding moves both sequences alike too. Below the noise of each "
    "sequence the pair can therefore still be told apart, as long as its distance is above the noise of the difference."
)


def precision_section(found: Measurements) -> Section | None:
    """Where parts were stored in few bits, or else where the model was cast on some prompt."""
    parts = [] if found.precision is None else [_stored(found.precision)]
    if found.casts:
        said = precision_summary(found.casts)
        parts.append(Part(title="The model cast, on every prompt", findings=said, tables=[_casts(found.casts)]))
    return Section("precision", "Precision (Section 4)", "Precision", LEAD, parts) if parts else None


def _stored(result: Collapse) -> Part:
    """The chart of one prompt: casts and stored parts side by side."""
    name = str(frame_of(result)["task"].iloc[0])
    said = precision_findings(result)
    caption = f"Which part of low precision hides the pair, {name}"
    figure = Figure("precision-chart", precision_chart(result), caption, f"{caption}. {said[0]}")
    return Part(figure=figure, findings=said, tables=[_formats(result, name)])


def _formats(result: Collapse, name: str) -> Table:
    """What a cast changes beside what noise hides, a row a precision."""
    pair, over_seeds = main_pair(result), result.verdicts_over_seeds()
    where = {(dtype, site): verdict.where for (kind, dtype, site, _), verdict in over_seeds.items() if kind == pair}
    rows = []
    for tail in tails(result):
        sizes = (tail.given, tail.stored, tail.weight_shift, tail.noise, tail.pair_noise)
        rows.append([tail.dtype, *map(number, sizes), where[tail.dtype, "y"], where[tail.dtype, IDENTICAL]])
    columns = [
        "precision",
        "distance, float64",
        "… weights so stored",
        "shift by storing (both alike)",
        "noise of running",
        "… of the difference",
        "pair hidden from n",
        "logits bit-identical from n",
    ]
    caption = (
        f"{name}: L2 at y, medians over the last quarter of the lengths, and the lengths at which the float64 distance is "
        f"below the noise of the difference, up to n = {int(frame_of(result)['length'].max())} (–: no range of lengths)"
    )
    return Table(caption, columns, rows)


def _casts(results: list[Collapse]) -> Table:
    """The lengths at which each dtype hides the pair at y, on each prompt."""
    where = {
        str(frame_of(result)["task"].iloc[0]): {
            dtype: verdict.where for dtype, verdict in verdicts_at_y(result).items()
        }
        for result in results
    }
    n_max = max(int(frame_of(result)["length"].max()) for result in results)
    dtypes = dict.fromkeys(dtype for own in where.values() for dtype in own)
    rows = [[dtype, *(own.get(dtype, "–") for own in where.values())] for dtype in dtypes]
    caption = (
        "The lengths at which the float64 distance at y is below the rounding noise of the difference in that dtype, up to "
        f"n = {n_max} (–: no range of lengths)"
    )
    return Table(caption, ["dtype", *where], rows)
