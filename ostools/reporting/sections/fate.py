"""Where an answer is lost: a verdict a length, and what linear probes decode at every layer."""

from __future__ import annotations

from ostools.ground.words import number
from ostools.measure import Decodable, Fate
from ostools.measure.fate.captured import LOGITS
from ostools.measure.fate.splits import TESTS
from ostools.reporting.charts.answers.fate import fate_chart, places_named
from ostools.reporting.findings.fate import fate_findings
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part, Section, Table
from ostools.reporting.sections.measurements import Measurements
from ostools.results import frame_of

LEAD = (
    "Of every prompt it is asked: is the answer right (read)? Is it wrong, while a linear probe of the last token says the "
    "right one (unread)? Or are both wrong (undecodable)? A probe is tested on sequences that it was not trained on."
)


def fate_section(found: Measurements) -> Section | None:
    """Where verdicts were measured."""
    if found.fate is None:
        return None
    said = fate_findings(found.fate)
    task = str(frame_of(found.fate)["task"].iloc[0])
    caption = f"Where answers are lost, {task}"
    part = Part(
        figure=Figure("fate-chart", fate_chart(found.fate), caption, f"{caption}. {said[0]}", told=True),
        findings=said,
        tables=[verdicts_table(found.fate)],
        notes=[_asked(found.fate)],
        more=[More("Place by place", tables=[places_table(found.fate.probes)])],
    )
    return Section("fate", "Where is the answer lost?", "Where it is lost", LEAD, [part])


def _asked(result: Fate) -> str:
    given = result.provenance.parameters
    lengths, dtypes = (", ".join(map(str, given[name])) for name in ("lengths", "dtypes"))
    return (
        f"Asked: {given['prompts']} prompts of {len(given['seeds'])} drawn sequences, of {lengths} items, in {dtypes}. More "
        "lengths, sequences and precisions, another task, a mitigation beside it: `ostools probe fate`."
    )


def verdicts_table(result: Fate) -> Table:
    """A row a mitigation, length and dtype."""
    frame, rows = frame_of(result), []
    several = frame["mitigation"].nunique() > 1
    for row in frame.to_dict(orient="records"):
        shares = (row[name] for name in ("read", "unread", "undecodable"))
        rows.append(
            [
                *([row["mitigation"]] if several else []),
                *(str(row["length"]), row["dtype"], row["verdict"], str(row["prompts"])),
                *("–" if share != share else f"{share:.0%}" for share in shares),
                *(number(float(row[name])) for name in ("distance", "pair_noise")),
            ]
        )
    columns = [
        *(["mitigation"] if several else []),
        "items",
        "dtype",
        "verdict",
        "prompts",
        "right",
        "wrong, probe right",
        "both wrong",
    ]
    return Table("Verdicts", [*columns, "distance of n to n + 1", "its noise"], rows)


def places_table(probes: Decodable) -> Table:
    """A row a place, dtype and test: what its probes said right; the tests in the order of the chart."""
    frame = frame_of(probes)
    frame = frame[(frame["control"] == "none") & (frame["site"] != LOGITS)]
    frame = frame.sort_values("test", key=lambda tests: tests.map(TESTS.index), kind="stable")
    rows = []
    for name, row in zip(places_named(frame), frame.to_dict(orient="records"), strict=True):
        interval = "–" if row["low"] != row["low"] else f"{row['low']:.0%} to {row['high']:.0%}"
        rows.append(
            [
                *(("length alone", "–") if row["site"] == "length" else (name, row["dtype"])),
                *(row["test"], str(row["trained"]), str(row["tested"])),
                *(f"{row['accuracy']:.0%}", interval, f"{row['chance']:.0%}", row["finding"]),
            ]
        )
    columns = ["place", "dtype", "test", "trained on", "tested on", "right", "95%", "chance", "finding"]
    return Table("What probes say right", columns, rows)
