"""A sweep over texts: its windows, and that its numbers are those of each window alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostools as ost
from ostools.measure.swept import Text
from ostools.mitigations.registry import LOADED
from ostools.sweep import over_texts, results, run, sweep_of
from ostools.sweep.cells import keyed
from ostools.sweep.sweep_file import cells_of, read_texts
from ostools.theory.profiles import binned
from tests.checkpoints import refused, tiny_model

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "it",
    "rains",
]


def texts(count: int, words: int = 24) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, words)) for _ in range(count)]


def swept(written: Path, directory: Path, measurements: Any, **changes: Any) -> Any:
    asked = {"models": str(written), "texts": texts(3), "lengths": 12}
    return run(sweep_of({**asked, "measurements": measurements, **changes}), directory)


def test_a_window_is_a_piece_of_its_text_drawn_by_seed_id_and_length_alone() -> None:
    model = tiny_model("llama", seed=1, context=64)
    text = texts(1)[0]
    body = model.tokenizer(text, add_special_tokens=False).input_ids
    drawn: Any = Text("3", 0, text).window(model, 9, 4)
    start, ids = drawn
    assert ids == (model.tokenizer.bos_token_id, *body[start : start + 8])
    assert Text("3", 7, text).window(model, 9, 4) == drawn
    # As earlier clones drew it, whose figures stand in docs/findings.
    assert start == int(np.random.default_rng((4, 3, 9)).integers(0, len(body) - 8, endpoint=True))
    starts = [
        Text(name, 0, text).window(model, 9, seed) for name, seed in (("4", 4), ("3", 5), ("b", 4))
    ]
    assert len({drawn, *starts}) == 4
    assert Text("3", 0, text).window(model, len(body) + 2, 4) is None
    with pytest.raises(
        ost.InputError, match="expected room for text beside 1 special tokens, found 1"
    ):
        Text("3", 0, text).window(model, 1, 4)


def test_the_profiles_of_texts_are_those_of_their_windows_alone(
    written: Path, tmp_path: Path
) -> None:
    """Under a mitigation of the pass too; an estimate has directions of its own for each text."""
    sketch = {"name": "sensitivity", "linearisations": "full", "method": "sketch"}
    mitigation = "sliding-window:window=4"
    done = swept(
        written, tmp_path, ["sensitivity", sketch], mitigations=["none", mitigation], seeds=2
    )
    assert (done.measured, done.failed) == (12, ())
    table: Any = results(tmp_path)
    assert table["task"].unique().tolist() == ["text"]
    model = ost.load_model(written)
    for (name, options, text), rows in table.groupby(["mitigation", "options", "text"]):
        how = json.loads(options)
        kept = {key: how[key] for key in ("linearisations", "method")}
        prompt = ost.Prompt.from_ids(model, rows["token_id"].tolist()[:12])
        acting = None if name == "none" else name
        alone: Any = ost.sensitivity(model, prompt, mitigation=acting, seed=2 + int(text), **kept)
        assert rows["frobenius_norm"].tolist() == alone.frame["frobenius_norm"].tolist()
    one = table["options"].iloc[-1]
    norms = over_texts(tmp_path, "sensitivity", mitigation="none", options=one)
    mean: Any = norms.over_position(bins=4)  # pyright: ignore[reportAttributeAccessIssue]
    of_sketch = table[(table["mitigation"] == "none") & (table["options"] == one)]
    values = of_sketch["frobenius_norm"].to_numpy(float).reshape(3, 12)
    shares = binned(values / values.sum(1, keepdims=True), 4)
    np.testing.assert_allclose(mean["mean"], shares.mean(0))
    refused("expected rows of one mitigation, found 2", over_texts, tmp_path, "sensitivity")


def test_each_text_says_what_its_own_call_does(written: Path, tmp_path: Path) -> None:
    """Also where its cell has another length, and the sweep other options."""
    options: Any = [{"method": "exact"}, {"method": "sketch", "linearisations": "full"}]
    measurements = [{"name": "sensitivity", **one} for one in options]
    assert swept(written, tmp_path, measurements, lengths=[9, 12]).failed == ()
    model, asked = ost.load_model(written), results(tmp_path)["options"].unique()
    for one, how in zip(asked, options, strict=True):
        together: Any = over_texts(tmp_path, "sensitivity", length=9, options=one)
        assert together.provenance.parameters["method"] == how["method"]
        for seed, result in enumerate(together):
            ids = result.frame.drop_duplicates("position")["token_id"].tolist()
            own = ost.sensitivity(model, ost.Prompt.from_ids(model, ids), seed=seed, **how)
            assert result.findings() == own.findings()
    refused(
        "expected rows of one length, found 2", over_texts, tmp_path, "sensitivity", options=one
    )


def test_the_pair_of_a_text_is_the_collapse_of_its_window_and_each_text_a_seed(
    written: Path, tmp_path: Path
) -> None:
    """A text that is too short for a length has no row of it; one too short for all has failed."""
    given = [*texts(2), "ab cd ef gh", "a"]
    pairs = {"name": "collapse", "dtypes": ["float32", "bfloat16"]}
    told: list[str] = []
    asked = {"models": str(written), "texts": given, "lengths": [8, 20], "measurements": pairs}
    done = run(sweep_of(asked), tmp_path, say=told.append)
    assert done.measured == 6
    short = [line for line in told if line.endswith("the text is too short for [20] tokens")]
    assert [line.split(" on ")[0] for line in short] == ["collapse of text 2"] * 2
    assert [line.partition(": ")[2] for line in done.failed] == [
        "InputError: expected a text of at least 8 tokens, found fewer"
    ] * 2
    table: Any = results(tmp_path)
    assert table.groupby("text")["length"].unique().map(list).tolist() == [[8, 20], [8, 20], [8]]
    model = ost.load_model(written)
    columns = ["mean", "float64_distance", "noise", "pair_noise", "weight_shift"]
    for (number, length, dtype), rows in table.groupby(["text", "length", "dtype"]):
        window: Any = Text(number, 0, given[int(number)]).window(model, int(length), 0)
        alone: Any = ost.collapse(
            model, ost.tasks.RepeatedIds(window[1]), lengths=[1], dtypes=[dtype]
        ).frame
        assert rows["start"].unique().tolist() == [window[0]]
        order = ["site", "per", "norm"]
        mine, theirs = (
            part.sort_values(order, ignore_index=True)[columns] for part in (rows, alone)
        )
        np.testing.assert_array_equal(mine, theirs)
    together: Any = over_texts(tmp_path, "collapse", dtype="bfloat16")
    summary = together.summary
    assert summary.groupby("length")["seed"].nunique().tolist() == [3, 2]
    assert summary["hidden"].notna().all()


def test_texts_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    given = ["one\ntwo", "déjà vu", "three"]
    lines = [{"text": text, "id": f"n{index}"} for index, text in enumerate(given)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    (tmp_path / "x.txt").write_text("one\ntwo\n\n\ndéjà vu\n \nthree", encoding="utf-8")
    for name, ids in (("x.jsonl", ["n0", "n1", "n2"]), ("x.txt", ["0", "1", "2"])):
        assert [(text.id, text.number, text.text) for text in read_texts(str(tmp_path / name))] == [
            *zip(ids, range(3), given, strict=True)
        ]
    assert read_texts(given) == read_texts(str(tmp_path / "x.txt"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"texts": "none.txt"}, ": No such file"),
        ({"texts": [3]}, "expected texts, found 3 at 0"),
        ({"texts": [{"id": 1, "text": "a"}, {"id": "1", "text": "b"}]}, "found '1' twice"),
        ({"measurements": "evaluate"}, "texts: expected another measurement, found evaluate"),
        ({"mitigations": "hint"}, "expected a mitigation of the forward pass, found hint"),
    ],
)
def test_what_cannot_be_asked_of_texts_is_refused(change: dict[str, Any], said: str) -> None:
    asked = {"texts": ["a b c"], "lengths": 3, "measurements": "sensitivity"}
    refused(said, sweep_of, {**asked, **change})
    with pytest.raises(ost.InputError, match="expected tasks or texts, found neither"):
        sweep_of({"lengths": 3, "measurements": "sensitivity"})


def test_a_mitigation_that_changes_no_logit_fails_its_cell(written: Path, tmp_path: Path) -> None:
    done = swept(written, tmp_path, "sensitivity", mitigations="sliding-window:window=64")
    assert done.measured == 0
    assert "does not change" in done.failed[0]


MINE = """
from ostools import hooks
from ostools.mitigations import Mitigation


