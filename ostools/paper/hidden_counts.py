"""Corollary 6.2 on a model: neighbouring counts that rounding hides from each other at the token
from which the answer is predicted, and the first tokens that the model gives there.

The corollary is one-sided, and speaks of the first token: later ones see different caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

import ostools as ost
from ostools.ground.lens import TransformerBridge
from ostools.ground.progress import Progress
from ostools.measure import Collapse
from ostools.measure.position import read_at
from ostools.models.tokens import token_text
from ostools.results import Frame, Result, frame_of
from ostools.tasks import AppendixTask

TASK = AppendixTask("count-ones")


def counting(
    model: TransformerBridge,
    *,
    lengths: Sequence[int],
    dtypes: Sequence[str],
    progress: Progress | None = None,
) -> dict[str, Result]:
    """Collapse of counting ones after the begun answer line, and `hidden_counts`."""
    options = {"lengths": lengths, "dtypes": dtypes, "chat": False}
    curve = ost.collapse(model, TASK, **options, progress=progress)
    right_tokens = {}
    for n in lengths:
        prompt = ost.measure.render_prompt(model, TASK, n, chat=False)
        right_tokens[n] = token_text(model.tokenizer, read_at(model, prompt).token)
    return {"collapse": curve, "counting": hidden_counts(curve, right_tokens)}


def hidden_counts(curve: Collapse, right_tokens: Mapping[int, str]) -> Result:
    """A row a dtype. `right_tokens`: the first token of each count's right answer.

    Columns: dtype, impossible_status (where the pair is hidden, in words), tested_pairs (hidden
    pairs n, n + 1 whose right answers begin with different tokens), right_once and right_twice (of
    them: one first token is right, both are).
    """
    statuses = curve.verdicts().query("site == 'y'").set_index("dtype")["status"]
    ranges = curve.hidden_ranges().query("site == 'y'")
    logits: Frame = frame_of(curve).query("site == 'logits'")
    rows = []
    for dtype, status in statuses.items():
        spans = ranges.loc[ranges["dtype"] == dtype, ["first", "last"]].to_numpy()
        tokens = logits[logits["dtype"] == dtype].set_index("length")["next_token"]
        right_in_pair = [
            int(tokens[n] == right_tokens[n]) + int(tokens[n + 1] == right_tokens[n + 1])
            for n in tokens.index
            if any(first <= n <= last for first, last in spans)
            and n + 1 in tokens.index
            and right_tokens[n] != right_tokens[n + 1]
        ]
        rows.append(
            {
                "dtype": dtype,
                "impossible_status": status,
                "tested_pairs": len(right_in_pair),
                "right_once": right_in_pair.count(1),
                "right_twice": right_in_pair.count(2),
            }
        )
    return Result(pd.DataFrame(rows), curve.provenance)
