"""Whose the tokens are, in every result with tokens; and that what is said of the text is said of
the text alone.
"""

from functools import cache
from typing import Any

import numpy as np

import ostools as ost
from ostools.measure import Sensitivity
from ostools.reporting.findings.sensitivity import sensitivity_findings
from tests.models.chat.templates import on_template

MODEL = on_template("gemma-3")


@cache
def _prompt() -> ost.Prompt:
    return ost.encode(MODEL, "Hi 12", chat=True, system="Be")


@cache
def _measured() -> Sensitivity:
    return ost.sensitivity(MODEL, _prompt(), layers="all")


@cache
def _embeddings() -> Sensitivity:
    frame: Any = _measured().frame
    return Sensitivity(frame[frame["layer"] == 0].reset_index(drop=True), _measured().provenance)


def test_every_table_of_tokens_says_whose_they_are() -> None:
    paths = ost.bounds(MODEL, _prompt(), variants=["local", "windowed(1)"])
    measured = _embeddings()
    tables = [_measured().frame, paths.frame, ost.attention(MODEL, _prompt()).frame]
    tables += [ost.compare(measured, paths).frame, ost.profile(measured).frame]
    for table in tables:
        frame: Any = table
        for place, token, origin in zip(
            frame["position"], frame["token"], frame["origin"], strict=True
        ):
            assert (token, origin) == (_prompt().tokens[place], (_prompt().origins or ())[place])
    for result in (
        _measured(),
        paths,
        ost.attention(MODEL, _prompt()),
    ):
        parameters = result.provenance.parameters
        assert {name: parameters[name] for name in _prompt().provenance} == _prompt().provenance


def test_of_ids_the_column_is_missing_and_everything_is_said_of_all_tokens() -> None:
    found = ost.sensitivity(
        MODEL, ost.Prompt.from_ids(MODEL, _prompt().ids), linearisations=["full"]
    )
    assert list(found.frame["origin"].isna().unique()) == [True]
    assert "the text's" not in sensitivity_findings(found)[0]
    assert np.isnan(ost.profile(found).summary.iloc[0]["text_share"])
    shapes: Any = ost.profile(found).shapes.set_index("kept")["verdict"]
    assert shapes["the text"] == "not tested: it is not known whose the tokens are"


def test_the_profile_of_the_text() -> None:
    result = ost.profile(_embeddings())
    row: Any = result.summary.iloc[0]
    frame: Any = result.frame.query("linearisation == 'full'")
    assert row["text_share"] == frame.loc[frame["origin"] == "text", "share"].sum()
