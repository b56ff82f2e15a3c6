"""Sentences on profiles over tokens that are no sensitivity of one prompt: path sums, several
prompts, attention, changes, a logit's parts.
"""

import pandas as pd

from ostools.ground import number
from ostools.measure import (
    AttentionBaselines,
    AttentionVariation,
    Attribution,
    Bounds,
    Change,
    HeadScores,
    Profile,
    Sensitivities,
    of_text,
)
from ostools.measure.attention.heads import SINK
from ostools.measure.collapse.homogenization import MODEL, UNTRAINED, TokenHomogenization
from ostools.measure.jacobian.distance import TEXT, InfluenceByDistance
from ostools.reporting.findings import MOST, present, where_read
from ostools.reporting.findings.sensitivity import NORMS, named_token, of_layer, shape_findings
from ostools.results import Column, Frame, frame_of


def profile_findings(result: Profile) -> list[str]:
    """The verdict on the shape, then the first token's share of the sum, a sentence a
    linearisation.
    """
    shares = [
        f"{row['linearisation']}: the first token has {row['sink_share']:.1%} of the sum over all "
        f"tokens, the last one {row['last_share']:.1%}; the sum is spread as over "
        f"{number(row['effective_tokens'])} equal tokens."
        for row in result.summary.to_dict("records")
    ]
    return shape_findings(result) + shares[: MOST - 2]


def bounds_findings(result: Bounds) -> list[str]:
    """Of each form its kind and its range over the text's tokens; whether a form that is no bound
    can be believed.
    """
    verdicts = dict(zip(result.beliefs["variant"], result.beliefs["words"], strict=True))
    sentences = []
    for variant, profile in frame_of(result).groupby("variant", sort=False):
        rows = of_text(profile)
        top, low = rows.loc[rows["value"].idxmax()], rows.loc[rows["value"].idxmin()]
        kind = (
            f"Certified: the {top['linearisation']} {NORMS[str(top['norm'])]} of each token is at "
            f"most its `{variant}`, which"
            if top["kind"] == "certified"
            else f"The paper's form `{variant}` (no bound; "
            f"{verdicts.get(variant, 'not held against a measurement here')})"
        )
        sentences.append(
            f"{kind} goes from {number(low['value'])} at {named_token(low)} to "
            f"{number(top['value'])} at {named_token(top)}."
        )
    return sentences[:MOST]


def prompts_findings(result: Sensitivities) -> list[str]:
    """The mean share of the first, the middle and the last third of the prompts (halves, where one
    has two tokens), a sentence a source and norm.
    """
    parts = min(3, result.over_position()["bin"].nunique())
    table = result.over_position(parts)
    lowest: Frame = table[table["layer"] == table["layer"].min()]
    sentences = []
    for (source, norm), rows in lowest.groupby(["source", "norm"], sort=False):
        sentences.append(
            f"{source}, {NORMS[str(norm)]}{of_layer(lowest)}, a token's share of the sum over an "
            f"even share, mean over {len(result)} prompts, from the first to the last "
            f"{('prompt', 'half', 'third')[parts - 1]}: {', '.join(map(number, rows['mean']))}."
        )
    return sentences[:MOST]


def attention_baselines_findings(result: AttentionBaselines) -> list[str]:
    """The token that each reading of attention puts first."""
    return [
        f"{baseline}: {named_token(rows.loc[rows['value'].idxmax()])} is first, with "
        f"{float(rows['value'].max() / rows['value'].sum()):.1%} of the sum over all tokens."
        for baseline, rows in frame_of(result).groupby("baseline", sort=False)
    ][:MOST]


def head_scores_findings(result: HeadScores) -> list[str]:
    """Number of heads that are sinks, and the head that looks the most at the previous token."""
    summary: Frame = result.summary
    best = summary.loc[summary["previous_token"].idxmax()]
    return present(
        where_read(result.provenance.parameters),
        f"{int((summary['first_token'] > SINK).sum())} of {len(summary)} heads are sinks: their "
        f"mean weight on the first token is above {SINK:g}.",
        f"Layer {int(best['layer'])}, head {int(best['head'])} looks the most at the previous "
        f"token: mean weight {best['previous_token']:.2f}.",
    )


def attribution_findings(result: Attribution) -> list[str]:
    """What the tokens and the biases or the remainder add up to, and the token with the largest
    part.
    """
    table, parameters, rows = frame_of(result), result.provenance.parameters, result.of_tokens
    remainder, total = result.remainder, float(table["contribution"].sum())
    logit = (
        "the logit" if isinstance(parameters["logit"], int) else "the difference of the two logits"
    )
    sum_of = f"{logit}, {total:.4g}"
    if parameters["soft_cap"] is not None:
        sum_of = (
            f"{total:.4g} before the soft-cap, {logit}, {float(parameters['logit_value']):.4g}, "
            "after it"
        )
    values = rows["contribution"].astype(float)
    largest = rows.loc[values.abs().idxmax()]
    return [
        f"Tokens together {values.sum():+.4g}, {remainder['part']} "
        f"{remainder['contribution']:+.4g}: {sum_of}.",
        f"The largest part of a token is that of {named_token(largest)}: "
        f"{largest['contribution']:+.4g}.",
    ]


