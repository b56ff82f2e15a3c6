"""Sentences on sensitivities, certified bounds, and the forms that are no bounds.

Sentences on tokens are on the user's text; the share of BOS and chat template is said beside it.
Whether a bound holds is said of every token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ostools.ground.names import METHOD_KINDS, known_norm
from ostools.ground.words import factor, number
from ostools.measure import Comparison, Profile, Sensitivity
from ostools.measure.bounds.variants import FEWEST, RIGHT_FACTOR, RIGHT_RANK
from ostools.measure.jacobian.norms import WIDE
from ostools.measure.profiles.profile import NO_SINK, OF_TEXT
from ostools.measure.prompts import of_text
from ostools.reporting.findings import shape_sentence
from ostools.reporting.findings.position import where_read
from ostools.reporting.style import theme
from ostools.reporting.style.prompt import template_positions, template_share, token_count_words
from ostools.reporting.style.theme import display_token
from ostools.results import Frame, Row, frame_of

LOOSE = 3.0
"""A bound 10^LOOSE too large in the median says nothing of the size."""
NORMS = {"operator": "operator norm", "frobenius": "Frobenius norm"}
_DEFECT = (
    "A certified bound that fails is a defect of this software or of the run: please report it"
)

_MOST_NAMED = 5
"""Tokens near another choice of experts that a sentence names."""


# --- sensitivity


def sensitivity_findings(result: Sensitivity) -> list[str]:
    """Where the prompt was read, the largest and the smallest norm, what freezing changes, and the
    certificate.
    """
    profiles, (kind, norm) = _profiles(result), _kind_and_norm(result)
    name = "full" if "full" in profiles else next(iter(profiles))
    where = " ".join(where_read(result.provenance.parameters))
    notes = " ".join([*_block_findings(result), *_expert_findings(profiles, result)])
    sentences = [
        where,
        _largest_and_smallest(result, name, profiles[name]),
        _frozen_share(profiles, kind, norm),
        notes,
    ]
    return [sentence for sentence in [*sentences, certificate_words(result)] if sentence]


def _largest_and_smallest(result: Sensitivity, name: str, profile: Frame) -> str:
    kind, norm = _kind_and_norm(result)
    _, output = theme.differentiated(result.provenance.parameters)
    rows = of_text(profile)
    norms = rows[f"{norm}_norm"].to_numpy()
    top, low = rows.iloc[int(norms.argmax())], rows.iloc[int(norms.argmin())]
    return (
        f"{kind.capitalize()}, {name}: {token_count_words(rows, profile)}{output} responds most to {named_token(top)}, "
        f"{NORMS[norm]} {number(float(norms.max()))}, and least to {named_token(low)}, {number(float(norms.min()))}; "
        f"{_spread(norms)}." + template_share(profile, rows, f"{norm}_norm")
    )


def _frozen_share(profiles: Mapping[str, Frame], kind: str, norm: str) -> str:
    """The frozen norms over the full ones; empty where one of the two was not measured, or a full
    norm is 0.
    """
    if (
        not {"full", "frozen"} <= profiles.keys()
        or not (profiles["full"][f"{norm}_norm"] > 0).all()
    ):
        return ""
    full, frozen = (profiles[name][f"{norm}_norm"].to_numpy() for name in ("full", "frozen"))
    low, middle, high = (number(float(value)) for value in np.quantile(frozen / full, (0, 0.5, 1)))
    return (
        f"With patterns and norms frozen, as the theorem assumes, the {kind} norm is {middle} times the real one in the "
        f"median over tokens (from {low} to {high}). A bound of the frozen derivative does not bound the real one."
    )


def _block_findings(result: Sensitivity) -> list[str]:
    """What is missing where nothing inside a block is known, and blocks that the paper's statements
    are not about.
    """
    parameters: Any = result.provenance.parameters
    notes = [str(parameters[name]) for name in ("blocks", "no_softmax") if name in parameters]
    if notes:
        notes[0] = f"Blocks are {notes[0]}"
    return [f"{note[0].upper()}{note[1:]}." for note in notes]


def _expert_findings(profiles: Mapping[str, Frame], result: Sensitivity) -> list[str]:
    """What the derivative of a mixture of experts holds, and which token is how near to another
    choice of experts.
    """
    parameters: Any = result.provenance.parameters
    accounts = [run["experts"] for run in parameters.get("runs", {}).values() if "experts" in run]
    if not accounts:
        return []
    held_as = "Experts: the derivative holds every router's choice as it is at this prompt"
    nearest, near = accounts[0]["nearest"], accounts[0]["within_rounding"]
    if nearest is None:
        return [
            f"{held_as}. How near a token is to another choice is not measured: no torch.topk makes it."
        ]
    rows = next(iter(profiles.values())).set_index("position", drop=False)
    sentences = [
        f"{held_as}. Nearest to another choice is {named_token(rows.loc[nearest['position']])} at block {nearest['block']}: "
        f"the scores of the last expert chosen and of the next differ by {number(nearest['margin'])} of their size."
    ]
    if near:
        tokens = ", ".join(named_token(rows.loc[position]) for position in near[:_MOST_NAMED])
        more = f" and {len(near) - _MOST_NAMED} more" if len(near) > _MOST_NAMED else ""
        sentences.append(
            f"Within rounding of another choice of experts: {tokens}{more}. Another order of additions may choose otherwise "
            "there, and give another derivative."
        )
    return sentences


def certificate_words(result: Sensitivity) -> str:
    """The error of the arithmetic, the worst of the linearisations; and beside it that of sampling,
    where there is one.
    """
    parameters: Any = result.provenance.parameters
    certificates = [
        run["certificate"] for run in parameters.get("runs", {}).values() if "certificate" in run
    ]
    if not certificates:
        return ""
    error, within = (
        max(certificate[name] for certificate in certificates) for name in ("error", "within")
    )
    words = (
        f"Arithmetic: the norms of all tokens together may be off by up to {_share(within)} (95%); the network, moved a "
        f"little, moves as its derivative says, to {_share(error)}."
    )
    rows: Frame = result.frame[result.frame["frobenius_upper"] > result.frame["frobenius_lower"]]
    if len(rows):
        half = (rows["frobenius_upper"] - rows["frobenius_lower"]) / (2 * rows["frobenius_norm"])
        words += (
            f" Sampling, another error: each norm is estimated from a few random directions, and may be off by "
            f"{_share(float(half.median()))} to either side in the median (95%); {int((half > WIDE).sum())} of {len(rows)} by "
            f"more than {WIDE:.0%}."
        )
    return words


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.01 else f"{value:.1g}"


def _kind_and_norm(result: Sensitivity) -> tuple[str, str]:
    """The kind of the numbers and their norm: an estimate knows a lower bound of an operator norm
    only.
    """
    norm = known_norm(frame_of(result)["method"])
    return ("measured" if norm == "operator" else "estimated"), norm


def _profiles(result: Sensitivity) -> dict[str, Frame]:
    """By linearisation, at the lowest layer: a token of another layer is another input."""
    frame = frame_of(result)
    groups = frame[frame["layer"] == frame["layer"].min()].groupby("linearisation", sort=False)
    return {str(name): rows.sort_values("position") for name, rows in groups}


def named_token(row: Row) -> str:
    """Its position and what it looks like."""
    return f"token {int(row['position'])} “{display_token(str(row['token']))}”"


def _spread(norms: np.ndarray) -> str:
    if zeros := int((norms == 0).sum()):
        return f"the norms of {zeros} of {len(norms)} tokens are exactly 0: these tokens do not have any influence"
    return f"these two norms are a factor of {number(float(norms.max() / norms.min()))} apart"


def layers_finding(result: Sensitivity) -> str:
    """The last token's norm and the median of the others', at the embeddings and below the last
    block.
    """
    frame: Frame = frame_of(result)
    name = "full" if "full" in set(frame["linearisation"]) else str(frame["linearisation"].iloc[0])
    kind, norm = _kind_and_norm(result)
    rows, layers = frame[frame["linearisation"] == name], sorted(set(frame["layer"]))
    parts = []
    for layer in dict.fromkeys(
        (layers[0], layers[-2])
    ):  # above the last block every token but the last has none
        at_layer = rows[rows["layer"] == layer].sort_values("position")
        before = of_text(at_layer[:-1])[f"{norm}_norm"]
        part = f"at layer {layer} the last token's own is {number(float(at_layer[f'{norm}_norm'].iloc[-1]))}"
        parts.append(
            part + (f", the others' median {number(float(before.median()))}" if len(before) else "")
        )
    return f"{kind.capitalize()}, {name}, {NORMS[norm]}: {'; '.join(parts)}."


def shape_findings(result: Profile) -> list[str]:
    """Whether the middle of the prompt counts for less than its ends, then the two contrasts that
    decide it, with intervals.

    Of the full derivative if it was measured; in a chat of the text, else without the first token.
    """
    names = list(dict.fromkeys(result.frame["linearisation"]))
    name = "full" if "full" in names else names[0]
    part = OF_TEXT if template_positions(result.frame) else NO_SINK
    shapes: Frame = result.shapes
    row = shapes[(shapes["linearisation"] == name) & (shapes["kept"] == part)].iloc[0]
    if pd.isna(row["middle"]):
        reason = str(row["verdict"]).removeprefix("not tested: ")
        return [
            "Whether the middle of the prompt counts for less than its ends was not tested.",
            f"The reason: {reason}. `ostools sensitivity profile --prompt TEXT` tests a longer prompt.",
        ]
    start, end = (
        "{} times (95% interval {} to {})".format(
            *(number(10.0 ** row[f"{end}_contrast{suffix}"]) for suffix in ("", "_low", "_high"))
        )
        for end in ("start", "end")
    )
    kind = METHOD_KINDS[str(result.frame["method"].iloc[0])].capitalize()
    return [
        shape_sentence(str(row["verdict"]), "the prompt"),
        f"{kind}, {row['linearisation']} derivative: the last third of the tokens has {end} the norm of the middle third; the "
        f"first third has {start}.",
    ]


# --- bounds and forms


def comparison_findings(result: Comparison) -> list[str]:
    """Whether every certified bound holds, and how loose the tightest is; which of the other forms
    are believed.
    """
    return [
        sentence
        for sentence in (_bounds_words(result.summary), *_forms_words(result.summary))
        if sentence
    ]


def whether_it_holds(holds: Any) -> str:
    """Whether a certified bound holds, in a word; an estimate may leave it open."""
    return "undecided" if pd.isna(holds) else "yes" if holds else "NO"


def _norm_words(row: Row) -> str:
    """The norm beside a variant; of an operator norm, an estimate gives the lower end."""
    text = f"{METHOD_KINDS[str(row['method'])]} norm"
    return (
        f"lower end of the {text}"
        if row["method"] != "exact" and row["norm"] == "operator"
        else text
    )


def _bounds_words(table: Frame) -> str:
    certified = table[table["kind"] == "certified"].sort_values("median_log10_looseness")
    if certified.empty:
        return ""
    verdicts = certified["holds"].map(whether_it_holds)
    broken, undecided = (
        certified.loc[verdicts == "NO", "variant"].tolist(),
        int((verdicts == "undecided").sum()),
    )
    row: Row = certified.iloc[0]
    median = float(row["median_log10_looseness"])
    tightest = (
        f"the tightest, `{row['variant']}`, is {factor(median)} times the {_norm_words(row)} in the median over tokens"
        f"{no_size(median)} ({row['linearisation']} derivative)."
    )
    if broken:
        return f"CERTIFIED BOUNDS FAIL: {', '.join(broken)}. {_DEFECT}."
    if undecided:
        return f"The estimate does not decide whether {undecided} of {len(certified)} certified bounds hold; {tightest}"
    return f"Every certified bound holds; {tightest}"


def _forms_words(table: Frame) -> list[str]:
    forms: Frame = table[table["kind"] != "certified"]
    if forms.empty:
        return []
    tested: Frame = forms[forms["believed"].notna()]
    believed = int(tested["believed"].astype(bool).sum())
    state = (
        f"{believed or 'none'} of {len(tested)} can be believed on this prompt"
        if len(tested)
        else "none was tested"
    )
    rows = sorted(
        forms.to_dict("records"), key=lambda row: {False: 0, True: 1}.get(row["believed"], 2)
    )
    words = " ".join(f"`{row['variant']}` is {row['words']}." for row in rows)
    rule = (
        f"Fixed beforehand: an order is right from a rank correlation of {RIGHT_RANK:g} on, over at least {FEWEST} tokens, "
        f"and a size within a factor of {RIGHT_FACTOR:g}."
    )
    return [f"Forms that are not bounds: {state}.", f"{words} {rule}"]


def no_size(median: float) -> str:
    """Words added to a bound that holds and is too loose for a size."""
    return ", true and of no use as a size" if median >= LOOSE else ""
