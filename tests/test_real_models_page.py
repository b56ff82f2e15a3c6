"""The page on real models: what is measured in two places stands on one page, as if it had been
measured in one.
"""

import json
from pathlib import Path
from typing import Any

from scripts.real_models_page import page

MODELS = ("a-model", "b-model", "large-1.5b")


def store(folder: Path, *names: str) -> Path:
    """Cells of these models; of `b-model` numbers of its own, and of the large one less."""
    for name in names:
        shift = 0.1 * MODELS.index(name)
        rank: dict[str, Any] = {"spearman": 0.5 + shift, "log10_size": 3.0}
        ranks = {"full": rank, "frozen": rank}
        forms = ("theorem-5.1",) if name == "large-1.5b" else ("theorem-5.1", "theorem-b5", "local")
        sketch = {} if name == "large-1.5b" else {"8": ranks}
        sensitivity = {
            "sketch": sketch,
            "forms": dict.fromkeys(forms, ranks),
            "frozen_for_full": rank,
        }
        effect = {
            "linearisation": "full",
            "effect": "kl",
            "kept": "without the first and the last",
            "spearman": shift,
        }
        cells: dict[str, Any] = {"use--facts-32": {"correlations": [effect]}}
        for number in range(3):
            covered = {} if name == "large-1.5b" else {"covered": {"full": 0.9, "frozen": 0.9}}
            cells[f"sensitivity--facts-{number}"] = sensitivity | covered
            cells[f"attention--facts-{number}"] = dict.fromkeys(
                ("mean", "rollout", "value-weighted", "alti"), ranks
            )
        (folder / name).mkdir(parents=True)
        for cell, values in cells.items():
            described = {"weights": name * 9, "model": name, "date": "2026-11-28"}
            (folder / name / f"{cell}.json").write_text(json.dumps(values | described))
    return folder


def test_models_that_are_measured_elsewhere_keep_their_lines(tmp_path: Path) -> None:
    together = page(store(tmp_path / "all", *MODELS), MODELS, "")
    for first in ("a-model", "b-model", "large-1.5b"):
        others = [name for name in MODELS if name != first]
        before = page(store(tmp_path / first, first), MODELS, "")
        assert page(store(tmp_path / f"not-{first}", *others), MODELS, before) == together
        assert before != together
    assert page(tmp_path / "nothing", MODELS, together) == together
    assert all(together.count(f"- **{name}: no.**") == 1 for name in MODELS)
