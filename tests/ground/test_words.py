"""Numbers in words, and errors of the disk."""

import math

from hypothesis import given
from hypothesis import strategies as some

from ostools.ground.errors import in_words
from ostools.ground.words import factor, number, runs


@given(some.sets(some.integers(0, 30)))
def test_runs_name_every_number_once_and_none_besides(numbers: set[int]) -> None:
    found: list[int] = []
    for part in filter(None, runs(sorted(numbers)).split(", ")):
        first, _, last = part.partition(" to ")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(numbers)


def test_numbers_are_written_short() -> None:
    texts = {
        0.0: "0",
        0.012345: "0.0123",
        1234.5: "1,234",
        999.6: "1,000",
        -0.5: "-0.5",
        1.5e-7: "1.5e-7",
        2e9: "2.0e9",
    }
    assert {value: number(value) for value in texts} == texts
    assert [number(value) for value in (math.nan, math.inf)] == ["unknown", "infinite"]
    powers = {0.30103: "2", 6.13: "10^6.1", -0.5: "0.316", math.inf: "infinitely many"}
    assert {log10: factor(log10) for log10 in powers} == powers


def test_an_error_of_the_disk_names_its_file_where_it_has_one() -> None:
    assert in_words(OSError(28, "No space left on device")) == "No space left on device"
    missing = FileNotFoundError(2, "No such file or directory", "sweep.yaml")
    assert in_words(missing) == "No such file or directory: sweep.yaml"
    assert in_words(OSError("not a file")) == "OSError: not a file"
