"""Corollary 6.2's pairs on a made curve: which are counted, by hand."""

from __future__ import annotations

from ostools.paper.hidden_counts import hidden_counts
from tests.reporting.made import made_collapse


def test_pairs_of_a_hidden_range_whose_right_answers_differ_are_counted() -> None:
    """10 / n is below 0.33 from n = 31 on. 31 to 127 are 97 pairs within the lengths; where 127 and
    128 have one first token, 96.
    """
    curve = made_collapse(lambda n: 10.0 / n, noise={"bfloat16": 0.33})
    tokens = {n: str(n) for n in range(1, 129)}
    assert hidden_counts(curve, tokens).frame["tested_pairs"].tolist() == [97]
    tokens[128] = tokens[127]
    assert hidden_counts(curve, tokens).frame["tested_pairs"].tolist() == [96]
