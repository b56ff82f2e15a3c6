"""The trained laboratory's numbers: against the plain model's own hidden states, attention and
answers.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import ostools as ost
from ostools.results import Provenance
from studies.laboratory import trained_lab as trained_lab_module
from studies.laboratory.config import LabConfig, grid
from studies.laboratory.decoder import lab_decoder
from studies.laboratory.prompts import IDS, LabTask, lab_tokenizer
from studies.laboratory.summary import trained_summary
from studies.laboratory.trained_lab import COLUMNS, TrainedLab, measured_grid, trained_lab
from studies.laboratory.training import train_lab
from tests.studies.test_laboratory_training import TINY as ONE_LAYER

pytestmark = pytest.mark.slow
TINY = replace(ONE_LAYER, n_layers=2, longest=4, steps=10, batch=8, context=48)
CONFIGS = [TINY, replace(TINY, positions="alibi")]
PLAIN = {"n_layers": 4, "window": 0, "sinks": 0, "norm": "pre", "trained_in": "float32"}
SMALL = {"COLLAPSE_LENGTHS": range(1, 6), "KEPT_LENGTHS": (1, 3, 5), "ANSWER_LENGTHS": (2, 6)}
SMALL |= {
    "SENSITIVITY_LENGTHS": (3,),
    "PROBE_LENGTHS": (2, 3, 4, 5, 6),
    "PROMPTS": 6,
    "WINDOWS": (2,),
    "BASE": TINY,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    where = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(trained_lab_module, name, value)
        for config in CONFIGS:
            train_lab(config, where / "models" / config.name)
        measured_grid(where, CONFIGS)
        yield where


@pytest.fixture(scope="module")
def result(folder: Path) -> TrainedLab:
    return measured_grid(folder, CONFIGS)


def _plain(folder: Path, config: LabConfig) -> Any:
    model = lab_decoder(config, "eager").eval()
    model.load_state_dict(load_file(folder / "models" / config.name / "model.safetensors"))
    return model.double()


def _rows(result: TrainedLab, quantity: str, **wanted: Any) -> Any:
    frame: Any = result.frame[result.frame["quantity"] == quantity]
    for name, value in ({"weights": "trained", "forced": False} | wanted).items():
        frame = frame[frame[name] == value]
    return frame


def _ones(n: int) -> torch.Tensor:
    return torch.tensor([[IDS["<bos>"]] + [IDS["1"]] * n])


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.encoding)
def test_distances_and_variation_are_those_of_the_plain_model(
    folder: Path, result: TrainedLab, config: LabConfig
) -> None:
    model = _plain(folder, config)
    here = {"encoding": config.encoding}
    distances = _rows(result, "distance", **here).set_index("length")["value"]
    variations = _rows(result, "total_variation", layer=1, **here).set_index("length")["value"]
    assert list(distances.index) == list(variations.index) == [1, 3, 5]
    for n in (1, 3, 5):
        with torch.no_grad():
            short, long = (
                model.model(_ones(count), use_cache=False, output_attentions=True)
                for count in (n, n + 1)
            )
        distance = (short.last_hidden_state[0, -1] - long.last_hidden_state[0, -1]).norm()
        assert distances[n] == pytest.approx(float(distance), rel=1e-4)
        row, longer = short.attentions[-1][0, :, -1], long.attentions[-1][0, :, -1]
        variation = ((longer[:, :-1] - row).abs().sum(-1) + longer[:, -1]).mean()
        assert variations[n] == pytest.approx(float(variation), rel=1e-4)


@pytest.mark.parametrize("question", ["first", "count"])
def test_accuracy_is_that_of_the_greedy_answers(
    folder: Path, result: TrainedLab, question: str
) -> None:
    model, tokenizer = _plain(folder, TINY).float(), lab_tokenizer(TINY.context)
    form, asked = LabTask(question), {"task": f"lab-{question}", "precision": "float32"}
    rows = _rows(result, "accuracy", encoding=TINY.encoding, **asked)
    for length in (2, 6):
        right = 0
        for seed in range(6):
            ids = tokenizer(form.prompt(length, seed), return_tensors="pt").input_ids
            how = {"do_sample": False, "max_new_tokens": 4, "eos_token_id": IDS["<eos>"]}
            how |= {"attention_mask": torch.ones_like(ids), "pad_token_id": IDS["<pad>"]}
            written = model.generate(ids, **how)[0, ids.shape[1] :].tolist()
            end = written.index(IDS["<eos>"]) if IDS["<eos>"] in written else len(written)
            text = str(tokenizer.decode(written[:end])).replace(" ", "")
            right += text == form.answer(length, seed)
        found = rows[rows["length"] == length].iloc[0]
        assert (found["value"], found["asked"]) == (pytest.approx(right / 6), 6)
        assert found["seen"] == (length <= TINY.longest)


def test_the_summary_finds_planted_laws() -> None:
    lengths = np.array([16, 32, 64, 128, 256])
    curve = {
        **PLAIN,
        "forced": False,
        "weights": "trained",
        "precision": "float64",
        "asked": pd.NA,
        "encoding": "none",
        "quantity": "distance",
        "task": "ones",
        "layer": pd.NA,
        "length": lengths,
        "seen": lengths <= 32,
    }
    start = {"quantity": "collapse_length", "precision": "bfloat16", "length": [256]}
    planted: list[dict[str, Any]] = [
        *(
            {"seed": seed, "value": 5.0 * lengths**-rate}
            for seed, rate in enumerate((0.5, 1.0, 1.5))
        ),
        *(
            {**start, "seen": False, "seed": seed, "value": value}
            for seed, value in enumerate((40.0, np.nan, 90.0))
        ),
        {
            "quantity": "accuracy",
            "precision": "float32",
            "task": "lab-first",
            "seed": 0,
            "asked": 10,
            "value": [1.0, 0.5, 0.5, 0.0, 0.1],
        },
    ]
    frame: Any = pd.concat([pd.DataFrame(curve | part) for part in planted])[list(COLUMNS)]
    (row,) = trained_summary(TrainedLab(frame, Provenance.without_model())).to_dict("records")
    assert row["rate"] == pytest.approx(1.0)
    assert row["rate_high"] - row["rate"] == pytest.approx(4.302653 * 0.5 / 3**0.5, rel=1e-5)
    starts = [row[f"collapse_{what}"] for what in ("reached", "first", "last")]
    assert (row["seeds"], *starts) == (3, 2, 40, 90)
    assert (row["first_seen"], row["first_unseen"]) == (0.75, pytest.approx(0.2))
    assert np.isnan([row["first_seen_low"], row["last_seen"]]).all()


def test_a_table_comes_back_as_it_was_saved_and_nothing_is_measured_twice(
    folder: Path, result: TrainedLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained_lab_module, "measured_cell", None)
    measured_grid(folder, CONFIGS)
    again = trained_lab(result.save(tmp_path / "lab.parquet"))
    pd.testing.assert_frame_equal(again.frame, result.frame)
    assert len(again.provenance.parameters["cells"][TINY.name]["weight_hash"]) == 32
    (tmp_path / "lab.parquet").write_bytes(b"no table")
    with pytest.raises(ost.InputError, match="expected the table of the trained laboratory"):
        trained_lab(tmp_path / "lab.parquet")


def test_the_stored_table_is_of_the_whole_grid_and_says_what_the_page_says() -> None:
    """Figures of docs/findings/laboratory.md."""
    stored = trained_lab()
    cells = stored.provenance.parameters["cells"]
    assert list(cells) == [config.name for config in grid()]
    names = ("positions", "n_layers", "window", "sinks", "norm", "dtype", "seed")
    for config in grid():
        there = cells[config.name]["config"]
        assert [there[name] for name in names] == [getattr(config, name) for name in names]
    table = trained_summary(stored)
    plain = (table[[*PLAIN, "forced"]] == [*PLAIN.values(), False]).all(axis=1)
    rows = table[plain].set_index(["encoding", "weights"])
    for encoding, rates in RATES.items():
        found = [rows.loc[(encoding, weights), "rate"] for weights in ("untrained", "trained")]
        assert found == pytest.approx(rates, abs=0.005)
    assert tuple(rows.loc[("alibi", "trained"), ["collapse_first", "collapse_last"]]) == (50, 104)
    assert rows.loc[("none", "trained"), "count_unseen"] == pytest.approx(0.11, abs=0.005)


RATES = {
    "none": [1.48, 1.97],
    "alibi": [1.99, 2.46],
    "rope-10000": [0.96, 0.24],
    "learned": [0.03, 0.06],
}
