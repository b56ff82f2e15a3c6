"""Pairs on token ids: the proof, tokenizers that merge, and Figure 5's prompts word for word."""

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools import tasks
from ostools.ground.errors import InputError
from ostools.tasks import AppendixTask, Pair, theorem_pair
from ostools.tasks.pairs import FIGURE_5, repeats_last


@dataclass(frozen=True)
class Characters:
    """A tokenizer by hand: one token a character, except the `merges`, taken greedily, longest
    first.
    """

    merges: tuple[str, ...] = ()

    def ids(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        pieces = sorted(self.merges, key=len, reverse=True)
        pattern = re.compile("|".join([*map(re.escape, pieces), "."]), re.DOTALL)
        return [(0, *(self._id(token) for token in pattern.findall(text))) for text in texts]

    def _id(self, token: str) -> int:
        return ord(token) if len(token) == 1 else 1_000_000 + self.merges.index(token)

    def token(self, index: int) -> str:
        return chr(index) if index < 1_000_000 else self.merges[index - 1_000_000]


def decoded(encoder: Characters, ids: Sequence[int]) -> str:
    return "".join(encoder.token(index) for index in ids[1:])


ONES = "How many ones are in the following sequences?"
COPY = "Can you copy the following number?"


def test_the_prompts_word_for_word() -> None:
    assert tasks.figure_5a().text(4) == ONES + "1111"
    assert tasks.figure_5c().text(7) == COPY + "1111111"
    of_d = [COPY + digits for digits in ("11", "111", "111,1", "111,111,1")]
    assert [tasks.figure_5d().text(n) for n in (2, 3, 4, 7)] == of_d


@given(length=st.integers(1, 60), seed=st.integers(0, 20))
@pytest.mark.parametrize("items", ["text", "ids"])
def test_figure_5b_compares_a_single_one_with_two_in_every_seed(
    items: tasks.ItemsAs, length: int, seed: int
) -> None:
    (pair,) = tasks.figure_5b(items).pairs(Characters(), [length], seed)
    v, v_star = (decoded(Characters(), ids).removeprefix(ONES) for ids in (pair.ids, pair.extended))
    assert (len(v), len(v_star)) == (length, length + 1)
    assert v.isdigit()
    assert (len(v) - len(v.rstrip("1")), len(v_star) - len(v_star.rstrip("1"))) == (1, 2)
    # One of the two is the sequence of the question itself, which ends in one or two ones by its
    # seed.
    form = AppendixTask("count-ones-figure-5", uniform=True)
    assert {v, v_star} & {"".join(form.items(n, seed)) for n in (length, length + 1)}


def test_figure_5b_draws_every_digit_and_before_the_one_every_other() -> None:
    texts = [tasks.figure_5b().text(100, seed).removeprefix(ONES) for seed in range(200)]
    body = "".join(text[:-2] for text in texts)
    counts = [body.count(digit) / len(body) for digit in "0123456789"]
    assert all(0.09 < share < 0.11 for share in counts)
    before = [text[-2] for text in texts]
    assert all(0.03 < before.count(digit) / len(before) < 0.2 for digit in "023456789")


@pytest.mark.parametrize("name", tasks.FIGURE_5)
@pytest.mark.parametrize("items", ["text", "ids"])
@given(lengths=st.sets(st.integers(1, 50), min_size=1, max_size=8), seed=st.integers(0, 5))
def test_every_pair_is_what_it_says(
    name: str, items: tasks.ItemsAs, lengths: set[int], seed: int
) -> None:
    task, encoder = tasks.FIGURE_5[name](items), Characters()
    pairs = list(task.pairs(encoder, sorted(lengths), seed))
    expected = {
        (kind, n) for kind in task.kinds for n in lengths if kind == "theorem" or n % 3 == 0
    }
    assert {(pair.kind, pair.length) for pair in pairs} == expected
    for pair in pairs:
        assert decoded(encoder, pair.ids) == task.text(pair.length, seed)
        if pair.kind == "theorem":
            assert pair.extended[:-1] == pair.ids
            assert pair.extended[-1] == pair.ids[-1]
        else:
            assert decoded(encoder, pair.extended) == task.text(pair.length + 1, seed)
            assert not repeats_last(pair.ids, pair.extended)


@given(
    v=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    v_star=st.lists(st.integers(0, 3), max_size=7),
)
def test_the_proof_accepts_exactly_one_partner(v: list[int], v_star: list[int]) -> None:
    assert repeats_last(v, v_star) == (v_star == [*v, v[-1]])
    assert repeats_last(v, [*v, v[-1]])


def test_a_pair_that_is_none_cannot_be_made() -> None:
    assert theorem_pair(2, (5, 6)).extended == (5, 6, 6)
    with pytest.raises(
        InputError,
        match=r"no theorem pair at length 2: expected v\* = v with its last token 6 once more",
    ):
        Pair("theorem", 2, (5, 6), (5, 6, 7))
    assert Pair("one-more-digit", 2, (5, 6), (5, 6, 7)).length == 2  # which claims nothing


@pytest.mark.parametrize(
    ("merged", "shown"),
    [
        ("11", r"'11'\]: this tokenizer merges"),
        ("111", r"'111'\]: this tokenizer merges"),
        # The first one has another id than the second: at length 1 the repeat is no repeat.
        ("?1", r"\['\?1', '1'\]: this tokenizer merges"),
    ],
)
def test_a_tokenizer_that_merges_is_refused_with_what_it_merged(merged: str, shown: str) -> None:
    remedy = r"put the item in by its token, with the task's items='ids' \('figure-5a:items=ids'\)"
    with pytest.raises(InputError, match=f"figure-5a at length .*{shown} .*{remedy}"):
        list(tasks.figure_5a().pairs(Characters((merged,)), [1, 2, 3, 4], 0))


def test_the_id_level_pair_stands_where_the_text_merges() -> None:
    encoder = Characters(("11", "111"))
    pairs = {pair.length: pair for pair in tasks.figure_5a("ids").pairs(encoder, [1, 2, 5], 0)}
    assert [pairs[n].ids[-n:] for n in (1, 2, 5)] == [(49,), (49, 49), (49,) * 5]
    separated = {pair.length: pair for pair in tasks.figure_5d("ids").pairs(encoder, [4], 0)}
    assert decoded(encoder, separated[4].ids) == COPY + "111,1"


def test_prompts_need_no_torch() -> None:
    """In an interpreter of its own, without the type checks of the tests."""
    code = "import sys, ostools.tasks; print(sorted({'torch', 'transformers', 'pandas'} & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == "[]", found.stderr


def test_the_page_on_reproducing_has_figure_5s_prompts_as_they_are_built() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for name, task in FIGURE_5.items():
        row = next(
            line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line
        )
        text = task().text(6)
        assert f"| `{text}` | `{text}{text[-1]}` |" in row
