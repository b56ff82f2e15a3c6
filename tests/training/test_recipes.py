"""The recipes of the embedded models: what they refuse, the lengths that they draw, and how a run ends early."""

from __future__ import annotations

import functools
import json
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from ostools.ground.errors import InputError
from ostools.models import describe, load_model
from ostools.models.families import EMBEDDED_MODELS
from ostools.models.files.sources import EMBEDDED_DIRECTORIES
from ostools.training import card as card_module
from ostools.training import evaluate, examples, loop
from ostools.training import train as entry
from ostools.training.corpus import Corpus
from ostools.training.recipe import RECIPES, Recipe
from tests.sets import quick
from tests.training.small import SMALL, TINY


class Given(random.Random):
    """A stream whose next numbers are said."""

    def __init__(self, numbers: Iterator[float]) -> None:
        super().__init__(0)
        self.numbers = numbers

    def random(self) -> float:
        return next(self.numbers)


# what a recipe says


def test_every_embedded_model_has_its_recipe() -> None:
    assert tuple(RECIPES) == EMBEDDED_MODELS
    assert RECIPES["embedded"] == Recipe()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "gema3"}, r"unknown architecture 'gema3': did you mean 'gemma3' or 'gemma'\?"),
        ({"length_law": "faling"}, r"unknown length_law 'faling': did you mean 'falling'\?"),
        ({"stored": "bfloat"}, r"unknown number format 'bfloat': did you mean 'bfloat16'"),
        ({"longest": {"copy-frist": 8}}, r"unknown task 'copy-frist': did you mean 'copy-first'"),
        ({"longest": {"copy": 0}}, r"longest of copy: expected a whole number of at least 1, found 0"),
        ({"shares": {"copy": 1.0}}, r"shares: expected a share of at least 0 for each of copy-last, "),
        ({"shares": {"copy-lats": 1.0}}, r"unknown task with a longest sequence 'copy-lats': did you mean 'copy-last'"),
        ({"length_scale": 0.0}, r"length_scale: expected a positive number, found 0.0"),
        ({"steps": 0}, r"steps: expected a whole number of at least 1, found 0"),
        ({"window": 8}, r"window: the architecture 'gemma' has none, found 8 .* choose 'gemma3'"),
        ({"architecture": "gemma3"}, r"window: the architecture 'gemma3' needs one, found None"),
        ({"architecture": "gemma3", "window": 8, "full_layers": (4,)}, r"full_layers: expected layers out of 0\.\.3, "),
    ],
)
def test_a_wrong_recipe_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Recipe(**changes)


def test_falling_lengths_are_drawn_by_their_law() -> None:
    """The inverse of the distribution, at numbers from 0 to just below 1, against the law summed term by term."""
    recipe, longest = replace(TINY, length_law="falling", length_scale=5.0), 30
    weights = [torch.exp(torch.tensor(-n / 5.0, dtype=torch.float64)).item() for n in range(1, longest + 1)]
    sums = [sum(weights[:n]) / sum(weights) for n in range(longest + 1)]
    assert [recipe.share_up_to(n, longest) for n in range(longest + 1)] == pytest.approx(sums)
    numbers = [i / 4096 for i in range(4096)] + [1 - 2**-53]
    stream = Given(iter(numbers))
    for number in numbers:
        n = examples.draw_length(recipe, longest, stream)
        assert sums[n - 1] - 1e-12 <= number <= sums[n] + 1e-12
    assert recipe.share_up_to(99, longest) == 1.0


def test_the_stated_shares_of_broad_lengths_are_those_of_draws() -> None:
    stream, longest = random.Random(0), 64
    drawn = [examples.draw_length(TINY, longest, stream) for _ in range(20_000)]
    for length in (1, 8, 32, 64):
        assert sum(n <= length for n in drawn) / len(drawn) == pytest.approx(
            TINY.share_up_to(length, longest), abs=0.02
        )


def test_without_a_curriculum_the_first_step_has_every_length() -> None:
    recipe = replace(TINY, curriculum_steps=0)
    assert [recipe.longest_at(step, 64) for step in (0, 1, 6)] == [64] * 3


def test_windowed_layers_see_their_window_and_nothing_else() -> None:
    """One layer of three tokens' window: a token three before the last reaches nothing of it, one two before does."""
    recipe = replace(SMALL["embedded-windowed"], n_layers=1, window=3, full_layers=())
    model = loop.start(recipe, "data").model.eval()
    ids = torch.arange(10, 20)[None]
    with torch.no_grad():
        logits = [model(input_ids=ids.index_fill(1, torch.tensor([at]), 99)).logits[0, -1] for at in (6, 7)]
        before = model(input_ids=ids).logits[0, -1]
    assert torch.equal(logits[0], before)
    assert not torch.equal(logits[1], before)


# training


@pytest.mark.parametrize("name", quick(RECIPES, "embedded"))
def test_the_loss_goes_down(name: str, corpus: Corpus, tokenizer: Tokenizer) -> None:
    recipe = replace(SMALL[name], steps=40, decay_steps=10, learning_rate=1e-2)
    run = loop.start(recipe, "data")
    before = evaluate.validation_loss(recipe, run.model, tokenizer, tokens=1000)
    text = examples.pack_text(corpus.train, tokenizer)
    losses = [loop.train_step(run, batch)[1] for batch in examples.batches(recipe, 0, tokenizer, text)]
    assert evaluate.validation_loss(recipe, run.model, tokenizer, tokens=1000) < 0.7 * before
    assert losses[-1] < 0.7 * losses[0]


