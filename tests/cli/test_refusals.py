"""Whatever cannot be done is one line and code 2: before a model is loaded where that can be, and without a file."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from ostools import cli
from ostools.ground.errors import InputError
from tests.checkpoints import edit_config, write_checkpoint
from tests.cli.asking import assert_refused

LONG = "1" * 400

BEFORE_A_MODEL = [
    ("", ["Missing command"]),
    ("sensitivty", ["No such command", "sensitivty"]),
    ("sensitivity", ["--prompt"]),
    ("sensitivity --promt x", ["No such option", "ostools sensitivity --help"]),
    ("sensitivity --prompt ''", ["expected text, found nothing"]),
    ("sensitivity --prompt a --linearisation frozn", ["did you mean 'frozen'"]),
    ("sensitivity --prompt a --out x.doc", ["expected a name ending in", ".html"]),
    ("sensitivity --prompt a --out no/such/x.png", ["does not exist"]),
    ("path-sum --prompt a --variant lokal", ["did you mean 'local'"]),
    ("path-sum --prompt a --out no/x.png", ["does not exist"]),
    ("attention-variation --task figure-5x", ["unknown task 'figure-5x'", "figure-5a"]),
    (
        "attention-variation --task copy",
        ["copy: expected pairs of which v* is v", "such pairs are figure-5a, ", "letters"],
    ),
    ("attention-variation --task letter", ["did you mean 'letters'"]),
    ("attention-variation --lengths 9:3", ["runs backwards"]),
    ("attention-variation --seed one", ["--seed"]),
    ("attention-variation --out x.doc", ["expected a name ending in"]),
    ("collapse --task figure-5x", ["unknown task 'figure-5x'", "figure-5a"]),
    ("collapse --lengths 9:3", ["runs backwards"]),
    ("collapse --lengths 1-9", ["--lengths '1-9'", "1:512"]),
    ("collapse --seed one", ["--seed"]),
    ("collapse --item ' and'", ["--item is what --prompt repeats"]),
    ("collapse --task letters --prompt a", ["--task and --prompt exclude each other"]),
    ("collapse --items id", ["unknown items 'id': did you mean 'ids'"]),
    ("collapse --dtype int9-kv", ["unknown dtype 'int9-kv': did you mean 'int8-kv'"]),
    ("collapse --lengths 1:4 --dtype float8", ["unknown dtype 'float8'"]),
    ("collapse --out no/x.png", ["does not exist"]),
    ("collapse --site logit", ["unknown site 'logit': did you mean 'logits'"]),
    ("collapse --layers x", ["--layers 'x': expected 'all' or numbers"]),
    ("collapse --layers all --site y", ["--layers compares v^(l)", "found y"]),
    ("collapse --norm l3", ["unknown norm 'l3'"]),
    ("collapse --site logits --per head-chunk", ["at logits: expected per vector, found 'head-chunk'"]),
    ("figure 5 --site logit", ["unknown site 'logit': did you mean 'logits'"]),
    ("figure 5 --norm l3", ["unknown norm 'l3'"]),
    ("figure 5 --site attention --per vector", ["at attention: expected per head-output, found 'vector'"]),
    ("figure 5 --items id", ["unknown items 'id': did you mean 'ids'"]),
    ("figure 5 --load-dtype float23", ["unknown dtype 'float23'"]),
    ("figure 2 --site y", ["figure 2 has no distances, so --site does not apply"]),
    ("figure 3 --per vector", ["figure 3 has no distances, so --per does not apply"]),
    ("figure 4 --norm l2", ["figure 4 has no distances, so --norm does not apply"]),
    ("figure 6 --items ids", ["figure 6 has no pairs, so --items does not apply"]),
    ("figure 7 --load-dtype bfloat16", ["figure 7 has no choice of dtype, so --load-dtype does not apply"]),
    ("figure 8 --site y", ["figure 8 has no model, so --site does not apply"]),
    ("repeats --task leters", ["unknown task 'leters': did you mean 'letters'"]),
    ("repeats --dtype x", ["unknown dtype 'x'"]),
    ("figure 1", ["unknown figure 1: known are 2, 3, 4, 5, 6, 7, 8, 9"]),
    (
        "collapse --size column",
        ["--size is of a picture: expected --out with a name ending in .png .svg .pdf, found None"],
    ),
    ("collapse --size page --out x.html", ["found x.html"]),
    ("collapse --size colum --out x.pdf", ["unknown size 'colum': did you mean 'column'"]),
    ("collapse --size 1 --out x.pdf", ["a width in inches from 2 on, found 1.0"]),
    ("report --out x.pdf", [".html"]),
    ("report --out .", ["."]),
    ("report --out no/x.html", ["does not exist"]),
    ("ablate --task copy-frist", ["unknown task 'copy-frist'", "did you mean 'copy-first'"]),
    ("ablate --what head", ["unknown part to ablate 'head'", "did you mean 'heads'"]),
    ("ablate --what layers --method mean", ["unknown method for layers 'mean'"]),
    ("ablate --measure answer", ["unknown measure 'answer'", "did you mean 'answers'"]),
    ("ablate --target 2", ["--target '2'", "layer.head, such as 2.0"]),
    ("ablate --what edges --target 2.0", ["layer.head:query:key"]),
    ("ablate --what layers --target 2", ["layer.attention or layer.mlp"]),
    ("ablate --out x.doc", ["expected a name ending in", ".html"]),
    ("attention", ["expected --prompt or --ids, or --task with --length"]),
    ("attention --prompt 1 --task copy-last", ["expected --prompt or --ids, or --task with --length"]),
    ("attention --task copy-last", ["--task and --length go together"]),
    ("attention --prompt ''", ["expected text, found nothing"]),
    ("attention --task copy-lst --length 3", ["did you mean 'copy-last'"]),
    ("attention --prompt 1 --mitigation hnt", ["did you mean 'hint'"]),
    ("attention --prompt 1 --against-prompt ''", ["--against-prompt: expected text"]),
    ("attention --prompt 1 --corresponding", ["--corresponding goes with one of --mitigation", "found one run"]),
    (
        "attention --prompt 1 --against-prompt 2 --mitigation hint",
        ["--mitigation and --against-prompt exclude each other"],
    ),
    ("attention --prompt 1 --out x.doc", ["expected a name ending in", ".html"]),
    ("behaviour --task count-wrd", ["unknown task 'count-wrd'", "did you mean 'count-word'"]),
    ("behaviour --task count-ones:mod=none", ["no option 'mod'", "did you mean 'mode'"]),
    ("behaviour --mode cot", ["expected mode to be 'none' or 'answer-only' or", "found 'cot'"]),
    ("behaviour --task copy --mode cot-few-shot", ["task 'copy' has no option 'mode'"]),
    ("behaviour --mitigation sepparator", ["unknown mitigation 'sepparator'", "did you mean 'separator'"]),
    ("behaviour --mitigation separator:every=0", ["expected every of at least 1, found 0"]),
    ("behaviour --lengths 9:3", ["runs backwards"]),
    ("behaviour --seed one", ["--seed"]),
    ("behaviour --out x.doc", ["expected a name ending in", ".html"]),
    ("behaviour --out no/x.png", ["does not exist"]),
    ("counting --task count-wrd", ["unknown task 'count-wrd'", "did you mean 'count-word'"]),
    ("counting --task copy-last", ["unknown counting task 'copy-last'", "count-ones"]),
    ("counting --lengths 9:3", ["runs backwards"]),
    ("counting --seed one", ["--seed"]),
    ("counting --out x.doc", ["expected a name ending in", ".html"]),
    ("counting --out no/x.png", ["does not exist"]),
    ("study --task copy-lost", ["unknown task 'copy-lost'", "copy-last"]),
    ("study --mitigation seperator", ["unknown mitigation 'seperator'", "separator"]),
    ("study --mitigation separator:evry=3", ["has no option 'evry'", "every"]),
    ("study --mitigation sliding-window:window=0", ["window of at least 1, found 0"]),
    ("study --dtype float23", ["unknown dtype 'float23'"]),
    ("study --lengths 9:4", ["runs backwards"]),
    ("study --out study.doc", ["expected a name ending in"]),
    ("windows --windows 0:4", ["--windows '0:4'", "from 1"]),
    ("windows --layers 1,x", ["--layers '1,x'", "alternate"]),
]

BY_WHAT_IS_LOADED = [
    ("sensitivity --prompt a --model ./nowhere", ["./nowhere", "found nothing there"]),
    ("sensitivity --prompt a --dtype float23", ["did you mean 'float32'"]),
    ("sensitivity --prompt a --device gpu", ["unknown device 'gpu'"]),
    ("sensitivity --prompt a --device-map dsik", ["unknown device map 'dsik'", "did you mean 'disk'"]),
    ("figure 9 --device-map auto", ["figure 9 has no model, so --device-map does not apply"]),
    ("figure 9 --base gpt2", ["figure 9 has no model, so --base does not apply"]),
    ("sensitivity --prompt a --base gpt2", ["base: expected an adapter (adapter_config.json) in", "leave base out"]),
]

BY_THE_MODEL = [
    (f"sensitivity --prompt {LONG} --out x.csv", ["at most 256 tokens", "found 401"]),
    (f"report --prompt {LONG}", ["at most 256 tokens"]),
    ("collapse --lengths 1:400 --out x.png", ["256 tokens"]),
    (
        "attention-variation --task copy-last --lengths 2",
        ["expected pairs of which v* is v with its last token once more"],
    ),
    ("ablate --target 7.0", ["layers out of 0..", "found 7"]),
    ("ablate --target 0.9", ["heads out of 0..", "found 9"]),
    ("ablate --what edges --target 0.0:900:1", ["found the query 900"]),
    ("ablate --what layers --target 0.atention", ["unknown part of a layer", "did you mean 'attention'"]),
    ("ablate --length 9000 --out x.csv", ["tokens (the model's context)"]),
    ("attention --prompt 123 --against-prompt 12 --out x.png", ["none known to be the same", "--out x.html"]),
    ("behaviour --lengths 300", ["expected at most 256 tokens (the model's context)"]),
    ("behaviour --lengths 208", ["do not fit the model's context of 256"]),
    ("behaviour --lengths 2 --samples 3", ["at temperature 0 all 3 would be the same"]),
    ("behaviour --lengths 2 --seed 0 --seed 1", ["draws nothing at random"]),
    ("behaviour --lengths 2 --max-new-tokens 0", ["max_new_tokens: expected a whole number of at least 1, found 0"]),
    ("behaviour --lengths 2 --temperature -1", ["temperature of 0 (greedy) or more, found -1.0"]),
    ("counting --lengths 1:2 --dtype float8", ["unknown dtype 'float8'"]),
    ("counting --lengths 46 --out x.csv", ["46 items and one more take", "holds 256"]),
    (
        "study --task count-ones-figure-5 --elicitation zero-shot --mitigation sliding-window:window=4,layers=7",
        ["layers out of 0..1, found 7"],
    ),
    ("study --lengths 200", ["at most 256 tokens"]),
    ("windows --layers 9 --windows 4", ["layers out of 0..1, found 9"]),
    ("windows --task copy", ["ends in the sequence"]),
]
USUAL = {
    "ablate": "--task copy-first --length 2 --measure answers",
    "behaviour": "--task count-ones-figure-5 --no-chat --out x.csv",
}

AFTER_A_FORECAST = [
    ("sensitivity --layers two", "--layers 'two': expected 'all' or numbers such as 0,2"),
    ("sensitivity --layers 9", "out of 0..2, found [9]"),
    ("sensitivity --method exat", "did you mean 'exact'"),
    ("sensitivity --max-memory 3zB", "--max-memory '3zB': expected a size such as 4GiB"),
    ("sensitivity --max-memory 1kB --method exact", "need"),
    ("sensitivity --relative-error -1", "relative_error"),
    ("path-sum --variant 'windowed(0)'", "did you mean"),
    ("path-sum --max-memory 1MB", "beside the model, 1 MiB allowed by --max-memory"),
    ("path-sum --positions some", "unknown positions 'some'"),
]


@pytest.mark.parametrize(("line", "words"), BEFORE_A_MODEL, ids=[line for line, _ in BEFORE_A_MODEL])
@pytest.mark.usefixtures("no_model")
def test_bad_input_is_one_line_before_a_model_is_loaded(run, tmp_path: Path, line: str, words: list[str]) -> None:
    assert_refused(run(*shlex.split(line)), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("line", "words"), BY_WHAT_IS_LOADED, ids=[line for line, _ in BY_WHAT_IS_LOADED])
def test_what_cannot_be_loaded_is_one_line(run, tmp_path: Path, line: str, words: list[str]) -> None:
    assert_refused(run(*shlex.split(line)), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("line", "words"), BY_THE_MODEL, ids=[line[:60] for line, _ in BY_THE_MODEL])
def test_what_the_model_cannot_take_is_one_line(
    run, tmp_path: Path, directory: str, bare: str, line: str, words: list[str]
) -> None:
    command, *rest = shlex.split(line)
    model = bare if command in ("study", "windows") else directory
    assert_refused(run(command, *USUAL.get(command, "").split(), "--model", model, *rest), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("line", "message"), AFTER_A_FORECAST, ids=[line for line, _ in AFTER_A_FORECAST])
def test_what_the_measurement_refuses_is_one_line_beside_forecasts(
    run, directory: str, line: str, message: str
) -> None:
    code, out, err = run(*shlex.split(line), "--prompt", "The 11", "--model", directory)
    assert (code, out) == (2, "")
    (refusal,) = [line for line in err.splitlines() if not line.startswith(("forecast: ", "plan: "))]
    assert message in refusal


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


def test_a_merged_separator_is_one_line(run, bare: str, tmp_path: Path) -> None:
    """A tokenizer that makes one token of a one and a comma: nothing would be separated."""
    merging = tmp_path / "merging"
    shutil.copytree(bare, merging)
    file = merging / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    # In the place of a merge of letters, so that the vocabulary stays as large as the embedding.
    merges, vocab = state["model"]["merges"], state["model"]["vocab"]
    left, right = merges.pop()
    vocab["1,"] = vocab.pop(left + right)
    merges.append(["1", ","])
    split = state["pre_tokenizer"]["pretokenizers"]
    state["pre_tokenizer"]["pretokenizers"] = [
        part | {"use_regex": False} for part in split if part["type"] != "Digits"
    ]
    file.write_text(json.dumps(state), encoding="utf-8")
    asked = ("--mitigation", "separator:every=3", "--lengths", "4", "--elicitation", "zero-shot")
    found = run("study", "--model", str(merging), *asked)
    assert_refused(found, "expected inserted text in tokens of its own, found '1,'")


# --- whatever is in it


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
