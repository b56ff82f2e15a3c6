"""Sentences on sensitivities, certified bounds, and the forms that are no bounds.

Sentences on tokens are on the user's text; the share of BOS and chat template is said beside it.
Whether a bound holds is said of every token.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ostools.ground import METHOD_KINDS, factor, known_norm, number, ratio
from ostools.measure import Comparison, Profile, Sensitivity, of_text
from ostools.measure.first_order import FEWEST, RIGHT_FACTOR, RIGHT_RANK
from ostools.measure.jacobian.norms import WIDE
from ostools.measure.profiles.profile import NO_SINK, OF_TEXT
from ostools.reporting.findings import SHAPES, present, where_read
from ostools.reporting.style import draw, theme
from ostools.results import Frame, Row, frame_of

LOOSE = 3.0
"""A bound 10^LOOSE too large in the median says nothing of the size."""
NORMS = {"operator": "operator norm", "frobenius": "Frobenius norm"}
_UNKNOWN = ("blocks", "no_softmax")


# --- sensitivity


def sensitivity_findings(result: Sensitivity) -> list[str]:
    """Where the prompt was read, the largest and the smallest norm, what freezing changes, and the
    certificate.
    """
    frame, parameters = frame_of(result), result.provenance.parameters
    # An estimate knows a lower bound of an operator norm only.
    norm = known_norm(frame["method"])
    # A token of another layer is another input.
    rows = frame[frame["layer"] == frame["layer"].min()].assign(norm=frame[f"{norm}_norm"])
    rows = rows.sort_values("position", kind="stable")
    profiles = {
        name: rows[rows["linearisation"] == name] for name in frame["linearisation"].unique()
    }
    kind = METHOD_KINDS[str(frame["method"].iloc[0])]
    name = "full" if "full" in profiles else next(iter(profiles))
    subject = f"{kind.capitalize()}, {name}: {theme.differentiated(parameters)[1]}"
    return present(
        where_read(parameters),
        f"{subject} responds{of_layer(rows)} {_largest_and_smallest(profiles[name], NORMS[norm])}",
        _frozen_share(profiles, kind),
        _block_words(parameters),
        certificate_words(result),
    )


def of_layer(rows: Frame) -> str:
    """Which residual stream the rows' lowest layer is; empty of the embeddings."""
    layer = int(rows["layer"].min())
    return f" at layer {layer}" if layer else ""


def _largest_and_smallest(profile: Frame, norm_words: str) -> str:
    """Of the text's tokens; with the share that those of a chat template have."""
    rows, total = of_text(profile), float(profile["norm"].sum())
    of_template = float(profile["norm"].drop(rows.index).sum())
    top, low = rows.loc[rows["norm"].idxmax()], rows.loc[rows["norm"].idxmin()]
    words = (
        f"most to {named_token(top)}, {norm_words} {number(top['norm'])}, and least to "
        f"{named_token(low)}, {number(low['norm'])}."
    )
    if len(rows) == len(profile):
        return words
    return (
        f"{words} Of the sum over all {len(profile)} tokens the {len(profile) - len(rows)} that "
        f"are not the text's have {ratio(of_template, total):.1%}."
    )


def _frozen_share(profiles: Mapping[str, Frame], kind: str) -> str:
    """The frozen norms over the full ones; empty where one of the two was not measured, or a full
    norm is 0.
    """
    if not {"full", "frozen"} <= profiles.keys() or not (profiles["full"]["norm"] > 0).all():
        return ""
    shares = profiles["frozen"]["norm"].to_numpy() / profiles["full"]["norm"].to_numpy()
    low, middle, high = (number(float(value)) for value in np.quantile(shares, (0, 0.5, 1)))
    return (
        f"With patterns and norms frozen, as the theorem assumes, the {kind} norm is {middle} "
        f"times the real one in the median over tokens (from {low} to {high})."
    )


def _block_words(parameters: Mapping[str, Any]) -> str:
    """What is missing where nothing inside a block is known; of a mixture of experts what the
    derivative holds, and which tokens are within rounding of another choice.
    """
    notes = [f"Blocks: {parameters[name]}." for name in _UNKNOWN if name in parameters]
    for experts in [run["experts"] for run in _runs(parameters) if "experts" in run][:1]:
        near = ", ".join(map(str, experts["within_rounding"])) or "none"
        notes.append(
            "Experts: the derivative holds every router's choice as it is at this prompt. "
            "Positions within rounding of another choice, which another order of additions may "
            f"make: {near if experts['nearest'] is not None else 'not measured'}."
        )
    return " ".join(notes)


def _runs(parameters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*parameters.get("runs", {}).values()]


