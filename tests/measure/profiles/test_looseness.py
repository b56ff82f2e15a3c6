"""The parts of the looseness add up, on a model and on numbers chosen by hand; what cannot be split is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ostools as ost
from ostools.measure import Looseness, PathSum, Sensitivity
from ostools.measure.profiles.looseness import CHAIN, PARTS
from ostools.models import Prompt
from ostools.reporting import charts
from ostools.results import Provenance
from tests.checkpoints import TEXT_FAMILIES, Family, tiny_model

IDS = [2, 40, 50, 60, 60, 61, 70]
PROVENANCE = Provenance({"weight_hash": "a", "dtype": "float64"}, {"mlp_norm": "svd"}, (1, 2, 3), {})
TERMS = {"uniform": 1e6, "local": 1e5, "heads": 1e3, "edge": 500.0, "windowed(1)": 50.0, "frozen": 2.0, "full": 4.0}


def tokens() -> dict[str, Any]:
    return {"position": range(3), "token_id": range(3), "token": list("abc")}


def profile(method: str = "exact", **values: Any) -> Sensitivity:
    terms = {"frozen": TERMS["frozen"], "full": TERMS["full"]} | values
    limits = ("norm", "lower", "upper")
    tables = [
        pd.DataFrame(
            tokens()
            | {"linearisation": name, "layer": 0, "method": method}
            | {f"{norm}_{limit}": value for norm in ("operator", "frobenius") for limit in limits}
        )
        for name, value in terms.items()
        if value is not None
    ]
    return Sensitivity(pd.concat(tables, ignore_index=True), PROVENANCE)


def paths(variants: tuple[str, ...] = CHAIN, **values: Any) -> PathSum:
    tables = [
        pd.DataFrame(
            tokens()
            | {"last": 2, "variant": name, "kind": "certified", "linearisation": "frozen", "norm": "operator"}
            | {"value": values.get(name, TERMS[name])}
        )
        for name in variants
    ]
    return PathSum(pd.concat(tables, ignore_index=True), PROVENANCE)


def wide(result: Looseness) -> Any:
    frame: Any = result.frame
    return frame.pivot(index="position", columns="part", values="log10")


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_parts_of_a_model_add_up_and_none_is_negative(family: Family) -> None:
    model = tiny_model(family, seed=3, dtype=torch.float64, d_model=16, d_mlp=24)
    prompt = Prompt.from_ids(model, IDS)
    measured, bounds = ost.sensitivity(model, prompt), ost.path_sum(model, prompt, variants=CHAIN)
    result = ost.looseness(measured, bounds)
    frame: Any = result.frame
    norms: Any = measured.frame
    values: Any = bounds.frame
    uniform = values.loc[values["variant"] == "uniform", "value"].to_numpy()
    table = wide(result)
    for linearisation, parts in (("frozen", [*PARTS][:-1]), ("full", [*PARTS])):
        exact = norms.loc[norms["linearisation"] == linearisation, "operator_norm"].to_numpy()
        assert table[parts].sum(axis=1).to_numpy() == pytest.approx(np.log10(uniform / exact), abs=1e-12)
    assert (frame.loc[frame["is_looseness"], "log10"] >= -1e-9).all()
    summary: Any = result.summary
    assert float(summary["mean"].sum()) == pytest.approx(float(np.log10(uniform / exact).mean()), abs=1e-12)


def test_each_part_is_the_quotient_of_its_two_terms() -> None:
    result = ost.looseness(profile(), paths())
    expected = {
        "constants": 1.0,
        "heads": 2.0,
        "skip": np.log10(2.0),
        "joint edge": 1.0,
        "chaining": np.log10(25.0),
        "assumptions": -np.log10(2.0),
    }
    assert dict(zip(result.summary["part"], result.summary["median"], strict=True)) == pytest.approx(expected)
    assert result.summary["is_looseness"].tolist() == [True] * 5 + [False]
    assert wide(result).iloc[0].to_dict() == pytest.approx(expected)


def test_a_token_without_influence_is_infinite_and_left_out_of_the_summary() -> None:
    frozen = np.array([0.0, 2.0, 2.0])
    result = ost.looseness(profile(frozen=frozen), paths())
    table = wide(result)
    assert table.loc[0, "chaining"] == np.inf
    assert np.isfinite(table.loc[1:]).all(axis=None)
    assert result.summary["tokens"].tolist() == [2] * 6
    assert np.isfinite(result.summary["mean"]).all()
    with pytest.raises(ost.InputError, match="every token has a part that is infinite"):
        ost.looseness(profile(frozen=0.0), paths())


def test_a_token_out_of_reach_of_everything_has_no_looseness() -> None:
    gone = {name: np.array([0.0, value, value]) for name, value in TERMS.items()}
    measured = profile(frozen=gone["frozen"], full=gone["full"])
    result = ost.looseness(measured, paths(CHAIN, **gone))
    assert wide(result).loc[0].tolist() == [0.0] * 6


def test_refusals() -> None:
    with pytest.raises(ost.InputError, match=r"lacks heads, windowed\(1\): compute it with path_sum"):
        ost.looseness(profile(), paths(("uniform", "local", "edge")))
    with pytest.raises(ost.InputError, match="lacks the 'full' derivative"):
        ost.looseness(profile(full=None), paths())
    with pytest.raises(ost.InputError, match="found estimates"):
        ost.looseness(profile(method="estimate"), paths())
    product = paths()
    product = replace(product, provenance=replace(PROVENANCE, parameters={"mlp_norm": "product"}))
    with pytest.raises(ost.InputError, match="mlp_norm='certified' or 'svd', found 'product'"):
        ost.looseness(profile(), product)
    other = replace(paths(), provenance=replace(PROVENANCE, token_ids=(7, 8, 9)))
    with pytest.raises(ost.InputError, match="different prompts"):
        ost.looseness(profile(), other)


def test_the_waterfall_goes_from_the_bound_to_the_measured_norm() -> None:
    chart = charts.looseness_chart(ost.looseness(profile(), paths()))
    (columns,) = next(iter(chart.to_dict()["datasets"].values()))
    assert columns["start"][0] == pytest.approx(np.log10(TERMS["uniform"] / TERMS["frozen"]), rel=1e-5)
    assert columns["start"][1:5] == pytest.approx(columns["end"][:4])
    assert columns["end"][4] == pytest.approx(0.0, abs=1e-12)
    assert (columns["start"][5], columns["end"][5]) == pytest.approx((0.0, np.log10(2.0)), rel=1e-5)
    assert columns["said"][0] == "−1.00"
