"""Collapse against the loop a reader would write, its exact cases, its floors, and what it refuses."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools import hooks, tasks
from ostools.ground.errors import InputError
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.prompt_sets import ModelEncoder, as_pairs
from ostools.measure.collapse.result import Collapse, exact_from, from_rows, reference_at_y
from ostools.measure.collapse.verdicts import (
    IN_A_RANGE,
    TO_THE_END,
    TOLD_APART,
    UNDECIDED,
    Curve,
    deciding,
)
from ostools.measure.passes import last_tokens
from ostools.models import encode, view_in
from ostools.theory.distances import distance, head_chunks, steps_between, vector_norm
from tests.checkpoints import TEXT_FAMILIES, TWO_FAMILIES, tiny_model, trained
from tests.reporting.made import made_collapse
from tests.sets import quick

every = cast("Callable[[object], bool]", np.all)  # of a table's column, whatever its type
LENGTHS = (1, 2, 3, 4, 6, 7, 15, 40)


@pytest.fixture(scope="module", params=quick([*TEXT_FAMILIES, "stories"], *TWO_FAMILIES))
def model(request: pytest.FixtureRequest) -> TransformerBridge:
    return trained("stories") if request.param == "stories" else tiny_model(request.param, seed=1)


def select(frame: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    for column, value in wanted.items():
        frame = frame.loc[frame[column] == value]
    assert len(frame), wanted
    return frame


def last_token(
    model: TransformerBridge, ids: tuple[int, ...]
) -> dict[str, Float[Tensor, "piece d"]]:
    """One prompt in one pass of the whole model, read at its last token: what a reader's own loop
    would do.
    """
    last = int(model.cfg.n_layers) - 1
    with (
        torch.no_grad(),
        hooks.capture(model, "residual_post", "final_norm", layers=[last]) as record,
    ):
        logits = model(torch.tensor([ids]))
    return {
        "residual": record["residual_post"][last][:, -1],
        "y": record["final_norm"][:, -1],
        "logits": logits[:, -1],
    }


@pytest.mark.parametrize("name", quick(tasks.FIGURE_5, "figure-5a", "figure-5d"))
def test_every_length_equals_its_own_pass(model: TransformerBridge, name: str) -> None:
    task = tasks.FIGURE_5[name]()
    found = collapse(model, task, lengths=LENGTHS, dtypes=["float32"])
    assert found.provenance.parameters["route"] == (
        "packed pass" if name in ("figure-5b", "figure-5d") else "one pass"
    )
    for length in LENGTHS:
        ids = tuple(encode(model, task.text(length)).ids.tolist())
        partners = {"theorem": (*ids, ids[-1])}
        if name == "figure-5d" and length % 3 == 0:
            partners["one-more-digit"] = tuple(encode(model, task.text(length + 1)).ids.tolist())
        for pair, extended in partners.items():
            v, v_star = last_token(model, ids), last_token(model, extended)
            rows = select(found.frame, pair=pair, length=length, norm="l2")
            assert set(rows["tokens"]) == {len(ids)}
            for site in v:
                (row,) = select(rows, site=site, per="vector").to_dict("records")
                distances = distance(v[site], v_star[site], "l2")
                # Rounding is relative to the vectors, which the distance may be far smaller than.
                size = float(v[site].norm(dim=-1).max())
                for column, expected in (("mean", distances.mean()), ("maximum", distances.max())):
                    assert abs(row[column] - float(expected)) <= 1e-5 * size, (site, column)
            top_tokens = [int(x["logits"].argmax()) for x in (v, v_star)]
            assert set(select(rows, site="logits")["same_top_token"]) == {
                top_tokens[0] == top_tokens[1]
            }


def test_floors_by_their_definitions() -> None:
    """Noise, machine line, ULPs and relative distance of one length, from passes of the prompts'
    own.
    """
    model = tiny_model("llama", seed=2)
    low, given = view_in(model, torch.bfloat16), view_in(model, torch.float64)
    exact = view_in(low, torch.float64)
    frame = collapse(model, tasks.figure_5a(), lengths=[9], dtypes=["bfloat16"]).frame
    ids = tuple(encode(model, tasks.figure_5a().text(9)).ids.tolist())
    v, v_star = last_token(low, ids), last_token(low, (*ids, ids[-1]))
    with hooks.exact_arithmetic(exact), hooks.exact_arithmetic(given):
        reference, reference_star = last_token(exact, ids), last_token(exact, (*ids, ids[-1]))
        unmoved = last_token(given, ids)
    for site in ("residual", "y", "logits"):
        for norm in ("l2",) if site == "logits" else ("l1", "l2", "linf"):
            (row,) = select(frame, site=site, per="vector", norm=norm).to_dict("records")
            y, y_star = v[site].double(), v_star[site].double()
            line = float(vector_norm(steps_between(y, y_star, torch.bfloat16), norm))
            apart, size = float(distance(y, y_star, norm)), float(distance(y, 0 * y, norm))
            expected = {
                "mean": apart,
                "relative": apart / size,
                "ulps": apart / line,
                "noise": float(distance(y, reference[site], norm)),
                "pair_noise": float(
                    distance(y - y_star, reference[site] - reference_star[site], norm)
                ),
                "weight_shift": float(distance(reference[site], unmoved[site], norm)),
                "machine_line": line,
            }
            for column, value in expected.items():
                # A pass of another length may round one number the other way: a step or two in one
                # coordinate.
                assert row[column] == pytest.approx(value, rel=0.15), (site, norm, column)
            assert row["ulps"] == pytest.approx(row["mean"] / row["machine_line"])
    (row,) = select(frame, site="y", per="head-chunk", norm="linf").to_dict("records")
    chunks = distance(head_chunks(v["y"].double(), 4), head_chunks(v_star["y"].double(), 4), "linf")
    assert row["minimum"] <= row["mean"] <= row["maximum"]
    assert row["maximum"] == pytest.approx(float(chunks.max()), rel=0.15)
    assert row["maximum"] == select(frame, site="y", per="vector", norm="linf")["mean"].item()


def test_what_float64_rounds_is_a_millionth_of_v() -> None:
    """1e-6 of ||v||, whatever the distance; of a pair without a size, 1e-6."""
    result = made_collapse(float, noise={"bfloat16": 0.5}, lengths=[3, 4, 5])
    at_y = result.frame["site"] == "y"
    sizes = {"given_distance": [3.0, 1e-3, 0.0], "given_relative": [0.5, 1e-4, 0.0]}
    for name, values in sizes.items():
        by_length = pd.Series(values, [3, 4, 5]).reindex(result.frame["length"])
        result.frame[name] = result.frame[name].mask(at_y, by_length.to_numpy())
    assert reference_at_y(result)["rounding"].tolist() == pytest.approx(
        [6e-6, 1e-5, 1e-6], rel=1e-12
    )
    curve = pd.DataFrame({"relative": [0.1, 1.01e-6, 0.99e-6, 0.0]}, index=[3, 4, 5, 6])
    assert exact_from(curve) == 5
    assert exact_from(curve.iloc[:2]) is None


def test_a_pass_that_does_not_fit_is_noticed_and_the_loop_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were positions packed wrongly, float64 would show it."""
    model = tiny_model("llama", seed=1)
    right = collapse(model, "figure-5b", lengths=range(1, 12), dtypes=["float32"])
    true_mask = last_tokens.PrefixTree.visible
    monkeypatch.setattr(
        last_tokens.PrefixTree,
        "visible",
        lambda tree, nodes: torch.ones_like(true_mask(tree, nodes)),
    )
    found = collapse(model, "figure-5b", lengths=range(1, 12), dtypes=["float32"])
    assert found.provenance.parameters["route"] == "loop"
    assert "differs from a prompt's own pass" in found.provenance.parameters["route_reason"]
    np.testing.assert_allclose(found.frame["mean"], right.frame["mean"], rtol=1e-3, atol=1e-6)


