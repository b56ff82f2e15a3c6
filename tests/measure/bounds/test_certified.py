"""The certified chain holds on dozens of random and adversarial models; equalities where it is
tight; windows; whether a form that is no bound may be believed; refusals.
"""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from ostools.ground.errors import InsufficientMemoryError
from ostools.measure.bounds import bounds as bounds_module
from ostools.measure.bounds.variants import undescribed
from ostools.measure.first_order import FEWEST, RIGHT_FACTOR, RIGHT_RANK, belief, judged
from ostools.measure.formulas import weights
from tests.checkpoints import TEXT_FAMILIES, Family, _fill, refused, tiny_model
from tests.measure.formulas.test_blocks import N, held

IDS = [2, 40, 50, 60, 60, 61, 70]
FROZEN = ("local", "windowed(1)", "windowed(2)", "windowed(4)")
"""Each is at most the one before: a window of 2 k blocks holds two of k. The models have three
blocks.
"""

FORMS = ("proof", "theorem-b5", "theorem-5.1")

EXAMPLES = 2 if settings().max_examples <= 20 else 6  # of each family: one takes two seconds
every_family = pytest.mark.parametrize("family", TEXT_FAMILIES)


@cache
def built(family: Family) -> TransformerBridge:
    return tiny_model(
        family,
        dtype=torch.float64,
        d_model=16,
        d_mlp=24,
        n_layers=3,
        n_heads=4,
        d_head=8,
        fresh=True,
    )


def filled(family: Family, seed: int, scale: float, sharp: float) -> TransformerBridge:
    """The family's one model with other random weights: building it takes longer than all that is
    measured on it.
    """
    model = built(family)
    original: Any = model.original_model
    _fill(original, seed, scale)
    for block in model.blocks:
        block.attn.q.weight.mul_(sharp)
    return model


def bounds(
    model: TransformerBridge, prompt: ost.Prompt, variants: tuple[str, ...], **options
) -> dict[str, np.ndarray]:
    frame: Any = ost.bounds(model, prompt, variants=variants, **options).frame
    return {name: frame.loc[frame["variant"] == name, "value"].to_numpy() for name in variants}


def measured(model: TransformerBridge, prompt: ost.Prompt) -> np.ndarray:
    """||d y_n / d v_i||, frozen, by autograd, which shares nothing with the formulas of the bounds."""
    with hooks.exact_arithmetic(model):
        embedded = model.input_to_embed(prompt.ids[None])[0][0]
        jacobian = ost.measure.jacobian(model, embedded, freeze=hooks.frozen(model))
    return torch.linalg.matrix_norm(jacobian, ord=2).numpy()


def falls(values: list[np.ndarray]) -> None:
    """Each is at least the next, up to rounding of the largest value of the smaller one."""
    for larger, smaller in pairwise(values):
        assert (smaller <= larger * (1 + 1e-9) + 1e-12 * smaller.max()).all()


@every_family
@settings(max_examples=EXAMPLES)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.3, 1.0, 3.0, 8.0]),
    sharp=st.sampled_from([1.0, 50.0]),
    ids=st.lists(st.integers(10, 200), min_size=1, max_size=6).flatmap(
        lambda ids: st.sampled_from([ids, ids + [ids[-1]] * 5])
    ),
)
def test_the_chain_falls_to_the_measured_norm(
    family: Family, seed: int, scale: float, sharp: float, ids: list[int]
) -> None:
    """Random and adversarial: large gains, near-one-hot attention, repeated tokens, every family,
    both ||D||; float64.
    """
    model = filled(family, seed, scale, sharp)
    prompt = ost.Prompt.from_ids(model, [2, *ids])
    exact = measured(model, prompt)
    found = bounds(model, prompt, FROZEN)
    by_product = bounds(model, prompt, ("local",), mlp_norm="product")
    falls([by_product["local"], *(found[name] for name in FROZEN), exact])
    assert found["windowed(4)"] == pytest.approx(exact, rel=1e-9, abs=1e-11 * exact.max())


@pytest.mark.parametrize(
    ("family", "k"), [("gemma3", 1), ("gemma3", 3), ("gemma3", 9), ("llama", 2)]
)
def test_windows_are_products_of_whole_blocks_grouped_from_the_last(family: str, k: int) -> None:
    """Four blocks, dense: products of k whole blocks by autograd, their norms, and the product of
    these.
    """
    case = held(family, 4)
    eye = torch.eye(32, dtype=torch.float64)
    skip = torch.eye(N, dtype=torch.float64)[:, :, None, None] * eye
    whole = [
        torch.einsum("iab,ijbc->ijac", eye + one.mlp, one.update + skip) for one in case.blocks
    ]
    whole[-1] = torch.einsum("ab,ijbc->ijac", case.final_jacobian, whole[-1])
    expected = torch.eye(N, dtype=torch.float64)
    for top in range(4, 0, -k):
        product = whole[top - 1]
        for block in whole[max(0, top - k) : top - 1][::-1]:
            product = torch.einsum("ikab,kjbc->ijac", product, block)
        expected = expected @ torch.linalg.matrix_norm(product, ord=2)
    assert case.values(f"windowed({k})") == pytest.approx(expected[-1].numpy(), rel=1e-9)


