"""A corpus is the measurement of each of its windows: alone or in a batch, whole or interrupted,
read back or not.
"""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks, tasks
from ostools.ground.errors import InputError
from ostools.measure.collapse.verdicts import is_hidden
from ostools.models.tokens import tokenizer_of
from ostools.sweep import read_corpus
from ostools.sweep.corpus.measures import PAIRS, WindowMeasure
from ostools.sweep.corpus.texts import draw, read_texts, texts_hash
from ostools.sweep.store import Store
from ostools.theory.profiles import binned, shares
from ostools.theory.statistics.intervals import wilson
from tests.checkpoints import make_tokenizer, tiny_model

MODULE = importlib.import_module("ostools.sweep.corpus.corpus")  # `sweep.corpus` is the function
measured: Any = ost.sweep.corpus
"""Its type is of both results: each test knows which one it asked for."""
SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_key_value_heads": 1,
    "d_mlp": 16,
    "context": 64,
}


@pytest.fixture(scope="module")
def model() -> TransformerBridge:
    return tiny_model("llama", seed=1, **SMALL)


WORDS = np.array(
    str.split("the quick brown fox jumps over a lazy dog while it rains and nobody minds")
)


def texts(count: int, words: int = 24) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, words)) for _ in range(count)]


def equal(first: Any, second: Any, *names: str) -> None:
    """The tables to the last bit, and where the numbers come from."""
    for name in ("frame", "windows", *names):
        pd.testing.assert_frame_equal(getattr(first, name), getattr(second, name), check_exact=True)
    assert first.provenance.parameters == second.provenance.parameters
    assert first.provenance.model == second.provenance.model


def test_one_window_of_one_text_is_its_sensitivity_to_the_bit(model: TransformerBridge) -> None:
    found = measured(model, texts(1), lengths=16)
    prompt = ost.Prompt.from_ids(model, found.windows["token_id"].tolist())
    alone = ost.sensitivity(model, prompt, linearisations=["full"], method="exact")
    norms = alone.frame["operator_norm"].to_numpy()
    assert found.windows["value"].tolist() == norms.tolist()
    assert found.windows["share"].tolist() == shares(norms).tolist()
    assert found.frame["mean"].tolist() == binned(shares(norms)[None], 16)[0].tolist()
    assert np.isnan(found.frame[["low", "high"]].to_numpy()).all()
    assert found.summary["kind"].tolist() == ["measured"]
    assert found.shapes["verdict"].tolist() == [
        "not tested: 1 texts, 3 needed",
        "not tested: 14 tokens, 15 needed",
    ]


def test_a_window_in_a_batch_is_that_window_alone_under_the_same_mitigation(
    model: TransformerBridge,
) -> None:
    mitigation = "sliding-window:window=4"
    found = measured(model, texts(3), lengths=[12], mitigation=mitigation)
    (window_set,) = draw(tokenizer_of(model), texts(3), [12], count=None, seed=0)
    prompts = [ost.Prompt.from_ids(model, window.ids) for window in window_set.windows]
    alone = ost.sensitivity(
        model, prompts, linearisations=["full"], method="exact", mitigation=mitigation
    )
    values = np.concatenate([result.frame["operator_norm"] for result in alone])
    np.testing.assert_allclose(found.windows["value"], values, rtol=1e-6, atol=1e-9)
    assert found.provenance.parameters["mitigation"] == mitigation


