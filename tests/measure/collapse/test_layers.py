"""The distance after every block: Hugging Face's own hidden states, the last layer bit for bit, and
the exact cases.
"""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

import ostools as ost
from ostools import hooks, tasks
from ostools.hooks.rounding import stored
from tests.checkpoints import TEXT_FAMILIES, Family, make_model, tiny_model
from tests.measure.collapse.test_collapse import select
from tests.reporting.made import rows_of
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
        [
            ("figure-5a", None),
            ("figure-5d", None),
            ("figure-5b", ost.mitigations.SlidingWindow(400)),
        ],
        ("figure-5a", None),
    ),
)
def test_what_lies_behind_the_last_block_is_what_it_was_bit_for_bit(
    task: str, mitigation: ost.mitigations.Mitigation | None
) -> None:
    model = tiny_model("gemma", seed=1, n_layers=3)
    dtypes, lengths = ["bfloat16", "bfloat16-residual"], (1, 3, 7)
    plain = ost.collapse(model, task, lengths=lengths, dtypes=dtypes, mitigation=mitigation)
    found = ost.collapse(
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
    assert set(before.groupby(["site", "layer", "per"]).groups) == {
        ("residual", layer, per) for layer in range(3) for per in ("vector", "head-chunk")
    }


@pytest.mark.parametrize("task", quick(["figure-5a", "figure-5d"], "figure-5d"))
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_every_layer_is_hugging_faces_own(family: Family, task: str) -> None:
    """By an eager pass of each prompt alone. Its last hidden state is behind the final norm: y;
    v^(L) is what that norm reads. L1 is Theorem B.3's norm."""
    settings: Any = {"seed": 1, "n_layers": 3, "scale": 2.0}
    model, theirs = tiny_model(family, **settings), make_model(family, **settings)
    found = ost.collapse(model, task, lengths=LENGTHS, dtypes=["float32"], layers="all")
    for length in LENGTHS:
        text = tasks.task(task, tasks.CollapseTask).text(length)  # pyright: ignore[reportAttributeAccessIssue]
        ids = tuple(ost.encode(model, text).ids.tolist())
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


def test_the_noise_of_once_is_one_rounding_of_v0_carried_through_the_layers() -> None:
    model = tiny_model("gemma", seed=2, n_layers=3)
    found = ost.collapse(model, "figure-5a", lengths=[5], dtypes=["bfloat16-once"], layers="all")
    ids = ost.encode(model, tasks.figure_5a().text(5)).ids
    exact = ost.models.view_in(model, torch.float64)
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
    relative = rows["noise"] * rows["relative"] / rows["mean"]
    drawn = [row for row in rows_of(found.chart()) if row.get("quantity") == "noise in v"]
    assert [row["value"] for row in drawn] == pytest.approx(
        relative[relative > 0].tolist(), rel=1e-4
    )


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma2", "gpt2"))
def test_a_repeated_token_has_one_embedding(family: Family) -> None:
    """v_n = v*_(n+1) at layer 0, "by construction": the proof's first step. A learned position is
    added to GPT-2's.
    """
    found = ost.collapse(
        tiny_model(family, seed=1), "figure-5a", lengths=LENGTHS, dtypes=["bfloat16"], layers=[0]
    )
    assert sorted(set(found.frame["layer"])) == [0, 2]
    assert set(found.frame.query("layer == 0")["mean"] == 0) == {family != "gpt2"}


def test_the_last_layer_of_a_table_without_the_models_last_is_not_taken_for_it() -> None:
    """Rows of v^(1) of two blocks would be told as those of v^(L)."""
    model = tiny_model("llama", n_layers=2)
    result = ost.collapse(model, "figure-5a", lengths=LENGTHS, layers="all")
    table: Any = result.frame
    behind = replace(result, frame=table[(table["layer"] > 0) & (table["site"] == "residual")])
    assert behind.reference["distance"].tolist() == [
        *result.reference.query("site == 'residual'")["distance"]
    ]
    with pytest.raises(ost.InputError, match=r"expected rows of y or v\^\(L\), behind all"):
        replace(result, frame=table[table["layer"] < 2])