def test_every_row_has_the_float64_distance_of_its_own_reading() -> None:
    """Of every site, pieces and norm the float64 run's own number, bit for bit; of whole vectors in
    L2 the reference's.
    """
    found = collapse(
        tiny_model("gemma", seed=1), "figure-5b", lengths=LENGTHS, dtypes=["float64", "bfloat16-kv"]
    )
    key = ["pair", "seed", "length", "site", "per", "norm"]
    exact, low = (
        select(found.frame, dtype=dtype).set_index(key) for dtype in ("float64", "bfloat16-kv")
    )
    np.testing.assert_array_equal(low["float64_distance"], exact["mean"].reindex(low.index))
    np.testing.assert_array_equal(exact["float64_distance"], exact["mean"])
    np.testing.assert_array_equal(low["given_distance"], low["float64_distance"])
    whole: Any = select(found.frame, dtype="float64", per="vector", norm="l2")
    beside = whole.merge(found.reference, on=key[:4], validate="1:1", suffixes=("", "_reference"))
    assert len(beside) == len(found.reference) == len(whole)
    np.testing.assert_array_equal(beside["mean"], beside["distance"])
    np.testing.assert_array_equal(beside["relative"], beside["relative_reference"])


def loud(factor: float) -> TransformerBridge:
    model = tiny_model("llama", seed=1, fresh=True)
    for block in model.blocks:
        block.mlp.W_out.mul_(factor)
    return model


