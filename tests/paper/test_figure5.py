"""Figure 5 from the measurements that it sums up, what it says of seeds, its refusals, and its
picture.
"""

import inspect
import json
from typing import Any

import pandas as pd
import pytest
import torch

import ostools as ost
from ostools import tasks
from ostools.paper import Figure5, figure_5
from ostools.paper.figure5 import FIGURE_5_READING, hidden_counts
from ostools.theory.distances import distance, head_chunks
from tests.checkpoints import refused, tiny_model
from tests.measure.collapse.test_collapse import last_token
from tests.reporting.made import made_collapse
from tests.sets import quick

LENGTHS = (1, 3, 9)


@pytest.fixture(scope="module")
def figure() -> Figure5:
    return figure_5(tiny_model("gemma", seed=1), lengths=LENGTHS, seeds=range(3))


def row(result: Figure5, **wanted: Any) -> dict[str, Any]:
    frame: Any = result.frame
    for name, value in wanted.items():
        frame = frame[frame[name] == value]
    (found,) = frame.to_dict("records")
    return found


@pytest.mark.slow
def test_every_panel_pair_dtype_and_length_has_one_row(figure: Figure5) -> None:
    frame: Any = figure.frame
    pairs = list(zip(frame["panel"], frame["pair"], strict=True))
    assert set(pairs) == {*((panel, "theorem") for panel in "abcd"), ("d", "one-more-digit")}
    apart = frame[frame["pair"] == "one-more-digit"]
    assert set(apart["length"]) == {3, 9}  # where a comma comes before the next digit
    assert len(frame) == 4 * 2 * len(LENGTHS) + len(apart)
    assert not frame.duplicated(["panel", "pair", "dtype", "length"]).any()
    seeds: Any = FIGURE_5_READING.of(figure.curves["b"].measured())
    means = seeds.groupby(["dtype", "length"])["mean"].mean()
    drawn = frame[frame["panel"] == "b"].set_index(["dtype", "length"])["mean"]
    pd.testing.assert_series_equal(drawn.sort_index(), means.sort_index())
    assert bool((frame["head_minimum"] <= frame["seed_minimum"]).all())
    assert bool((frame["seed_maximum"] <= frame["head_maximum"]).all())


def test_both_precisions_are_drawn_where_none_is_named() -> None:
    assert inspect.signature(figure_5).parameters["dtypes"].default == ("float32", "bfloat16")


@pytest.mark.parametrize("panel", quick("abcd", "b"))
def test_against_passes_of_the_prompts_alone(figure: Figure5, panel: str) -> None:
    """Linf in each of the heads' chunks of v^(L), and their mean, least and greatest; (b): over the
    seeds too.
    """
    model = tiny_model("gemma", seed=1)
    task: Any = tasks.task(f"figure-5{panel}", tasks.CollapseTask)
    length = 9
    by_seed = []
    for seed in range(3) if panel == "b" else (0,):
        ids = tuple(ost.encode(model, task.text(length, seed)).ids.tolist())
        y, y_star = (
            head_chunks(last_token(model, x)["residual"][0].double(), 4)
            for x in (ids, (*ids, ids[-1]))
        )
        by_seed.append(distance(y, y_star, "linf"))
    found = row(figure, panel=panel, pair="theorem", dtype="float32", length=length)
    heads = torch.stack(by_seed)
    of_seeds = heads.mean(1)
    expected = {"mean": heads.mean(), "head_minimum": heads.min(), "head_maximum": heads.max()}
    expected |= {"seed_minimum": of_seeds.min(), "seed_maximum": of_seeds.max()}
    for name, value in expected.items():
        assert found[name] == pytest.approx(
            float(value), rel=1e-3 if name == "head_minimum" else 1e-4
        ), name
    assert found["seeds"] == len(by_seed)


def test_the_chart_quotes_the_prompts_and_keeps_the_second_pair_apart(figure: Figure5) -> None:
    chart = figure.plot().to_dict()
    rows = [
        [panel["title"]["text"] for panel in row.get("hconcat", [row])] for row in chart["vconcat"]
    ]
    assert [[title[:3] for title in titles] for titles in rows] == [
        ["(a)", "(b)"],
        ["(c)", "(d)"],
        ["(d)"],
    ]
    assert "no theorem" in rows[2][0]
    page = json.dumps(chart, ensure_ascii=False)
    for words in (
        "“How many ones are in the following sequences?111111” (n = 6)",
        "“Can you copy the following number?111111” (n = 6)",
        "“Can you copy the following number?111,111” (n = 6)",
        "in (b) over draws of digits too",
        "The paper's is of Gemma 7B. Here: ",
        "L∞ distance at v^(L) of v and v*",
        "Line: mean over heads (chunks of d_model / H)",
        "the float64 distance is below the rounding noise of the difference, both as drawn.",
    ):
        assert words in page, words
    assert "on, up to" not in page, "three lengths are too few for a range"


def test_heads_that_do_not_divide_the_width_are_refused_before_any_pass() -> None:
    model = tiny_model("gemma", d_model=30)
    refused("4 heads do not divide d_model = 30", figure_5, model, "a", lengths=[1, 2])


def test_pairs_of_a_hidden_range_whose_right_answers_differ_are_counted() -> None:
    """10 / n is below 0.33 from n = 31 on. 31 to 127 are 97 pairs within the lengths; where 127 and
    128 have one first token, 96.
    """
    curve = made_collapse(lambda n: 10.0 / n, noise={"bfloat16": 0.33})
    tokens = {n: str(n) for n in range(1, 129)}
    assert hidden_counts(curve, tokens).frame["tested_pairs"].tolist() == [97]
    tokens[128] = tokens[127]
    assert hidden_counts(curve, tokens).frame["tested_pairs"].tolist() == [96]
