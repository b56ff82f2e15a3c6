"""How the embedded models are trained: to the same bits, on the right tokens, measured as
generation would.
"""

from __future__ import annotations

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
from ostools.tasks.appendix_c import NAMES, AppendixTask
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


def _same_state(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", RECIPES)
def test_one_seed_gives_the_same_bits_and_another_others(
    name: str, corpus: Corpus, tokenizer: Tokenizer
) -> None:
    text = examples.pack_text(corpus.train, tokenizer)
    states = []
    for seed in (0, 0, 1):
        run = loop.start(replace(SMALL[name], seed=seed))
        loop.train(run, tokenizer, text)
        states.append(run.model.state_dict())
    assert _same_state(states[0], states[1])
    assert not _same_state(states[0], states[2])


def test_the_loss_is_hugging_faces_where_every_token_counts() -> None:
    model = loop.start(TINY).model
    ids = torch.randint(3, 1024, (4, 20), generator=torch.Generator().manual_seed(0))
    ours = loop.weighted_loss(model, ids, torch.ones(ids.shape))
    torch.testing.assert_close(ours, model(input_ids=ids, labels=ids).loss)


def test_padding_and_the_company_of_other_prompts_change_no_prompts_loss(
    tokenizer: Tokenizer,
) -> None:
    model = loop.start(TINY).model.double()
    pair = [
        examples.encode_example(task, task.items(length, 1), tokenizer, TINY)
        for task, length in (
            (AppendixTask("copy", uniform=True), 30),
            (AppendixTask("count-ones"), 4),
        )
    ]
    alone = [loop.weighted_loss(model, *examples.pad([one])) for one in pair]
    counts = torch.tensor([sum(one.weights[1:]) for one in pair], dtype=torch.float64)
    together = loop.weighted_loss(model, *examples.pad(pair))
    torch.testing.assert_close(
        together, (torch.stack(alone) * counts).sum() / counts.sum(), rtol=1e-6, atol=0.0
    )


def test_a_batch_depends_on_its_step_alone(corpus: Corpus, tokenizer: Tokenizer) -> None:
    text = examples.pack_text(corpus.train, tokenizer)
    from_start = list(examples.batches(TINY, 0, tokenizer, text))
    assert len(from_start) == TINY.steps
    from_four = list(examples.batches(TINY, 4, tokenizer, text))
    for one, other in zip(from_start[4:], from_four, strict=True):
        assert torch.equal(one.task_ids, other.task_ids)
        assert torch.equal(one.task_weights, other.task_weights)
        assert torch.equal(one.text_ids, other.text_ids)
    assert not torch.equal(from_start[0].text_ids, from_start[1].text_ids)


def test_the_answer_counts_and_the_sequence_does_not(tokenizer: Tokenizer) -> None:
    for name in NAMES:
        task = AppendixTask(name, hint=name == "copy-last")
        example = examples.encode_example(task, task.items(12, 3), tokenizer, TINY)
        head = len(tokenizer.encode(task.parts(("1",))[0]).ids)
        tail = len(tokenizer.encode(task.parts(("1",))[2], add_special_tokens=False).ids)
        assert example.weights[0] == 0.0
        assert set(example.weights[1:head]) == {TINY.template_weight}
        assert set(example.weights[head : example.n_prompt - tail]) == {0.0}
        assert example.ids[-1] == EOS_ID
        answer = tokenizer.encode(task.answer(12, 3), add_special_tokens=False).ids
        assert list(example.ids[-1 - len(answer) : -1]) == answer
        assert example.weights[-1 - len(answer) :] == pytest.approx(
            [(len(answer) + 1) ** -0.5] * (len(answer) + 1)
        )
        assert set(example.weights[example.n_prompt : -1 - len(answer)]) == {TINY.line_weight}


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
    assert card["name"] == name
    assert card["recipe"] == json.loads(json.dumps(asdict(recipe)))
    assert card["trained_lengths"] == recipe.trained_lengths()
    assert set(card["trained_lengths"]) == set(NAMES)
    assert card["text"]["sha256"] == corpus_module.SHA256
    assert card["text"]["packages"] == corpus_module.PACKAGES
    assert (directory / "MODEL_CARD.md").read_text() == card_module.render_card(card)
    for row in card["accuracy"]:
        assert row["within_training"] is (row["length_to"] <= card["trained_lengths"][row["task"]])


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
