"""Activation patching: exact on a model that copies, equal to the other run where everything is
patched, and against a plain loop on transformers and TransformerLens' own patching."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from transformer_lens import patching as lens
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks, tasks
from ostools.hooks.register import Order, attached
from ostools.hooks.sites import points
from ostools.measure.patching import patching as patching_module
from ostools.measure.patching import runs
from ostools.measure.patching.runs import SITES, PromptRun
from tests.checkpoints import TEXT_FAMILIES, Family, make_model, tiny_model
from tests.reporting.made import rows_of, words_of
from tests.sets import quick

CLEAN, CORRUPT = [2, 40, 50, 60, 61, 70], [2, 40, 51, 60, 61, 70]
N, DIFFERS = len(CLEAN), 2
PAIR = (7, 9)
WHAT = ("residual", "attention-out", "mlp-out", "heads")


def pair(
    model: TransformerBridge, clean: Any = CLEAN, corrupt: Any = CORRUPT
) -> tuple[ost.Prompt, ost.Prompt]:
    return ost.Prompt.from_ids(model, clean), ost.Prompt.from_ids(model, corrupt)


def patched(model: TransformerBridge, **options: Any) -> Any:
    return ost.patch(model, *pair(model), **({"logit": PAIR, "first_order": False} | options)).frame


def attending(
    model: TransformerBridge, layer: int, key: int | None
) -> AbstractContextManager[None]:
    """All queries of the layer attend to that key alone, None: each to itself; a query before the
    key to itself.
    """
    pattern = torch.eye(N)
    if key is not None:
        pattern[key:] = torch.nn.functional.one_hot(torch.tensor(key), N).float()
    return hooks.replace_pattern(model, pattern.expand(1, 4, N, N), layers=[layer])


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_model_that_copies_one_position(family: Family) -> None:
    """Block 0 reads the token that differs, block 1 its own place: the answer moves from there to
    the last token, whole.
    """
    model = tiny_model(family)
    with attending(model, 0, DIFFERS), attending(model, 1, None):
        shares = patched(model).pivot(
            index=["direction", "quantity", "layer"], columns="position", values="share"
        )
        at_outputs = patched(model, what="attention-out", layers=[0])
        elsewhere = patched(model, what="attention-out", positions=[0, 1, 2, 3, 4])
    for layer, place in ((0, DIFFERS), (1, N - 1), (2, N - 1)):
        rows = shares.xs(layer, level="layer").to_numpy()
        # What does not carry the answer moves it by 0, bit for bit.
        assert np.array_equal(rows != 0, np.eye(N)[[place] * 4] == 1)
        assert rows[:, place] == pytest.approx(1.0, abs=1e-5)
    carries = at_outputs["position"] == N - 1
    assert at_outputs.loc[carries, "share"].to_numpy() == pytest.approx(1.0, abs=1e-5)
    assert (at_outputs.loc[~carries, "effect"] == 0).all()
    assert (elsewhere["effect"] == 0).all()


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_with_everything_patched_the_run_is_the_other_one(family: Family) -> None:
    frame = patched(tiny_model(family), positions=[list(range(N))])
    other = frame["clean"].where(frame["direction"] == "denoising", frame["corrupt"])
    assert frame["patched"].to_numpy() == pytest.approx(other.to_numpy(), abs=1e-5)
    assert frame["share"].to_numpy() == pytest.approx(1.0, abs=1e-4)
    assert frame["layer"].nunique() == 3


LENS: dict[str, Callable[..., Tensor]] = {
    "residual": lens.get_act_patch_resid_pre,
    "attention-out": lens.get_act_patch_attn_out,
    "mlp-out": lens.get_act_patch_mlp_out,
    "heads": lens.get_act_patch_attn_head_out_all_pos,
}


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_against_the_patching_of_transformer_lens(family: Family, what: Any) -> None:
    """Post-norms stand between what attention computes and what it adds: TransformerLens patches
    what is added too.
    """
    model = tiny_model(family)
    _, cache = model.run_with_cache(torch.tensor([CLEAN]))
    expected = LENS[what](
        model, torch.tensor([CORRUPT]), cache, lambda logits: logits[0, -1, 7] - logits[0, -1, 9]
    )
    frame = patched(model, what=what, layers=[0, 1])
    assert frame["position"].isna().all() == (what == "heads")
    rows = frame.query("direction == 'denoising' and quantity == 'logit_difference'")
    assert rows["patched"].to_numpy() == pytest.approx(expected.flatten().numpy(), abs=1e-4)


@pytest.mark.parametrize("what", [*WHAT, "edges"])
def test_first_order_against_finite_differences(what: Any) -> None:
    """In float64: the host moved along the difference by a little, either way."""
    model = tiny_model("gemma3", dtype=torch.float64, n_layers=3)
    layer, place, step = 1, 4, 1e-4
    frame = patched(model, what=what, first_order=True, layers=[layer], positions=[place])
    row = frame.query("direction != 'denoising' and quantity == 'logit_difference'").iloc[0]
    (point,) = points(model, SITES[what], [layer]).values()

    def logit(ids: list[int], scale: float) -> tuple[float, Tensor]:
        seen: list[Tensor] = []

        def body(tensor: Tensor) -> Tensor:
            seen.append(tensor.clone())
            moved = tensor.clone()
            if what == "edges":
                cut = moved[:, :, -1].clone()
                cut[..., place] = 0
                change = cut / cut.sum(-1, keepdim=True) - moved[:, :, -1]
                moved[:, :, -1] += scale * change
            elif scale:
                at = (0, place, 0) if what == "heads" else (0, place)
                moved[at] += scale * (corrupt_at[at] - moved[at])
            return moved

        with (
            torch.no_grad(),
            hooks.exact_arithmetic(model),
            attached([(point, body, Order.EDIT)], "moved"),
        ):
            logits = model(torch.tensor([ids]))[0, -1]
        return float(logits[7] - logits[9]), seen[0]

    corrupt_at = logit(CORRUPT, 0.0)[1]
    slope = (logit(CLEAN, step)[0] - logit(CLEAN, -step)[0]) / (2 * step)
    assert abs(slope) > 1e-4
    assert row["predicted_effect"] == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("what", ["residual", "mlp-out"])
def test_first_order_is_judged_on_the_parts_that_can_act(what: Any) -> None:
    """Before the token that differs both sides are exactly 0: whatever the number of such tokens,
    they are no evidence."""
    model = tiny_model("gemma3", n_layers=3)
    start, options = [2, *range(100, 120)], {"what": what, "logit": PAIR}
    prompts = pair(model, start + CLEAN[1:], start + CORRUPT[1:])
    whole: Any = ost.patch(model, *prompts, **options)
    acting = ost.patch(model, *prompts, **options, positions=list(range(22, 26)))
    assert len(whole.frame) > 6 * len(acting.frame)
    pd.testing.assert_frame_equal(whole.agreement, acting.agreement)
    unable = ost.patch(model, *prompts, **options, positions=list(range(12))).agreement
    assert set(unable["believed"]) == {pd.NA}
    assert set(unable["words"]) == {"not tested here: 0 parts with an effect, 8 needed"}


def test_a_contrast_is_the_difference_of_the_two_logits() -> None:
    model = tiny_model("llama")
    contrast, first, second = (
        patched(model, logit=logit, first_order=True)
        .query("quantity != 'log_probability'")
        .reset_index()
        for logit in (PAIR, *PAIR)
    )
    assert (set(contrast["quantity"]), set(first["quantity"])) == ({"logit_difference"}, {"logit"})
    for column in ("clean", "corrupt", "patched", "effect", "predicted_effect"):
        difference = first[column] - second[column]
        assert contrast[column].to_numpy() == pytest.approx(difference.to_numpy(), abs=1e-5)


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_reading_on_from_the_hosts_own_run_changes_nothing(
    family: Family, monkeypatch: Any
) -> None:
    """Against rows that are read whole: all tokens, all blocks."""
    model = tiny_model(family, window=64)
    start = [2, *range(100, 140)]
    prompts = pair(model, start + CLEAN[1:], start + CORRUPT[1:])
    options: dict[str, Any] = {"logit": PAIR, "positions": [3, 42, 45]}
    results = {what: ost.patch(model, *prompts, what=what, **options) for what in (*WHAT, "edges")}
    monkeypatch.setattr(runs, "reads_on", lambda _: False)
    for what, result in results.items():
        plain = ost.patch(model, *prompts, what=what, **options)  # pyright: ignore[reportArgumentType]
        for column in ("patched", "effect", "predicted_effect"):
            assert result.frame[column].to_numpy() == pytest.approx(
                plain.frame[column].to_numpy(), abs=2e-5
            )


def test_the_edges_of_a_set_over_a_window() -> None:
    """Against masks on the same layers; and where no query comes after the keys, there is no edge:
    an effect of 0.
    """
    model = tiny_model("gemma3", n_layers=3)
    frame = patched(model, what="edges", window=2, positions=[[1, 2], [5]], query_positions=[3, 4])
    assert list(frame["part"].unique()) == [
        f"layer {window}, position {places}" for window in ("0-1", "1-2") for places in ("1,2", "5")
    ]
    assert (frame.loc[frame["position"] == 5, "effect"] == 0).all()
    seen = torch.ones(N, N, dtype=torch.bool)
    seen[3:5, 1:3] = False
    for first in (0, 1):
        with torch.no_grad(), hooks.mask_scores(model, seen, layers=[first, first + 1]):
            logits = model(torch.tensor([CLEAN]))[0, -1].double()
        expected = [float(logits.log_softmax(-1)[7]), float(logits[7] - logits[9])]
        found = frame.query(f"layer == {first} and position == 1")["patched"].to_numpy()
        assert found == pytest.approx(expected, abs=1e-5)


def test_a_tasks_question_brings_its_corrupt_run_and_its_two_answers(
    embedded: TransformerBridge,
) -> None:
    question = tasks.questions("count-ones-bernoulli", lengths=[6], seeds=[1])[0]
    result = ost.patch(embedded, question, layers=[0])
    clean, corrupt = (form.answer(6, 1) for form in (question.task, question.task.corrupted()))
    assert [text.strip() for text in result.provenance.parameters["logit"]] == [clean, corrupt]
    moved: Any = result.frame.query("effect != 0")
    assert moved["position"].nunique() == 1
    assert moved["share"].to_numpy() == pytest.approx(1.0, abs=1e-4)
    assert "Measured, denoising, share of the gap" in result.findings()[0]


def test_no_share_is_told_of_a_gap_without_the_two_answers(embedded: TransformerBridge) -> None:
    """And sentences need no first order. Its chart and its table have the effects."""
    question = tasks.questions("copy-beside", lengths=[3], seeds=[1])[0]
    result = ost.patch(embedded, question, layers=[0], first_order=False)
    (sentence,) = result.findings()
    assert sentence.startswith("The gap is from")
    assert "%" not in sentence
    cells = rows_of(result.plot(), "value", "effect")
    assert all(cell["value"] == cell["effect"] for cell in cells)
    assert "clean-corrupt gap" not in words_of(result.plot())
    ((title, head),) = result.shown_tables()
    assert title == "Patching, by effect"
    assert [*head] == ["direction", "part", "token", "quantity", "patched", "effect"]
    assert head["effect"].abs().is_monotonic_decreasing
    ((title, head),) = replace(
        result, frame=result.frame.assign(clean=1, corrupt=-1)
    ).shown_tables()
    assert title == "Patching, by share"
    assert [*head][-2:] == ["effect", "share"]


@pytest.mark.parametrize(("what", "first"), [("residual", DIFFERS), ("heads", 0), ("edges", 0)])
def test_a_chart_leaves_out_what_it_says_and_draws_shares(what: Any, first: int) -> None:
    """The tokens before the one that differs: a head has no token, and an edge to an earlier token
    has an effect."""
    model = tiny_model("gemma3")
    result: Any = ost.patch(model, *pair(model), what=what, logit=PAIR[0], first_order=False)
    chart, table = result.plot(), result.frame.query("quantity == 'logit'")
    drawn = table[table["position"].fillna(first) >= first]
    drawn = drawn.sort_values(["direction", "position", "head"], kind="stable")
    cells = [cell["value"] for cell in rows_of(chart, "value", "effect")]
    assert cells == pytest.approx(drawn["share"].tolist(), rel=1e-5)
    assert ("Left out" in words_of(chart)) == (len(drawn) < len(table))
    by_effect = replace(result, frame=result.frame.sort_values("effect"))
    names = list(dict.fromkeys(row["name"] for row in rows_of(chart, "name")))
    axis = f'"domain": {json.dumps(names, ensure_ascii=False)}'
    assert axis in words_of(chart)
    assert axis in words_of(by_effect.plot())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": [6]}, "positions: expected whole numbers of at most 5, found 6"),
        ({"positions": [[1, -1]]}, "positions: expected whole numbers of at least 0, found -1"),
        ({"positions": []}, "positions: expected some out of 0..5, found none"),
        ({"positions": 3}, "positions: expected .*, found 3"),
        ({"positions": [1, 1]}, "positions: expected each position or group once"),
        ({"positions": [[3, 3]]}, "positions: expected each position or group once"),
        ({"what": "edges", "query_positions": 5}, "query_positions: expected .*, found 5"),
        ({"layers": [3]}, "layers: expected 'all' or numbers out of 0..2"),
        ({"what": "mlp-out", "layers": [2]}, "layers: expected 'all' or numbers out of 0..1"),
        (
            {"what": "mlp-out", "window": 2, "layers": [1]},
            "layers: expected 'all' or numbers out of 0..0",
        ),
        ({"window": 2}, "window: expected a whole number of at most 1"),
        ({"query_positions": [3]}, "query_positions: expected what='edges'"),
        (
            {"what": "edges", "query_positions": [9]},
            "query_positions: expected whole numbers of at most 5, found 9",
        ),
        ({"logit": (7, 7)}, "expected two different tokens"),
        ({"what": "neurons"}, "what: expected .*, found 'neurons'"),
    ],
)
def test_what_there_is_not_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ost.InputError, match=message):
        patched(tiny_model("gemma3"), **options)


def test_pairs_that_cannot_be_patched_are_refused(embedded: TransformerBridge) -> None:
    model = tiny_model("gemma3")
    clean, _ = pair(model)
    with pytest.raises(
        ost.InputError, match="expected two prompts of as many tokens, found 6 and 5"
    ):
        ost.patch(model, clean, ost.Prompt.from_ids(model, CORRUPT[:-1]), logit=PAIR)
    with pytest.raises(ost.InputError, match="of no gap there is no share"):
        ost.patch(model, clean, clean, logit=PAIR)
    with pytest.raises(ost.InputError, match="expected a corrupt prompt, found none"):
        ost.patch(model, clean, logit=PAIR)
    with pytest.raises(ost.InputError, match="both begin with"):
        ost.patch(model, clean, clean)
    many = tasks.questions("count-ones", lengths=[12])[0]
    with pytest.raises(ost.InputError, match="expected an answer of one token, found '12'"):
        ost.patch(embedded, many)
    with pytest.raises(ost.InputError, match="task 'copy' has no option 'corrupt'"):
        ost.patch(embedded, tasks.questions("copy", lengths=[4])[0])


def test_edits_are_respected_and_left_as_they_were() -> None:
    model = tiny_model("gemma3")
    with ExitStack() as stack:
        stack.enter_context(hooks.scale_scores(model, 2.0))
        frame = patched(model, positions=[5], layers=[0])
        edited = model(torch.tensor([CLEAN]))[0, -1].double()
        assert len(hooks.active_edits(model)) == 2
    assert frame["clean"].iloc[0] == pytest.approx(float(edited.log_softmax(-1)[7]), abs=1e-5)
    assert hooks.active_edits(model) == ()


def test_a_gap_up_to_64_roundings_of_the_greatest_logit_is_none() -> None:
    """64 roundings of a logit of 10 in float32 are 7.6e-5."""
    clean, near, far = (
        PromptRun(torch.tensor([[1]]), {}, None, torch.full((1, 2), value).double(), 10.0)
        for value in (0.0, 6.0e-5, 1.0e-4)
    )
    patching_module._require_apart(clean, far, ["a"], torch.float32)
    with pytest.raises(ost.InputError, match="within rounding: of no gap there is no share"):
        patching_module._require_apart(clean, near, ["a"], torch.float32)


def test_residual_patches_are_those_of_a_loop_on_transformers_own_model() -> None:
    plain: Any = make_model("gemma3")
    ids = {"clean": torch.tensor([CLEAN]), "corrupt": torch.tensor([CORRUPT])}
    streams = {run: plain(ids[run], output_hidden_states=True).hidden_states for run in ids}
    frame = patched(tiny_model("gemma3"), layers=[0, 1], positions=[DIFFERS, N - 1])
    runs_by_direction = {"denoising": ("corrupt", "clean"), "noising": ("clean", "corrupt")}
    for row in frame.query("quantity == 'logit_difference'").itertuples():
        run, other_run = runs_by_direction[row.direction]
        stream = streams[run][row.layer].clone()
        stream[:, row.position] = streams[other_run][row.layer][:, row.position]

        def put(module: Any, args: Any, stream: Tensor = stream) -> Any:
            return (stream, *args[1:])

        handle = plain.model.layers[row.layer].register_forward_pre_hook(put)
        logits = plain(ids[run]).logits[0, -1]
        handle.remove()
        assert row.patched == pytest.approx(float(logits[7] - logits[9]), abs=1e-5)
    assert frame["direction"].nunique() == 2
    assert (frame["effect"].abs() > 1e-4).any()
