"""The script of docs/findings/behaviour.md: its tables of planted cells, and its states of the
embedded model.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ostools as ost
from ostools import tasks
from ostools.measure.answers.result import COLUMNS, Evaluation
from ostools.results import Provenance, frame_of
from scripts.behaviour import cells, collapse, figure, page, states
from scripts.behaviour import store as store_of_cells

POSITIONS = ("answer", "prompt-end", "last-item")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(store_of_cells, "STORE", tmp_path)
    return tmp_path


def plant(
    name: str, answered: Mapping[tuple[int, int], int | None], mitigation: str = "none"
) -> None:
    """Answers of a cell, by length and seed."""
    task = cells.CELLS[name].task
    form, rows = tasks.task(task), []
    for (length, seed), number in answered.items():
        key = int(form.answer(length, seed))
        known = {
            "task": task,
            "mode": "none",
            "elicitation": "chat",
            "mitigation": mitigation,
            "status": "none" if mitigation == "none" else "active",
            "length": length,
            "seed": seed,
            "tokens": 9,
            "key": str(key),
            "answer": str(number),
            "text": str(number),
            "ended": "eos",
            "kind": "something else" if number is None else "answered",
            "correct": number == key,
            "number": number,
            "absolute_error": None if number is None else abs(number - key),
            "content": "",
            "log_probability": float("nan"),
        }
        rows.append(dict.fromkeys(COLUMNS, pd.NA) | known)
    frame: Any = pd.DataFrame(rows)[list(COLUMNS)].astype(COLUMNS)
    provenance = Provenance.without_model(measurement="evaluate", temperature=0.0)
    Evaluation(frame, provenance).save(store_of_cells.path_of(name))


def plant_states(name: str, distances: Mapping[Any, float], noise: float = 2.0) -> None:
    """States of a cell without drawn sequences, a distance a length: those above 5 are written
    right by float32.
    """
    rows = []
    for length, distance in distances.items():
        far = distance > 5
        row = {
            "length": length,
            "seed": 0,
            "key": length,
            "next_key": length + 1,
            "asked": True,
            "form": True,
            "correct": None,
            "number": None,
            "given_bfloat16": True,
            "given_float32": far,
            "right_bfloat16": far,
            "right_float32": far,
            "log_p_bfloat16": -length / 2,
            "log_p_float32": -length / 2 - 0.25,
        }
        for place in states.PLACES:
            row |= {
                f"norm_{place}": 100.0,
                f"distance_{place}": distance,
                f"noise_{place}": noise,
                f"distance_said_{place}": None if far else 3 * distance,
                f"noise_said_{place}": noise,
                f"next_{place}_bfloat16": place,
            }
        rows.append(row)
    store_of_cells.store(f"{name}-states", pd.DataFrame(rows))


def cells_of(table: Any) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in list(table)[2:]]


def test_singles_are_told_in_runs_and_a_cell_that_continues_one_is_read_with_it(
    store: Path,
) -> None:
    plant("ones", {(3, 0): 3, (4, 0): 4, (8, 0): 10, (9, 0): 10, (12, 0): 10, (64, 0): None})
    plant("ones-rest", {(2, 0): 2, (10, 0): 10, (5, 0): 6})
    (cells,) = cells_of(page.singles_table())
    assert cells == ["ones in a row", "9", "2, 3, 4, 10", "6 (5), 10 (8 to 12), no number (64)"]
    (cells,) = cells_of(page.favourites_table())
    assert cells[:3] == ["ones in a row", "4", "10 (3), 6 (1)"]


def test_a_mitigation_is_held_against_the_same_questions(store: Path) -> None:
    form = tasks.task(cells.BITS)
    right = {(n, seed): int(form.answer(n, seed)) for n in (4, 8, 10) for seed in range(12)}
    base = {
        key: number + (key[0] == 10) + (key[0] == 8 and key[1] < 5) for key, number in right.items()
    }
    plant("bits", base)
    assert cells.middle(store_of_cells.answers("bits")) == (
        4,
        8,
    )  # 7 of 12, then all and none, as near
    helped = {key: right[key] + (key[0] == 4 and key[1] < 2) for key in right if key[0] in (4, 8)}
    plant("bits-hint", helped, "hint")
    none, hint = cells_of(page.mitigations_table())
    assert none[:3] == ["bits, p 0.7, 4 and 8 items", "none", "19 of 24 [60%, 91%]"]
    assert hint[:5] == [
        "bits, p 0.7, 4 and 8 items",
        "`hint`",
        "22 of 24 [74%, 98%]",
        "2",
        "5",
    ]
    assert hint[5].startswith("+12 [")
    assert hint[6] == "not decided"


def test_tables_of_planted_distances(store: Path) -> None:
    """Right where the distance is large: the ratio separates perfectly. That errors begin with the
    hidden pairs is one step among ten lengths: undecided.
    """
    distances = dict(
        zip(
            (3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
            (9.0, 8.0, 8.0, 7.0, 6.0, 1.0, 1.0, 1.0, 1.5, 1.0),
            strict=True,
        )
    )
    plant("ones", {(n, 0): n if distance > 5 else 20 for n, distance in distances.items()})
    plant_states("ones", distances)
    (answer, *_) = cells_of(collapse.positions_table())
    assert answer == [
        "ones in a row",
        "“answer”",
        "`answer` (10)",
        "10",
        "5",
        "1.9",
        "0.5 (8)",
    ]
    twelve = ["ones in a row", "12", "20 (wrong)", "0.5", "0.5", "0.5", "0.5", "-6.00"]
    assert twelve in cells_of(collapse.pairs_table())
    (said,) = cells_of(collapse.said_table())
    assert said == ["ones in a row", "20", "8 to 12 (5)", "1.5 to 2.2", "1.5 to 2.2"]
    (precision,) = cells_of(collapse.precision_table())
    assert precision == ["ones in a row", "10", "5", "5", "5", "0.25, 0.25"]
    rows = {cells[1]: cells[2:] for cells in cells_of(collapse.separation_table())}
    assert rows["distance / noise, “answer”"] == ["1.00 [0.64, 1.00]", "–"]
    verdict, _ = cells_of(collapse.verdict_table())
    assert verdict == ["ones in a row", "“answer”", "5", "0", "undecided"]


@pytest.mark.slow
def test_states_of_a_model_are_those_of_its_own_passes(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, exact = (3, 4, 5, 6, 7, 8, 300), (4, 5, 6, 7, 8, 9, 10, 11)
    monkeypatch.setattr(cells, "CHAT", "zero-shot")
    planted = {
        "ones": cells.Asked(cells.ONES, lengths),
        "ones-states": partial(states.measure, asked=("ones",), exact=exact),
        "ones-probe": partial(states.probe, kept=("ones-states",), is_random=False),
    }
    monkeypatch.setattr(cells, "CELLS", planted)
    model = ost.load_model("embedded", dtype="bfloat16")
    cells.measure(model, store / "states", 75)
    rows: Any = collapse.stored("ones-states").set_index("length")
    assert sorted(rows.index) == sorted({*lengths, *exact, 12})
    answered: Any = frame_of(store_of_cells.answers("ones")).set_index("length")
    right = rows.loc[list(lengths), "right_bfloat16"].tolist()
    assert answered["correct"].tolist() == right == [True] * 6 + [False]
    assert rows.loc[list(lengths), "given_bfloat16"].all()
    for position in POSITIONS:
        curve: Any = frame_of(
            ost.collapse(model, cells.ONES, lengths=exact, dtypes=["bfloat16"], position=position)
        )
        following = curve.query("site == 'logits' and norm == 'l2'").set_index("length")[
            "next_token"
        ]
        curve = curve.query("site == 'y' and per == 'vector' and norm == 'l2'").set_index("length")
        own = rows.loc[list(exact)]
        assert own[f"distance_{position}"].tolist() == pytest.approx(
            curve["float64_distance"].tolist(), rel=1e-4
        )
        assert own[f"noise_{position}"].tolist() == pytest.approx(
            curve["pair_noise"].tolist(), rel=0.05
        )
        assert own[f"next_{position}_bfloat16"].tolist() == following.tolist()
    answers_part = rows["distance_answer"] == rows["distance_parting"]
    assert (
        answers_part[list(exact)].tolist() == [True] * 6 + [False] * 2
    )  # 10 and 11, 11 and 12 both begin with 1
    cells.measure(model, store / "states", 75)  # nothing is left to do
    figure.draw_figure(store / "figure.png")
    assert (store / "figure.png").read_bytes()[1:4] == b"PNG"
    assert set(collapse.stored("ones-probe")["site"]) == {*POSITIONS, "length"}
