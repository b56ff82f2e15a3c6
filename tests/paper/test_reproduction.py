"""A reproduction resumes, says why a claim has no verdict, and shows each claim with its rule and
outcome.
"""

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from pandas.testing import assert_frame_equal
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.paper.claims.claim import OUTCOMES, UNTESTED
from ostools.paper.claims.parts import PARTS, claim_questions
from ostools.paper.reproduction.reproduce import CLAIMS, Parts, read_recipe
from tests.checkpoints import tiny_model
from tests.cli.asking import assert_one_forecast, assert_refused
from tests.reporting.every import EVERY

SMALL: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_key_value_heads": 1,
    "d_mlp": 16,
    "context": 1024,
}
SHORT = {"figure-2": {"lengths": "2,3"}, "figure-9": {"seeds": 2}}
EXAMPLE = Path(__file__).parents[2] / "examples" / "gemma-7b.yaml"


@pytest.fixture(scope="module")
def tiny() -> TransformerBridge:
    return tiny_model("llama", seed=1, **SMALL)


def reproduced(
    model: TransformerBridge, out: Path, figures: Any = (2, 9), **arguments: Any
) -> tuple[Any, list[str]]:
    """A reproduction, and what it said."""
    told: list[str] = []
    return ost.paper.reproduce(
        model, figures, out=out, arguments=SHORT | arguments, say=told.append
    ), told


# --- What is stored comes back as it was


def test_a_result_is_read_back_as_it_was_stored(tmp_path: Path) -> None:
    store, result = Parts(tmp_path), EVERY["Figure9"]()
    store.keep("part", "key", {"one": result}, 1.5)
    results, seconds = store.stored("part", "key") or ({}, 0.0)
    assert_frame_equal(results["one"].frame, result.frame)
    assert (type(results["one"]), seconds) == (type(result), 1.5)
    assert store.stored("part", "another key") is None


# --- Resuming


@pytest.mark.slow
def test_what_is_there_is_not_measured_again_and_what_changed_or_was_cut_off_is(
    tmp_path: Path, tiny: TransformerBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*given: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(PARTS, "figure-9", replace(PARTS["figure-9"], measure=stopped))
        with pytest.raises(KeyboardInterrupt):
            reproduced(tiny, tmp_path)
    first, told = reproduced(tiny, tmp_path)
    assert told == ["measuring figure-9"]
    again, told = reproduced(tiny, tmp_path)
    assert told == []
    assert_frame_equal(again.frame, first.frame)
    assert again.seconds == first.seconds
    longer = {"figure-2": {"lengths": "2,4"}}
    _, told = reproduced(tiny, tmp_path, **longer)
    assert told[-1] == "measuring figure-2"
    found, told = reproduced(tiny_model("llama", seed=2, **SMALL), tmp_path, **longer)
    assert told[1:] == ["measuring figure-2"]  # Figure 9 knows no model
    assert "another model, other arguments or other versions" in told[0]
    assert found.provenance.model["weight_hash"] != first.provenance.model["weight_hash"]


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def _other_form(file: Path) -> None:
    file.write_text('{"form": 2, "key": "key"}')


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("part/one.parquet", _cut),
        ("part/one.parquet", Path.unlink),
        ("part.json", _cut),
        ("part.json", _other_form),
        ("part.json", Path.unlink),
    ],
)
def test_a_broken_part_is_not_there(
    tmp_path: Path, name: str, spoil: Callable[[Path], None]
) -> None:
    told: list[str] = []
    store = Parts(tmp_path, told.append)
    store.keep("part", "key", {"one": EVERY["Figure9"]()}, 1.0)
    assert store.stored("part", "key") is not None
    spoil(tmp_path / name)
    assert store.stored("part", "key") is None
    assert len(told) == (name != "part.json" or spoil is not Path.unlink)


# --- What is refused, and the page


def test_what_cannot_be_measured_leaves_its_claims_untested_with_the_reason(tmp_path: Path) -> None:
    """The name of the model is hostile, and stays text."""
    sizes: dict[str, Any] = SMALL | {"context": 64}
    short = tiny_model("llama", seed=1, fresh=True, **sizes)
    short.cfg.model_name = "<img src=x onerror=alert(1)>"
    found, _ = reproduced(short, tmp_path)
    frame: Any = found.frame
    mine = frame[frame["parts"] == "figure-2"]
    assert set(mine["outcome"]) == {UNTESTED}
    assert all("context" in text for text in mine["measured"])
    assert list(found.refused) == ["figure-2"]
    text = found.page.read_text(encoding="utf-8")
    assert "<img src=x" not in text
    assert found.refused["figure-2"] in html.unescape(text)


@pytest.mark.slow
def test_the_page_and_the_table_have_each_claim_with_its_rule_and_outcome(
    tmp_path: Path, tiny: TransformerBridge
) -> None:
    found, _ = reproduced(tiny, tmp_path)
    page = html.unescape(found.page.read_text(encoding="utf-8"))
    table = pd.read_csv(tmp_path / "claims.csv")
    rows: Any = found.frame
    assert list(table["claim"]) == list(rows["claim"])
    assert set(rows["outcome"]) <= set(OUTCOMES)
    for row in rows.to_dict("records"):
        assert f"“{row['words']}”" in page
        assert row["rule"] in page
        assert row["measured"].replace("^", "")[:40] in page.replace("^", "")
    assert page.count("<figure id=") == 3  # the claims, Figure 2 and Figure 9
    assert f"ostools reproduce --model {found.provenance.model['name']} --figures 2,9" in page
    assert sum(found.outcomes.values()) == len(rows)


