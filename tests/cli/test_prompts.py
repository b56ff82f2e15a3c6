"""Prompts of a command: several in one table, and token ids in place of a text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ostools as ost
from ostools.cli.running import parse_ids
from ostools.ground.errors import InputError
from tests.cli.asking import assert_refused


def test_the_prompt_that_does_not_fit_is_named_and_nothing_is_written(
    run, directory: str, tmp_path: Path
) -> None:
    asked = ["sensitivity", "--prompt", "a", "--prompt", "1" * 4000, "--model", directory]
    assert_refused(run(*asked, "--out", str(tmp_path / "x.csv")), "prompt 2 of 2 (")
    assert not list(tmp_path.iterdir())


def test_ids_are_read_from_the_line() -> None:
    assert parse_ids("2 40 50") == parse_ids("[2, 40, 50]\n") == parse_ids("2,40,50") == (2, 40, 50)
    for text in ("", "2,-1", "1.5", "٣", "\0"):
        with pytest.raises(InputError, match=r"--ids .*: expected token ids such as 2,40,50"):
            parse_ids(text)


def test_ids_in_place_of_a_prompt(run, directory: str) -> None:
    """The command's numbers are those of the text."""
    ids = ost.encode(ost.load_model(directory, device="cpu"), "The 11").ids.tolist()
    text, numbers = (
        run("bounds", *given, "--model", directory, "--variants", "local", "--json")[1]
        for given in (("--prompt", "The 11"), ("--ids", ",".join(map(str, ids))))
    )
    values = [[row["value"] for row in json.loads(found)["rows"]] for found in (text, numbers)]
    assert values[0] == values[1]