def test_an_estimate_is_that_of_the_seed_and_the_cell(
    model: TransformerBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other directions in every cell: an error of all cells alike would be in no interval over
    texts.
    """
    monkeypatch.setattr(MODULE, "TOKENS_PER_CELL", 24)
    found = measured(model, texts(4), lengths=12, method="sketch", seed=5)
    for number in (0, 1):
        rows = found.windows[found.windows["window"].isin([2 * number, 2 * number + 1])]
        prompts = [
            ost.Prompt.from_ids(model, part["token_id"].tolist())
            for _, part in rows.groupby("window")
        ]
        for seed in (5, 6):
            alone = ost.sensitivity(
                model, prompts, linearisations=["full"], method="sketch", seed=seed
            )
            values = np.concatenate([result.frame["frobenius_norm"] for result in alone])
            assert np.allclose(rows["value"], values, rtol=1e-6) == (seed == 5 + number)
    assert set(found.summary["kind"]) == {"estimated"}
    assert set(found.summary["quantity"]) == {"Frobenius norm"}


def test_saved_is_loaded_and_interrupted_is_whole(
    model: TransformerBridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off in a cell, the same call goes on, and measures nothing twice."""
    monkeypatch.setattr(MODULE, "TOKENS_PER_CELL", 24)
    given, how = (model, texts(3)), {"lengths": [8, 12]}
    whole = measured(*given, **how, cells=tmp_path / "whole")
    equal(whole, read_corpus(tmp_path / "whole"), "shapes", "summary")
    assert (
        len(Store(tmp_path / "whole").planned_cells()) == 3
    )  # 3 windows of 8 in threes, 3 of 12 in twos
    rows, calls, cut = WindowMeasure.rows, itertools.count(), tmp_path / "cut"

    def interrupted(*args: Any) -> Any:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return rows(*args)

    monkeypatch.setattr(WindowMeasure, "rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(*given, **how, cells=cut)
    assert len(list((cut / "cells").iterdir())) == 1
    with pytest.raises(InputError, match="2 of 3 cells are missing; the same command"):
        read_corpus(cut)
    equal(whole, measured(*given, **how, cells=cut), "shapes", "summary")
    assert next(calls) == 4


def test_a_pair_of_a_corpus_is_the_collapse_of_that_window_alone(
    model: TransformerBridge, tmp_path: Path
) -> None:
    """To the bit, in both dtypes; what was stored is what was measured; every text counts once."""
    given = [texts(1, 24)[0], "ab cd ef gh"]
    found: Any = measured(model, given, lengths=[8, 20], measure=PAIRS, cells=tmp_path)
    equal(found, read_corpus(tmp_path))
    drawn = draw(model.tokenizer, given, [8, 20], count=None, seed=0)
    assert [len(window_set.windows) for window_set in drawn] == [2, 1]
    for length, number, window in (
        (part.length, *one) for part in drawn for one in enumerate(part.windows)
    ):
        of_window = (found.windows["length"] == length) & (found.windows["window"] == number)
        alone: Any = ost.collapse(model, tasks.RepeatedIds(window.ids), lengths=[1]).frame
        alone = alone[(alone["per"] == "vector") & (alone["norm"] == "l2")].set_index(
            ["site", "dtype"]
        )
        for dtype, row in found.windows[of_window].set_index("dtype").iterrows():
            at_y = alone.loc["y", dtype].rename({"mean": "distance"})
            same = [
                "distance",
                "relative",
                "float64_distance",
                "noise",
                "pair_noise",
                "weight_shift",
            ]
            assert row[same].tolist() == at_y[same].tolist()
            assert row["same_top_token"] == alone.loc["logits", dtype]["same_top_token"]
            assert (row["text"], row["start"], row["token_id"]) == (
                window.text,
                window.start,
                window.ids[-1],
            )
    for (length, dtype), rows in found.windows.groupby(["length", "dtype"]):
        row = found.frame.set_index(["length", "dtype"]).loc[length, dtype]
        assert row["mean"] == pytest.approx(rows["float64_distance"].mean(), rel=1e-12)
        expected = [rows["float64_distance"].median(), len(rows), rows["hidden"].mean()]
        assert row[["median", "texts", "hidden_share"]].tolist() == expected
        assert (row["hidden_low"], row["hidden_high"]) == wilson(
            float(rows["hidden"].sum()), len(rows)
        )


def test_hidden_is_below_the_noise_of_its_own_difference_or_the_same_numbers() -> None:
    apart, pair_noise, distance = map(
        pd.Series, ([1.0, 1.0, 1.0, 1.0], [2.0, 1.0, 0.5, 0.5], [1.0, 1.0, 1.0, 0.0])
    )
    assert is_hidden(apart, pair_noise, distance).tolist() == [True, False, False, True]


def test_a_directory_holds_one_corpus(model: TransformerBridge, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"model": model, "texts": texts(3), "lengths": [8], "cells": tmp_path}
    measured(**asked)
    null = ost.models.untrained_model(tiny_model("llama", seed=1, fresh=True, **SMALL), "shuffled")
    for change in ({"texts": texts(4)}, {"model": null}, {"measure": PAIRS}):
        with pytest.raises(
            InputError, match="found another corpus or sweep: give another directory"
        ):
            measured(**asked | change)
    assert (
        "(null: shuffled"
        in measured(**asked | {"model": null, "cells": None}).provenance.model["name"]
    )


def test_windows_are_pieces_of_their_texts_and_of_no_other() -> None:
    """The same for the same seed, whatever other texts, lengths and counts are asked for."""
    tokenizer, given = make_tokenizer(), [*texts(9, 6), "", "a", " "]

    def drawn(
        seed: int = 4,
        of: list[str] = given,
        lengths: tuple[int, ...] = (9,),
        count: int | None = None,
    ) -> Any:
        return draw(tokenizer, of, lengths, count=count, seed=seed)[-1]

    whole = drawn()
    assert drawn() == whole
    assert drawn(5).windows != whole.windows
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in given]
    for window in whole.windows:
        piece = ids[window.text][window.start : window.start + 8]
        assert window.ids == (tokenizer.bos_token_id, *piece)
        assert len(window.ids) == 9
    long_enough = [place for place, tokens in enumerate(ids) if len(tokens) >= 8]
    assert sorted(window.text for window in whole.windows) == long_enough
    assert whole.too_short == len(given) - len(long_enough)
    assert drawn(lengths=(8, 9), count=4).windows == whole.windows[:4]
    without = drawn(of=[*given[:3], "", *given[4:]])
    assert without.windows == tuple(window for window in whole.windows if window.text != 3)


def test_texts_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    given = ["one\ntwo", "déjà vu", "three"]
    (tmp_path / "x.jsonl").write_text(
        "\n".join(json.dumps({"text": text, "n": 1}) for text in given) + "\n\n"
    )
    pd.DataFrame({"text": given}).to_parquet(tmp_path / "x.parquet")
    (tmp_path / "x.txt").write_text("one\ntwo\n\n\ndéjà vu\n \nthree", encoding="utf-8")
    for name in ("x.jsonl", "x.parquet", "x.txt"):
        assert read_texts(tmp_path / name) == given
    assert read_texts(given) == given
    assert (
        len(
            {
                texts_hash(one)
                for one in (given, given[::-1], ["one\ntwodéjà vu", "three"], [*given, ""])
            }
        )
        == 4
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.jsonl", '{"text": "a"}\n{"txt": "b"}', "'text' in each line .* found KeyError"),
        ("x.jsonl", '{"text": 3}', "expected texts, found 3 at 0"),
        ("x.txt", "\n \n\n", "expected at least one text, found none"),
        ("x.parquet", "none", "found ArrowInvalid"),
        ("x.none", None, "found FileNotFoundError"),
    ],
)
def test_what_is_no_file_of_texts_is_refused(
    tmp_path: Path, name: str, content: Any, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=said):
        read_texts(tmp_path / name)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"measure": PAIRS, "dtypes": ["float64"]},
            "dtypes: expected ones that are held against float64",
        ),
        ({"measure": PAIRS, "lengths": [64]}, r"at most 63 tokens \(the context, less the token"),
        (
            {"mitigation": "separator:every=3"},
            "a mitigation of the forward pass, found separator, which rewrites",
        ),
        (
            {"mitigation": "sliding-window:window=12"},
            r"not change.*leave it out, or choose one that acts here",
        ),
        ({"dtypes": ["bfloat16"]}, "dtypes: expected none with measure 'sensitivity'"),
        (
            {"lengths": [64]},
            "expected a text of at least 63 tokens for windows of 64, found 3 texts, all shorter",
        ),
        ({"lengths": [65]}, r"at most 64 tokens \(the context\), found 65"),
        ({"lengths": [1]}, "expected room for text beside 1 special tokens, found 1"),
        ({"texts": []}, "expected at least one text"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    model: TransformerBridge, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        measured(model, **{"texts": texts(3, 6), "lengths": [8], **asked})


def test_an_edit_is_in_no_stored_cell(model: TransformerBridge, tmp_path: Path) -> None:
    with hooks.scale_scores(model, 0.0):
        with pytest.raises(
            InputError, match="expected a model without edits where cells are stored"
        ):
            measured(model, texts(3), lengths=[8], cells=tmp_path / "x")
        assert measured(model, texts(3), lengths=[8]).provenance.edits
    assert not (tmp_path / "x").exists()
