"""What Corollary 6.2 says of a model's counting, in sentences: predicted and measured told apart, and what neither shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ostools.measure.answers.counting import Counting
from ostools.results import Row, frame_of


def counting_findings(result: Counting) -> list[str]:
    """A paragraph a dtype, and how far training went."""
    summary: Any = result.summary
    trained: Mapping[str, int] = result.provenance.model.get("trained_lengths") or {}
    frame = frame_of(result)
    task, longest = str(frame["task"].iloc[0]), int(frame["length"].max())
    said = [f"{_predicted(row)} {_measured(row)}{_together(row)}" for _, row in summary.iterrows()]
    said += [_by_itself(row) for _, row in summary.iterrows() if _partly(row["same_behind_bare_prompt"])]
    said.append(
        "Predicted and measured are about the answer's first token, after the answer line is begun. The corollary is "
        "one-sided: it does not speak of errors at other counts, nor of errors in later tokens."
    )
    end = trained.get(task)
    if end is not None and longest > end:
        said.append(
            f"The model was trained on this prompt up to n = {end}. Errors beyond say little about over-squashing."
        )
    return said


def _predicted(row: Row) -> str:
    if pd.isna(row["impossible_from"]):
        return f"{row['dtype']}: no impossible count is predicted ({row['impossible_status']})."
    return (
        f"{row['dtype']}: the pair of n and n + 1 items is {row['impossible_status']}. There the prompts are closer at y than "
        "the rounding noise of their difference, so that the answers' first tokens are not expected to differ (predicted)."
    )


def _measured(row: Row) -> str:
    without = [
        (row["something_else"], "with something that is not one whole number"),
        (row["cut_off"], "cut off before its end"),
    ]
    right = row["counts"] - row["errors"] - sum(count for count, _ in without)
    found = f"Measured: {right} of {row['counts']} answers {'has' if right == 1 else 'have'} the right number"
    found += "".join(f", {count} {words}" for count, words in without if count)
    if pd.isna(row["first_error"]):
        return f"{found}; none is wrong." if right else f"{found}."
    always = row["always_errs_from"]
    until = (
        "no wrong answer follows the last right one" if pd.isna(always) else f"from n = {always} on no answer is right"
    )
    return f"{found}; the first wrong answer is at n = {row['first_error']}, and {until}."


def _together(row: Row) -> str:
    """Whether the two can stand together; nothing where there is nothing to hold together."""
    said = ""
    if row["same_logits_differ"]:
        said = (
            f" CONTRADICTION: at {row['same_logits_differ']} counts the logits of n and n + 1 are the same bit for bit in "
            "one pass, but the first tokens differ in another."
        )
    if not row["pairs_hidden"]:
        return said
    differ = row["differ_hidden"]
    said += f" There the first tokens are the same at {row['pairs_hidden'] - differ} of {row['pairs_hidden']} pairs"
    said += f"; at {differ} they differ below the noise, which the prediction did not expect." if differ else "."
    if not row["tested_pairs"]:
        return f"{said} The right first tokens do not differ at any of these pairs, so the answers do not test the prediction."
    return f"{said} At {row['tested_pairs']} of these pairs the right first tokens differ: {_asked(row)}."


def _asked(row: Row) -> str:
    if row["right_twice"]:
        return (
            f"the model gives both at {row['right_twice']}, a CONTRADICTION of the prediction, as the distance is below the "
            "noise and still tells them apart"
        )
    if row["right_once"]:
        return f"the model does not give both at any of them (it gives one at {row['right_once']}), as predicted"
    return (
        "the model does not give either, so its answers could not have contradicted the prediction, and do not test it"
    )


def _partly(same: str) -> bool:
    """Of "2 of 3", that it is not all."""
    agreed, asked = same.split(" of ")
    return agreed != asked


def _by_itself(row: Row) -> str:
    return (
        f"{row['dtype']}: after the bare prompt the model writes the same answer line by itself at "
        f"{row['same_behind_bare_prompt']} counts tried. Every other answer here is to a line that is begun for it."
    )