@every_family
def test_bounds_know_masks_and_temperature(family: Family) -> None:
    """What is out of reach is 0, and the rest still falls to what is measured under the same edits."""
    model = filled(family, 6, 1.0, 3.0)
    prompt = ost.Prompt.from_ids(model, IDS)
    with (
        hooks.mask_scores(model, lambda query, key: query - key < 2),
        hooks.scale_scores(model, 0.5),
    ):
        found, exact = bounds(model, prompt, FROZEN), measured(model, prompt)
    falls([*(found[name] for name in FROZEN), exact])
    reach = len(IDS) - 4
    assert all((values[:reach] == 0).all() for values in found.values())
    assert all((values[reach:] > 0).all() for values in found.values())


def test_what_counts_on_causality_refuses_a_pattern_that_looks_ahead() -> None:
    """There windowed(2) was 0.65 of the measured norm; `local`, out of whole rows, holds, negative
    weights included.
    """
    model = filled("gpt2", 3, 2.0, 1.0)
    prompt = ost.Prompt.from_ids(model, IDS)
    pattern = torch.randn(
        1, 4, len(IDS), len(IDS), generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    with hooks.replace_pattern(model, pattern):
        falls([*bounds(model, prompt, FROZEN[:1]).values(), measured(model, prompt)])
        for variant in ("windowed(2)", "theorem-b5-literal"):
            with pytest.raises(ost.InputError, match="causal pattern"):
                bounds(model, prompt, (variant,))
    with hooks.replace_pattern(model, pattern.tril()):
        falls([*bounds(model, prompt, FROZEN).values(), measured(model, prompt)])


NORMS = np.arange(1.0, 11.0)


@pytest.mark.parametrize(
    ("times", "wide", "words"),
    [
        (1.99, 1.0, "believed here: Spearman 1.00, size off by a factor of 1.99"),
        (2.01, 1.0, "not believed here: size off by a factor of 2.01"),
        (0.51, 1.0, "believed here: Spearman 1.00, size off by a factor of 1.96"),
        (0.49, 1.0, "not believed here: size off by a factor of 2.04"),
        # Of norms that are known within a factor: right or wrong where every norm makes it so.
        (1.8, 1.1, "believed here: estimated Spearman 1.00, size off by at most a factor of 1.98"),
        (
            2.0,
            1.1,
            "not decided here: estimated Spearman 1.00, size off by at most a factor of 2.2",
        ),
        (1.0, 3.0, "not decided here: estimated Spearman 1.00, size off by at most a factor of 3"),
        (0.2, 3.0, "not decided here: estimated Spearman 1.00, size off by at most a factor of 15"),
        (9.0, 3.0, "not believed here: size off by at least a factor of 3"),
        (1 / 9, 3.0, "not believed here: size off by at least a factor of 3"),
        (1e6, 10.0, "not believed here: size off by at least 10^5.0"),
        (np.inf, 3.0, "not believed here: size off by more than any factor"),
    ],
)
def test_a_size_is_right_within_a_factor_of_two(times: float, wide: float, words: str) -> None:
    norms = NORMS if math.isfinite(times) else np.zeros(10)
    value = NORMS * times if math.isfinite(times) else NORMS
    verdict = belief(value, NORMS, norms / wide, norms * wide, scaled=True)
    assert verdict.words == words
    ends = [verdict.log10_off_lower, verdict.log10_off_upper]
    assert ends == pytest.approx([math.log10(times / wide), math.log10(times * wide)])
    verdicts = {"believed": True, "not decided": None, "not believed": False}
    assert verdict.believed is verdicts[words.partition(" here")[0]]


def test_what_estimated_norms_decide_every_norm_within_them_decides() -> None:
    draw, decided = np.random.default_rng(3), []
    for _ in range(300):
        value, norm = 10 ** (draw.normal(size=(2, 9)) * 0.3)
        down, up = 10 ** (draw.uniform(size=(2, 9)) * draw.uniform(0, 0.6))
        bounds_of_norm = norm / down, norm * up
        estimated = belief(value, value, *bounds_of_norm, scaled=True)
        exact = [belief(value, value, real, real, scaled=True) for real in (norm, *bounds_of_norm)]
        for verdict in exact:
            off = verdict.log10_off_lower
            assert off == verdict.log10_off_upper
            assert estimated.log10_off_lower <= off <= estimated.log10_off_upper
            assert estimated.believed in (None, verdict.believed)
        decided.append(estimated.believed)
    assert set(decided) == {True, False, None}


def test_an_order_is_right_from_the_line_on() -> None:
    assert [
        judged(rank, (0.0, 0.0), "8 tokens", FEWEST).believed for rank in (0.899, RIGHT_RANK)
    ] == [
        False,
        True,
    ]


def test_what_is_just_beyond_a_limit_is_not_written_as_the_limit() -> None:
    for rank, times, words in (
        (0.899996, 1.0, "Spearman 0.8999"),
        (1.0, 2.0004, "size off by a factor of 2.0004"),
        (1.0, 1 / 2.00001, "size off by a factor of 2.0001"),
    ):
        verdict = judged(rank, (math.log10(times), math.log10(times)), "8 tokens", FEWEST)
        assert verdict.words == f"not believed here: {words}"


def test_what_cannot_be_tested_is_neither_believed_nor_refuted() -> None:
    few, flat = np.arange(1.0, FEWEST), np.ones(10)
    for verdict in (
        belief(few, few, few, few, scaled=True),
        belief(flat, NORMS, NORMS, NORMS, scaled=True),
    ):
        assert verdict.believed is None
        assert verdict.words.startswith("not tested here: ")


def test_zero_against_zero_says_nothing_and_against_more_is_off_infinitely() -> None:
    """Tokens that are 0 on both sides change no verdict: neither size, nor order, nor the count."""
    draw = np.random.default_rng(0)
    for count in (FEWEST - 1, FEWEST, 30):
        value, norm = 10 ** draw.normal(size=(2, count))
        padded, padded_norm = (np.concatenate([np.zeros(40), side]) for side in (value, norm))
        assert belief(padded, *[padded_norm] * 3, scaled=True) == belief(
            value, *[norm] * 3, scaled=True
        )
    norms = np.concatenate([np.zeros(6), NORMS[:4]])
    words = belief(norms + 1e-9, norms, norms, norms, scaled=True).words
    assert words.startswith("not believed here: size off by more than any factor")


@pytest.mark.parametrize("how", ["exact", "sketch"])
def test_bounds_and_compare_say_the_same_of_one_derivative(
    how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact up to d_model 256; of a sketch the order is that of the Frobenius norms. Under windows
    of the tokens in reach.
    """
    if how == "sketch":
        monkeypatch.setattr(bounds_module, "choose_method", lambda d_model, exact_fits: (how, ""))
    model = tiny_model("gemma", seed=3)
    prompt = ost.Prompt.from_ids(model, [2, *range(40, 60)])
    window = "sliding-window:window=5"
    for mitigation, tokens in ((None, 21), (window, 1 + 4 * int(model.cfg.n_layers))):
        paths = ost.bounds(model, prompt, mitigation=mitigation, variants=["local", *FORMS])
        norms = ost.sensitivity(
            model,
            prompt,
            linearisations="frozen",
            method=how,
            cotangents=8,
            mitigation=mitigation,
        )
        beside: Any = ost.compare(norms, paths).summary
        assert beside["tokens"].tolist() == [tokens] * len(beside)
        forms = beside[beside["kind"] != "certified"]
        columns = ["variant", "spearman", "words"]
        pd.testing.assert_frame_equal(
            forms[columns].reset_index(drop=True), paths.beliefs[columns], check_dtype=False
        )


@pytest.mark.parametrize("family", ["gemma", "qwen2", "gpt2"])
@pytest.mark.parametrize("scale", [0.15, 0.5])
def test_a_sketch_decides_no_size_otherwise_than_the_norms(
    family: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It printed the distance to its nearest limit as the error: a form 3.4 times too large was
    "believed here: size off by a factor of 1.48".
    """
    model = tiny_model(family, scale=scale, fresh=True)
    prompt = ost.Prompt.from_ids(model, [2, *range(40, 58)])
    exact = ost.bounds(model, prompt, variants=FORMS).beliefs
    monkeypatch.setattr(bounds_module, "choose_method", lambda d_model, exact_fits: ("sketch", ""))
    estimated = ost.bounds(model, prompt, variants=FORMS).beliefs
    off = exact["log10_off_lower"]
    assert off.equals(exact["log10_off_upper"])
    lower, upper = estimated["log10_off_lower"], estimated["log10_off_upper"]
    scaled = off.notna()
    assert ((lower <= off) & (off <= upper))[scaled].all()
    assert (lower < upper)[scaled].all()
    right = off[scaled].abs() <= math.log10(RIGHT_FACTOR)
    size_words = estimated["words"][scaled].str.extract("off by (at least|at most)")[0]
    assert (size_words[right].dropna() == "at most").all()


def test_a_stored_verdict_by_one_end_of_a_sketch_is_refused(tmp_path: Path) -> None:
    model = tiny_model("gemma", seed=3)
    prompt = ost.Prompt.from_ids(model, [2, *range(40, 50)])
    paths = ost.bounds(model, prompt, variants=FORMS)
    stored: Any = ost.load_result(paths.save(tmp_path / "new.parquet"))
    assert stored.beliefs.equals(paths.beliefs)
    earlier = {name: {"log10_off": 0.0, "words": ""} for name in FORMS}
    parameters = {**paths.provenance.parameters, "beliefs": earlier}
    with pytest.raises(ost.InputError, match="one end of a sketch's interval"):
        replace(paths, provenance=replace(paths.provenance, parameters=parameters))
    sketch = ost.sensitivity(model, prompt, linearisations="frozen", method="sketch", cotangents=8)
    beside = ost.compare(sketch, paths)
    summary = beside.summary.assign(words="not believed here: size off by 10^3.9")
    with pytest.raises(ost.InputError, match="one end of an interval"):
        replace(beside, summary=summary)


def test_each_form_that_is_no_bound_says_whether_it_is_believed() -> None:
    model = tiny_model("gemma", seed=3)
    prompt = ost.Prompt.from_ids(model, [2, *range(40, 50)])
    with hooks.scale_scores(model, 2.0):  # what stands beside it is measured under the same edits
        paths = ost.bounds(model, prompt, variants=["local", "proof", "theorem-5.1"])
        beside = ost.compare(
            ost.sensitivity(model, prompt, linearisations=["frozen"]), paths
        ).summary
    beside = beside.set_index("variant")
    assert paths.beliefs["variant"].tolist() == ["proof", "theorem-5.1"]
    by_variant: Any = paths.frame.groupby("variant")["believed"].first()
    assert by_variant["local"] is pd.NA
    assert beside.loc["local", "words"] == ""
    for row in paths.beliefs.to_dict("records"):
        assert (
            by_variant[row["variant"]] == beside.loc[row["variant"], "believed"] == row["believed"]
        )
        assert row["words"].startswith("believed here" if row["believed"] else "not believed here")


def test_without_a_sketch_of_its_own_a_form_is_judged_by_compare_alone() -> None:
    model = tiny_model("gemma", seed=3)
    prompt = ost.Prompt.from_ids(model, [2, *range(40, 50)])
    norms = ost.sensitivity(model, prompt, linearisations=["frozen"])
    with_sketch, without = (
        ost.bounds(model, prompt, variants=["local", "proof"], believe=believe)
        for believe in (True, False)
    )
    assert bool(without.frame["believed"].isna().to_numpy().all())
    assert without.beliefs.empty
    assert without.frame["value"].tolist() == with_sketch.frame["value"].tolist()
    first, second = (ost.compare(norms, paths).summary for paths in (with_sketch, without))
    pd.testing.assert_frame_equal(first, second)


def test_of_parallel_blocks_the_papers_forms_alone_say_nothing() -> None:
    assert list(undescribed(tiny_model("neox"), ["local", "windowed(2)", "proof"])) == ["proof"]


def test_more_memory_than_is_allowed_is_refused_with_both_sizes() -> None:
    words = r"path sums of 3 tokens need about 0\.\d+ GiB, 0\.00 GiB are allowed"
    with pytest.raises(InsufficientMemoryError, match=words):
        ost.bounds(tiny_model("gemma"), "ab", max_memory=1)


def test_a_hook_that_the_formulas_do_not_know_is_refused() -> None:
    model = tiny_model("gemma")
    point = model.hook_dict["blocks.0.hook_resid_pre"]
    point.add_hook(lambda tensor, hook: tensor * 2)
    refused("foreign", ost.bounds, model, "ab")
    point.remove_hooks()


@pytest.mark.parametrize("family", ["gemma3", "llama"])
def test_grouped_heads_read_wrongly_are_caught(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: key/value heads in the wrong order."""
    model = tiny_model(family)
    honest = weights._expanded
    monkeypatch.setattr(weights, "_expanded", lambda value, heads: honest(value, heads).flip(0))
    with pytest.raises(
        ost.InputError, match="block 1: attention, computed from the weights as read here, differs"
    ):
        ost.bounds(model, "ab 12", variants="local")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"variants": "lokal"}, "unknown variant 'lokal': did you mean 'local'"),
        ({"variants": []}, "variant: expected at least one"),
        ({"mlp_norm": "power"}, "mlp_norm: expected 'svd', 'product', found 'power'"),
        ({}, "not finite"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    model = tiny_model("gemma", fresh=True)
    model.blocks[0].mlp.out.weight[0, 0] = float("inf")
    refused(words, ost.bounds, model, "ab", **options)
