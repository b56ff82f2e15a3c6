"""One run of each command: results on stdout and nothing else there, files by their ending, the
numbers of the call.
"""

import json
import os
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import ostools as ost
from ostools import tasks
from ostools.cli import spin_briefly
from tests.cli.asking import NOTES
from tests.sets import quick

P = "--prompt 'The 11'"
SHOWN = [
    (f"sensitivity {P}", "Sensitivity|full operator_norm|Measured, full:"),
    (f"sensitivity {P} --prompt 1 --linearisations frozen", "Mean over 2 prompts"),
    (f"sensitivity profile {P}", "verdict|sink_share|share_without_sink"),
    (
        f"bounds {P} --mitigation sliding-window:window=3",
        "Bounds|local certified|under the mitigation sliding-window",
    ),
    (
        "collapse --lengths 1:9 --dtypes float32,bfloat16",
        "bfloat16 pair_noise|In bfloat16 the pair is ",
    ),
    (
        "collapse --task figure-5c --lengths 1:9 --dtypes bfloat16 --layers all",
        "figure-5c",
    ),
    ("collapse variation --lengths 1:9", "Attention variation, over heads"),
    ("attention --prompt 1234", "Attention, by weight"),
    (
        "evaluate --task count-ones-figure-5 --lengths 1:2 --elicitation zero-shot",
        "accuracy|None of 2 texts holds an answer",
    ),
    (
        "ablate --task copy-first --lengths 2 --measures answers --targets 0.1 --targets 1.0",
        "predicted_effect|First order",
    ),
    (
        "mitigate --mitigations separator:every=2 --lengths 3 --measures answers --elicitation zero-shot",
        "Study, verdicts|separator:every=2|not decided",
    ),
    ("reproduce figure 2 --lengths 2 --no-chat", "Figure 2|The paper's is of Gemini"),
    (
        "reproduce figure 5 --lengths 1:4 --panels b --seeds 1 --dtypes bfloat16 --items ids",
        "Figure 5|4 lengths",
    ),
]
"""A command line, and what is shown."""
DEARER = [
    (f"ablate faithfulness {P} --linearisations frozen", "Faithfulness, correlations"),
    ("probe stage --lengths 2:7 --seeds 0:11 --no-random-weights --dtypes float32", "undecodable"),
    ("reproduce figure 3 --lengths 2 --seeds 0 --max-new-tokens 2", "absolute_error"),
]
WITHOUT_A_MODEL = [
    (
        "reproduce figure 8 --lengths 1:40 --seeds 0",
        "Figure 8|whole block of Vaswani",
    ),
    (
        "list models",
        "gemma-3-270m|Gemma3ForCausalLM|my-model.gguf|by the generic route",
    ),
    ("list tasks", "count-ones-bernoulli|figure-5a|Pairs of prompts"),
]


WITHOUT_FORECAST = ("reproduce figure",)


@pytest.mark.parametrize(
    ("line", "words"),
    [*SHOWN, *(pytest.param(*row, marks=pytest.mark.slow) for row in DEARER)],
    ids=[line for line, _ in (*SHOWN, *DEARER)],
)
def test_a_table_and_what_it_says(
    run, directory: str, bare: str, tmp_path: Path, line: str, words: str
) -> None:
    trained = line.startswith(("probe", "reproduce figure 3"))
    model = bare if line.startswith("mitigate") else "embedded" if trained else directory
    code, out, err = run(*shlex.split(line), "--model", model)
    assert code == 0, err
    assert all(note.startswith(NOTES) for note in err.splitlines())
    assert err or line.startswith(WITHOUT_FORECAST)
    assert [word for word in words.split("|") if word not in " ".join(out.split())] == []
    assert out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("line", "words"), WITHOUT_A_MODEL, ids=[line for line, _ in WITHOUT_A_MODEL]
)
def test_what_needs_no_model_loads_none(run, no_model: None, line: str, words: str) -> None:
    code, out, err = run(*line.split())
    assert (code, err) == (0, "")
    assert [word for word in words.split("|") if word not in " ".join(out.split())] == []


# --- the numbers of the call