def test_a_dtype_that_overflows_has_rows_without_numbers_and_the_others_stand() -> None:
    model, tried = loud(1e5), [1, 2, 3]
    dtypes = ["float16", "float32", "float16-residual", "bfloat16"]
    found = collapse(model, "figure-5a", lengths=tried, dtypes=dtypes)
    alone = collapse(model, "figure-5a", lengths=tried, dtypes=["float32", "bfloat16"])
    pd.testing.assert_frame_equal(found.measured().reset_index(drop=True), alone.frame)
    pd.testing.assert_frame_equal(found.reference, alone.reference)
    overflow: Any = found.frame[found.frame["status"] == "not finite"]
    assert set(overflow["dtype"]) == set(found.overflowing()) == {"float16", "float16-residual"}
    assert len(overflow) == len(alone.frame)
    keys = ["length", "site", "layer", "per", "norm"]
    assert set(overflow[keys].itertuples(index=False)) == set(
        cast(Any, alone.frame)[keys].itertuples(index=False)
    )
    assert every(
        overflow[["mean", "float64_distance", "noise", "pair_noise", "same_top_token"]].isna().all()
    )
    verdicts = found.verdicts()
    said = verdicts[verdicts["dtype"] == "float16"]
    assert set(said["status"]) == {"not measured: float16 overflows on this model"}
    assert set(said["verdict"]) == {"not finite"}
    assert (
        "residual at length 1 is not finite; float16 holds numbers up to 6.55e+04"
        in found.overflowing()["float16"]
    )
    with pytest.raises(InputError, match="rows of another version, without status: measure again"):
        from_rows(found.frame.drop(columns="status"), found.provenance)


def test_numbers_that_are_not_finite_anywhere_else_are_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"in float64: residual at length \d+ is not finite; float64 holds .* weights",
    ):
        collapse(loud(float("nan")), "figure-5a", lengths=[1, 2, 3], dtypes=["float16", "float32"])


def test_logits_that_are_not_the_unembedding_of_y_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unembedding = last_tokens.Unembedding
    monkeypatch.setattr(unembedding, "of", lambda model: unembedding(model.unembed, 1.0))
    with pytest.raises(InputError, match="expected the model's logits to be its unembedding of y"):
        collapse(tiny_model("llama"), "figure-5a", lengths=[1])


# --- verdicts


def between(first: int, last: int, n_max: int) -> list[bool]:
    return [first <= n <= last for n in range(1, n_max + 1)]


