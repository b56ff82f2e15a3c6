"""The command line as its users meet it: results on stdout, one line and code 2 for whatever cannot be done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from ostools import cli
from ostools.cli.kit.options import parse_bytes, parse_lengths
from ostools.ground.errors import InputError
from tests.checkpoints import edit_config, write_checkpoint

COMMANDS = (
    "report", "sensitivity", "path-sum", "looseness", "profile", "flow", "spectra", "attention", "collapse", "repeats",
    "counting", "behaviour", "study", "windows", "ablate", "figure", "retrieval", "theory", "lab", "run", "results",
    "tasks", "mitigations", "models", "doctor",
)  # fmt: skip


def in_a_process(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "import sys; from ostools.cli import main; sys.argv[0] = 'ostools'; main()",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def assert_refused(found: tuple[int, str, str], *words: str) -> None:
    code, out, err = found
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("ostools: ")
    assert "Traceback" not in err
    for word in words:
        assert word in err


# --- help


HELPED = """
import contextlib, io, sys
from ostools.cli import main
for command in sys.argv[1:]:
    sys.argv = ["ostools", *command.split()]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            main()
        except SystemExit as stopped:
            assert not stopped.code, command
    assert shown.getvalue(), command
    heavy = {"torch", "transformer_lens", "transformers", "pandas", "altair", "numpy", "jinja2"} & set(sys.modules)
    assert not heavy, (command, heavy)
    print(command)
