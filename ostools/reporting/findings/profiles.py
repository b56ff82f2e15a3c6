"""Sentences on profiles over tokens that are no sensitivity of one prompt: path sums, several
prompts, attention, changes, untrained models, a logit's parts, spectra.
"""

from __future__ import annotations

import numpy as np

from ostools.ground.words import number
from ostools.measure.attention.baselines import AttentionBaselines
from ostools.measure.attention.heads import SINK, HeadScores
from ostools.measure.bounds.bounds import Bounds, PromptBounds
from ostools.measure.collapse.variation import AttentionVariation
from ostools.measure.jacobian.attribution import Attribution
from ostools.measure.jacobian.sensitivity import Sensitivities
from ostools.measure.profiles.change import Change
from ostools.measure.profiles.profile import Profile
from ostools.measure.profiles.spectra import Spectra
from ostools.measure.profiles.untrained import TRAINED, UntrainedBaselines
from ostools.measure.prompts import of_text
from ostools.reporting.findings import MOST, first_few
from ostools.reporting.findings.sensitivity import NORMS, named_token, shape_findings
from ostools.results import Frame, Row, frame_of

_CHANGED = 3
"""So many of the tokens that changed most are named."""


def profile_findings(result: Profile) -> list[str]:
    """The verdict on the shape, then the first token's share of the sum, a sentence a
    linearisation.
    """
    shares = [
        f"{row['linearisation']}: the first token has {row['sink_share']:.1%} of the sum over all tokens, the last one "
        f"{row['last_share']:.1%}; the sum is spread as over {number(row['effective_tokens'])} equal tokens."
        for row in result.summary.to_dict("records")
    ]
    return shape_findings(result) + first_few(shares, MOST - 2)


def bounds_findings(result: Bounds) -> list[str]:
    """Of each form its kind and its range over the text's tokens; whether a form that is no bound
    can be believed.
    """
    table: Frame = frame_of(result)
    of_last: Frame = table[table["last"] == table["last"].max()]
    verdicts = dict(zip(result.beliefs["variant"], result.beliefs["words"], strict=True))
    sentences = []
    for variant, profile in of_last.groupby("variant", sort=False):
        rows = of_text(profile)
        top, low = (rows.loc[rows["value"].idxmax()], rows.loc[rows["value"].idxmin()])
        span = f"from {number(low['value'])} at {named_token(low)} to {number(top['value'])} at {named_token(top)}"
        if top["kind"] == "certified":
            sentences.append(
                f"Certified: the {top['linearisation']} {NORMS[str(top['norm'])]} of each token is at most its `{variant}`, "
                f"which goes {span}. How much smaller it is, only a measurement says: compare(sensitivity(...), bounds(...))."
            )
        else:
            verdict = f": {verdicts[variant]}" if variant in verdicts else ""
            sentences.append(f"The paper's form `{variant}` (no bound) goes {span}{verdict}.")
    return first_few(sentences)


def prompts_findings(result: Sensitivities | PromptBounds) -> list[str]:
    """The mean share of the first, the middle and the last third of the prompts, a sentence a
    source and norm.
    """
    table: Frame = result.over_position()
    lowest: Frame = table[table["layer"] == table["layer"].min()]
    sentences = []
    for (source, norm), rows in lowest.groupby(["source", "norm"], sort=False):
        shares = rows["mean"].to_numpy(float)
        parts = (
            ("first third", "middle third", "last third")
            if len(shares) >= 3
            else ("first half", "last half")
        )
        words = [
            f"{part} {number(float(share.mean()))}"
            for part, share in zip(parts, np.array_split(shares, len(parts)), strict=True)
            if len(share)
        ]
        sentences.append(
            f"{source}, {NORMS[str(norm)]}, a token's share of the sum over an even share, mean over {len(result)} prompts: "
            f"{', '.join(words)}."
        )
    return first_few(sentences)


def attention_baselines_findings(result: AttentionBaselines) -> list[str]:
    """The token that each reading of attention puts first."""
    sentences = []
    for baseline, rows in frame_of(result).groupby("baseline", sort=False):
        top: Row = rows.loc[rows["value"].idxmax()]
        share = float(top["value"] / rows["value"].sum())
        sentences.append(
            f"{baseline}: {named_token(top)} is first, with {share:.1%} of the sum over all tokens."
        )
    return first_few(sentences)


def head_scores_findings(result: HeadScores) -> list[str]:
    """How many heads look at the first token, and the head that looks the most at the previous one."""
    summary: Frame = result.summary
    sinks = int((summary["first_token"] > SINK).sum())
    best: Row = summary.loc[summary["previous_token"].idxmax()]
    return [
        f"{sinks} of {len(summary)} heads are sinks: their mean weight on the first token is above {SINK:g}.",
        f"Layer {int(best['layer'])}, head {int(best['head'])} looks the most at the previous token: mean weight "
        f"{best['previous_token']:.2f}.",
    ]