def curve_of(hidden: list[bool], lengths: list[int], site: str = "y", seed: int = 0) -> Curve:
    key = {"task": "t", "pair": "theorem", "seed": seed, "dtype": "bfloat16", "site": site}
    return Curve(key | {"layer": 2}, lengths, hidden)


@pytest.mark.parametrize(
    ("hidden", "site", "kind", "words"),
    [
        (
            *(between(138, 501, 140), "y", UNDECIDED),
            "not decided: hidden at 3 of the 140 lengths tried, up to 140; a range needs 8 in a row",
        ),
        (
            *(between(138, 501, 300), "y", TO_THE_END),
            "hidden from 138 on, up to 300 (163 of the 163 lengths tried)",
        ),
        (
            *(between(138, 501, 502), "y", IN_A_RANGE),
            "hidden from 138 to 501 (364 of the 364 lengths tried), apart again at 502",
        ),
        (
            *([True] * 100, "top-token", TO_THE_END),
            "the same from 1, the shortest tried, on, up to 100 (100 of the 100 lengths tried)",
        ),
        (
            *([False] * 100, "identical-logits", TOLD_APART),
            "not identical at any of the 100 lengths tried, up to 100",
        ),
        (
            *([n % 9 == 0 for n in range(1, 101)], "y", TOLD_APART),
            "hidden at 11 of the 100 lengths tried, up to 100; a range needs 8 in a row",
        ),
        (
            *([n >= 10 and n not in (20, 21, 25) for n in range(1, 101)], "y", TO_THE_END),
            "hidden from 10 on, up to 100 (88 of the 91 lengths tried)",
        ),
    ],
)
def test_a_verdict_is_about_ranges_wherever_one_stops(
    hidden: list[bool], site: str, kind: str, words: str
) -> None:
    verdict = curve_of(hidden, list(range(1, len(hidden) + 1)), site)
    assert (verdict.kind, verdict.words) == (kind, words)
    assert len(verdict.ranges) == kind.startswith("hidden")


@pytest.mark.parametrize(
    ("first", "last", "lengths"),
    [
        (5, 20, {4, 5, 20}),
        (5, 12, {4, 5, 12, 13}),
        (1, 8, {1, 8, 9}),
        (5, 11, set()),
        (1, 20, {1, 20}),
    ],
)
def test_the_lengths_that_decide_are_the_ends_of_a_range_and_those_beside_them(
    first: int, last: int, lengths: set[int]
) -> None:
    tried = list(range(1, 21))
    curve = curve_of(between(first, last, 20), tried, seed=7)
    assert deciding([curve]) == {("theorem", 7, length) for length in lengths}


def made(distance: Callable[[int], float], noise: float = 0.5) -> Collapse:
    return made_collapse(distance, lengths=range(1, 101), noise={"bfloat16": noise})


def test_the_tables_hold_the_verdicts_and_their_ranges() -> None:
    result = made(lambda n: 0.1 if 20 <= n <= 60 else 1.0)
    verdict: Any = result.verdicts().set_index("site").loc["y"]
    counts = ["ranges", "first", "last", "tried", "hidden", "longest"]
    assert verdict[counts].tolist() == [1, 20, 60, 100, 41, 100]
    assert verdict["verdict"] == IN_A_RANGE
    spans: Any = result.hidden_ranges().query("site == 'y'")
    columns = ["first", "last", "tried", "hidden", "open", "apart_from"]
    assert spans[columns].to_numpy().tolist() == [[20, 60, 41, 41, False, 61]]
    still: Any = made(lambda n: 1.0 / n, noise=1 / 30 + 1e-9).hidden_ranges().query("site == 'y'")
    assert still[["first", "open"]].to_numpy().tolist() == [[30, True]]
    assert still["apart_from"].isna().all()