# --- The recipe


def test_the_papers_recipe_is_read_and_names_every_part_with_all_its_arguments() -> None:
    asked = read_recipe(EXAMPLE)
    assert (asked.model, asked.dtype, asked.device) == ("google/gemma-7b", "bfloat16", "cuda")
    written = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["parts"]
    assert {name: set(arguments) for name, arguments in written.items()} == {
        name: set(part.arguments) for name, part in PARTS.items()
    }
    assert asked.parts == written
    assert "NOT RUN HERE" in EXAMPLE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: [1]", "model"),
        ("modle: x", "modle"),
        ("- 1", "the keys model"),
        ("parts: {figure-1: {}}", "unknown part 'figure-1'"),
        ("parts: {figure-9: {seeds: -1}}", "figure-9: seeds such as 5"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ost.InputError, match=words) as refused:
        read_recipe(file)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


# --- The command


def test_the_command_gives_every_claim_and_writes_nothing_when_refused(
    run: Any, tmp_path: Path
) -> None:
    recipe = tmp_path / "short.yaml"
    recipe.write_text("parts: {figure-9: {seeds: 2}}")
    asked = ("reproduce", "--figures", "9", "--recipe", str(recipe), "--out", str(tmp_path / "out"))
    code, out, err = run(*asked, "--json", "--quiet")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [row["claim"] for row in found["rows"]] == [
        claim.id for claim in CLAIMS if 9 in claim.figures
    ]
    assert sum(found["outcomes"].values()) == len(found["rows"])
    code, out, err = run(*asked)
    assert code == 0
    assert_one_forecast(err)  # resumed: nothing is measured, and nothing noted
    assert "total-variation-decays" in out
    new = ("--out", str(tmp_path / "new"))
    assert_refused(run("reproduce", "--figures", "1", *new), "Figure 1 is a drawing")
    assert_refused(run("reproduce", "--recipe", str(tmp_path / "no"), *new), "No such file")
    assert_refused(run("reproduce", "--out", str(recipe)), "expected a directory, found a file")
    assert not (tmp_path / "new").exists()


# --- End to end


@pytest.mark.slow
def test_of_answers_made_elsewhere_the_claims_about_answers_are_judged(
    run: Any, tmp_path: Path
) -> None:
    """A model that is right about the first digit alone, says 100 to all else, and leaves one
    question without an answer.
    """
    questions = claim_questions()
    lines: list[dict[str, Any]] = [{"id": item.id, "text": _said(item)} for item in questions]
    missing = next(item for item in questions if item.task.name == "copy-last")
    lines[questions.index(missing)]["text"] = None
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    options = ("--answers", str(file), "--model", "a-hosted-model", "--out", str(tmp_path / "out"))
    code, _, err = run("reproduce", *options)
    assert code == 0, err
    table = pd.read_csv(tmp_path / "out" / "claims.csv").set_index("claim")
    agrees = ("first-is-easier", "sum-predicts-100", "100-is-commonest")
    assert set(table.loc[list(agrees), "outcome"]) == {"agrees"}
    assert "of 39 questions" in table.loc["first-is-easier", "measured"]
    assert table.loc["arbitrarily-close", "outcome"] == UNTESTED
    assert "answers alone" in table.loc["arbitrarily-close", "measured"]
    assert "a-hosted-model" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for option in (("--device", "cpu"), ("--recipe", str(EXAMPLE))):
        assert_refused(run("reproduce", *options, *option), option[0], "loaded here")


def _said(question: ost.tasks.Question) -> str:
    if question.task.name == "copy-first":
        return "The answer to your question is: 0"
    return (
        "The answer to your question is: 1"
        if question.task.name == "copy-last"
        else question.task.answer_line("100")
    )


@pytest.mark.slow
def test_all_of_the_paper_on_a_tiny_model(tmp_path: Path) -> None:
    sizes: dict[str, Any] = SMALL | {"context": 2048}
    model = tiny_model("llama", seed=1, **sizes)
    little: dict[str, Any] = {
        "figure-2": {"lengths": "2,3"},
        "figure-3": {"lengths": "2,3", "seeds": 1, "max_new_tokens": 4},
        "figure-5": {"lengths": "1:24", "seeds": 3},
        "figure-8": {"seeds": 2},
        "figure-9": {"seeds": 2},
        "over-squashing": {"length": 8, "seeds": 3, "powers": 8},
        "retrieval": {"length": 3, "seeds": 2},
        "counting": {"lengths": "1:6", "dtypes": ["bfloat16"]},
        "remedies": {"lengths": "4:8", "seeds": 1},
    }
    told: list[str] = []
    found = ost.paper.reproduce(model, out=tmp_path, arguments=little, say=told.append)
    assert (told, found.refused) == ([f"measuring {name}" for name in PARTS], {})
    frame: Any = found.frame
    assert list(frame["claim"]) == [claim.id for claim in CLAIMS]
    lemmas = frame[frame["claim"].str.startswith("lemma")].set_index("claim")["outcome"]
    # By its own words, which leave the bounded scores out.
    assert lemmas.pop("lemma-4.1") == "does not agree"
    assert set(lemmas) == {"holds by construction"}
    page = found.page.read_text(encoding="utf-8")
    assert not re.search(r'class="note">[^<]*could not be drawn', page)
    for name in PARTS:
        assert page.count(f'<section id="{name}"') == 1
    assert np.isfinite(list(found.seconds.values())).all()