HINT, TEXT = "repeat-prompt", "The 11 and 10"
EVERY_THIRD: dict[str, Any] = {
    "lengths": [4, 5],
    "mitigation": "separator:every=3",
    "dtypes": ["float32"],
}
FROZEN: dict[str, Any] = {"linearisations": ["frozen"], "mitigation": HINT}
CALLS: dict[str, Any] = {
    "sensitivity --logit 1": lambda model: ost.sensitivity(model, TEXT, logit="1"),
    "collapse --task copy-last --lengths 4,5 --mitigation separator:every=3 --dtypes float32": (
        lambda model: ost.collapse(model, "copy-last", **EVERY_THIRD)
    ),
    f"sensitivity profile --mitigation {HINT}": (
        lambda model: ost.profile(ost.sensitivity(model, TEXT, mitigation=HINT))
    ),
    f"ablate faithfulness --linearisations frozen --ways removed --mitigation {HINT}": (
        lambda model: ost.measure.faithfulness(
            model, ost.sensitivity(model, TEXT, **FROZEN), ways="removed", mitigation=HINT
        )
    ),
}


@pytest.mark.parametrize("line", quick(CALLS, *[*CALLS][:2]))
def test_a_command_gives_the_numbers_of_the_call(run, directory: str, line: str) -> None:
    text = () if "--lengths" in line else ("--prompt", TEXT)
    code, out, err = run(*line.split(), *text, "--model", directory, "--json", "--quiet")
    found, expected = json.loads(out), CALLS[line](ost.load_model(directory))
    assert (code, err) == (0, "")
    # Through JSON and back, so that a missing origin is None in both.
    assert found["rows"] == json.loads(json.dumps(expected.as_json()["rows"]))
    assert found["provenance"]["parameters"].get(
        "mitigation"
    ) == expected.provenance.parameters.get("mitigation")
    assert found["provenance"]["model"]["architecture"] == "GemmaForCausalLM"


# --- files


def test_out_is_written_by_its_ending_json_beside_it_is_the_same_and_quiet_says_nothing(
    run, directory: str, tmp_path: Path
) -> None:
    asked = (
        "sensitivity",
        "--prompt",
        "The 11",
        "--linearisations",
        "frozen",
        "--model",
        directory,
        "--out",
    )
    code, out, err = run(*asked, "norms.html")
    assert (code, err.count("\n")) == (0, 1)
    assert out.splitlines()[0] == "wrote norms.html"
    assert out.splitlines()[1].startswith("Measured, frozen: ")  # a picture comes with its finding
    assert run(*asked, "x.json", "--quiet") == (0, "", "")
    rows = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert json.loads(run(*asked, "x.csv", "--quiet", "--json")[1])["rows"] == rows
    assert {path.name for path in tmp_path.iterdir()} == {"norms.html", "x.json", "x.csv"}


# --- lists and the doctor


def test_listings_as_json(run) -> None:
    listed = {}
    for command in ("list models", "list tasks", "list mitigations", "list measurements"):
        code, out, err = run(*command.split(), "--json")
        assert (code, err) == (0, "")
        listed[command] = json.loads(out)
    rows = {row["name"]: row for rows in listed["list tasks"].values() for row in rows}
    assert {*tasks.REPEATING_TASKS, *tasks.APPENDIX_NAMES} <= set(rows)
    assert rows["figure-5a"]["what"] == "How many ones are in the following sequences?111111"
    assert "ost.collapse" in {row["function"] for row in listed["list measurements"]}


@pytest.mark.parametrize(("by_user", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_threads_that_wait_sleep_soon_unless_the_user_says_how_they_wait(
    monkeypatch: pytest.MonkeyPatch, by_user: dict[str, str], expected: str
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # noted, so that it is put back as it was
        monkeypatch.delenv(name)
    for name, value in by_user.items():
        monkeypatch.setenv(name, value)
    spin_briefly()
    assert os.environ["GOMP_SPINCOUNT"] == expected


def test_doctor_finds_what_is_missing(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    real = metadata.version
    assert run("doctor")[0] == 0
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, err = run("doctor", "--json")
    states = {row["what"]: row["state"] for row in json.loads(out)}
    assert (code, err, states["torch"], states["altair"]) == (1, "", "MISSING", "ok")


# --- the process


def test_an_interrupt_is_130_without_a_traceback(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostools.cli.terminal.print_table", Mock(side_effect=KeyboardInterrupt))
    assert run("list", "models") == (130, "", "ostools: interrupted\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("end", "code", "line"),
    [("> /dev/full", 2, "No space left on device"), ("| head -c 1 > /dev/null", 0, "")],
)
def test_a_full_disk_under_stdout_is_one_line_and_a_reader_that_left_no_error(
    end: str, code: int, line: str
) -> None:
    program = "import sys; from ostools.cli import main; sys.argv[0] = 'ostools'; main()"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} list measurements {end}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert line in done.stderr
    assert "Traceback" not in done.stderr
