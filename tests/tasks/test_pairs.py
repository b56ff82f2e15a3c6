"""Pairs on token ids: the proof, tokenizers that merge, Figure 5's prompts word for word, and
texts that go on repeating their last token.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools import tasks
from ostools.ground.errors import InputError
from ostools.tasks import AppendixTask, Pair, PairsOfIds, RepeatedIds, RepeatTask, theorem_pair
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


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True)


@pytest.mark.parametrize("items", ["text", "ids"])
@given(lengths=LENGTHS, prompt=st.text("abc ?", max_size=8), item=st.sampled_from(["a", "x", " "]))
def test_v_is_the_text_and_n_copies(
    items: tasks.ItemsAs, lengths: list[int], prompt: str, item: str
) -> None:
    encoder = Characters()
    prompt = prompt or "b" if items == "ids" else prompt
    pairs = list(RepeatTask("own", prompt, item, items).pairs(encoder, lengths))
    assert [pair.length for pair in pairs] == lengths
    for pair in pairs:
        assert decoded(encoder, pair.ids) == prompt + item * pair.length
        assert decoded(encoder, pair.extended) == prompt + item * (pair.length + 1)
        assert pair.kind == "theorem"


@given(lengths=LENGTHS, prompt=st.sampled_from(["a", "b ?", "wheel", "el"]))
def test_without_an_item_the_texts_own_last_token_goes_on(lengths: list[int], prompt: str) -> None:
    """Whole, where the tokenizer merges it."""
    encoder = Characters(merges=("el",))
    last = "el" if prompt.endswith("el") else prompt[-1]
    for pair in RepeatTask("text", prompt, None, "ids").pairs(encoder, lengths):
        assert decoded(encoder, pair.ids) == prompt + last * (pair.length - 1)
        assert decoded(encoder, pair.extended) == prompt + last * pair.length


def test_a_tokenizer_that_merges_the_item_is_refused_by_text_and_served_by_ids() -> None:
    encoder = Characters(merges=("aa",))
    message = r"letters at length 1: .*'aa'\]: this tokenizer merges the repeat; .* items='ids'"
    with pytest.raises(InputError, match=message):
        list(tasks.letters().pairs(encoder, [1, 2]))
    (pair,) = tasks.letters("ids").pairs(encoder, [5])
    assert pair.ids[-5:] == (ord("a"),) * 5
    assert decoded(encoder, pair.ids[:-5]) == tasks.letters().prompt


def test_an_item_of_several_tokens_is_refused() -> None:
    question = "How many?"
    with pytest.raises(InputError, match=r"expected ' and' to be one token .* no token for it"):
        list(RepeatTask("own", question, " and", "ids").pairs(Characters(), [1]))
    with pytest.raises(InputError, match="own at length 1: expected ' and' repeated"):
        list(RepeatTask("own", question, " and").pairs(Characters(), [1]))


IDS = st.lists(st.integers(0, 99), min_size=1, max_size=8)


@given(ids=IDS, item=st.integers(0, 99), lengths=LENGTHS)
def test_ids_and_n_copies_of_one(ids: list[int], item: int, lengths: list[int]) -> None:
    encoder = Characters()
    for pair in RepeatedIds(ids, item).pairs(encoder, lengths):
        once_more = (*ids, *[item] * (pair.length + 1))
        assert (pair.kind, pair.ids, pair.extended) == ("theorem", once_more[:-1], once_more)
    last = list(RepeatedIds(ids).pairs(encoder, lengths))
    assert last == list(RepeatedIds(ids[:-1], ids[-1]).pairs(encoder, lengths))


def test_pairs_of_ids_are_the_theorems_where_they_repeat_the_last() -> None:
    pairs = PairsOfIds({3: ([1, 2], (1, 2, 2)), 5: ((1, 2), [4, 4, 2])})
    found = list(pairs.pairs(Characters(), [3, 5]))
    assert [pair.kind for pair in found] == ["theorem", "task"]
    assert (found[1].ids, found[1].extended) == ((1, 2), (4, 4, 2))
    assert pairs.provenance_columns() == {"at": {3: [[1, 2], [1, 2, 2]], 5: [[1, 2], [4, 4, 2]]}}
    with pytest.raises(
        InputError, match=r"expected a length with a pair, one of \[3, 5\], found 4"
    ):
        list(pairs.pairs(Characters(), [4]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: PairsOfIds({1: ([1, 2], [1, 3])}),
            "end in the same one, .* would be that of the two tokens",
        ),
        (lambda: RepeatedIds([]), "expected something to repeat, found no ids"),
        (
            lambda: RepeatedIds([3, -1]),
            r"expected a row of token ids \(whole numbers from 0\), found",
        ),
    ],
)
def test_what_is_no_pair_of_ids(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
