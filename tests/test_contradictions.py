"""A row of docs/fidelity.md is worth what its test sees: with the contradiction planted, the test that the row names fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.contradictions import CONTRADICTIONS, Contradiction, is_caught, run_test
from scripts.mutants import copied_tree
from tests.test_fidelity import rows


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied_tree(tmp_path_factory.mktemp("contradictions"))


def test_every_contradiction_names_the_test_of_a_row() -> None:
    named = " ".join(row.test for row in rows())
    assert [one.name for one in CONTRADICTIONS if f"`{one.test}`" not in named] == []


@pytest.mark.slow
def test_without_a_contradiction_the_tests_pass(tree: Path) -> None:
    assert {test: run_test(test, tree) for test in {one.test for one in CONTRADICTIONS}} == {
        one.test: 0 for one in CONTRADICTIONS
    }


@pytest.mark.slow
@pytest.mark.parametrize("contradiction", CONTRADICTIONS, ids=lambda one: one.name)
def test_the_named_test_fails(contradiction: Contradiction, tree: Path) -> None:
    assert is_caught(contradiction, tree)