def certificate_words(result: Sensitivity) -> str:
    """The error of the arithmetic, the worst of the linearisations; and beside it that of sampling,
    where there is one.
    """
    runs = _runs(result.provenance.parameters)
    certificates = [run["certificate"] for run in runs if "certificate" in run]
    if not certificates:
        return ""
    error, within = (
        _share(max(certificate[name] for certificate in certificates))
        for name in ("error", "within")
    )
    rows: Frame = result.frame[result.frame["frobenius_upper"] > result.frame["frobenius_lower"]]
    half = (rows["frobenius_upper"] - rows["frobenius_lower"]) / (2 * rows["frobenius_norm"])
    sampling = (
        " Sampling, another error: each norm is estimated from a few random directions, and may "
        f"be off by {_share(float(half.median()))} to either side in the median (95%); "
        f"{int((half > WIDE).sum())} of {len(rows)} by more than {WIDE:.0%}."
    )
    return (
        f"Arithmetic: the norms of all tokens together may be off by up to {within} (95%); the "
        "network, moved a little, moves as its derivative says, to "
        f"{error}.{sampling if len(rows) else ''}"
    )


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.01 else f"{value:.1g}"


def named_token(row: Row) -> str:
    """Its position and what it looks like."""
    return f"token {int(row['position'])} “{theme.display_token(str(row['token']))}”"


def shape_findings(result: Profile) -> list[str]:
    """Whether the middle of the prompt counts for less than its ends, then the two contrasts that
    decide it, with intervals.

    Of the full derivative if it was measured; in a chat of the text, else without the first token.
    """
    names = list(result.frame["linearisation"])
    part = OF_TEXT if draw.template_positions(result.frame) else NO_SINK
    shapes = result.shapes[result.shapes["kept"] == part].set_index("linearisation")
    row = shapes.loc["full" if "full" in names else names[0]]
    question = "whether the middle of the prompt counts for less than its ends"
    if pd.isna(row["middle"]):
        return [f"{row['verdict'].capitalize()}: {question}."]
    start, end = (
        "{} times (95% interval {} to {})".format(
            *(number(10.0 ** row[f"{end}_contrast{suffix}"]) for suffix in ("", "_low", "_high"))
        )
        for end in ("start", "end")
    )
    kind = METHOD_KINDS[str(result.frame["method"].iloc[0])].capitalize()
    return [
        SHAPES[str(row["verdict"])][1].format("this one prompt"),
        f"{kind}, {row.name} derivative: the last third of the tokens has {end} the norm of the "
        f"middle third; the first third has {start}.",
    ]


# --- bounds and forms


def comparison_findings(result: Comparison) -> list[str]:
    """Whether every certified bound holds, and how loose the tightest is; which of the other forms
    are believed.
    """
    certified = result.summary["kind"] == "certified"
    bounds, forms = result.summary[certified], result.summary[~certified]
    count = frame_of(result)["position"].nunique()
    words = [_bounds_words(bounds, count)] if len(bounds) else []
    return words + (_forms_words(forms) if len(forms) else [])


def _bounds_words(certified: Frame, count: int) -> str:
    """`count`: the prompt's tokens."""
    row = certified.sort_values("median_log10_looseness").iloc[0]
    broken = certified.loc[certified["holds"].isin([False]), "variant"]
    if len(broken):
        return (
            f"CERTIFIED BOUNDS FAIL: {', '.join(broken)}. A certified bound that fails is a defect "
            "of this software or of the run: please report it."
        )
    undecided = int(certified["holds"].isna().sum())
    hold = (
        f"The estimate does not decide whether {undecided} of {len(certified)} certified bounds "
        "hold"
    )
    lower = "lower end of the " * (row["method"] != "exact" and row["norm"] == "operator")
    median, in_reach = float(row["median_log10_looseness"]), int(row["tokens"])
    tokens = "tokens" if in_reach == count else f"the {in_reach} of {count} tokens that reach y"
    return (
        f"{hold if undecided else 'Every certified bound holds'}; the tightest, "
        f"`{row['variant']}`, is {factor(median)} times the "
        f"{lower}{METHOD_KINDS[str(row['method'])]} norm in the median over "
        f"{tokens}{', true and of no use as a size' * (median >= LOOSE)} ({row['linearisation']} "
        "derivative)."
    )


def _forms_words(forms: Frame) -> list[str]:
    decided = forms["believed"].dropna().astype(bool)
    rows = forms.sort_values("believed", kind="stable").to_dict("records")
    words = " ".join(f"`{row['variant']}` is {row['words']}." for row in rows)
    return [
        f"Forms that are not bounds: {decided.sum()} of {len(decided)} that were decided can be "
        "believed on this prompt.",
        f"{words} Fixed beforehand: an order is right from a rank correlation of {RIGHT_RANK:g} "
        f"on, over at least {FEWEST} tokens, and a size within a factor of {RIGHT_FACTOR:g}.",
    ]