"""


def test_help_imports_nothing_heavy() -> None:
    """All in one process, one after the other: the first that imports too much is named."""
    asked = ["--help", "--version", *(f"{command} --help" for command in COMMANDS)]
    done = subprocess.run([sys.executable, "-c", HELPED, *asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == asked


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(run, command: str) -> None:
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert f"ostools {command}" in out.partition("Example:")[2]


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if command not in ("tasks", "mitigations", "models")]
)
def test_every_example_names_options_that_exist(run, command: str) -> None:
    _, out, _ = run(command, "--help")
    example, options = out.partition("Example:")[2].split("Options:")
    for word in example.split():
        if word.startswith("--"):
            assert f"  {word} " in options


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["Missing command"]),
        (["sensitivty"], ["No such command", "sensitivty"]),
        (["sensitivity"], ["--prompt"]),
        (["sensitivity", "--promt", "x"], ["No such option", "ostools sensitivity --help"]),
        (["sensitivity", "--prompt", ""], ["expected text, found nothing"]),
        (["sensitivity", "--prompt", "a", "--linearisation", "frozn"], ["did you mean 'frozen'"]),
        (["path-sum", "--prompt", "a", "--variant", "lokal"], ["did you mean 'local'"]),
        (["collapse", "--task", "figure-5x"], ["unknown task 'figure-5x'", "figure-5a"]),
        (["collapse", "--lengths", "9:3"], ["runs backwards"]),
        (["collapse", "--lengths", "1-9"], ["--lengths '1-9'", "1:512"]),
        (["collapse", "--seed", "one"], ["--seed"]),
        (["collapse", "--item", " and"], ["--item is what --prompt repeats"]),
        (["collapse", "--task", "letters", "--prompt", "a"], ["--task and --prompt exclude each other"]),
        (["collapse", "--items", "id"], ["unknown items 'id': did you mean 'ids'"]),
        (["collapse", "--dtype", "int9-kv"], ["unknown dtype 'int9-kv': did you mean 'int8-kv'"]),
        (["repeats", "--task", "leters"], ["unknown task 'leters': did you mean 'letters'"]),
        (["figure", "1"], ["unknown figure 1: known are 2, 3, 4, 5, 6, 7, 8, 9"]),
        (["theory", "--lemma", "B.5"], ["unknown lemma 'B.5'"]),
        (["lab", "--study", "dept"], ["did you mean 'depth'"]),
        (["sensitivity", "--prompt", "a", "--out", "x.doc"], ["expected a name ending in", ".html"]),
        (["sensitivity", "--prompt", "a", "--out", "no/such/x.png"], ["does not exist"]),
        (["report", "--out", "x.pdf"], [".html"]),
        (["report", "--out", "."], ["."]),
        (["sensitivity", "--prompt", "a", "--model", "./nowhere"], ["./nowhere", "found nothing there"]),
        (["sensitivity", "--prompt", "a", "--dtype", "float23"], ["did you mean 'float32'"]),
        (["sensitivity", "--prompt", "a", "--device", "gpu"], ["unknown device 'gpu'"]),
    ],
)
def test_bad_input_is_one_line_and_no_file(run, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    assert_refused(run(*arguments), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["sensitivity", "--prompt", "a", "--out", "no/x.png"],
        ["path-sum", "--prompt", "a", "--out", "no/x.png"],
        ["collapse", "--out", "no/x.png"],
        ["report", "--out", "no/x.html"],
        ["sensitivity", "--prompt", "a", "--linearisation", "x"],
        ["path-sum", "--prompt", "a", "--variant", "x"],
        ["collapse", "--lengths", "x"],
        ["collapse", "--task", "x"],
        ["collapse", "--dtype", "x"],
        ["repeats", "--dtype", "x"],
    ],
)
@pytest.mark.usefixtures("no_model")
def test_what_can_be_refused_at_once_is_refused_before_a_model_is_loaded(run, arguments: list[str]) -> None:
    assert_refused(run(*arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sensitivity", "--prompt", "1" * 400, "--out", "x.csv"], ["at most 256 tokens", "found 401"]),
        (["report", "--prompt", "1" * 400], ["at most 256 tokens"]),
        (["collapse", "--lengths", "1:400", "--out", "x.png"], ["256 tokens"]),
        (["collapse", "--lengths", "1:4", "--dtype", "float8"], ["unknown dtype 'float8'"]),
    ],
)
def test_what_the_model_cannot_take_is_refused(
    run, tmp_path: Path, directory: str, arguments: list[str], words: list[str]
) -> None:
    assert_refused(run(*arguments, "--model", directory), *words)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_numbers_are_refused(run, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    broken = write_checkpoint(tmp_path / "broken", "gemma")
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    assert_refused(run("sensitivity", "--prompt", "a", "--model", str(broken)), "model.norm.weight")


def test_an_unknown_architecture_is_refused(run, tmp_path: Path) -> None:
    odd = write_checkpoint(tmp_path / "odd", "gemma")
    edit_config(odd, model_type="bert", architectures=["BertForMaskedLM"])
    assert_refused(run("sensitivity", "--prompt", "a", "--model", str(odd)), "bert")


@pytest.mark.parametrize("name", ["[bold]x[/bold]", "a\nb", "\x1b[31mred", "\u202eevil", "x" * 5000])
def test_what_the_user_wrote_neither_breaks_the_line_nor_drives_the_terminal(run, name: str) -> None:
    found = run("collapse", "--task", name)
    assert_refused(found, "unknown task")
    assert found[2].rstrip("\n").isprintable()
    if name.startswith("["):
        assert name in found[2]


def test_a_hook_that_cannot_be_placed_is_refused_as_well(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    import hooks

    def raising(**options) -> None:
        raise hooks.HookError("there is no such site")

    monkeypatch.setattr(cli, "app", raising)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err == "ostools: there is no such site\n"


def test_a_refusal_stays_on_its_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    def raising(**options) -> None:
        raise InputError("a\nb\x1b[31m \u202e[bold]c")

    monkeypatch.setattr(cli, "app", raising)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err == "ostools: a b [31m [bold]c\n"


def test_a_defect_is_not_hidden(monkeypatch) -> None:
    def raising(**options) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(cli, "app", raising)
    with pytest.raises(ValueError, match="a defect"):
        cli.main()


def test_an_interrupt_is_130_without_a_traceback(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(lines: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ostools.cli.kit.output.print_text", interrupted)
    assert run("models") == (130, "", "ostools: interrupted\n")


def test_a_reader_who_leaves_is_no_error(directory: str) -> None:
    code = "import sys; from ostools.cli import main; sys.argv = ['ostools', 'models']; main()"
    done = subprocess.run(
        ["bash", "-c", f'"$0" -c "{code}" | true', sys.executable], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


# --- what is done


def assert_forecasts(err: str) -> None:
    """One line of memory a linearisation, and nothing else."""
    full, frozen = err.splitlines()
    assert full.startswith("forecast: full, exact: ")
    assert frozen.startswith("forecast: frozen, exact: ")


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
    assert "full operator lower" in out
    assert "full operator upper" in out
    assert "Measured" not in out


def test_path_sum_says_what_each_column_is(run, directory: str) -> None:
    code, out, err = run(
        "path-sum", "--prompt", "The 11", "--model", directory, "--variant", "local", "--variant", "proof"
    )
    assert code == 0
    assert err.startswith("forecast: path sums: ")
    assert len(err.splitlines()) == 1
    assert "local: certified bound" in out
    assert "proof: paper's form (not certified)" in out
    assert "uniform" not in out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("looseness", ["constants", "chaining", "assumptions"]),
        ("profile", ["verdict", "sink_share", "share_without_sink"]),
        ("flow", ["key_token", "query_token", "flow"]),
        ("spectra", ["first_mass_last", "lazy"]),
    ],
)
def test_what_is_read_off_a_prompt(run, directory: str, tmp_path: Path, command: str, words: list[str]) -> None:
    """A table on stdout, or a chart in a file."""
    code, out, err = run(command, "--prompt", "The 11", "--model", directory)
    assert (code, err) == (0, "")
    assert all(word in out for word in words)
    assert run(command, "--prompt", "The 11", "--model", directory, "--out", "x.svg") == (0, "wrote x.svg\n", "")
    assert (tmp_path / "x.svg").stat().st_size > 1000


def test_every_layer_and_every_last_position_can_be_saved(run, directory: str, tmp_path: Path) -> None:
    prompt = ["--prompt", "The 11", "--model", directory]
    assert run("sensitivity", *prompt, "--layers", "0,2", "--out", "x.parquet")[0] == 0
    assert set(pd.read_parquet(tmp_path / "x.parquet")["layer"]) == {0, 2}
    assert run("path-sum", *prompt, "--variant", "local", "--positions", "all", "--out", "y.parquet")[0] == 0
    triangle = pd.read_parquet(tmp_path / "y.parquet")
    n = triangle["last"].max() + 1
    assert len(triangle) == n * (n + 1) // 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sensitivity", "--layers", "two"], "--layers 'two': expected 'all' or numbers such as 0,2"),
        (["sensitivity", "--layers", "9"], r"out of 0..2, found [9]"),
        (["sensitivity", "--method", "exat"], "did you mean 'exact'"),
        (["sensitivity", "--max-memory", "3zB"], "--max-memory '3zB': expected a size such as 4GiB"),
        (["sensitivity", "--max-memory", "1kB", "--method", "exact"], "need"),
        (["sensitivity", "--relative-error", "-1"], "relative_error"),
        (["path-sum", "--variant", "windowed(0)"], "did you mean"),
        (["path-sum", "--max-memory", "1MB"], "0.00 GiB are allowed"),
        (["path-sum", "--positions", "some"], "unknown positions 'some'"),
        (["path-sum", "--mlp-trace", "probe"], "did you mean 'probes'"),
    ],
)
def test_options_that_cannot_be_end_in_one_line(run, directory: str, arguments: list[str], message: str) -> None:
    code, out, err = run(*arguments, "--prompt", "The 11", "--model", directory)
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if not line.startswith("forecast: ")]
    assert message in line


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 4 << 30), ("500 MB", 500_000_000), ("1.5kib", 1536), ("77", 77), (None, None)]
)
def test_sizes_of_memory(text: str | None, size: int | None) -> None:
    assert parse_bytes(text) == size


def test_collapse_compares_the_precisions_that_were_named(run, directory: str) -> None:
    arguments = ["--lengths", "1:9", "--dtype", "float32", "--dtype", "bfloat16", "--model", directory]
    code, out, err = run("collapse", *arguments)
    assert (code, err) == (0, "")
    assert "bfloat16 noise" in out
    assert "float16 noise" not in out.replace("bfloat16", "")
    assert "collapse in bfloat16" in out


@pytest.mark.parametrize("ending", ["csv", "json", "parquet", "svg", "png", "pdf", "html"])
def test_out_is_written_by_its_ending(run, tmp_path: Path, directory: str, ending: str) -> None:
    name = f"profile.{ending}"
    code, out, err = run("sensitivity", "--prompt", "The 11", "--model", directory, "--out", name)
    assert (code, out) == (0, f"wrote {name}\n")
    assert_forecasts(err)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_saved_collapse_has_every_length_and_seed(run, tmp_path: Path, directory: str) -> None:
    arguments = ["--task", "figure-5b", "--lengths", "2:4,9", "--seed", "3", "--seed", "5", "--dtype", "float32"]
    assert run("collapse", *arguments, "--model", directory, "--out", "x.parquet")[0] == 0
    frame = pd.read_parquet(tmp_path / "x.parquet")
    assert set(frame["length"]) == {2, 3, 4, 9}
    assert set(frame["seed"]) == {3, 5}
    assert set(frame["dtype"]) == {"float32"}


def test_the_model_is_loaded_in_the_dtype_asked_for(run, tmp_path: Path, directory: str) -> None:
    arguments = ["--prompt", "The 11", "--model", directory, "--dtype", "float64", "--out", "x.parquet"]
    assert run("path-sum", *arguments)[0] == 0
    assert pd.read_parquet(tmp_path / "x.parquet").attrs["ostools"]["model"]["dtype"] == "float64"


def test_models_lists_what_can_be_loaded(run) -> None:
    code, out, err = run("models")
    assert (code, err) == (0, "")
    for words in ("embedded", "google/gemma-7b", "GemmaForCausalLM", "LlamaForCausalLM"):
        assert words in out


def test_nothing_but_forecasts_and_results_is_written_in_a_process_of_its_own(directory: str, tmp_path: Path) -> None:
    done = in_a_process("sensitivity", "--prompt", "The", "--model", directory, cwd=tmp_path)
    assert done.returncode == 0
    assert_forecasts(done.stderr)
    assert done.stdout.startswith("Measured sensitivity")


# --- lengths


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("1:4", [1, 2, 3, 4]), ("8,16,32", [8, 16, 32]), ("5", [5]), ("3:3", [3]), ("7, 1:3,2", [1, 2, 3, 7])],
)
def test_lengths_are_read_inclusively(text: str, lengths: list[int]) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    "text",
    ["", ":", "1:", ":5", "a", "1.5", "-3", "0:4", "1:2:3", "1,,2", "1:10000000", "٣", "1" * 5000, "1e3", "0"],
)
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--lengths"):
        parse_lengths(text)


# --- what can be named


@pytest.mark.parametrize(("command", "name"), [("tasks", "count-ones-bernoulli"), ("mitigations", "sliding-window")])
def test_what_can_be_named_is_listed_with_whose_it_is(run, command: str, name: str) -> None:
    code, out, err = run(command)
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith(f"{name} ")]
    assert line.split()[1] == "ostools"
