"""The distance after every block: Hugging Face's own hidden states, the last layer bit for bit, and
the exact cases.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

from ostools import hooks, tasks
from ostools.hooks.rounding import stored
from ostools.measure.collapse.collapse import collapse
from ostools.measure.collapse.result import as_rows, from_rows
from ostools.mitigations import Mitigation, SlidingWindow
from ostools.models import encode, view_in
from ostools.reporting.findings.collapse import growth_findings
from tests.checkpoints import TEXT_FAMILIES, Family, make_model, tiny_model
from tests.measure.collapse.test_collapse import select
from tests.sets import quick

LENGTHS = (1, 2, 3, 7)


def streams(frame: Any, **wanted: Any) -> Any:
    return select(frame, **{"site": "residual", "per": "vector", "norm": "l2", **wanted})


def states_of(theirs: Any, ids: tuple[int, ...]) -> list[torch.Tensor]:
    """The last token's v^(0), ..., v^(L) and y in Hugging Face's own pass."""
    read: list[torch.Tensor] = []
    norm = next(
        module for name, module in theirs.named_modules() if name.endswith(("model.norm", "ln_f"))
    )
    with (
        norm.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0])),
        torch.no_grad(),
    ):
        states = theirs(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return [state[0, -1] for state in (*states[:-1], *read, states[-1])]


@pytest.mark.parametrize(
    ("task", "mitigation"),
    quick(
        [("figure-5a", None), ("figure-5d", None), ("figure-5b", SlidingWindow(400))],
        ("figure-5a", None),
    ),
)
def test_what_lies_behind_the_last_block_is_what_it_was_bit_for_bit(
    task: str, mitigation: Mitigation | None
) -> None:
    model = tiny_model("gemma", seed=1, n_layers=3)
    dtypes, lengths = ["bfloat16", "bfloat16-residual"], (1, 3, 7)
    plain = collapse(model, task, lengths=lengths, dtypes=dtypes, mitigation=mitigation)
    found = collapse(
        model, task, lengths=lengths, dtypes=dtypes, layers="all", mitigation=mitigation
    )
    assert found.provenance.parameters["route"] == plain.provenance.parameters["route"]
    assert (found.provenance.parameters["route"] == "loop") == (mitigation is not None)
    assert set(plain.frame["layer"]) == {3}
    frame: Any = found.frame
    last = frame[frame["layer"] == 3].reset_index(drop=True)
    pd.testing.assert_frame_equal(last, plain.frame, check_exact=True)
    pd.testing.assert_frame_equal(found.reference, plain.reference, check_exact=True)
    before = frame[frame["layer"] < 3]
    assert set(before["site"]) == {"residual"}
    assert set(before["layer"]) == {0, 1, 2}
    assert set(before["per"]) == {"vector", "head-chunk"}
    floors = before[before["dtype"] == "bfloat16"]
    assert bool(floors[["noise", "machine_line", "float64_distance"]].notna().all(axis=None))


@pytest.mark.parametrize("task", quick(["figure-5a", "figure-5d"], "figure-5d"))
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_every_layer_is_hugging_faces_own(family: Family, task: str) -> None:
    """By an eager pass of each prompt alone. Its last hidden state is behind the final norm: y;
    v^(L) is what that norm reads. L1 is Theorem B.3's norm."""
    settings: Any = {"seed": 1, "n_layers": 3, "scale": 2.0}
    model, theirs = tiny_model(family, **settings), make_model(family, **settings)
    found = collapse(model, task, lengths=LENGTHS, dtypes=["float32"], layers="all")
    for length in LENGTHS:
        text = tasks.task(task, tasks.CollapseTask).text(length)  # pyright: ignore[reportAttributeAccessIssue]
        ids = tuple(encode(model, text).ids.tolist())
        v, v_star = (states_of(theirs, x) for x in (ids, (*ids, ids[-1])))
        places: list[dict[str, Any]] = [*({"layer": layer} for layer in range(4)), {"site": "y"}]
        for layer, place in enumerate(places):
            for norm, order in (("l1", 1), ("l2", 2)):
                (row,) = streams(
                    found.frame, norm=norm, pair="theorem", length=length, **place
                ).to_dict("records")
                expected = float((v[layer] - v_star[layer]).norm(p=order))
                assert row["mean"] == pytest.approx(
                    expected, abs=2e-5 * float(v[layer].norm(p=order))
                ), (layer, norm)


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma2", "gpt2"))
def test_a_repeated_token_has_one_embedding(family: Family) -> None:
    """v_n = v*_(n+1) at layer 0, "by construction": the proof's first step. A learned position is
    added to GPT-2's.
    """
    found = collapse(
        tiny_model(family, seed=1), "figure-5a", lengths=LENGTHS, dtypes=["bfloat16"], layers=[0]
    )
    assert sorted(set(found.frame["layer"])) == [0, 2]
    embedded = found.frame.query("layer == 0")
    assert set(embedded["mean"] == 0) == {family != "gpt2"}


