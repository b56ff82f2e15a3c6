"""Mitigations by name: what a text means, what it is refused for, and that a label leads back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mitigations import (
    BUILT_IN,
    Composed,
    Hint,
    Interleave,
    Mitigation,
    MitigationError,
    RepeatPrompt,
    Separator,
)
from mitigations import label as label_of
from mitigations import mitigation as named
from mitigations.registry import Registry


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("separator", Separator()),
        ("separator:every=2,text=,", Separator(2, ",")),
        ("separator:text=,,every=4", Separator(4, ",")),
        (" separator : every=5 ", Separator(5)),
        ("separator:text= ", Separator(3, " ")),
        ("interleave", Interleave()),
        ("hint:text=Look at = and , twice", Hint("Look at = and , twice")),
        ("repeat-prompt:times=3", RepeatPrompt(3)),
        ("separator + hint", Composed((Separator(), Hint()))),
    ],
)
def test_what_a_text_means(spec: str, meant: Mitigation) -> None:
    assert named(spec) == meant
    assert named(label_of(meant)) == meant
    assert named(meant) is meant


@given(every=st.integers(1, 99), text=st.text(st.sampled_from(",;. |=-"), min_size=1, max_size=5))
def test_a_label_leads_back_to_any_separator(every: int, text: str) -> None:
    given = Separator(every, text)
    assert named(label_of(given)) == given


NEEDED = {"sliding-window": ":window=4", "attention-temperature": ":factor=2.0"}


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_every_built_in_name_is_a_class_that_is_there(name: str) -> None:
    made = named(name + NEEDED.get(name, ""))
    assert isinstance(made, Mitigation)
    assert label_of(made).split(":")[0] == name


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("seperator", "unknown mitigation 'seperator': did you mean 'separator'"),
        ("", "unknown mitigation ''"),
        ("separator:evry=3", "has no option 'evry': did you mean 'every'"),
        ("interleave:every=3", "mitigation 'interleave' has no option 'every': it has none"),
        ("separator:every=three", "expected every to be a whole number, found 'three'"),
        ("separator:every=0", "expected every of at least 1, found 0"),
        ("separator:every", "expected options such as key=value, found 'every'"),
        ("separator:every=1,every=2", "option 'every' is given twice"),
        ("sliding-window", "mitigation 'sliding-window' needs window, a whole number: write sliding-window:window="),
    ],
)
def test_what_a_text_is_refused_for(spec: str, message: str) -> None:
    with pytest.raises(MitigationError, match=message):
        named(spec)


@dataclass(frozen=True)
class Options(Mitigation):
    """One option of every kind that a text can give."""

    whole: int = 0
    real: float = 0.0
    yes: bool = False
    words: str = ""
    either: int | None = None
    choice: Literal["all", "some"] | tuple[int, ...] = "all"


OPTIONS = Registry(
    "thing", Mitigation, {"options": f"{__name__}:Options", "text": "os:sep"}, "no.such.group", ValueError
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("whole=-3,real=1e-2,yes=true,words=a b", Options(-3, 0.01, True, "a b")),
        ("either=7,yes=no", Options(either=7)),
        ("either=none", Options()),
        ("choice=some", Options(choice="some")),
        ("choice=1+3+5", Options(choice=(1, 3, 5))),
        ("choice=(1 3)", Options(choice=(1, 3))),
    ],
)
def test_options_are_read_by_their_types(text: str, meant: Options) -> None:
    assert OPTIONS.make(f"options:{text}") == meant
    assert OPTIONS.make(OPTIONS.label(meant)) == meant


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("options:yes=perhaps", "expected yes to be true or false, found 'perhaps'"),
        ("options:choice=none", "expected choice to be"),
        ("options:either=x", "expected either to be a whole number, or none, found 'x'"),
        ("text", "expected a subclass of Mitigation, found '/'"),
    ],
)
def test_values_of_another_kind_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OPTIONS.make(spec)


def test_a_label_that_no_text_leads_to_is_a_repr() -> None:
    for awkward in (Hint("check, n=3"), Hint("a + b"), Separator(2, " + "), Composed((Hint("a + b"), Separator()))):
        assert label_of(awkward) == repr(awkward)


@dataclass(frozen=True)
class Fails(Mitigation):
    """Fails when it is made."""

    by: int = 0

    def __post_init__(self) -> None:
        _ = 1 / self.by


@dataclass(frozen=True)
class Unread(Mitigation):
    """Annotated with what is not there."""

    size: NoSuchType = 0  # pyright: ignore


PLUGINS = Registry(
    "thing", Mitigation, {"fails": f"{__name__}:Fails", "unread": f"{__name__}:Unread"}, "no.such", ValueError
)


def test_a_class_that_fails_is_told_in_one_line() -> None:
    with pytest.raises(ValueError, match="thing 'fails' of ostools: ZeroDivisionError: division by zero"):
        PLUGINS.make("fails")
    with pytest.raises(ValueError, match=r"thing 'unread' of ostools cannot be used: NameError: .*NoSuchType"):
        PLUGINS.make("unread")
    assert {row.name: row.usable for row in PLUGINS.listing()} == {"fails": True, "unread": False}
