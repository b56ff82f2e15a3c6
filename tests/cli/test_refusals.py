"""Whatever cannot be done is one line and code 2: before a model is loaded where that can be, and
without a file.
"""

import shlex
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ostools import hooks
from ostools.ground.errors import InputError
from tests.checkpoints import edit_config, write_checkpoint
from tests.cli.asking import assert_refused

LONG = "1" * 400

BEFORE_A_MODEL = [
    ("", ["Missing command"]),
    ("sensitivty", ["unknown command 'sensitivty': did you mean 'sensitivity'"]),
    ("list", ["expected one of measurements, mitigations"]),
    ("reproduce figure 1", ["unknown word behind reproduce figure '1'", "known are 2, 3, 4, 5, 6, 7, 8, 9"]),
    ("sensitivity", ["expected --prompt or --ids or --task, found none of them"]),
    ("sensitivity --promt x", ["No such option", "ostools sensitivity --help"]),
    ("sensitivity --prompt a --linearisations frozn", ["did you mean 'frozen'"]),
    ("sensitivity --prompt a --out x.doc", ["expected a name ending in", ".html"]),
    ("sensitivity --prompt a --size colum --out x.pdf", ["unknown size 'colum': did you mean 'column'"]),
    ("sensitivity --prompt a --max-memory 3zB", ["--max-memory '3zB': expected a size such as 4GiB"]),
    ("sensitivity --prompt a --mitigation separator:every=3", ["rewrites the sequence", "give --task NAME --length N"]),
    ("sensitivity --ids 2,40 --mitigation repeat-prompt", ["rewrites the prompt, which is not known", "give the text"]),
    ("collapse --task figure-5x", ["unknown task 'figure-5x'", "figure-5a"]),
    ("collapse --lengths 1-9", ["--lengths '1-9'", "1:512"]),
    ("collapse variation --task copy", ["copy: expected pairs of which v* is v", "such pairs are figure-5a, "]),
    ("evaluate --mitigation separator:every=0", ["expected every of at least 1, found 0"]),
    ("ablate --what head", ["unknown --what 'head': did you mean 'heads'"]),
    ("collapse --task count-ones --position last", ["unknown --position 'last': did you mean 'last-item'"]),
    ("collapse --lengths 0:4 --dry-run", ["numbers of items: expected whole numbers of at least 1, found 0"]),
    ("report --out x.pdf", [".html"]),
    ("sensitivity --prompt a --logit 1 --logit 0 --logit 1", ["logit: expected one token or a pair"]),
    ("sensitivity --prompt a --position last-item", ["position: expected a task's prompt for 'last-item'"]),
    ("sensitivity profile --prompt a --cotangents 1", ["cotangents: expected a whole number of at least 2, found 1"]),
    ("collapse --dtypes int9-kv", ["unknown dtype 'int9-kv': did you mean 'int8-kv'"]),
    ("attention --task copy-last --length 2 --prompt 1", ["expected --prompt or --ids or --task, found prompt and task"]),
    ("evaluate retrieval --records uids", ["unknown --records 'uids'"]),
    ("probe --task copy-last --seeds 0,1", ["draws nothing at random"]),
    ("probe --lengths 1:3 --dry-run", ["expected at least 5 lengths", "found 3"]),
]  # fmt: skip

BY_ITS_FILES = [
    ("sensitivity --prompt a --model ./nowhere", ["./nowhere", "found neither there"]),
    (f"sensitivity --prompt {LONG} --out x.csv", ["at most 256 tokens", "found 401"]),
    ("sensitivity --prompt a --layers 9", ["out of 0..2, found [9]"]),
    ("evaluate --lengths 400 --out x.csv", ["at most 256 tokens"]),
]
"""What the configuration and the tokenizer say."""


@pytest.mark.parametrize(
    ("line", "words"), BEFORE_A_MODEL, ids=[line for line, _ in BEFORE_A_MODEL]
)
@pytest.mark.usefixtures("no_model")
def test_bad_input_is_one_line_before_a_model_is_loaded(
    run, tmp_path: Path, line: str, words: list[str]
) -> None:
    assert_refused(run(*shlex.split(line)), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "words"), BY_ITS_FILES, ids=[line[:60] for line, _ in BY_ITS_FILES]
)
@pytest.mark.usefixtures("no_model")
def test_what_its_files_say_is_refused_before_a_model_is_loaded(
    run, tmp_path: Path, directory: str, line: str, words: list[str]
) -> None:
    model = () if "--model" in line else ("--model", directory)
    assert_refused(run(*shlex.split(line), *model), *words)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_numbers_and_an_unknown_architecture_are_refused(
    run, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    broken, odd = (write_checkpoint(tmp_path / name, "gemma") for name in ("broken", "odd"))
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    assert_refused(run("sensitivity", "--prompt", "a", "--model", str(broken)), "model.norm.weight")
    edit_config(odd, model_type="bert", architectures=["BertForMaskedLM"])
    assert_refused(run("sensitivity", "--prompt", "a", "--model", str(odd)), "bert")


# --- whatever is in it


@pytest.mark.parametrize("name", ["[bold]x[/bold]", "a\nb\x1b[31mred", "\u202eevil"])
def test_what_the_user_wrote_neither_breaks_the_line_nor_drives_the_terminal(
    run, name: str
) -> None:
    refusal = run("collapse", "--task", name)
    assert_refused(refusal, "unknown task")
    assert refusal[2].rstrip("\n").isprintable()
    if name.startswith("["):
        assert name in refusal[2]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InputError("a\nb\x1b[31m [bold]c"), "a b [31m [bold]c"),
        (
            hooks.HookError("no site"),
            "no site (more in docs/errors.md: The edit did nothing)",
        ),
    ],
    ids=["ours", "hooks"],
)
def test_a_refusal_is_one_line_and_a_defect_is_not_hidden(
    main: Any, error: BaseException, line: str
) -> None:
    assert main(Mock(side_effect=error)) == (2, f"ostools: {line}\n")
    with pytest.raises(ValueError, match="a defect"):
        main(Mock(side_effect=ValueError("a defect")))
