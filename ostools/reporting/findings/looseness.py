"""Where the certified bound loses, and what becomes of the sensitivity from layer to layer, in a sentence each."""

from __future__ import annotations

from ostools.ground.words import factor, number
from ostools.measure import Sensitivity
from ostools.measure.profiles.looseness import Looseness
from ostools.results import Frame, frame_of


def looseness_finding(result: Looseness) -> str:
    """How loose `uniform` is in the mean over tokens, and which part of it is the largest."""
    loose: Frame = result.summary[result.summary["is_looseness"]]
    total, worst = float(loose["mean"].sum()), loose.loc[loose["mean"].idxmax()]
    return (
        f"The loosest, `uniform`, is {factor(total)} times too large (geometric mean over tokens); the largest part of that, "
        f"{factor(float(worst['mean']))}, is {worst['part']} (`{worst['larger']}` over `{worst['smaller']}`)."
    )


def layers_finding(result: Sensitivity) -> str:
    """The last token's own norm and the median of the others', at the embeddings and below the last block."""
    frame: Frame = frame_of(result)
    name = "full" if "full" in set(frame["linearisation"]) else str(frame["linearisation"].iloc[0])
    estimated = bool((frame["method"] == "estimate").any())
    norm, words = ("frobenius", "estimated, Frobenius norm") if estimated else ("operator", "measured, operator norm")
    rows = frame[frame["linearisation"] == name]
    last = rows["position"].max()
    layers = sorted(set(rows["layer"]))
    # Above the last block every token but the last has exactly none.
    low, high = layers[0], layers[-2]
    ends = rows[rows["layer"].isin((low, high))].groupby("layer")
    said = {"the last token's own": ends.apply(lambda here: here.loc[here["position"] == last, f"{norm}_norm"].iloc[0])}
    if last > 0:
        said["the others' median"] = ends.apply(lambda here: here.loc[here["position"] < last, f"{norm}_norm"].median())
    if low == high:
        values = ", ".join(f"{who} is {number(float(norms[low]))}" for who, norms in said.items())
        return f"At layer {low}, which the only block reads ({name}, {words}), {values}."
    values = ", ".join(
        f"{who} goes from {number(float(norms[low]))} to {number(float(norms[high]))}" for who, norms in said.items()
    )
    return f"From layer {low} to layer {high} ({name}, {words}) {values}."
