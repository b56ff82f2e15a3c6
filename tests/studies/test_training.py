"""How the embedded models are trained: to the same bits, on the right tokens, measured as
generation would.
"""

import functools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, GemmaForCausalLM

from ostools.models.files.sources import EMBEDDED_DIRECTORIES
from ostools.tasks.appendix_c import AppendixTask
from studies.training import __main__ as entry
from studies.training import card as card_module
from studies.training import corpus as corpus_module
from studies.training import evaluate, examples, loop
from studies.training.corpus import EOS_ID, Corpus
from studies.training.recipe import RECIPES, Recipe

pytestmark = pytest.mark.slow
EMBEDDED = EMBEDDED_DIRECTORIES["embedded"]

TINY = Recipe(
    steps=7, task_tokens=300, text_tokens=64, text_length=32, steps_per_group=3, warmup_steps=2, n_layers=1, d_model=16,
    n_heads=2, d_head=8, d_mlp=32, context_length=1024,
)  # fmt: skip
SHORT = replace(TINY, length_law="falling", length_scale=6.0, curriculum_steps=0, stored="bfloat16")
WINDOWED = replace(
    TINY,
    length_law="falling",
    stored="bfloat16",
    architecture="gemma3",
    n_layers=2,
    window=4,
    full_layers=(1,),
)
SMALL = {"embedded": TINY, "embedded-short": SHORT, "embedded-windowed": WINDOWED}
"""Each recipe made tiny, and what makes it another than the first kept."""


@pytest.mark.parametrize("name", ["embedded", "embedded-windowed"])
def test_one_seed_gives_the_same_bits_and_another_others(
    name: str, corpus: Corpus, tokenizer: Tokenizer
) -> None:
    text = examples.pack_text(corpus.train, tokenizer)
    weights = []
    for seed in (0, 0, 1):
        run = loop.start(replace(SMALL[name], seed=seed))
        loop.train(run, tokenizer, text)
        weights.append(torch.cat([one.flatten() for one in run.model.state_dict().values()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_loss_is_hugging_faces_and_padding_and_other_prompts_change_no_prompts_loss(
    tokenizer: Tokenizer,
) -> None:
    model = loop.start(TINY).model.double()
    ids = torch.randint(3, 1024, (4, 20), generator=torch.Generator().manual_seed(0))
    ours = loop.weighted_loss(model, ids, torch.ones(ids.shape))
    torch.testing.assert_close(ours.float(), model(input_ids=ids, labels=ids).loss.float())
    tasks = {AppendixTask("copy", uniform=True): 30, AppendixTask("count-ones"): 4}
    pair = [
        examples.encode_example(task, task.items(length, 1), tokenizer, TINY)
        for task, length in tasks.items()
    ]
    alone = [loop.weighted_loss(model, *examples.pad([one])) for one in pair]
    counts = torch.tensor([sum(one.weights[1:]) for one in pair], dtype=torch.float64)
    mean = (torch.stack(alone) * counts).sum() / counts.sum()
    together = loop.weighted_loss(model, *examples.pad(pair))
    torch.testing.assert_close(together, mean, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("name", RECIPES)
def test_the_entry_writes_a_directory_that_loads_with_weights_as_they_are_stored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: Corpus
) -> None:
    monkeypatch.setattr(entry, "load_corpus", lambda: corpus)
    recipe = replace(SMALL[name], steps=3, seed=5)
    monkeypatch.setitem(RECIPES, name, recipe)
    few = functools.partial(evaluate.accuracy_table, examples=1, bands=((1, 8),))
    monkeypatch.setattr(card_module, "accuracy_table", few)
    assert entry.main(["--recipe", name, "--out", str(tmp_path)]) == 0
    stored = load_file(tmp_path / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {getattr(torch, RECIPES[name].stored)}
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    card = json.loads((tmp_path / "card.json").read_text())
    assert (card["recipe"]["steps"], card["recipe"]["seed"]) == (3, 5)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert card["validation_prompts_nats"] == round(
        evaluate.validation_loss(recipe, model, tokenizer), 5
    )
    assert (tmp_path / "MODEL_CARD.md").read_text() == card_module.render_card(card)


@pytest.mark.parametrize("name", RECIPES)
def test_a_card_is_of_the_recipe_and_the_text_in_the_repository(name: str) -> None:
    directory, recipe = EMBEDDED_DIRECTORIES[name], RECIPES[name]
    card = json.loads((directory / "card.json").read_text())
    assert (card["name"], card["recipe"]) == (name, json.loads(json.dumps(asdict(recipe))))
    assert card["trained_lengths"] == recipe.trained_lengths()
    assert card["text"]["sha256"] == corpus_module.SHA256
    assert (directory / "MODEL_CARD.md").read_text() == card_module.render_card(card)


def test_exact_is_what_generation_gives() -> None:
    """One forced pass against Hugging Face's own greedy generation, on prompts that end right and
    on some that do not.
    """
    embedded: Any = GemmaForCausalLM.from_pretrained(EMBEDDED).eval()
    embedded_tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    prompts = [
        examples.encode_example(task, task.items(length, 9), embedded_tokenizer, TINY)
        for task in (
            AppendixTask("sum-ones"),
            AppendixTask("copy", uniform=True),
            AppendixTask("copy-last", hint=True),
        )
        for length in (3, 12, 300)
    ]
    measured = evaluate.exact(embedded, prompts)
    generated = []
    for prompt in prompts:
        ids = torch.tensor([prompt.ids[: prompt.n_prompt]])
        wanted = list(prompt.ids[prompt.n_prompt :])
        how = {"do_sample": False, "max_new_tokens": len(wanted), "eos_token_id": EOS_ID}
        out = embedded.generate(ids, attention_mask=torch.ones_like(ids), **how)
        generated.append(out[0, prompt.n_prompt :].tolist() == wanted)
    assert measured == generated
    assert set(generated) == {True, False}
