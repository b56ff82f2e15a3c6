"""Key-value retrieval: the prompt of Liu et al. from their own records, and a sweep that moves
nothing but the wanted pair.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools.ground.errors import InputError
from ostools.mitigations import Separator, insert
from ostools.tasks.retrieve import RetrieveTask

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "kv_retrieval_75_keys_20.jsonl"
needs_real = pytest.mark.skipif(not REAL.is_file(), reason=f"the real records are not at {REAL}")


def published_prompt(records: list[list[str]], key: str) -> str:
    """The prompt as Liu et al. describe it, written out once more on its own."""
    lines = ",\n ".join(f'"{name}": "{value}"' for name, value in records)
    request = "Extract the value corresponding to the specified key in the JSON object below."
    return f'{request}\n\nJSON data:\n{{{lines}}}\n\nKey: "{key}"\nCorresponding value:'


@needs_real
@pytest.mark.parametrize("line", [0, 19])
def test_the_real_records_give_the_published_prompt(line: int) -> None:
    found = json.loads(REAL.read_text().splitlines()[line])
    records, key = found["ordered_kv_records"], found["key"]
    at = [name for name, _ in records].index(key)
    task = RetrieveTask(position=at, records=str(REAL))
    assert task.prompt(75, seed=line) == published_prompt(records, key)
    assert task.answer(75, seed=line) == found["value"]
    assert task.carriers(task.items(75, line)) == (at,)
    moved = RetrieveTask(position="first", records=str(REAL))
    others = [record for record in records if record[0] != key]
    assert moved.prompt(75, line) == published_prompt([[key, found["value"]], *others], key)


DRAWN: dict[str, Any] = {
    "seed": st.integers(0, 2**40),
    "records": st.sampled_from(["uuid", "words"]),
}


@given(length=st.integers(1, 60), share=st.floats(0, 1), **DRAWN)
def test_the_object_is_json_and_holds_the_answer_at_the_asked_place(
    length: int, seed: int, records: str, share: float
) -> None:
    task = RetrieveTask(position=share, records=records)
    before, text, after = task.parts(task.items(length, seed))
    pairs = list(json.loads(text).items())
    assert len(pairs) == length == len(text.splitlines())
    (index,) = task.carriers(task.items(length, seed))
    assert pairs == task.pairs(task.items(length, seed))
    name, value = pairs[index]
    assert task.answer(length, seed) == value
    assert after == f'\n\nKey: "{name}"\nCorresponding value:'
    assert task.prompt(length, seed) == before + text + after
    assert task.answer_line(value) == f'"{value}"'


def test_only_the_wanted_record_moves() -> None:
    swept = [RetrieveTask(position=place, records="uuid").items(9, seed=3) for place in range(9)]
    wanted = swept[0][0]
    for place, items in enumerate(swept):
        assert items.index(wanted) == place
        assert [item for item in items if item != wanted] == list(swept[0][1:])
    assert RetrieveTask(position=0, records="uuid").items(9, seed=4)[0] != wanted


@given(length=st.integers(1, 30), **DRAWN)
def test_a_drawn_place_is_found_again_in_any_order_of_the_records(
    length: int, seed: int, records: str
) -> None:
    drawn = RetrieveTask(position="drawn", records=records)
    items = drawn.items(length, seed)
    (place,) = drawn.carriers(items)
    assert items == RetrieveTask(position=place, records=records).items(length, seed)
    assert drawn.carriers(items[::-1]) == (place,)
    assert drawn.key(items) == drawn.pairs(items)[place][1]
    assert drawn.key([items[0], "\n", *items[1:]] if length > 1 else items) == drawn.key(items)


def test_a_file_with_more_records_gives_the_first_others(tmp_path: Path) -> None:
    pairs = [[f"k{number}", f"v{number}"] for number in range(5)]
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps({"key": "k3", "value": "v3", "ordered_kv_records": pairs}) + "\n")
    task = RetrieveTask(records=str(file))
    assert sorted(task.pairs(task.items(3))) == [("k0", "v0"), ("k1", "v1"), ("k3", "v3")]
    pairs = [['say "hi"', "back\\slash"], ["ümlaut", "line\nend"]]
    file.write_text(
        json.dumps({"ordered_kv_records": pairs, "key": "ümlaut", "value": "line\nend"})
    )
    task = RetrieveTask(records=str(file), position="last")
    assert json.loads(task.parts(task.items(2))[1]) == dict(pairs)
    assert (task.answer(2), 'Key: "ümlaut"' in task.prompt(2)) == ("line\nend", True)


def test_a_blank_separator_stands_between_records_and_another_is_refused() -> None:
    task = RetrieveTask(position="last")
    items = task.items(7)
    pieces = insert(Separator(every=3, text="\n"), items, task.key)
    assert json.loads(task.sequence(pieces)) == json.loads(task.sequence(items))
    assert task.sequence(pieces).count(",\n\n ") == 2
    assert task.key(pieces) == task.answer(7)
    assert task.parts(pieces)[2] == task.parts(items)[2]
    with pytest.raises(
        InputError, match="',' among the records breaks the JSON object; only blank text can stand"
    ):
        task.sequence(insert(Separator(every=3), items, task.key))
    with pytest.raises(InputError, match="breaks the JSON object"):
        task.sequence(["\n", *items])


@pytest.mark.parametrize(
    ("options", "length", "words"),
    [
        (
            {"position": "lst"},
            1,
            "expected first, middle, last, drawn, an index from 0, or a fraction from 0.0 to 1.0, found 'lst'",
        ),
        ({"position": -1}, 1, "an index from 0, or .* found -1"),
        ({"position": 1.5}, 1, "a fraction from 0.0 to 1.0, found 1.5"),
        ({"records": "uuids"}, 1, "expected uuid or words, or a file, found 'uuids'"),
        ({}, 0, "length: expected a whole number of at least 1"),
        ({"position": 5}, 5, "position 5: expected an index below 5"),
        ({}, 257, "at most 256 of them, found 257; use 'uuid'"),
    ],
)
def test_what_is_no_option_or_no_length(options: dict[str, Any], length: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        RetrieveTask(**options).items(length)
    assert len(set(RetrieveTask().items(256))) == 256


@pytest.mark.parametrize(
    "line",
    [
        '{"ordered_kv_records": [], "key": "a", "value": "b"}',
        '{"ordered_kv_records": [["a", "b"], ["a", "c"]], "key": "a", "value": "b"}',
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "records.jsonl").write_text(line + "\n")
    with pytest.raises(
        InputError, match=r"line 0 of .*expected a JSON object with different ordered_kv_records"
    ):
        RetrieveTask(records=str(tmp_path / "records.jsonl")).items(1)
