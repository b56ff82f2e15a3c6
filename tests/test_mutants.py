"""Planted errors: the survivors of `make mutants` are lines that are there, and a row of
docs/fidelity.md is worth what its tests see: with the contradiction planted, one of them fails.
"""

import subprocess
import sys

import pytest

from scripts import mutants
from scripts.contradictions import contradictions
from scripts.fidelity import rows
from scripts.mutants import ROOT


def test_the_table_of_survivors_is_of_lines_that_stand_in_the_files() -> None:
    for (path, was, _), why in mutants.triaged().items():
        assert why.startswith(("equivalent: ", "law: ")), (path, was)
        lines = [line.strip() for line in (ROOT / path).read_text("utf-8").splitlines()]
        assert was in lines or why.startswith("law: "), (path, was)


def test_every_row_has_its_contradiction_and_every_contradiction_its_row() -> None:
    assert {one.row for one in contradictions()} == {row.id for row in rows()}


def test_what_is_replaced_stands_in_its_file_once() -> None:
    for planted in contradictions():
        text = (ROOT / planted.path).read_text("utf-8")
        assert planted.planted(text) != text, planted.row


@pytest.mark.slow
def test_every_contradiction_is_caught() -> None:
    command = [sys.executable, "-m", "scripts.contradictions"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
