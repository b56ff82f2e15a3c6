"""What sensitivities, bounds, and the forms that are no bounds say.

What is said of tokens is said of the user's text: which token counts most, how far they are apart, how they go with position.
What BOS and chat template have of the sum is said beside it. Whether a bound holds is said of every token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ostools.ground.names import METHOD_KINDS, known_norm
from ostools.ground.words import factor, number
from ostools.measure import Comparison, Profile, Sensitivity
from ostools.measure.bounds.belief import FEWEST, RIGHT_FACTOR, RIGHT_RANK
from ostools.measure.profiles.profile import NO_SINK, OF_TEXT
from ostools.measure.prompts import of_text
from ostools.reporting.page.section import Finding
from ostools.reporting.style import theme
from ostools.reporting.style.prompt import template_positions, template_share, token_count_words
from ostools.reporting.style.theme import display_token
from ostools.results import Frame, Row, frame_of

LOOSE, TIGHT = 3.0, 1.0
"""A bound that is 10^LOOSE too large in the median says nothing of the size; within 10^TIGHT it does."""
SHAPES = {
    "U-shape": "The middle of the prompt counts for less than both ends.",
    "rises at the end only": "The middle of the prompt counts for less than its end.",
    "rises at the start only": "The start of the prompt counts for more than its middle.",
    "inverted U": "The middle of the prompt counts for more than both ends.",
    "no shape shown": "The test does not show that any part of the prompt counts for less.",
}
"""The headline of each shape that is tested."""
TREND = 0.3
"""Rank correlations between -TREND and TREND are called no trend, no order."""
FEWEST_RANKED = 3
"""Of fewer tokens an order says nothing."""
NORMS = {"operator": "operator norm", "frobenius": "Frobenius norm"}


def sensitivity_findings(result: Sensitivity) -> list[str]:
    """Where in the text the measured sensitivity is large and small, what the other tokens have, and what freezing changes."""
    profiles = _profiles(result)
    word, norm = _known(result)
    _, whose = theme.differentiated(result.provenance.parameters)
    said = []
    for name, every in profiles.items():
        rows = of_text(every)
        norms = rows[f"{norm}_norm"].to_numpy()
        top, low = rows.iloc[int(norms.argmax())], rows.iloc[int(norms.argmin())]
        said.append(
            f"{word.capitalize()}, {name}: {token_count_words(rows, every)}{whose} responds most to {_place(top)}, "
            f"{NORMS[norm]} {number(float(norms.max()))}, and least to {_place(low)}, {number(float(norms.min()))}; "
            f"{_spread(norms)}." + template_share(every, rows, f"{norm}_norm")
        )
    if {"full", "frozen"} <= profiles.keys():
        full, frozen = (profiles[name][f"{norm}_norm"].to_numpy() for name in ("full", "frozen"))
        if (full > 0).all():
            share = frozen / full
            low, middle, high = (number(float(value)) for value in (share.min(), np.median(share), share.max()))
            said.append(
                f"With patterns and norms frozen, as the theorem assumes, the {word} norm is {middle} times the real one in "
                f"the median over tokens (from {low} to {high}). A bound of the frozen derivative does not bound the real one."
            )
    return said


def _known(result: Sensitivity) -> tuple[str, str]:
    """What the numbers are, and the norm to speak of: of an operator norm, an estimate knows a lower bound only."""
    norm = known_norm(frame_of(result)["method"])
    return ("measured" if norm == "operator" else "estimated"), norm


def _profiles(result: Sensitivity) -> dict[str, Frame]:
    """By linearisation, at the lowest layer: a token of another layer is another input."""
    frame = frame_of(result)
    groups = frame[frame["layer"] == frame["layer"].min()].groupby("linearisation", sort=False)
    return {str(name): rows.sort_values("position") for name, rows in groups}


def _place(row: Row) -> str:
    return f"token {int(row['position'])} “{display_token(str(row['token']))}”"


def _spread(norms: np.ndarray) -> str:
    zeros = int((norms == 0).sum())
    if zeros:
        return f"the norms of {zeros} of {len(norms)} tokens are exactly 0: these tokens do not have any influence"
    return f"these two norms are a factor of {number(float(norms.max() / norms.min()))} apart"


def shape_of(result: Profile) -> Any:
    """The tested shape of the profile: of the full derivative if it was measured; in a chat of the text alone, else without the
    first token. Chosen before looking."""
    names = list(dict.fromkeys(result.frame["linearisation"]))
    name = "full" if "full" in names else names[0]
    kept = OF_TEXT if template_positions(result.frame) else NO_SINK
    shapes: Any = result.shapes
    return shapes[(shapes["linearisation"] == name) & (shapes["kept"] == kept)].iloc[0]


def shape_headline(result: Profile | None) -> Finding | None:
    """Whether the middle of the prompt counts for less than its end, with the interval that decides."""
    if result is None:
        return None
    row = shape_of(result)
    word = METHOD_KINDS[str(result.frame["method"].iloc[0])]
    if pd.isna(row["middle"]):
        reason = str(row["verdict"]).removeprefix("not tested: ")
        verdict = "Whether the middle of the prompt counts for less than its ends was not tested."
        return Finding(verdict, f"The reason: {reason}.", "sensitivity", "Sensitivity")
    parts = {end: [10.0 ** row[f"{end}_contrast{part}"] for part in ("", "_low", "_high")] for end in ("start", "end")}
    said = {end: f"{number(a)} times (95% interval {number(b)} to {number(c)})" for end, (a, b, c) in parts.items()}
    text = (
        f"{word.capitalize()}, {row['linearisation']} derivative: the last third of the tokens has {said['end']} the norm of "
        f"the middle third; the first third has {said['start']}."
    )
    return Finding(SHAPES[str(row["verdict"])], text, "sensitivity", "Sensitivity")


def comparison_findings(result: Comparison) -> list[str]:
    """Of each variant: does it hold, how loose is it, does its shape predict the measured one? Three answers."""
    say = {"certified": _certified, "paper": _paper}
    rows = result.summary.to_dict(orient="records")
    return [say[str(row["kind"])](row, *_below(frame_of(result), row)) for row in rows]


def _below(frame: Frame, row: Mapping[Any, Any]) -> tuple[int, int]:
    """At how many tokens a variant lies below the measured norm that it stands beside, and of how many."""
    same = frame[(frame["norm"] == row["norm"]) & (frame["linearisation"] == row["linearisation"])]
    measured = same[same["kind"].isin(("measured", "estimated"))]
    variant = same[same["source"] == row["variant"]]
    joined = measured.merge(variant, on="position", suffixes=("_measured", "_variant"))
    return int((joined["value_variant"] < joined["value_measured"]).sum()), len(joined)


def whether_it_holds(holds: Any) -> str:
    """Whether a certified bound holds, in a word; an estimate may leave it open."""
    return "undecided" if pd.isna(holds) else "yes" if holds else "NO"


def norm_said(row: Mapping[Any, Any], words: str = "norm") -> str:
    """The norm that a variant stands beside; of an operator norm, an estimate gives the lower end."""
    found = f"{METHOD_KINDS[str(row['method'])]} {words}"
    lower = row["method"] != "exact" and row["norm"] == "operator"
    return f"lower end of the {found}" if lower else found


def _of(row: Mapping[Any, Any]) -> str:
    return f"{row['linearisation']} {NORMS[str(row['norm'])]}"


def _certified(row: Mapping[Any, Any], below: int, total: int) -> str:
    median, worst = float(row["median_log10_looseness"]), float(row["max_log10_looseness"])
    found = whether_it_holds(row["holds"])
    if found == "yes":
        holds = f"it holds at all {total} tokens"
    elif found == "undecided":
        holds = "the intervals of the estimate do not decide whether it holds"
    else:
        holds = (
            f"IT DOES NOT HOLD, the {norm_said(row)} is larger at {below} of {total} tokens (a certified bound that fails is a "
            "defect of this software or of the run, please report it)"
        )
    verdict = (
        "it says nothing about how large the sensitivity is" if median >= LOOSE else "it says little about the size"
    )
    if median < TIGHT:
        verdict = "it says something about the size"
    return (
        f"Certified bound `{row['variant']}` ({row['linearisation']} derivative, {NORMS[str(row['norm'])]}): {holds}; it is "
        f"{factor(median)} times the {norm_said(row)} in the median, {factor(worst)} times at worst, so {verdict}; "
        f"{_shape(row, total)}."
    )


def _paper(row: Mapping[Any, Any], below: int, total: int) -> str:
    start = f"The paper's form `{row['variant']}` (not certified)"
    median = float(row["median_log10_looseness"])
    if math.isnan(median):
        return f"{start} leaves its constant open, so only its shape can be compared: {_shape(row, total)}; {row['words']}."
    norm = f"the {norm_said(row, _of(row))}"
    side = f"lies above {norm} at all {total} tokens here, which nothing guarantees"
    if below:
        side = f"lies below {norm} at {below} of {total} tokens, so it is not a bound here"
    return (
        f"{start} {side}; it is {factor(median)} times that norm in the median; {_shape(row, total)}; {row['words']}."
    )


def _shape(row: Mapping[Any, Any], tokens: int) -> str:
    """Whether the tokens are in the order of the profile that the variant stands beside."""
    if tokens < FEWEST_RANKED:
        return "too few tokens for a shape"
    rank = float(row["spearman"])
    if math.isnan(rank):
        return "one of the two profiles is flat, so there is no order to compare"
    word = METHOD_KINDS[str(row["method"])]
    steps = (
        (0.9, f"orders the tokens almost as {word}"),
        (0.6, f"orders the tokens roughly as {word}"),
        (TREND, f"orders the tokens only weakly as {word}"),
        (-TREND, f"does not order the tokens as {word}"),
    )
    words = next((words for least, words in steps if rank >= least), f"orders the tokens against the {word} order")
    return f"its shape {words} (Spearman {rank:.2f})"


def bounds_headline(result: Comparison) -> Finding | None:
    """Whether every certified bound holds, and how loose the tightest is."""
    table: Frame = result.summary
    certified = table[table["kind"] == "certified"].sort_values("median_log10_looseness")
    if certified.empty:
        return None
    verdicts = certified["holds"].map(whether_it_holds)
    broken = certified.loc[verdicts == "NO", "variant"].tolist()
    undecided = int((verdicts == "undecided").sum())
    row: Any = certified.iloc[0].to_dict()
    median = float(row["median_log10_looseness"])
    size, use = factor(median), no_size(median)
    tightest = f"the tightest is {size} times the {norm_said(row)}{use}."
    if broken:
        state = f"CERTIFIED BOUNDS FAIL: {', '.join(broken)}."
    elif undecided:
        state = (
            f"The estimate does not decide whether {undecided} of {len(certified)} certified bounds hold; {tightest}"
        )
    else:
        state = f"Every certified bound holds; {tightest}"
    text = (
        f"The tightest is `{row['variant']}`, by the median over tokens. It stands beside the {row['linearisation']} "
        "derivative."
    )
    if broken:
        text += " A certified bound that fails is a defect of this software or of the run: please report it."
    return Finding(state, text, "sensitivity", "Bounds")


def forms_headline(result: Comparison) -> Finding | None:
    """How many of the forms that are no bounds are believed on this prompt, and why the others are not."""
    forms: Frame = result.summary[result.summary["kind"] != "certified"]
    if forms.empty:
        return None
    tested: Frame = forms[forms["believed"].notna()]
    right = int(tested["believed"].astype(bool).sum())
    state = f"{right or 'none'} of {len(tested)} can be believed on this prompt" if len(tested) else "none was tested"
    rule = (
        f"Fixed beforehand: an order is right from a rank correlation of {RIGHT_RANK:g} on, over at least {FEWEST} tokens, and "
        f"a size within a factor of {RIGHT_FACTOR:g}."
    )
    words = " ".join(forms_summary(result))
    return Finding(f"Forms that are not bounds: {state}.", f"{words} {rule}", "sensitivity", "Forms")


def no_size(median: float) -> str:
    """What is added to a bound that holds and is too loose for a size."""
    return ", true and of no use as a size" if median >= LOOSE else ""


def forms_summary(result: Comparison) -> list[str]:
    """Verdict on each form that is no bound; those that are not believed on this prompt come first."""
    forms: Frame = result.summary[result.summary["kind"] != "certified"]
    rows = sorted(forms.to_dict(orient="records"), key=lambda row: {False: 0, True: 1}.get(row["believed"], 2))
    return [f"`{row['variant']}` is {row['words']}." for row in rows]


def layers_finding(result: Sensitivity) -> str:
    """The last token's own norm and the median of the others', at the embeddings and below the last block."""
    frame: Frame = frame_of(result)
    name = "full" if "full" in set(frame["linearisation"]) else str(frame["linearisation"].iloc[0])
    word, norm = _known(result)
    words = f"{word}, {NORMS[norm]}"
    rows = frame[frame["linearisation"] == name]
    last = rows["position"].max()
    layers = sorted(set(rows["layer"]))
    # Above the last block every token but the last has exactly none.
    low, high = layers[0], layers[-2]
    ends = rows[rows["layer"].isin((low, high))].groupby("layer")
    said = {"the last token's own": ends.apply(lambda here: here.loc[here["position"] == last, f"{norm}_norm"].iloc[0])}
    if last > 0:
        said["the others' median"] = of_text(rows[rows["position"] < last]).groupby("layer")[f"{norm}_norm"].median()
    if low == high:
        values = ", ".join(f"{who} is {number(float(norms[low]))}" for who, norms in said.items())
        return f"At layer {low}, which the only block reads ({name}, {words}), {values}."
    values = ", ".join(
        f"{who} goes from {number(float(norms[low]))} to {number(float(norms[high]))}" for who, norms in said.items()
    )
    return f"From layer {low} to layer {high} ({name}, {words}) {values}."