def change_findings(result: Change) -> list[str]:
    """The median ratio of each linearisation, what differs, and the number of tokens without a
    ratio.
    """
    table, every = frame_of(result), result.summary
    summary: Frame = every[every["layer"] == every["layer"].min()]
    ratios = [
        f"{row['linearisation']}, {NORMS[str(row['norm'])]}{of_layer(summary)}: second / first is "
        f"{number(row['median_ratio'])} in the median over {int(row['tokens'])} tokens; rank "
        f"correlation of the two profiles {row['spearman']:.2f}."
        for row in summary.to_dict("records")
    ]
    without = table[(table["layer"] == table["layer"].min()) & table["ratio"].isna()]
    left_out = without["position"].nunique()
    differ = ", ".join(result.provenance.parameters["differ"]) or "neither model nor edits"
    return present(
        *ratios[: MOST - 2],
        f"The two differ in: {differ}.",
        f"Tokens without a ratio, as the first norm is 0 or rounding: {left_out}."
        if left_out
        else "",
    )


def attention_variation_findings(result: AttentionVariation) -> list[str]:
    """The bound of Theorem B.3's proof at the first layer, at the shortest and at the longest
    length.
    """
    table = result.over_heads()
    rows = table[table["layer"] == table["layer"].min()].groupby("length")["total"].mean()
    return [
        f"Layer {int(table['layer'].min())}, mean over heads: δ + own weight, the proof's bound "
        f"for values of norm 1, is {number(float(rows.iloc[0]))} at n = {rows.index[0]} and "
        f"{number(float(rows.iloc[-1]))} at n = {rows.index[-1]}."
    ]


PUBLISHED = "0.7 to 0.9"
"""The p of Pythia and Qwen2.5-0.5B in arXiv 2606.29139, the token itself among the distances."""
_SUBJECTS = {TEXT: "the text", "shuffled": "its tokens shuffled", "untrained": "random weights"}


def distance_findings(result: InfluenceByDistance) -> list[str]:
    """How far the last distance lies below the token itself, the law of the text, and those of the
    controls.
    """
    laws: Frame = result.laws
    fitted: Frame = laws[laws["from_distance"] == 0].set_index("source")
    later: Column = laws[laws["from_distance"] == 1].set_index("source")["p"]
    text = fitted.loc[TEXT]
    medians = result.by_distance[result.by_distance["source"] == TEXT]
    farthest = medians[medians["distance"] < text["distances"]].iloc[-1]
    controls = "; ".join(
        f"{_SUBJECTS[str(source)]}: p = {number(row['p'])} ({row['verdict']})"
        for source, row in fitted.drop(index=TEXT).iterrows()
    )
    falls = (
        f"At distance {int(farthest['distance'])} a token moves y_j by "
        f"{'an estimated ' if 'estimated' in set(result.frame['kind']) else ''}"
        f"{number(farthest['median'])} of what the token itself does, in the median."
    )
    if pd.isna(text["p"]):
        return [falls, f"No p: of {int(text['distances'])} distances: {text['verdict']}."]
    interval = f" ({number(text['low'])} to {number(text['high'])} over {int(text['texts'])} texts)"
    return present(
        falls,
        f"Fitted law: {number(text['gamma'])} + {number(text['beta'])} (r + 1)^-p with p = "
        f"{number(text['p'])}{'' if pd.isna(text['low']) else interval}; without the token itself "
        f"p = {number(later[TEXT])}. Published for other models: p = {PUBLISHED} (arXiv "
        "2606.29139).",
        f"Of power law, exponential, and either down to a level, the data say: {text['verdict']}.",
        f"Controls: {controls}." if controls else "",
    )


def homogenization_findings(result: TokenHomogenization) -> list[str]:
    """Where all tokens are the most alike, with and without the first one; its norm, and the sink;
    the untrained twin.
    """
    table = frame_of(result)
    longest = table[table["tokens"] == table["tokens"].max()]
    model = longest[longest["source"] == MODEL]
    untrained = longest[longest["source"] == UNTRAINED]["rest_normalised_entropy"]
    valley = model.loc[model["normalised_entropy"].idxmin()]
    rest_valley = model.loc[model["rest_normalised_entropy"].idxmin()]
    ratios = model["first_norm"] / model["rest_norm"]
    layers = f"layer {int(valley['layer'])} of {result.provenance.model['n_layers']}"
    return present(
        f"Of {int(valley['tokens'])} tokens the entropy is least at {layers}: "
        f"{valley['normalised_entropy']:.0%} of the most there can be, effective rank "
        f"{number(valley['effective_rank'])}. Without the first token it "
        f"is least at layer {int(rest_valley['layer'])}, "
        f"{rest_valley['rest_normalised_entropy']:.0%}.",
        f"The first token's norm is at most {number(ratios.max())} times the others' median, at "
        f"layer {int(model['layer'][ratios.idxmax()])}.",
        f"At most {model['sink_rate'].max():.0%} of a block's heads put more than 0.3 of their "
        "attention on the first token."
        if model["sink_rate"].notna().any()
        else "",
        f"With random weights and without the first token it is from {untrained.min():.0%} to "
        f"{untrained.max():.0%} in all layers."
        if len(untrained)
        else "",
    )