@pytest.mark.parametrize(("n_layers", "window"), quick([(2, 3), (3, 4)], (2, 3)))
def test_under_windows_everywhere_layer_by_layer_is_exact(n_layers: int, window: int) -> None:
    """From l (w - 1) + 1 copies on, v^(l) sees copies only; one copy fewer, and it sees the
    question. The induction of B.3.
    """
    kinds = ["sliding_attention"] * n_layers
    model = tiny_model("gemma2", seed=1, n_layers=n_layers, window=window, layer_types=kinds)
    lengths = range(1, n_layers * (window - 1) + 4)
    found = collapse(model, "figure-5a", lengths=lengths, dtypes=["float64"], layers="all")
    for layer in range(n_layers + 1):
        curve = streams(found.frame, layer=layer).set_index("length")["relative"]
        exact = layer * (window - 1) + 1 if layer else 1
        assert bool((curve[curve.index >= exact] < 1e-6).all()), layer
        assert bool((curve[curve.index < exact] > 1e-6).all()), layer


def test_layers_come_back_out_of_stored_rows() -> None:
    model = tiny_model("llama", seed=1)
    found = collapse(model, "figure-5b", lengths=LENGTHS, dtypes=["int8-weights"], layers="all")
    back = from_rows(as_rows(found), found.provenance)
    pd.testing.assert_frame_equal(back.frame, found.frame)
    keys = ["weights", "length", "site"]
    references: Any = (back.reference, found.reference)
    ours, theirs = (one.sort_values(keys).reset_index(drop=True) for one in references)
    pd.testing.assert_frame_equal(ours[theirs.columns.tolist()], theirs)
    pd.testing.assert_frame_equal(back.verdicts(), found.verdicts())


def test_the_noise_of_once_is_one_rounding_of_v0_carried_through_the_layers() -> None:
    model = tiny_model("gemma", seed=2, n_layers=3)
    found = collapse(model, "figure-5a", lengths=[5], dtypes=["bfloat16-once"], layers="all")
    ids = encode(model, tasks.figure_5a().text(5)).ids
    exact = view_in(model, torch.float64)
    streams = []
    with torch.no_grad(), hooks.exact_arithmetic(exact):
        embedded = exact.input_to_embed(ids[None])[0]
        for start in (embedded, stored(embedded.float(), "bfloat16").double()):
            with hooks.capture(exact, "residual_post") as record:
                exact(start, start_at_layer=0)
            streams.append([start, *(record["residual_post"][layer] for layer in range(3))])
    rows: Any = select(found.frame, site="residual", per="vector", norm="l2").set_index("layer")
    for layer, (plain, moved) in enumerate(zip(*streams, strict=True)):
        assert rows.loc[layer, "noise"] == pytest.approx(
            float((plain - moved)[0, -1].norm()), rel=1e-2
        )
    assert rows["noise"].iloc[0] > 0


def test_the_growth_of_a_rounding_is_said_of_the_longest_length() -> None:
    model = tiny_model("gemma", seed=2, n_layers=3)
    found = collapse(model, "figure-5a", lengths=[2, 5], dtypes=["bfloat16-once"], layers="all")
    (sentence,) = growth_findings(found)
    assert sentence.startswith("bfloat16-once, 5 items: the noise in v is ")
    rows: Any = (
        select(found.frame, site="residual", per="vector", norm="l2", length=5)
        .set_index("layer")
        .loc[1:]
    )
    hidden = int((rows["pair_noise"] > rows["float64_distance"]).sum())
    assert (
        f"at 3 layers, is {'below it at each' if not hidden else f'above it at {hidden} of 3'}"
        in sentence
    )
    chart: Any = found.chart()
    assert chart.title.subtitle == [sentence]