def test_the_summary_has_one_row_a_length_with_what_decides() -> None:
    """float64's distance decides beside the noise of the difference; a distance of 0 as it came out
    is hidden too.
    """
    result = made(lambda n: 1.0 / n, noise=1 / 30 + 1e-9)
    frame = result.frame.assign(float64_distance=2 / result.frame["length"])
    frame.loc[frame["length"] == 10, "mean"] = 0.0
    summary = replace(result, frame=frame).summary
    assert summary["length"].tolist() == list(range(1, 101))
    assert summary["exact_distance"].tolist() == [2 / n for n in range(1, 101)]
    assert summary["distance"].tolist() == [0.0 if n == 10 else 1 / n for n in range(1, 101)]
    assert summary["hidden"].tolist() == [n == 10 or 2 / n < 1 / 30 + 1e-9 for n in range(1, 101)]
    assert set(summary["noise"]) == {1 / 30 + 1e-9}


def test_the_tables_read_top_tokens_and_identical_logits_from_their_own_columns() -> None:
    result = made_collapse(
        lambda n: 1.0,
        lengths=range(1, 101),
        noise={"bfloat16": 0.5},
        same_token=lambda n: n >= 41,
        identical=lambda n: n >= 71,
    )
    first: Any = result.verdicts().set_index("site")["first"]
    assert first[["top-token", "identical-logits"]].tolist() == [41, 71]
    assert first["logits"] is pd.NA


def test_seeds_together_are_hidden_where_each_is() -> None:
    one, other = (
        made(lambda n, r=r: 0.1 if n in r else 1.0) for r in (range(20, 61), range(40, 91))
    )
    both = replace(one, frame=pd.concat([one.frame, other.frame.assign(seed=1)], ignore_index=True))
    (together,) = [
        v for (_, _, site, _), v in both.verdicts_over_seeds().items() if site == "logits"
    ]
    assert [(span.first, span.last) for span in together.ranges] == [(40, 60)]
    assert both.verdicts().query("site == 'logits'")["first"].tolist() == [20, 40]


# --- what is to be repeated


def test_a_prompt_is_the_repeat_task_of_its_last_token() -> None:
    model, some = tiny_model("gemma"), {"lengths": [1, 2, 5], "dtypes": ["float32"]}
    found = collapse(model, prompt="The 11", **some)
    task = collapse(model, tasks.RepeatTask("prompt", "The 11", None, "ids"), **some)
    assert found.frame.equals(task.frame)
    assert found.reference.equals(task.reference)
    prompt = encode(model, "The 11")
    assert collapse(model, prompt=prompt, **some).frame.equals(
        collapse(model, prompt, **some).frame
    )


def test_an_active_edit_is_refused() -> None:
    model = tiny_model("llama")
    message = "found 'mask_scores' at blocks.0.attn.hook_attn_scores: it would not reach"
    with (
        pytest.raises(InputError, match=re.escape(message)),
        hooks.mask_scores(model, lambda query, key: query >= key),
    ):
        collapse(model, "figure-5a", lengths=[1])


def test_where_no_site_is_named_it_is_y_which_alone_decides_the_next_token() -> None:
    found = collapse(
        tiny_model("gemma3", seed=1), "figure-5a", lengths=range(1, 6), dtypes=["float32"]
    )
    y = select(found.reference, pair="theorem", site="y").set_index("length")["distance"]
    assert found.reference_curve("theorem")["distance"].tolist() == y.tolist()
    assert found.reference_curve("theorem", "residual")["distance"].tolist() != y.tolist()


def test_the_pairs_of_a_task_are_its_prompts_at_n_and_n_plus_1() -> None:
    model, form = tiny_model("gemma"), tasks.task("copy-last")
    pairs = as_pairs(model, form, None, "prompt-end", {"chat": False})
    for pair in pairs.pairs(ModelEncoder(model), [3, 5]):
        assert pair.kind == "task"
        for ids, n in ((pair.ids, pair.length), (pair.extended, pair.length + 1)):
            assert ids == tuple(encode(model, form.prompt(n)).ids.tolist())
