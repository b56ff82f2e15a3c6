"""Sentences on all tokens of a text: how influence falls with distance, how alike their states are,
what a rounding becomes.
"""

from __future__ import annotations

import math

from ostools.ground.words import number, runs
from ostools.measure.collapse.homogenization import MODEL, UNTRAINED, TokenHomogenization
from ostools.measure.jacobian.distance import TEXT, InfluenceByDistance
from ostools.reporting.findings import present
from ostools.results import Column, Frame, frame_of

PUBLISHED = "0.7 to 0.9"
"""The p of Pythia and Qwen2.5-0.5B in arXiv 2606.29139, the token itself among the distances."""
_SUBJECTS = {TEXT: "the text", "shuffled": "its tokens shuffled", "untrained": "random weights"}


def distance_findings(result: InfluenceByDistance) -> list[str]:
    """The law of the text, those of the controls, and how far the last distance lies below the
    token itself.
    """
    laws: Frame = result.laws
    fitted: Frame = laws[laws["from_distance"] == 0].set_index("source")
    later: Column = laws[laws["from_distance"] == 1].set_index("source")["p"]
    text = fitted.loc[TEXT]
    medians = result.by_distance[result.by_distance["source"] == TEXT]
    farthest = medians[medians["distance"] < text["distances"]].iloc[-1]
    falls = (
        f"At distance {int(farthest['distance'])} a token moves y_j by "
        f"{number(farthest['median'])} of what the token itself does, in the median."
    )
    if math.isnan(text["p"]):
        return [falls, f"No p: of {int(text['distances'])} distances: {text['verdict']}."]
    interval = f" ({text['low']:.2f} to {text['high']:.2f} over {int(text['texts'])} texts)"
    controls = "; ".join(
        f"{_SUBJECTS[str(source)]}: {_rate(row['p'])} ({row['verdict']})"
        for source, row in fitted.drop(index=TEXT).iterrows()
    )
    return present(
        falls,
        f"Fitted law: {number(text['gamma'])} + {number(text['beta'])} (r + 1)^-p with p = "
        f"{text['p']:.2f}{'' if math.isnan(text['low']) else interval}; without the token itself "
        f"{_rate(later[TEXT])}. Published for other models: p = {PUBLISHED} (arXiv 2606.29139).",
        f"Of power law, exponential, and either down to a level, the data say: {text['verdict']}.",
        f"Controls: {controls}." if controls else "",
    )


def _rate(p: float) -> str:
    return "no p" if math.isnan(p) else f"p = {p:.2f}"


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
    return present(
        f"Of {int(valley['tokens'])} tokens the entropy is least at layer {int(valley['layer'])} "
        f"of {int(model['layer'].max())}: {valley['normalised_entropy']:.0%} of the most there "
        f"can be, effective rank {number(valley['effective_rank'])}. Without the first token it "
        f"is least at layer {int(rest_valley['layer'])}, "
        f"{rest_valley['rest_normalised_entropy']:.0%}.",
        f"The first token's norm is at most {number(ratios.max())} times the others' median, at "
        f"layer {int(model['layer'][ratios.idxmax()])}.",
        _sink_sentence(model),
        f"With random weights and without the first token it is from {untrained.min():.0%} to "
        f"{untrained.max():.0%} in all layers."
        if len(untrained)
        else "",
    )


def _sink_sentence(model: Frame) -> str:
    """The block with the greatest sink rate; empty where no patterns were read."""
    if model["sink_rate"].isna().all():
        return ""
    most = model["sink_rate"].max()
    blocks = model.loc[model["sink_rate"] == most, "layer"].astype(int).tolist()
    where = f"block{'s' * (len(blocks) > 1)} {runs(blocks)}"
    return (
        f"In {where}, {most:.0%} of the heads put more than 0.3 of their attention on the first "
        "token, the most of all blocks."
    )
