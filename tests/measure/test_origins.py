"""Whose the tokens are, in every result with tokens; and that what is said of the text is said of
the text alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import ostools as ost
from ostools import measure
from ostools.measure import Sensitivity
from ostools.models import Prompt, encode
from ostools.reporting.findings.sensitivity import sensitivity_findings
from ostools.reporting.style.prompt import TEMPLATE_NOTE
from tests.checkpoints import trained
from tests.models.chat.templates import on_template
from tests.reporting.made import PROVENANCE, made_sensitivity

MODEL = on_template("gemma-3")


@cache
def _prompt() -> Prompt:
    return encode(MODEL, "Hi 12", chat=True, system="Be")


@cache
def _measured() -> Sensitivity:
    return ost.sensitivity(MODEL, _prompt(), layers="all")


@cache
def _embeddings() -> Sensitivity:
    frame: Any = _measured().frame
    return Sensitivity(frame[frame["layer"] == 0].reset_index(drop=True), _measured().provenance)


def _text() -> list[int]:
    assert _prompt().origins is not None
    return [place for place, origin in enumerate(_prompt().origins or ()) if origin == "text"]


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
    found = ost.sensitivity(MODEL, Prompt.from_ids(MODEL, _prompt().ids), linearisations=["full"])
    assert list(found.frame["origin"].isna().unique()) == [True]
    assert "the text's" not in sensitivity_findings(found)[0]
    row = ost.profile(found).summary.iloc[0]
    assert np.isnan(row["text_share"])
    shapes: Any = ost.profile(found).shapes.set_index("kept")["verdict"]
    assert shapes["the text"] == "not tested: it is not known whose the tokens are"


def test_findings_speak_of_the_text_and_say_what_the_others_have() -> None:
    norms = _embeddings().frame.query("linearisation == 'full'")["operator_norm"].to_numpy().copy()
    everything = norms.copy()
    everything[1] = 1e6  # a turn marker that outweighs all
    frame: Any = (
        _embeddings().frame.query("linearisation == 'full'").assign(operator_norm=everything)
    )
    made = Sensitivity(frame, _embeddings().provenance)
    said = sensitivity_findings(made)[0]
    top = max(_text(), key=lambda place: norms[place])
    assert (
        f"of the text's {len(_text())} tokens the last token's representation responds most to token {top} “"
        in said
    )
    others = np.array(_prompt().origins) != "text"
    share = everything[others].sum() / everything.sum()
    assert f"the {others.sum()} tokens of the chat template have {share:.1%}." in said


def test_the_profile_of_the_text() -> None:
    result = ost.profile(_embeddings())
    row: Any = result.summary.iloc[0]
    frame: Any = result.frame.query("linearisation == 'full'")
    assert row["text_share"] == frame.loc[frame["origin"] == "text", "share"].sum()


def test_the_shape_of_the_text_is_that_of_the_text_alone() -> None:
    """Equal to the shape of a profile that has nothing but these values."""
    values = 10.0 ** np.random.default_rng(0).standard_normal(100)
    whose = ["special", *["template"] * 9, *["text"] * 75, *["template"] * 15]
    made: Any = made_sensitivity({"full": list(values)}).frame.assign(origin=whose)
    tables = {"the text": made, "all": made[made["origin"] == "text"]}
    shapes: list[Any] = [
        ost.profile(Sensitivity(table, PROVENANCE)).shapes for table in tables.values()
    ]
    of_text, whole = (
        shape[shape["kept"] == kept].drop(columns="kept").iloc[0]
        for shape, kept in zip(shapes, tables, strict=True)
    )
    assert of_text.equals(whole.rename(of_text.name))


def test_a_sink_at_the_templates_token_is_told_from_one_at_the_texts() -> None:
    chat = measure.head_scores(MODEL, _prompt()).frame
    assert set(chat["first_origin"]) == {"special"}
    frame: Any = ost.attention(MODEL, _prompt()).frame
    text = frame[frame["origin"] == "text"].groupby(["layer", "head"])["weight"].sum().to_numpy()
    assert chat["last_to_text"].to_numpy() == pytest.approx(text, abs=1e-6)
    qwen = on_template("qwen-3")
    assert set(measure.head_scores(qwen, encode(qwen, "Hi", chat=True)).frame["first_origin"]) == {
        "template"
    }
    assert measure.head_scores(qwen, encode(qwen, "Hi there")).plot() is not None


def test_charts_mark_what_is_not_the_text() -> None:
    """A band or a line at every run of such tokens, their names pale, and a note; nothing of it on
    a plain prompt.
    """
    results: tuple[Any, ...] = (_embeddings(), ost.attention(MODEL, _prompt()))
    for result in results:
        spec = str(result.plot().to_dict())
        assert TEMPLATE_NOTE in spec, type(result)
        start = 0.0 if isinstance(result, measure.Attention) else -0.5
        runs = {
            "from": (start, start + _text()[-1] + 1),
            "to": (start + _text()[0], start + len(_prompt().ids)),
        }
        assert str([runs])[1:-1] in spec, type(result)
        assert "labelOpacity" in spec, type(result)
    plain = str(
        ost.sensitivity(trained("embedded"), "1110", linearisations=["full"]).plot().to_dict()
    )
    assert TEMPLATE_NOTE not in plain
    assert "labelOpacity" not in plain
