"""Words for a shell: what bash reads back is what went in."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ostools.ground.words import computed_on
from ostools.reporting.page.shell import loading, quoted
from tests.cli.asking import accepted
from tests.reporting.made import HOSTILE

BASH = shutil.which("bash")
NO_NUL = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=30)


def read_back(words: list[str]) -> list[str]:
    """The words as bash splits the line, each as bytes: printf's %s repeats itself for every
    argument.
    """
    line = f"printf '%s\\0' {' '.join(map(quoted, words))}"
    found = subprocess.run(
        [str(BASH), "-c", line], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    return found.stdout.decode().split("\0")[:-1]


@pytest.mark.skipif(BASH is None, reason="no bash on this machine")
@given(st.lists(NO_NUL, min_size=1, max_size=5))
@example(["\x017", "é\n'", "\\x41", "$(id) `id` $HOME", "-x", "", "\U000e0001a", "\u202e!"])
def test_any_text_comes_back(words: list[str]) -> None:
    assert read_back(words) == words


def test_nothing_unprintable_is_left_in_it() -> None:
    for text in (*HOSTILE, "\u202e", "\x7f\x80\x9b", "\ud800"):
        assert quoted(text).isprintable()


def test_the_options_that_load_a_model_again() -> None:
    model = {"dtype": "bfloat16", "device": "cpu"}
    assert loading(model) == ["--load-dtype", "bfloat16", "--device", "cpu"]
    accepted(["report", *loading(model)])
    assert computed_on(model) == "bfloat16 on cpu"