class Flat(Mitigation):
    name = "flat"

    def hooks(self, model):
        return hooks.scale_scores(model, {factor})
"""


def test_a_mitigation_of_a_file_of_ones_own_is_measured_where_it_was_typed(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And another one when the file changes, or one that it imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("mine.py").write_text(MINE.format(factor=0.0))
    asked = {"models": str(written), "texts": texts(1), "lengths": 8, "measurements": "sensitivity"}
    sweep = sweep_of(asked, mitigations=["./mine.py:Flat"])
    keys = [keyed(cell, "a", "cpu").key for cell in cells_of(sweep)]
    assert run(sweep, "out").failed == ()
    table: Any = results("out")
    norms = {name: rows["frobenius_norm"].tolist() for name, rows in table.groupby("mitigation")}
    assert list(norms) == ["./mine.py:Flat", "none"]
    assert norms["none"] != norms["./mine.py:Flat"]
    Path("mine.py").write_text(MINE.format(factor=0.5))
    again = [keyed(cell, "a", "cpu").key for cell in cells_of(sweep)]
    assert (again[0] == keys[0], again[1] == keys[1]) == (True, False)
    Path("mine.py").write_text(f"import own_helper\n{MINE.format(factor=0.5)}")
    Path("own_helper.py").write_text("")
    third = keyed(cells_of(sweep)[1], "a", "cpu").key
    Path("own_helper.py").write_text("FACTOR = 1")
    LOADED.clear()  # as in another process
    assert len({keys[1], again[1], third, keyed(cells_of(sweep)[1], "a", "cpu").key}) == 4
    with pytest.raises(
        (ost.InputError, ost.mitigations.MitigationError), match="is code in a file"
    ):
        sweep_of({**asked, "mitigations": "./mine.py:Flat"})
    refused("_typed", sweep_of, {**asked, "_typed": ["./mine.py:Flat"]})
    with pytest.raises(ost.InputError, match="expected one that a text makes"):
        sweep_of(asked, mitigations=[type("Odd", (ost.mitigations.Mitigation,), {"name": "odd"})()])
