"""What the commands show on the terminal and write to files: results on stdout, and nothing else there."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

import ostools as ost
from ostools import tasks
from ostools.ground.errors import InputError
from tests.adapters import factors, write_adapter
from tests.checkpoints import make_model, write_checkpoint
from tests.cli.asking import assert_forecasts, assert_one_forecast, assert_refused, in_a_process, is_forecast
from tests.sets import quick

PROMPT = "--prompt 'The 11'"
ABLATE = "ablate --task copy-first --length 2 --measure answers"
BEHAVIOUR = "behaviour --task count-ones-figure-5 --lengths 1:2 --no-chat"
COUNTING = "counting --task count-ones-figure-5 --lengths 1:2 --dtype float32"

SHOWN = [
    (f"profile {PROMPT}", "verdict|sink_share|share_without_sink", ""),
    (f"spectra {PROMPT}", "first_mass_last|lazy", ""),
    (
        "collapse --lengths 1:9 --dtype float32 --dtype bfloat16",
        "bfloat16 noise|In bfloat16 the pair is ",
        " float16 noise",
    ),
    (
        "collapse --lengths 1:9 --dtype bfloat16 --site v --per head-chunk --norm linf",
        "L∞ distance at v^(L), mean over heads (chunks of d_model / H)|bfloat16, theorem, seed 0: not hidden at any of the 9",
        "at y",
    ),
    (
        "collapse --task figure-5c --lengths 1:9 --dtype bfloat16 --layers all",
        "L2 distance at v^(l), figure-5c, 6 of 9 lengths; layer 0 is the embedding|lengths tried, up to 9",
        "",
    ),
    (
        "figure 5 --lengths 1:4 --seed 1 --site attention --norm l1 --dtype bfloat16 --items ids --load-dtype float64",
        "L1 distance at the last block's heads|loaded in float64, 4 lengths|Here: L1 at the last block's heads.",
        "at y",
    ),
    (
        "attention-variation --lengths 1:9",
        "delta + own weight, mean over heads, figure-5a, 6 of 9 lengths|KL (nats; inf: a token is no longer seen) at n = 9",
        "",
    ),
    (f"{ABLATE} --target 0.1 --target 1.0", "real effect|predicted|first order", ""),
    ("attention --prompt 1234", "The greatest weights", ""),
    (
        "attention --prompt 1234 --mitigation sliding-window:window=2",
        "mitigation: none against mitigation: sliding-window:window=2|the median head moves",
        "",
    ),
    (
        BEHAVIOUR,
        "Answers to count-ones-figure-5|All lengths: 0 of 2 answers are right.|Nothing was drawn, so there is no interval.",
        "95%|acted",
    ),
    (
        COUNTING,
        "Answers to count-ones-figure-5|float32: no impossible count is predicted (not hidden at any of the 2|one-sided",
        "",
    ),
    ("windows --lengths 3 --windows 5 --layers 1", "none|front", ""),
    (
        "study --mitigation separator:every=2 --lengths 3,4 --sensitivity-lengths 0 --dtype float32 "
        "--elicitation zero-shot",
        "nothing could be lost|verdicts|separator:every=2|not decided|share of right answers|(Bonferroni)|×|"
        "4 of them hold together at 95%",
        "",
    ),
]
"""A command line, what is shown, and what is not."""


@pytest.mark.parametrize(("line", "words", "never"), SHOWN, ids=[line for line, *_ in SHOWN])
def test_a_table_and_what_it_says(run, directory: str, bare: str, line: str, words: str, never: str) -> None:
    model = bare if line.startswith(("study", "windows")) else directory
    code, out, err = run(*shlex.split(line), "--model", model)
    assert code == 0
    assert_one_forecast(err)
    said = " ".join(out.split())
    for word in words.split("|"):
        assert word in out or word in said
    for word in filter(None, never.split("|")):
        assert word not in out
    assert out.replace("\n", "").isprintable()


def test_sensitivity_prints_a_table_and_what_it_shows(run, directory: str) -> None:
    code, out, err = run("sensitivity", "--prompt", "The 11", "--model", directory)
    assert code == 0
    assert_forecasts(err)
    assert "full operator" in out
    assert "frozen frobenius" in out
    assert "Measured, full:" in out


def test_an_estimate_is_not_shown_as_measured(run, directory: str) -> None:
    code, out, _ = run("sensitivity", "--prompt", "The 11", "--model", directory, "--method", "estimate")
    assert code == 0
    assert "Estimated sensitivity" in out
    assert "full frobenius lower" in out
    assert "full frobenius upper" in out
    assert "operator" not in out
    assert "Measured" not in out


def test_path_sum_says_what_each_column_is(run, directory: str) -> None:
    code, out, err = run(
        "path-sum", "--prompt", "The 11", "--model", directory, "--variant", "local", "--variant", "proof"
    )
    assert code == 0
    whole, plan = err.splitlines()
    assert is_forecast(whole)
    assert plan.startswith("plan: path sums: ")
    assert "local: certified bound" in out
    assert "proof: paper's form (not certified)" in out
    assert "windowed" not in out


def test_models_lists_what_can_be_loaded(run) -> None:
    code, out, err = run("models")
    assert (code, err) == (0, "")
    for words in (
        "embedded",
        "gemma-3-270m: Gemma3ForCausalLM",
        "smollm2-135m-instruct: LlamaForCausalLM",
        "my-model.gguf",
        "google/gemma-7b",
        "GemmaForCausalLM",
        "LlamaForCausalLM",
        "Not loaded: GPT-J: ",
    ):
        assert words in out
    (pythia,) = [line for line in out.splitlines() if line.startswith("Pythia, GPT-NeoX ")]
    assert pythia.split()[2:] == [
        "GPTNeoXForCausalLM",
        "yes",
        "yes",
        "-",
        "yes",
        "yes",
        "yes",
        "yes",
        "-",
    ]


@pytest.mark.parametrize(("command", "name"), [("tasks", "count-ones-bernoulli"), ("mitigations", "sliding-window")])
def test_what_can_be_named_is_listed_with_whose_it_is(run, command: str, name: str) -> None:
    code, out, err = run(command)
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith(f"{name} ")]
    assert line.split()[1] == "ostools"


def test_tasks_lists_every_option_with_what_it_does_and_the_pairs(run) -> None:
    code, out, _ = run("tasks", "--json")
    listed = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert set(tasks.REPEATING_TASKS) <= set(listed)
    assert listed["figure-5a"]["what"] == "How many ones are in the following sequences?111111"
    assert listed["sum-ones"]["options"] == ("mode=answer-only|cot-zero-shot|cot-few-shot, examples=after, tidy=true")
    assert listed["count-ones-figure-5"]["options"] == "separator_every=3, uniform=true"
    for name in tasks.APPENDIX_NAMES:
        assert {row for row in listed if row.startswith(f"{name}:")} == {
            f"{name}:{text}" for text in _OPTIONS if _taken(f"{name}:{text}")
        }
    for name, row in listed.items():
        if ":" not in name:
            continue
        # Every line can be typed as it stands, and shows words of its own prompt that the task without the option lacks.
        shown = row["what"].removeprefix("…").removesuffix("…")
        assert shown in " ".join(tasks.task(name).prompt(4).split())
        plain = " ".join(tasks.task(name.partition(":")[0]).prompt(4).split())
        assert not (plain.endswith(shown) if name.endswith("tidy=true") else shown in plain)


_OPTIONS = (
    "hint=true", "separator_every=3", "interleave=true", "uniform=true", "mode=answer-only", "mode=cot-zero-shot",
    "mode=cot-few-shot", "mode=cot-few-shot,examples=after", "tidy=true",
)  # fmt: skip


def _taken(spec: str) -> bool:
    try:
        tasks.task(spec)
    except InputError:
        return False
    return True


# --- files


@pytest.mark.parametrize("ending", quick(["csv", "json", "parquet", "svg", "png", "pdf", "html"], "json", "svg"))
def test_out_is_written_by_its_ending(run, tmp_path: Path, directory: str, ending: str) -> None:
    name = f"profile.{ending}"
    code, out, err = run("sensitivity", "--prompt", "The 11", "--model", directory, "--out", name)
    assert (code, out) == (0, f"wrote {name}\n")
    assert_forecasts(err)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "command",
    quick(
        ["contributions", "faithfulness", "nulls", "profile", "spectra"],
        *("contributions", "profile", "spectra"),
    ),
)
def test_what_is_read_off_a_prompt_is_drawn(run, directory: str, tmp_path: Path, command: str) -> None:
    code, out, err = run(command, "--prompt", "The 11", "--model", directory, "--out", "x.svg")
    assert (code, out) == (0, "wrote x.svg\n")
    assert_one_forecast(err)
    assert (tmp_path / "x.svg").stat().st_size > 1000


def test_every_layer_and_every_last_position_can_be_saved(run, directory: str, tmp_path: Path) -> None:
    prompt = ["--prompt", "The 11", "--model", directory]
    assert run("sensitivity", *prompt, "--layers", "0,2", "--out", "x.parquet")[0] == 0
    assert set(pd.read_parquet(tmp_path / "x.parquet")["layer"]) == {0, 2}
    assert run("path-sum", *prompt, "--variant", "local", "--positions", "all", "--out", "y.parquet")[0] == 0
    triangle = pd.read_parquet(tmp_path / "y.parquet")
    n = triangle["last"].max() + 1
    assert len(triangle) == n * (n + 1) // 2


def test_a_saved_collapse_has_every_length_and_seed(run, tmp_path: Path, directory: str) -> None:
    arguments = ["--task", "figure-5b", "--lengths", "2:4,9", "--seed", "3", "--seed", "5", "--dtype", "float32"]
    assert run("collapse", *arguments, "--model", directory, "--out", "x.parquet")[0] == 0
    frame = pd.read_parquet(tmp_path / "x.parquet")
    assert set(frame["length"]) == {2, 3, 4, 9}
    assert set(frame["seed"]) == {3, 5}
    assert set(frame["dtype"]) == {"float32"}


def test_a_picture_of_a_collapse_comes_with_its_verdict(run, directory: str) -> None:
    asked = ["--lengths", "1:9", "--dtype", "float32", "--dtype", "bfloat16", "--model", directory, "--out", "x.svg"]
    code, out, _ = run("collapse", *asked)
    written, *said = out.splitlines()
    assert (code, written) == (0, "wrote x.svg")
    assert " ".join(said).count("figure-5a, L2 distance at y, ") == 2
    assert " ".join(said).count("lengths tried, up to 9") == 2
    assert run("--quiet", "collapse", *asked)[1] == ""


def test_the_model_is_loaded_in_the_dtype_asked_for(run, tmp_path: Path, directory: str) -> None:
    arguments = ["--prompt", "The 11", "--model", directory, "--dtype", "float64", "--out", "x.parquet"]
    assert run("path-sum", *arguments)[0] == 0
    assert pd.read_parquet(tmp_path / "x.parquet").attrs["ostools"]["model"]["dtype"] == "float64"


def test_an_adapter_is_a_model_and_base_says_where_its_base_is(run, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = make_model("llama", seed=1)
    base = write_checkpoint(tmp_path / "base", "llama", seed=1)
    adapter = write_adapter(tmp_path / "lora", tmp_path / "gone", factors(model, ["q_proj"]), ["q_proj"])
    command = ["sensitivity", "--prompt", "abc", "--device", "cpu", "--json", "--model"]
    code, out, _ = run(*command, str(adapter), "--base", str(base))
    assert code == 0
    found = json.loads(out)
    assert found["provenance"]["model"]["origin"].startswith(f"LoRA, r 4, alpha 8, of {adapter} (sha256 ")
    assert found["provenance"]["model"]["base"] == str(base)
    assert found["rows"] != json.loads(run(*command, str(base))[1])["rows"]
    assert_refused(run(*command, str(adapter)), "base model of the adapter", "say where it lies with base=... (--base)")


@pytest.mark.parametrize("name", ["auto", "disk"])
def test_a_device_map_changes_no_number_and_is_said(run, directory: str, name: str) -> None:
    command = ["sensitivity", "--prompt", "abc", "--model", directory, "--device", "cpu", "--json"]
    code, out, _ = run(*command, "--device-map", name)
    assert code == 0
    found, expected = json.loads(out), json.loads(run(*command)[1])
    assert found["rows"] == expected["rows"]
    placed = found["provenance"]["model"]["device_map"]
    assert set(placed.values()) == {"cpu" if name == "auto" else "disk"}
    assert expected["provenance"]["model"]["device_map"] is None


@pytest.mark.slow
def test_a_collapse_of_a_16_bit_checkpoint_is_the_same_from_the_weights_as_stored(run, tmp_path: Path) -> None:
    """Casts are made where the weights are read, and every number is the same bit for bit."""
    model = write_checkpoint(tmp_path / "half", "gemma2", seed=1)
    file = model / "model.safetensors"
    save_file({name: weight.bfloat16() for name, weight in load_file(file).items()}, file, metadata={"format": "pt"})
    found = {}
    for dtype in ("float32", "bfloat16"):
        asked = ["--model", str(model), "--lengths", "2,9", "--load-dtype", dtype, "--out", f"{dtype}.parquet"]
        assert run("collapse", *asked)[0] == 0
        found[dtype] = pd.read_parquet(tmp_path / f"{dtype}.parquet")
        assert found[dtype].attrs["ostools"]["model"]["dtype"] == dtype
    pd.testing.assert_frame_equal(found["float32"], found["bfloat16"], check_exact=True)


def test_an_ablation_file_has_every_part(run, tmp_path: Path, directory: str) -> None:
    code, *_ = run(*ABLATE.split(), "--model", directory, "--what", "layers", "--out", "ablate.csv")
    assert code == 0
    table = pd.read_csv(tmp_path / "ablate.csv")
    assert set(table["part"]) == {"attention", "mlp"}
    assert all(math.isfinite(value) for value in table["predicted_effect"])


def test_what_cannot_be_subtracted_is_shown_side_by_side(run, tmp_path: Path, directory: str) -> None:
    asked = ("attention", "--model", directory, "--prompt", "123", "--against-prompt", "12")
    code, out, _ = run(*asked, "--out", "x.html")
    assert (code, out.split()) == (0, ["wrote", "x.html"])
    assert "Side by side only" in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_attention_of_two_lengths_has_a_difference_where_tokens_correspond(run, directory: str) -> None:
    model = ost.load_model(directory, device="cpu")
    both = [ost.attention(model, text) for text in ("123", "12")]
    expected: Any = ost.attention_difference(*both, corresponding=True).frame
    asked = ("attention", "--model", directory, "--device", "cpu", "--prompt", "123", "--against-prompt", "12")
    code, out, _ = run(*asked, "--corresponding", "--json")
    found = [(row["first_position"], row["second_position"], row["difference"]) for row in json.loads(out)["rows"]]
    columns = (expected[name].tolist() for name in ("first_position", "second_position", "difference"))
    assert (code, found) == (0, list(zip(*columns, strict=True)))


def test_the_table_and_json_of_attention_hold_every_row(run, tmp_path: Path, directory: str) -> None:
    asked = ("attention", "--model", directory, "--prompt", "1234", "--against-model", directory)
    assert run(*asked, "--out", "x.parquet")[0] == 0
    table: Any = pd.read_parquet(tmp_path / "x.parquet")
    assert (table["difference"] == 0).all()
    code, out, _ = run(*asked, "--json")
    assert code == 0
    assert len(json.loads(out)["rows"]) == len(table)


def test_a_file_holds_every_answer_and_json_all_of_it(run, tmp_path: Path, directory: str) -> None:
    drawn = ("--temperature", "1", "--samples", "2", "--mitigation", "separator:every=1")
    code, out, _ = run(*BEHAVIOUR.split(), *drawn, "--model", directory, "--out", "answers.csv")
    assert (code, out) == (0, "wrote answers.csv\n")
    found = pd.read_csv(tmp_path / "answers.csv")
    assert found["length"].tolist() == [1, 1, 2, 2]
    assert found["sample"].tolist() == [0, 1, 0, 1]
    assert found["status"].tolist() == ["inactive", "inactive", "active", "active"]
    code, out, _ = run(*BEHAVIOUR.split(), "--json", "--model", directory)
    assert code == 0
    assert json.loads(out)["provenance"]["parameters"]["measurement"] == "behaviour"


def test_a_file_holds_every_count(run, tmp_path: Path, directory: str) -> None:
    code, out, _ = run(*COUNTING.split(), "--model", directory, "--out", "counts.csv")
    assert (code, out) == (0, "wrote counts.csv\n")
    assert pd.read_csv(tmp_path / "counts.csv")["length"].tolist() == [1, 2]


@pytest.mark.slow
def test_windows_to_a_file(run, bare: str, tmp_path: Path) -> None:
    out = tmp_path / "windows.parquet"
    code, said, _ = run("windows", "--model", bare, "--lengths", "3", "--windows", "2,40", "--out", str(out))
    assert code == 0
    assert "wrote" in said
    assert pd.read_parquet(out)["window"].tolist() == [pd.NA, 2, 40]


# --- the process


@pytest.mark.slow
def test_nothing_but_forecasts_and_results_is_written_in_a_process_of_its_own(directory: str, tmp_path: Path) -> None:
    done = in_a_process("sensitivity", "--prompt", "The", "--model", directory, cwd=tmp_path)
    assert done.returncode == 0
    assert_forecasts(done.stderr)
    assert done.stdout.startswith("Measured sensitivity")


def test_an_interrupt_is_130_without_a_traceback(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(lines: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ostools.cli.kit.output.print_text", interrupted)
    assert run("models") == (130, "", "ostools: interrupted\n")


@pytest.mark.slow
def test_a_reader_who_leaves_is_no_error(directory: str) -> None:
    code = "import sys; from ostools.cli import main; sys.argv = ['ostools', 'models']; main()"
    done = subprocess.run(
        ["bash", "-c", f'"$0" -c "{code}" | true', sys.executable], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_chain_of_thought_shows_parts_and_lines(run, directory: str) -> None:
    line = "chain-of-thought --task count-ones-figure-5 --length 3 --no-chat"
    code, out, err = run(*line.split(), "--reasoning", "1 + 1\n+ 1", "--model", directory)
    assert code == 0
    assert_one_forecast(err)
    for words in (
        "items of the sequence",
        "other words of the prompt",
        "begun answer line",
        "1 + 1",
        "given",
        "Next token",
    ):
        assert words in out
    assert "few-shot" not in out