def attribution_findings(result: Attribution) -> list[str]:
    """What the tokens and the biases or the remainder add up to, the token with the largest part,
    and what is held.
    """
    table, parameters = frame_of(result), result.provenance.parameters
    rows: Frame = result.of_tokens
    values = rows["contribution"].astype(float)
    total, last_part = float(table["contribution"].sum()), float(table["contribution"].iloc[-1])
    logit = (
        "the logit" if isinstance(parameters["logit"], int) else "the difference of the two logits"
    )
    sum_of = f"{logit}, {total:.4g}"
    if parameters["soft_cap"] is not None:
        sum_of = f"{total:.4g} before the soft-cap, {logit}, {float(parameters['logit_value']):.4g}, after it"
    largest: Row = rows.loc[values.abs().idxmax()]
    held_words = "Patterns, norm scales and activations are held as they are on this prompt. A part is not a cause."
    if not parameters["complete"]:
        held_words = (
            f"A part is the {parameters['linearisation']} gradient times the token's embedding. Such parts do not add up "
            f"to {logit}: the remainder is what is missing. A part is not a cause."
        )
    return [
        f"Tokens together {values.sum():+.4g}, {table['part'].iloc[-1]} {last_part:+.4g}: {sum_of}.",
        f"The largest part is that of {named_token(largest)}: {largest['contribution']:+.4g}.",
        held_words,
    ]


def change_findings(result: Change) -> list[str]:
    """The median ratio of each source, the tokens that changed most, what differs, and which tokens
    have no ratio.
    """
    table, summary = frame_of(result), result.summary
    rows: Frame = summary[
        (summary["layer"] == summary["layer"].min()) & (summary["last"] == summary["last"].max())
    ]
    ratios = [
        f"{row['source']}, {NORMS[str(row['norm'])]}: second / first is {number(row['median_ratio'])} in the median over "
        f"{int(row['tokens'])} tokens; rank correlation of the two profiles {row['spearman']:.2f}."
        for row in rows.to_dict("records")
    ]
    differ = ", ".join(result.provenance.parameters["differ"]) or "neither model nor edits"
    paired = table[table["second_position"].notna()]
    left_out, alone = (
        int(paired["ratio"].isna().sum()),
        table["position"].nunique() - paired["position"].nunique(),
    )
    counts = {
        "ratios left out, where the first norm is rounding": left_out,
        "tokens without a partner in the second": alone,
    }
    missing = [f"{words}: {count}" for words, count in counts.items() if count]
    return [
        *first_few(ratios, MOST - 3),
        *_changed_most(table, rows),
        f"The two differ in: {differ}.",
        *([f"No ratio: {'; '.join(missing)}."] if missing else []),
    ]


def _changed_most(table: Frame, summary: Frame) -> list[str]:
    """The three tokens with the ratio furthest from 1, of the first source and norm of the summary;
    none without a ratio.
    """
    keys = ["source", "norm", "layer", "last"]
    first = summary[keys].iloc[0]
    rows = table[(table[keys] == first).all(axis=1) & (table["ratio"] > 0)]
    order = (
        np.log(rows["ratio"].astype(float))
        .abs()
        .sort_values(ascending=False, kind="stable")
        .index[:_CHANGED]
    )
    words = [
        f"{named_token(row)} ×{number(float(row['ratio']))}"
        for _, row in rows.loc[order].iterrows()
    ]
    return (
        [f"Changed most ({first['source']}, {NORMS[str(first['norm'])]}): {', '.join(words)}."]
        if words
        else []
    )


def untrained_findings(result: UntrainedBaselines) -> list[str]:
    """The verdict on the shape of the model and of each kind of untrained one, with its rank
    correlation.
    """
    sentences = []
    for source, rows in result.summary.groupby("source", sort=False):
        counts = rows["verdict"].value_counts().items()
        verdicts = "; ".join(f"{verdict} ({count} of {len(rows)})" for verdict, count in counts)
        if source == TRAINED:
            sentences.append(f"The model itself: {rows['verdict'].iloc[0]}.")
        else:
            sentences.append(
                f"{source}: {verdicts}; rank correlation with the model's own profile {rows['spearman'].median():.2f} in the "
                "median over seeds."
            )
    return first_few(sentences)


def spectra_findings(result: Spectra) -> list[str]:
    """How much of the last token's mass the whole product of patterns puts on the first token, and
    the rate (B.6, B.7).
    """
    depth: Frame = result.depth
    rows = depth[depth["blocks"] == depth["blocks"].max()].to_dict("records")
    sentences = [
        f"{row['matrix']}: after all {int(row['blocks'])} blocks the product of the mean patterns puts "
        f"{row['first_mass_last']:.1%} of the last token's mass on the first token; its second eigenvalue is "
        f"{number(row['second_eigenvalue'])}."
        for row in rows
    ]
    return first_few(sentences)


def attention_variation_findings(result: AttentionVariation) -> list[str]:
    """The bound of Theorem B.3's proof at the first layer, at the shortest and at the longest
    length.
    """
    table: Frame = result.over_heads()
    rows = table[table["layer"] == table["layer"].min()].groupby("length")["total"].mean()
    return [
        f"Layer {int(table['layer'].min())}, mean over heads: δ + own weight, the proof's bound for values of norm 1, is "
        f"{number(float(rows.iloc[0]))} at n = {rows.index[0]} and {number(float(rows.iloc[-1]))} at n = {rows.index[-1]}."
    ]