def test_the_validation_loss_is_the_weighted_mean_over_fresh_prompts(tokenizer: Tokenizer) -> None:
    """Prompt by prompt, in float64, without padding."""
    model = loop.start(TINY, "data").model.double()
    prompts = examples.draw_prompts(TINY, random.Random("0 validation prompts"), TINY.steps - 1, 900, tokenizer)
    total = weight = 0.0
    for prompt in prompts:
        with torch.no_grad():
            logs = model(input_ids=torch.tensor([prompt.ids])).logits[0].log_softmax(-1)
        for place in range(1, len(prompt.ids)):
            total -= prompt.weights[place] * float(logs[place - 1, prompt.ids[place]])
            weight += prompt.weights[place]
    assert evaluate.validation_loss(TINY, model, tokenizer, tokens=900) == pytest.approx(total / weight, rel=1e-6)
    trained = {p.ids for group in range(3) for batch in examples.draw_group(TINY, group, tokenizer) for p in batch}
    assert not {prompt.ids for prompt in prompts} <= trained


# the entry


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, corpus: Corpus) -> None:
    monkeypatch.setattr(entry, "load_corpus", lambda: corpus)
    for name, recipe in SMALL.items():
        monkeypatch.setitem(RECIPES, name, recipe)
    few = functools.partial(evaluate.accuracy_table, examples=1, bands=((1, 8),))
    monkeypatch.setattr(card_module, "accuracy_table", few)


@pytest.mark.usefixtures("tiny")
def test_a_wrong_recipe_name_gets_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--recipe", "embedded-shrot", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: unknown recipe 'embedded-shrot': did you mean 'embedded-short'")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", ["embedded-short", "embedded-windowed"])
@pytest.mark.slow
def test_the_weights_on_disk_are_rounded_and_the_card_is_of_these(name: str, tmp_path: Path) -> None:
    assert entry.main(["--recipe", name, "--out", str(tmp_path), "--steps", "3"]) == 0
    stored = load_file(tmp_path / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {torch.bfloat16}
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    for key, weight in stored.items():
        assert torch.equal(model.state_dict()[key], weight.float())
    card = json.loads((tmp_path / "card.json").read_text())
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    recipe = replace(RECIPES[name], steps=3)
    assert card["validation_prompts_nats"] == round(evaluate.validation_loss(recipe, model, tokenizer), 5)
    assert (card["name"], card["recipe"]["stored"]) == (name, "bfloat16")
    assert "stored in bfloat16" in (tmp_path / "MODEL_CARD.md").read_text()


def _stopping(at: int) -> Any:
    """`train`, but a signal comes at this step."""

    def signalled(run: loop.Run) -> None:
        if run.step == at:
            signal.raise_signal(signal.SIGTERM)

    def stopped(run: loop.Run, *args: Any, **options: Any) -> None:
        loop.train(run, *args, checkpoint_seconds=0.0, on_step=signalled)

    return stopped


@pytest.mark.usefixtures("tiny")
@pytest.mark.slow
def test_a_signal_ends_the_entry_in_one_line_and_resume_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--recipe", "embedded-short", "--steps", "4", "--out"]
    assert entry.main([*asked, str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(entry, "train", _stopping(3))
        with pytest.raises(SystemExit) as ended:
            entry.main([*asked, str(tmp_path / "broken")])
    assert ended.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "ostools: stopped by SIGTERM\n"
    assert entry.main([*asked, str(tmp_path / "broken"), "--resume"]) == 0
    files = [tmp_path / each / "model.safetensors" for each in ("whole", "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.usefixtures("tiny")
@pytest.mark.slow
def test_a_full_disk_ends_in_one_line_and_leaves_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(entry, "save_tokenizer", full)
        assert entry.main(["--out", str(tmp_path), "--steps", "2"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "No space left on device" in said
    assert "go on with --resume" in said
    assert (tmp_path / loop.CHECKPOINT).is_file()
    assert not (tmp_path / "model.safetensors").exists()
    assert entry.main(["--out", str(tmp_path), "--steps", "2", "--resume"]) == 0


@pytest.mark.usefixtures("tiny")
def test_a_checkpoint_that_cannot_be_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / loop.CHECKPOINT).write_bytes(b"half")
    assert entry.main(["--out", str(tmp_path), "--resume"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: expected a checkpoint in ")
    assert said.endswith("delete it to start anew\n")


# loading


@pytest.mark.parametrize("name", EMBEDDED_MODELS)
def test_each_embedded_model_loads_by_its_name_and_exactly(name: str) -> None:
    model = load_model(name)
    described = describe(model)
    assert described.name == name
    assert described.trained_lengths == RECIPES[name].trained_lengths()
    theirs: Any = model.original_model
    stored = load_file(EMBEDDED_DIRECTORIES[name] / "model.safetensors")
    assert torch.equal(theirs.get_input_embeddings().weight, stored["model.embed_tokens.weight"].float())


def test_a_misspelt_embedded_model_gets_the_nearest_name() -> None:
    with pytest.raises(InputError, match="unknown model 'embedded-windwed': did you mean 'embedded-windowed'"):
        load_model("embedded-windwed")
