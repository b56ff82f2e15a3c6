"""One run of each command: results on stdout and nothing else there, files by their ending, the numbers of the call."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ostools as ost
from ostools import tasks
from tests.cli.asking import NOTES

PROMPT = "--prompt 'The 11'"
SHOWN = [
    (f"sensitivity {PROMPT}", "Sensitivity|full operator_norm|Measured, full:", "lower"),
    (f"sensitivity {PROMPT} --position 2 --logit 1 --logit 0", "t = the logit of 1 minus the logit of 0 at position 2", ""),
    (f"sensitivity {PROMPT} --prompt 1 --linearisation frozen", "prompt 2 of 2|Mean over 2 prompts", ""),
    (f"sensitivity profile {PROMPT}", "verdict|sink_share|share_without_sink", ""),
    (f"sensitivity attribution {PROMPT}", "contribution|biases", ""),
    (f"sensitivity untrained {PROMPT} --seeds 0 --linearisation frozen", "sink_share|initialised", ""),
    (f"bounds {PROMPT}", "Bounds|local certified", "uniform"),
    (f"bounds {PROMPT} --mitigation sliding-window:window=3", "under the mitigation sliding-window:window=3", ""),
    (f"bounds spectra {PROMPT}", "first_mass_last|lazy", ""),
    ("collapse --lengths 1:9 --dtype float32,bfloat16", "bfloat16 pair_noise|In bfloat16 the pair is ", " float16"),
    (
        "collapse --task figure-5c --lengths 1:9 --dtype bfloat16 --layers all",
        "L2 distance at v^(l), figure-5c|lengths tried, up to 9",
        "",
    ),
    ("collapse variation --lengths 1:9", "Attention variation, over heads", ""),
    ("attention --prompt 1234", "Attention, by weight", ""),
    (
        "attention difference --prompt 1234 --mitigation sliding-window:window=2",
        "Attention difference, by difference|the median head moves",
        "",
    ),
    ("attention heads --prompt 1234", "Head scores, summary|entropy", ""),
    (
        "evaluate --task count-ones-figure-5 --lengths 1:2 --elicitation zero-shot",
        "accuracy|All lengths: 0 of 2 answers are right.|Nothing was drawn, so there is no interval.",
        "",
    ),
    (
        "evaluate counting --task count-ones-figure-5 --lengths 1:2 --dtype float32",
        "pair_noise|float32: no impossible count is predicted (not hidden at any of the 2|one-sided",
        "",
    ),
    (
        "evaluate chain-of-thought --task count-ones-figure-5 --length 3 --no-chat --reasoning '1 + 1 + 1'",
        "items of the sequence|begun answer line",
        "few-shot",
    ),
    ("ablate --lengths 2 --measure answers --target 0.1 --target 1.0", "predicted_effect|First order", ""),
    ("mitigate windows --lengths 3 --windows 5 --layers 1", "front|5", ""),
    (
        "mitigate --mitigation separator:every=2 --lengths 3,4 --sensitivity-lengths 0 --dtype float32 "
        "--elicitation zero-shot",
        "Study, verdicts|separator:every=2|not decided|nothing could be lost",
        "",
    ),
    ("reproduce figure 2 --lengths 2 --no-chat", "Figure 2|The paper's is of Gemini", ""),
    (
        "reproduce figure 5 --lengths 1:4 --panel b --seeds 1 --site attention --norm l1 --dtype bfloat16 --items ids "
        "--load-dtype float64",
        "Figure 5|loaded in float64, 4 lengths|Here: L1 at the last block's heads.",
        "",
    ),
]  # fmt: skip
"""A command line, what is shown, and what is not."""
DEARER = [
    ("evaluate retrieval --length 2 --seeds 0 --linearisation frozen", "Retrieval|sensitivity_others", ""),
    (
        f"ablate faithfulness {PROMPT} --variant local --linearisation frozen --orders 19",
        "Faithfulness, correlations|areas",
        "",
    ),
    (
        "probe --task count-ones-bernoulli --lengths 2:7 --seeds 0:11 --layers 0 --no-random-weights",
        "selectivity",
        "",
    ),
    ("probe intervention --task count-ones-bernoulli --lengths 2:7 --seeds 0:11", "intervention", ""),
    ("probe stage --lengths 2:7 --seeds 0:11 --no-random-weights --dtype float32", "undecodable", ""),
    ("reproduce figure 3 --lengths 2 --seeds 0 --max-new-tokens 2", "absolute_error", ""),
    ("sweep corpus --texts t.txt --lengths 8", "Corpus, summary|Corpus, shapes", ""),
]
WITHOUT_A_MODEL = [
    ("reproduce figure 8 --lengths 1:40 --seeds 0 --d 16 --n-heads 2", "Figure 8|whole block of Vaswani"),
    ("reproduce figure 9 --lengths 1:40 --seeds 0", "Figure 9|The range of n is ours"),
    (
        "list models",
        "gemma-3-270m: Gemma3ForCausalLM|my-model.gguf|Not loaded: Falcon RW: |By the generic route: Falcon 40B, 180B: ",
    ),
    ("list tasks", "count-ones-bernoulli|figure-5a|Pairs of prompts"),
]


def assert_notes_alone(err: str) -> None:
    """A forecast first, and plans."""
    assert err.startswith(NOTES[0])
    assert all(line.startswith(NOTES) for line in err.splitlines())


@pytest.mark.parametrize(
    ("line", "words", "never"), [*SHOWN, *(pytest.param(*row, marks=pytest.mark.slow) for row in DEARER)],
    ids=[line for line, *_ in (*SHOWN, *DEARER)],
)  # fmt: skip
def test_a_table_and_what_it_says(
    run, directory: str, bare: str, tmp_path: Path, line: str, words: str, never: str
) -> None:
    (tmp_path / "t.txt").write_text("the quick brown fox jumps over\n\na lazy dog while it rains")
    model = bare if line.startswith("mitigate") else directory
    if line.startswith(("probe", "reproduce figure 3")):
        model = "embedded"
    code, out, err = run(*shlex.split(line), "--model", model)
    assert code == 0, err
    assert_notes_alone(err)
    said = " ".join(out.split())
    for word in words.split("|"):
        assert word in out or word in said
    for word in filter(None, never.split("|")):
        assert word not in out
    assert out.replace("\n", "").isprintable()


@pytest.mark.parametrize(("line", "words"), WITHOUT_A_MODEL, ids=[line for line, _ in WITHOUT_A_MODEL])
def test_what_needs_no_model_loads_none(run, no_model: None, line: str, words: str) -> None:
    code, out, err = run(*line.split())
    assert (code, err) == (0, "")
    for word in words.split("|"):
        assert word in " ".join(out.split())


# --- the numbers of the call

WINDOW, HINT, TEXT = "sliding-window:window=3", "repeat-prompt", "The 11 and 10"
CALLS: list[tuple[str, Any]] = [
    ("sensitivity --position -2 --logit 1", lambda model: ost.sensitivity(model, TEXT, position=-2, logit="1")),
    (f"bounds spectra --mitigation {WINDOW}", lambda model: ost.spectra(model, TEXT, mitigation=WINDOW)),
    ("collapse --task copy-last --lengths 4,5 --mitigation separator:every=3 --dtype float32",
     lambda model: ost.collapse(model, "copy-last", lengths=[4, 5], mitigation="separator:every=3", dtypes=["float32"])),
]  # fmt: skip
DEARER_CALLS = [
    (
        f"sensitivity profile --position -2 --mitigation {HINT}",
        lambda model: ost.profile(ost.sensitivity(model, TEXT, mitigation=HINT, position=-2)),
    ),
    (
        "ablate faithfulness --variant local --linearisation frozen --way removed --orders 19 --position 4 --mitigation "
        f"{HINT}",
        lambda model: ost.faithfulness(
            model,
            [
                ost.sensitivity(model, TEXT, linearisations=["frozen"], mitigation=HINT, position=4),
                ost.bounds(model, TEXT, variants="local", mitigation=HINT, positions="all"),
            ],
            ways="removed",
            orders=19,
            mitigation=HINT,
        ),
    ),
]


@pytest.mark.parametrize(
    ("line", "call"),
    [
        *CALLS,
        *(pytest.param(*row, marks=pytest.mark.slow) for row in DEARER_CALLS),
    ],
    ids=[line for line, _ in (*CALLS, *DEARER_CALLS)],
)
def test_a_command_gives_the_numbers_of_the_call(run, directory: str, line: str, call: Any) -> None:
    text = () if "--lengths" in line else ("--prompt", TEXT)
    code, out, err = run(*line.split(), *text, "--model", directory, "--json", "--quiet")
    found, expected = json.loads(out), call(ost.load_model(directory))
    assert (code, err) == (0, "")
    # Through JSON and back, so that a missing origin is None in both.
    assert found["rows"] == json.loads(json.dumps(expected.as_json()["rows"]))
    assert found["provenance"]["parameters"].get("mitigation") == expected.provenance.parameters.get("mitigation")
    assert found["provenance"]["model"]["architecture"] == "GemmaForCausalLM"


# --- files


@pytest.mark.parametrize("ending", ["csv", "html"])
def test_out_is_written_by_its_ending(run, tmp_path: Path, directory: str, ending: str) -> None:
    name = f"norms.{ending}"
    code, out, err = run("sensitivity", "--prompt", "The 11", "--model", directory, "--out", name)
    assert code == 0
    assert out.splitlines()[0] == f"wrote {name}"
    assert out.splitlines()[1].startswith("Measured, full: ")  # a picture comes with its finding
    assert_notes_alone(err)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_json_beside_a_file_is_the_same_and_quiet_says_nothing(run, directory: str, tmp_path: Path) -> None:
    asked = ("sensitivity", "--prompt", "The 11", "--model", directory, "--quiet", "--out", "x.json")
    assert run(*asked) == (0, "", "")
    rows = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert json.loads(run(*asked, "--json")[1])["rows"] == rows


def test_tables_hold_all_that_was_asked(run, directory: str, tmp_path: Path) -> None:
    prompt = ["--prompt", "The 11", "--model", directory, "--load-dtype", "float64"]
    assert run("bounds", *prompt, "--positions", "all", "--out", "y.parquet")[0] == 0
    triangle = pd.read_parquet(tmp_path / "y.parquet")
    n = triangle["last"].max() + 1
    assert len(triangle) == n * (n + 1) // 2
    assert triangle.attrs["ostools"]["model"]["dtype"] == "float64"
    line = "collapse --task figure-5b --lengths 2:4,9 --seeds 3,5 --dtype float32 --out x.parquet --model"
    code, out, _ = run(*line.split(), directory)
    frame = pd.read_parquet(tmp_path / "x.parquet")
    assert code == 0
    assert (set(frame["length"]), set(frame["seed"]), set(frame["dtype"])) == ({2, 3, 4, 9}, {3, 5}, {"float32"})
    # A picture or table of a collapse comes with its verdict.
    assert " ".join(out.split()).count("lengths tried, up to 9") == 1


def test_runs_that_cannot_be_subtracted_are_shown_side_by_side(run, tmp_path: Path, directory: str) -> None:
    asked = ("attention", "difference", "--model", directory, "--prompt", "123", "--against-prompt", "12")
    code, out, _ = run(*asked, "--out", "x.html")
    assert (code, out.split()) == (0, ["wrote", "x.html"])
    assert "Side by side only" in (tmp_path / "x.html").read_text(encoding="utf-8")
    model = ost.load_model(directory, device="cpu")
    both = [ost.attention(model, text) for text in ("123", "12")]
    expected: Any = ost.attention_difference(*both, corresponding=True).frame
    code, out, _ = run(*asked, "--device", "cpu", "--corresponding", "--json")
    assert code == 0
    assert [row["difference"] for row in json.loads(out)["rows"]] == expected["difference"].tolist()
    same = ("attention", "difference", "--model", directory, "--prompt", "123", "--against-model", directory, "--json")
    assert {row["difference"] for row in json.loads(run(*same)[1])["rows"]} == {0.0}


@pytest.mark.parametrize("name", ["auto", "disk"])
def test_a_device_map_changes_no_number_and_is_said(run, directory: str, name: str) -> None:
    command = ["sensitivity", "--prompt", "abc", "--model", directory, "--device", "cpu", "--json"]
    code, out, _ = run(*command, "--device-map", name)
    assert code == 0
    found, expected = json.loads(out), json.loads(run(*command)[1])
    assert found["rows"] == expected["rows"]
    assert set(found["provenance"]["model"]["device_map"].values()) == {"cpu" if name == "auto" else "disk"}
    assert expected["provenance"]["model"]["device_map"] is None


# --- lists and the doctor


LISTINGS = {
    "list models": {"embedded", "packaged", "families", "refused"},
    "list tasks": {"name", "from", "options", "what"},
    "list mitigations": {"name", "from", "options", "what"},
    "list measurements": {"command", "function", "what"},
    "doctor": {"what", "state", "found"},
}


@pytest.mark.parametrize("command", LISTINGS)
def test_listings_as_json(run, command: str) -> None:
    code, out, err = run(*command.split(), "--json")
    listing = json.loads(out)
    assert (code, err) == (0, "")
    assert set(listing if isinstance(listing, dict) else listing[0]) == LISTINGS[command]
    if command == "list tasks":
        listed = {row["name"]: row for row in listing}
        assert {*tasks.REPEATING_TASKS, *tasks.APPENDIX_NAMES} <= set(listed)
        assert listed["figure-5a"]["what"] == "How many ones are in the following sequences?111111"
        assert listed["sum-ones"]["options"] == "mode=answer-only|cot-zero-shot|cot-few-shot, examples=after, tidy=true"


def test_doctor_finds_what_is_missing_and_shows_no_token(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("einops", "torch"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    real = metadata.version
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert "hf_secret" not in out
    assert "set" in out
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, err = run("doctor", "--json")
    found = {row["what"]: row for row in json.loads(out)}
    assert (code, err) == (1, "")
    assert found["einops"]["state"] == found["torch"]["state"] == "MISSING"
    assert "not looked at" in found["the rest"]["found"]
    assert found["altair"]["state"] == "ok"


# --- the process


def test_an_interrupt_is_130_without_a_traceback(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(lines: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ostools.cli.terminal.print_text", interrupted)
    assert run("list", "models") == (130, "", "ostools: interrupted\n")
