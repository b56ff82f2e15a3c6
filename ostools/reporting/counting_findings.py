"""What Corollary 6.2 says of a model's counting, in sentences: predicted and measured told apart, and what neither shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from ostools.reporting.frames import Row, frame_of

if TYPE_CHECKING:
    from ostools.measure.counting import Counting


def counting_findings(result: Counting) -> list[str]:
    """A paragraph a dtype, and how far training went."""
    summary: Any = result.summary
    trained: Mapping[str, int] = result.provenance.model.get("trained_lengths") or {}
    frame = frame_of(result)
    task, longest = str(frame["task"].iloc[0]), int(frame["length"].max())
    said = [f"{_predicted(row)} {_measured(row)}{_together(row)}" for _, row in summary.iterrows()]
    said.append(
        "Predicted and measured speak of the answer's first token, behind the answer line already begun. The corollary is "
        "one-sided: errors below the predicted count, and in later tokens, are not its business."
    )
    end = trained.get(task)
    if end is not None and longest > end:
        said.append(
            f"The model was trained on this prompt up to n = {end}: errors beyond say little about over-squashing."
        )
    return said


def _predicted(row: Row) -> str:
    if pd.isna(row["impossible_from"]):
        return f"{row['dtype']}: no impossible count is predicted, {row['impossible_status']}."
    return (
        f"{row['dtype']}: predicted, from n = {row['impossible_from']} on the prompts of n and n + 1 items are closer at y "
        "than the rounding noise, so that the answers' first tokens cannot differ."
    )


def _measured(row: Row) -> str:
    if pd.isna(row["first_error"]):
        return f"Measured: all {row['counts']} counts are right."
    right = row["counts"] - row["errors"]
    unparsable = f" ({row['unparsable']} without a number)" if row["unparsable"] else ""
    if not right:
        return f"Measured: none of {row['counts']} counts is right{unparsable}."
    always = row["always_errs_from"]
    until = "the last count is right" if pd.isna(always) else f"every count from n = {always} on is wrong"
    return (
        f"Measured: {right} of {row['counts']} counts are right{unparsable}, the first error is at n = {row['first_error']}, "
        f"{until}."
    )


def _together(row: Row) -> str:
    """Whether the two can stand together; nothing where there is nothing to hold together."""
    said = ""
    if row["same_logits_differ"]:
        said = (
            f" CONTRADICTION: at {row['same_logits_differ']} counts the logits of n and n + 1 are the same bit for bit in "
            "one pass, and the first tokens differ in another."
        )
    if not row["pairs_beyond"]:
        return said
    same = row["pairs_beyond"] - row["differ_beyond"]
    said += f" From there the first tokens are the same at {same} of {row['pairs_beyond']} pairs."
    if not row["tested_pairs"]:
        return f"{said} None of them asks for two different ones, so the answers do not test the prediction."
    twice = (
        f"both are right at {row['right_twice']}: CONTRADICTION, the distance is below the noise and still tells them apart"
        if row["right_twice"]
        else f"none is right twice ({row['right_once']} once), as the corollary requires"
    )
    return f"{said} At the {row['tested_pairs']} of them that ask for two different ones {twice}."
