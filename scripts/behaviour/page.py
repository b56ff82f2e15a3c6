"""The tables of docs/findings/behaviour.md, of the cells that `scripts.behaviour` has stored; what
is not stored is in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from ostools.measure.answers.reading import CUT_OFF
from ostools.measure.answers.result import Evaluation, answer_difference
from ostools.results import Frame, frame_of
from ostools.theory.statistics.answers import heaping
from ostools.theory.statistics.intervals import wilson
from scripts.behaviour import cells
from scripts.behaviour.store import answers, measured
from scripts.embedded import header, row

PAGE = Path(__file__).parents[2] / "docs" / "findings" / "behaviour.md"
WORDS = {
    "ones": "ones in a row",
    "commas": "ones with commas",
    "threes": "ones, commas by threes",
    "sum": "sum of ones",
    "bits": "bits, p 0.7",
    "fair-bits": "bits, p 0.5",
    "word": "“car” among words",
    "digits": "last of drawn digits",
    "digits-first": "first of drawn digits",
    "binary": "last of drawn bits",
    "copy-last": "last of 1...10",
    "copy-first": "first of 01...1",
    "copy-last-hint": "last of 1...10, hint",
    "copy-last-commas": "last of 1,...,1,0",
    "copy-last-commas-3": "last of 1...10, commas by threes",
    "copy-last-interleaved": "last of alternating digits",
    "copy-first-interleaved": "first of alternating digits",
}
SINGLE = ("ones", "commas", "threes", "sum")
DRAWN = ("bits", "word", "digits", "digits-first", "binary")
COPIES = tuple(name for name in cells.COPIES if name.startswith("copy"))
MITIGATED = tuple(f"{base}-{name}" for base in ("bits", "digits") for name in cells.MITIGATIONS)
Table = Iterator[str]


def asked(name: str) -> Frame:
    """The answers of a cell, and of the cell that continues it."""
    return pd.concat(
        [frame_of(answers(part)) for part in measured((name, f"{name}-rest"))]
    ).sort_values(["length", "seed"], ignore_index=True)


def runs(numbers: Iterable[tuple[int, Any]]) -> str:
    """Lengths by what was answered at them, in their order: "10 (11, 12), 20 (20 to 48)"."""
    parts = []
    for answer, group in groupby(numbers, key=lambda pair: pair[1]):
        lengths = [str(length) for length, _ in group]
        parts.append(
            f"{answer} ({', '.join(lengths) if len(lengths) < 3 else f'{lengths[0]} to {lengths[-1]}'})"
        )
    return ", ".join(parts)


def said(answers: Any) -> list[Any]:
    """The number that each answer gives; of one without, what it is."""
    return ["no number" if pd.isna(number) else int(number) for number in answers["number"]]


def singles_table() -> Table:
    """One question a length."""
    yield from header("question", "lengths", "right at", "answers that are wrong (at)")
    for name in measured(SINGLE):
        rows: Any = asked(name)
        wrong = rows[~rows["correct"].astype(bool)]
        right = ", ".join(map(str, rows[rows["correct"].astype(bool)]["length"]))
        yield row(
            WORDS[name], len(rows), right, runs(zip(wrong["length"], said(wrong), strict=True))
        )


def share(right: int, of: int) -> str:
    low, high = wilson(right, of)
    return f"{right} of {of} [{low:.0%}, {high:.0%}]"


def favourites(answers: Sequence[Any], most: int = 3) -> str:
    counts = pd.Series(answers, dtype=object).value_counts()
    return ", ".join(f"{answer} ({count})" for answer, count in list(counts.items())[:most])


def drawn_table() -> Table:
    """Drawn sequences: right answers by length."""
    yield from header("question", "items", "right")
    for name in measured(DRAWN):
        for length, rows in asked(name).groupby("length"):
            yield row(WORDS[name], length, share(int(rows["correct"].sum()), len(rows)))


def copies_table() -> Table:
    """The paper's constant sequences, whose right answer is 0."""
    yield from header("question", *(f"{n} items" for n in cells.COPIED))
    for name in measured(COPIES):
        rows = asked(name)
        yield row(
            WORDS[name],
            *(
                "right" if ok else f"**{a}**"
                for ok, a in zip(rows["correct"], said(rows), strict=True)
            ),
        )


def favourites_table() -> Table:
    """Figure 4: which numbers wrong answers are, and whether they heap."""
    yield from header(
        "question", "wrong numbers", "most frequent", "multiples of 5: found, expected, p", "of 10"
    )
    for name in measured((*SINGLE, "bits", "fair-bits", "word")):
        rows = asked(name)
        rows = rows[rows["absolute_error"].gt(0).fillna(False)]
        if rows.empty:
            continue
        keys, numbers = rows["key"].astype(int).tolist(), rows["number"].astype(int).tolist()
        tests = [heaping(keys, numbers, base) for base in (5, 10)]
        cells = [f"{test.multiples}, {test.expected:.1f}, {test.p_value:.2g}" for test in tests]
        yield row(WORDS[name], len(rows), favourites(numbers, 5), *cells)


def reasoned_table() -> Table:
    """Modes of reasoning, on the same questions as without."""
    base = answers("bits")
    yield from header(
        "asked",
        "right",
        "none alone right",
        "this one alone right",
        "difference, points",
        "verdict",
    )
    lengths = (12,)
    plain = at_lengths(base, lengths)
    yield row(
        "C.1's prompt",
        share(int(frame_of(plain)["correct"].sum()), len(plain.frame)),
        "",
        "",
        "",
        "",
    )
    for name in measured(cells.REASONED):
        other = answers(name)
        cut = int((frame_of(other)["kind"] == CUT_OFF).sum())
        words = name.removeprefix("bits-") + (f", {cut} cut off before an answer" if cut else "")
        yield compared_row(words, plain, other)


def at_lengths(result: Evaluation, lengths: Iterable[int]) -> Evaluation:
    rows: Any = frame_of(result)
    return Evaluation(
        rows[rows["length"].isin(list(lengths))].reset_index(drop=True), result.provenance
    )


def compared_row(words: str, plain: Evaluation, other: Evaluation) -> str:
    """How many more of the same questions are right."""
    summary: Any = answer_difference(plain, other).summary.iloc[0]
    points = f"{100 * summary['difference']:+.0f} [{100 * summary['low']:+.0f}, {100 * summary['high']:+.0f}]"
    right = share(int(summary["second_right"]), int(summary["questions"]))
    verdict = {"second is better": "helps", "first is better": "hurts"}.get(
        summary["verdict"], summary["verdict"]
    )
    return row(words, right, summary["lost"], summary["gained"], points, verdict)


def mitigations_table() -> Table:
    """Each mitigation against none."""
    yield from header(
        "question",
        "mitigation",
        "right",
        "none alone right",
        "this one alone right",
        "difference, points",
        "verdict",
    )
    shown: set[str] = set()
    for name in measured((*MITIGATED, *cells.LONGER)):
        base, _, label = name.removesuffix("-longer").partition("-")
        other = answers(name)
        plain = at_lengths(answers(base), frame_of(other)["length"].unique())
        words = f"{WORDS[base]}, {' and '.join(map(str, plain.summary['length']))} items"
        if words not in shown:
            shown.add(words)
            yield row(
                words,
                "none",
                share(int(frame_of(plain)["correct"].sum()), len(plain.frame)),
                "",
                "",
                "",
                "",
            )
        yield f"| {words} " + compared_row(f"`{cells.MITIGATIONS[label]}`", plain, other)
