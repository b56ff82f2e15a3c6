"""A text and its tokenizer, for all tests of training; one thread, as the embedded models are
trained.
"""

from collections.abc import Iterator

import pytest
import torch
from tokenizers import Tokenizer

from studies.training.corpus import Corpus, make_corpus, train_tokenizer


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    nouns = ["matrix", "vector", "sequence", "model", "token", "layer", "window", "bound"]
    return make_corpus(
        {f"The {a} of a {b} is larger than the {c}." for a in nouns for b in nouns for c in nouns}
    )


@pytest.fixture(scope="session")
def tokenizer(corpus: Corpus) -> Tokenizer:
    return train_tokenizer(corpus.train)
