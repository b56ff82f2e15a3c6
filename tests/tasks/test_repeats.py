"""Letters, words and texts that go on repeating their last token; and token ids."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools import tasks
from ostools.ground.errors import InputError
from ostools.tasks import PairsOfIds, RepeatedIds, RepeatTask
from tests.tasks.test_pairs import Characters, decoded

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
