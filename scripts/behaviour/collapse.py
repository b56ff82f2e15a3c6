"""Tables of docs/findings/behaviour.md on whether errors are collapse: distances, float32, probes,
what separates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
import torch

from ostools.ground.errors import InputError
from ostools.measure.collapse.verdicts import is_hidden
from ostools.measure.position import ANSWER
from ostools.measure.probes.scores import rows_of
from ostools.measure.probes.wrong_answers import (
    HIDDEN,
    NONE_WRONG,
    UNTOLD,
    WRONG_APART,
    explain_errors,
)
from ostools.results import Frame
from ostools.theory.statistics.intervals import bootstrap_mean, widened
from scripts.behaviour import cells
from scripts.behaviour.page import WORDS, Table, asked, said
from scripts.behaviour.separation import separation
from scripts.behaviour.states import PARTING, PLACES
from scripts.behaviour.store import path_of
from scripts.embedded import header, row

CELLS = ("ones", "commas", "bits")
_OF = {"ones-probe": ("ones",), "commas-probe": ("commas",), "bits-probe": ("bits", "fair-bits")}
_RANDOM = "random-weights"
TESTS = ("interpolated", "same lengths")
"""Tests of a probe of which the page has rows: beyond the lengths of training all probes fail."""


def stored(name: str) -> Frame:
    return pd.read_parquet(path_of(name))


def states(name: str) -> Frame:
    """The states of a cell's questions, with every answer to them; of those that are the same
    tokens the first.
    """
    answered = asked(name)[["length", "seed", "correct", "number"]].rename(
        columns={"correct": "right"}
    )
    rows = (
        stored(f"{name}-states")
        .drop(columns=["correct", "number"])
        .merge(answered, how="left", on=["length", "seed"])
    )
    form = cells.tasks.task(cells.CELLS[name].task)
    same = [
        (int(n), form.items(int(n), int(seed)))
        for n, seed in zip(rows["length"], rows["seed"], strict=True)
    ]
    return rows[~pd.Series(same).duplicated()].reset_index(drop=True)


def pairs(name: str, position: str = ANSWER) -> Frame:
    """The questions whose pair was measured there: n and n + 1 items, with another right answer."""
    rows = states(name)
    columns = {f"{part}_{position}": part for part in ("distance", "noise", "norm")}
    rows = rows[rows[f"distance_{position}"].notna() & (rows["next_key"] != rows["key"])].rename(
        columns=columns
    )
    return rows.assign(
        hidden=is_hidden(rows["distance"], rows["noise"], rows["distance"])
    ).reset_index(drop=True)


def measured_states() -> Iterator[str]:
    return (name for name in CELLS if path_of(f"{name}-states").is_file())


PLACE_WORDS = {PARTING: "where the right answers part"}


def positions_table() -> Table:
    """Where y is read: what comes next, and how far apart n and n + 1 are."""
    yield from header(
        "question",
        "y at",
        "next token (how often)",
        "pairs",
        "below the noise",
        "distance / noise: median",
        "least (at)",
    )
    for name in measured_states():
        every = states(name)
        for place in PLACES:
            found = pairs(name, place)
            ratio, tokens = found["distance"] / found["noise"], "–"
            if place != PARTING:
                counts = every[f"next_{place}_bfloat16"].value_counts()
                tokens = ", ".join(
                    f"`{token}` ({count})" for token, count in list(counts.items())[:3]
                )
            lowest = f"{ratio.min():.1f} ({found.loc[ratio.idxmin(), 'length']})"
            words = PLACE_WORDS.get(place, f"“{place}”")
            hidden = int(found["hidden"].sum())
            yield row(
                WORDS[name], words, tokens, len(found), hidden, f"{ratio.median():.1f}", lowest
            )


def pairs_table() -> Table:
    """A row a length of `SHOWN`, bits in the mean over sequences: distance over noise."""
    at = [f"{PLACE_WORDS.get(place, f'“{place}”')}" for place in PLACES]
    yield from header("question", "items", "answered", *at, "log p of the right answer")
    for name in measured_states():
        every = {place: pairs(name, place).groupby("length") for place in PLACES}
        for length, rows in every[ANSWER]:
            if length not in cells.SHOWN:
                continue
            answered = asked(name).query("length == @length")
            ok = answered["correct"].astype(bool)
            words = (
                f"{ok.sum()} of {len(ok)} right"
                if len(ok) > 1
                else f"{said(answered)[0]}{'' if ok.all() else ' (wrong)'}"
            )
            ratios = [
                part.get_group(length).eval("distance / noise").mean() for part in every.values()
            ]
            yield row(
                WORDS[name],
                length,
                words,
                *(f"{ratio:.1f}" for ratio in ratios),
                f"{rows['log_p_bfloat16'].mean():.2f}",
            )


def said_table() -> Table:
    """Of each wrong number, how far the questions are from the one to which it would be right:
    least and most.
    """
    yield from header(
        "question", "said", "at", "distance / noise, “answer”", "where the two right answers part"
    )
    for name in measured_states():
        rows = states(name)
        if f"distance_said_{ANSWER}" not in rows or rows[f"distance_said_{ANSWER}"].isna().all():
            continue
        rows = rows[rows[f"distance_said_{ANSWER}"].notna()]
        for number, part in rows.groupby("number"):
            ratios = [
                part[f"distance_said_{place}"].astype(float)
                / part[f"noise_said_{place}"].astype(float)
                for place in (ANSWER, PARTING)
            ]
            lengths = part["length"].tolist()
            at = (
                ", ".join(map(str, lengths))
                if len(lengths) < 4
                else f"{lengths[0]} to {lengths[-1]} ({len(lengths)})"
            )
            yield row(
                WORDS[name],
                int(number),
                at,
                *(f"{each.min():.1f} to {each.max():.1f}" for each in ratios),
            )


def precision_table() -> Table:
    """Of the questions that were asked and have a pass in float32, whether it writes the same."""
    yield from header(
        "question",
        "questions",
        "float32 writes the same",
        "right in bfloat16",
        "right in float32",
        "log p moves by (mean, most)",
    )
    for name in measured_states():
        rows = states(name)
        rows = rows[rows["right"].notna() & rows["given_float32"].notna()]
        moved = (rows["log_p_float32"] - rows["log_p_bfloat16"]).abs()
        counts = [
            int(rows[column].astype(bool).sum())
            for column in ("given_float32", "right", "right_float32")
        ]
        yield row(WORDS[name], len(rows), *counts, f"{moved.mean():.2f}, {moved.max():.2f}")


def predictions(name: str, site: str, test: str) -> Frame:
    """What the probes of a cell said at a site in one test, without a control."""
    rows = stored(name)
    return rows[(rows["site"] == site) & (rows["control"] == "none") & (rows["test"] == test)]


def nearer(own: Frame, alone: Frame) -> str:
    """By how much the error of a probe is smaller than that of another of the same questions, with
    its 95% interval.
    """
    gain = (alone["said"] - alone["label"]).abs().to_numpy() - (
        own["said"] - own["label"]
    ).abs().to_numpy()
    groups: Any = pd.Series(gain).groupby(own["group"].to_numpy()).mean()
    mean, trained = float(groups.mean()), int(own["trained"].min())
    ends = widened(
        bootstrap_mean(torch.tensor(groups.to_numpy())), mean, tested=len(own), trained=trained
    )
    return f"{mean:+.1f} [{float(ends.low):+.1f}, {float(ends.high):+.1f}]"


def probe_table() -> Table:
    """Probes of the right number, beside the model's own answers to the same questions. Of ones in
    a row, whose number is the length of the prompt, the probe at the answer on lengths between."""
    exact = ("tested", "exact: the probe", "shuffled labels", "length alone")
    errors = ("mean error: the probe", "less than the length alone by", "the model")
    yield from header("questions", "y at", "test", *exact, *errors)
    for name in (cell for cell in (*_OF, _RANDOM) if path_of(cell).is_file()):
        table, cells = stored(name), _OF.get(name, _OF["bits-probe"])
        drawn = name in ("bits-probe", _RANDOM)
        summary = rows_of(table, is_random=drawn).set_index(["site", "test", "control"])
        answers = answers_of(cells)
        for site, test in [
            (site, test)
            for site, test, control in summary.index
            if control == "none"
            and test in TESTS
            and site != "length"
            and (drawn or (site, test) == (ANSWER, "interpolated"))
        ]:
            at: Any = summary.loc[(site, test, "none")]
            own, alone = predictions(name, site, test), predictions(name, "length", test)
            both = answers.merge(
                own[["length", "seed", "label"]].drop_duplicates(), on=["length", "seed", "label"]
            )
            shares = [f"{at['accuracy']:.0%} [{at['low']:.0%}, {at['high']:.0%}]"]
            shares += [f"{summary.loc[(site, test, 'shuffled'), 'accuracy']:.0%}"]
            shares += [f"{summary.loc[('length', test, 'none'), 'accuracy']:.0%}"]
            model = both["absolute_error"].dropna().astype(float)
            words = named(cells) + (", random weights" if name == _RANDOM else "")
            mine = (
                f"{model.mean():.1f} ({both['correct'].mean():.0%} of {len(both)} right)"
                if len(model)
                else "–"
            )
            error = f"{(own['said'] - own['label']).abs().mean():.1f}"
            less = nearer(own, alone) if drawn else "–"
            yield row(words, f"“{site}”", test, at["tested"], *shares, error, less, mine)


def named(cells: Sequence[str]) -> str:
    """Words of the questions of these cells; bits of both p are bits."""
    return WORDS[cells[0]] if len(cells) == 1 else "bits"


def answers_of(cells: Iterable[str]) -> Frame:
    """The answers of these cells by length, seed and label, the right number."""
    return pd.concat(
        [asked(cell).assign(label=lambda rows: rows["key"].astype(int)) for cell in cells]
    ).drop_duplicates(["length", "seed", "label"])


def unread_table() -> Table:
    """Of the questions that the model answers wrong, whether the probe of y at the answer is right
    or nearer.
    """
    yield from header(
        "questions",
        "test",
        "answered wrong, with a number",
        "the probe is right",
        "the probe is nearer",
    )
    for name in (cell for cell in _OF if path_of(cell).is_file()):
        answers = answers_of(_OF[name])
        for test in TESTS:
            both = predictions(name, ANSWER, test).merge(answers, on=["length", "seed", "label"])
            both = both[both["absolute_error"].gt(0).fillna(False)].drop_duplicates(
                ["length", "seed", "label"]
            )
            if both.empty:
                continue
            off, mine = (both["said"] - both["label"]).abs(), both["absolute_error"].astype(float)
            right = int(both["right"].sum())
            yield row(named(_OF[name]), test, len(both), right, int((off < mine).sum()))


def signals(name: str) -> dict[str, pd.Series]:
    """Numbers that might separate right answers from wrong ones, by (length, seed): higher is
    expected of right answers.
    """
    rows = states(name).set_index(["length", "seed"])
    found = {
        "shorter": pd.Series(
            -rows.index.get_level_values("length").to_numpy(dtype=float), rows.index
        )
    }
    for place in (ANSWER, PARTING):
        ratio = pairs(name, place).set_index(["length", "seed"]).eval("distance / noise")
        found[f"distance / noise, {PLACE_WORDS.get(place, f'“{place}”')}"] = ratio
    return found


def separation_table() -> Table:
    """Area under the ROC curve of each signal, over all lengths and within them."""
    yield from header("question", "signal", "over all lengths", "within lengths")
    for name in measured_states():
        right = states(name).set_index(["length", "seed"])["right"].dropna().astype(bool)
        for words, signal in signals(name).items():
            both = pd.concat(
                [signal.rename("signal"), right.rename("right")], axis=1, join="inner"
            ).dropna()
            cells = []
            for strata in (None, both.index.get_level_values("length").tolist()):
                try:
                    area = separation(both["signal"].tolist(), both["right"].tolist(), strata)
                    cells.append(f"{area.area:.2f} [{area.low:.2f}, {area.high:.2f}]")
                except InputError:
                    cells.append("–")
            yield row(WORDS[name], words, *cells)


ERRORS_ARE = {
    NONE_WRONG: "none",
    WRONG_APART: "no collapse",
    HIDDEN: "where it is hidden",
    UNTOLD: "undecided",
}


def verdict_table() -> Table:
    """The rule of the report's first screen, of each question: at how many lengths with a wrong
    answer the pair is told apart.
    """
    yield from header("question", "y at", "lengths with a wrong answer", "told apart", "errors are")
    for name in measured_states():
        rows = asked(name)
        right, wrong = (
            rows[rows["correct"].astype(bool) == ok].groupby("length").size().to_dict()
            for ok in (True, False)
        )
        for place in (ANSWER, PARTING):
            hidden = pairs(name, place).groupby("length")["hidden"].all().to_dict()
            errors = explain_errors(right, wrong, hidden)
            words = PLACE_WORDS.get(place, f"“{place}”")
            wrong_lengths = errors.told_apart + errors.hidden
            yield row(
                WORDS[name], words, wrong_lengths, errors.told_apart, ERRORS_ARE[errors.verdict]
            )


def tables() -> dict[str, Table]:
    return {
        "positions": positions_table(),
        "pairs": pairs_table(),
        "said": said_table(),
        "precision": precision_table(),
        "probe": probe_table(),
        "unread": unread_table(),
        "separation": separation_table(),
        "verdicts": verdict_table(),
    }
