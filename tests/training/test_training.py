"""Training: resumes to the same bits, refuses other data, counts the right tokens, and measures what generation would give."""

import functools
import hashlib
import importlib.metadata
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GemmaForCausalLM

import ostools
from ostools.ground.errors import InputError
from ostools.models.files.sources import EMBEDDED_DIRECTORIES
from ostools.tasks.appendix_c import NAMES, AppendixTask
from ostools.training import card as card_module
from ostools.training import corpus as corpus_module
from ostools.training import evaluate, examples, loop
from ostools.training import train as entry
from ostools.training.corpus import Corpus, load_corpus, make_corpus, prose
from ostools.training.recipe import RECIPES, Recipe
from ostools.training.tokenizer import BOS_ID, EOS_ID
from tests.training.small import SMALL, TINY

EMBEDDED = Path(str(ostools.__file__)).parent / "models" / "embedded"
SHIPPED = [("embedded", 2_000_000, 4), ("embedded-short", 2_500_000, 2), ("embedded-windowed", 1_000_000, 2)]


class InterruptedRunError(Exception):
    """What a kill is to a run."""


@pytest.fixture(scope="module")
def embedded() -> GemmaForCausalLM:
    return GemmaForCausalLM.from_pretrained(EMBEDDED).eval()


@pytest.fixture(scope="module")
def embedded_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))


# the loop


def _same_state(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("name", "stop_at"),
    [*(("embedded", step) for step in (1, 3, 4, 6)), ("embedded-short", 3), ("embedded-windowed", 4)],
)
@pytest.mark.slow
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    name: str, stop_at: int, corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    text, recipe = examples.pack_text(corpus.train, tokenizer), SMALL[name]
    whole = loop.start(recipe, "data")
    loop.train(whole, tokenizer, text, tmp_path / "whole")

    def interrupt(run: loop.Run) -> None:
        if run.step == stop_at + 1:
            raise InterruptedRunError

    broken = loop.start(recipe, "data")
    with pytest.raises(InterruptedRunError):
        loop.train(broken, tokenizer, text, tmp_path / "broken", checkpoint_seconds=0.0, on_step=interrupt)
    torch.manual_seed(12345)  # a resumed run owes nothing to the process's generator
    again = loop.resume(recipe, "data", tmp_path / "broken")
    assert again.step == stop_at
    assert not _same_state(whole.model.state_dict(), again.model.state_dict())
    loop.train(again, tokenizer, text, tmp_path / "broken")
    assert _same_state(whole.model.state_dict(), again.model.state_dict())
    assert again.losses == whole.losses
    assert again.tokens == whole.tokens


def test_seeds_differ_and_repeat() -> None:
    first, second, other = (loop.start(replace(TINY, seed=seed), "data").model.state_dict() for seed in (1, 1, 2))
    assert _same_state(first, second)
    assert not _same_state(first, other)


def test_resuming_another_recipe_or_other_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no checkpoint to resume"):
        loop.resume(TINY, "data", tmp_path)
    loop.save_checkpoint(loop.start(TINY, "data"), tmp_path)
    with pytest.raises(InputError, match="of another recipe: steps is 7 there and 8 here"):
        loop.resume(replace(TINY, steps=8), "data", tmp_path)
    with pytest.raises(InputError, match="text or tokenizer are others"):
        loop.resume(TINY, "other data", tmp_path)


def test_a_failing_save_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = loop.start(TINY, "data")
    loop.save_checkpoint(run, tmp_path)
    before = (tmp_path / loop.CHECKPOINT).read_bytes()

    def half_a_save(state: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", half_a_save)
    with pytest.raises(InputError, match=r"disk full.*what was there before is still there"):
        loop.save_checkpoint(run, tmp_path)
    assert (tmp_path / loop.CHECKPOINT).read_bytes() == before


def test_the_loss_is_hugging_faces_where_every_token_counts() -> None:
    model = loop.start(TINY, "data").model
    ids = torch.randint(3, 1024, (4, 20), generator=torch.Generator().manual_seed(0))
    ours = loop.weighted_loss(model, ids, torch.ones(ids.shape))
    torch.testing.assert_close(ours, model(input_ids=ids, labels=ids).loss)


def test_padding_and_the_company_of_other_prompts_change_no_prompts_loss(tokenizer: Tokenizer) -> None:
    model = loop.start(TINY, "data").model.double()
    pair = [
        examples.encode_example(task, task.items(length, 1), tokenizer, TINY)
        for task, length in ((AppendixTask("copy", uniform=True), 30), (AppendixTask("count-ones"), 4))
    ]
    alone = [loop.weighted_loss(model, *examples.pad([one])) for one in pair]
    counts = torch.tensor([sum(one.weights[1:]) for one in pair], dtype=torch.float64)
    together = loop.weighted_loss(model, *examples.pad(pair))
    torch.testing.assert_close(together, (torch.stack(alone) * counts).sum() / counts.sum(), rtol=1e-6, atol=0.0)


def test_the_schedule_warms_up_stays_and_falls_to_zero() -> None:
    recipe = Recipe(steps=1000, warmup_steps=100, decay_steps=200)
    rates = [recipe.schedule_at(step) for step in range(1001)]
    assert rates[0] == pytest.approx(0.01)
    assert rates[99:800] == [1.0] * 701
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[800:]))
    assert rates[1000] == 0.0


def test_the_curriculum_grows_to_each_tasks_limit() -> None:
    recipe = Recipe(steps=1000, curriculum_steps=500, first_length=8)
    for limit in recipe.longest.values():
        lengths = [recipe.longest_at(step, limit) for step in range(1000)]
        assert lengths == sorted(lengths)
        assert max(lengths) == limit
        assert (lengths[0], lengths[400] < limit, lengths[500], lengths[-1]) == (8, True, limit, limit)


def test_trained_lengths_are_those_that_were_reached() -> None:
    assert Recipe(steps=2000, curriculum_steps=1500).trained_lengths() == Recipe().longest
    short = Recipe(steps=1, curriculum_steps=1500, first_length=8).trained_lengths()
    assert set(short.values()) == {8}


# the data


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
        assert example.weights[-1 - len(answer) :] == pytest.approx([(len(answer) + 1) ** -0.5] * (len(answer) + 1))
        assert set(example.weights[example.n_prompt : -1 - len(answer)]) == {TINY.line_weight}


def test_whether_a_hint_follows_is_not_learned(tokenizer: Tokenizer) -> None:
    """Else the model would write the hint itself instead of the answer."""
    plain, hinted = (
        examples.encode_example(task, task.items(5), tokenizer, TINY)
        for task in (AppendixTask("copy-last"), AppendixTask("copy-last", hint=True))
    )
    assert hinted.ids[: plain.n_prompt] == plain.ids[: plain.n_prompt]
    assert hinted.weights[plain.n_prompt] == 0.0
    assert set(hinted.weights[plain.n_prompt + 1 : hinted.n_prompt]) == {TINY.template_weight}


def test_training_prompts_are_tokenised_as_whole_texts(tokenizer: Tokenizer) -> None:
    """Prompt and answer are tokenised apart; a user who encodes the finished text gets the same ids."""
    task = AppendixTask("sum-ones")
    example = examples.encode_example(task, task.items(7), tokenizer, TINY)
    assert list(example.ids[:-1]) == tokenizer.encode(task.prompt(7) + "\n" + task.answer_line("7")).ids


def test_every_prompt_of_a_group_is_used_and_within_the_curriculum(tokenizer: Tokenizer) -> None:
    recipe = replace(TINY, steps=90, curriculum_steps=90)
    for group in (0, 15, 29):
        batches = examples.draw_group(recipe, group, tokenizer)
        assert len(batches) == recipe.steps_per_group
        assert all(batches)
        total = sum(len(example.ids) for batch in batches for example in batch)
        assert total >= recipe.task_tokens * recipe.steps_per_group
    flat = replace(recipe, curriculum_steps=1)  # the same lengths in every later group
    assert examples.draw_group(flat, 5, tokenizer) != examples.draw_group(flat, 6, tokenizer)
    assert examples.draw_group(flat, 5, tokenizer) != examples.draw_group(replace(flat, seed=1), 5, tokenizer)
    one = tokenizer.token_to_id("1")
    first = examples.draw_group(recipe, 0, tokenizer)
    assert max(example.ids[: example.n_prompt].count(one) for batch in first for example in batch) <= 8 + 1


def test_flipping_changes_only_the_odd_digit() -> None:
    import random

    last, first = AppendixTask("copy-last"), AppendixTask("copy-first")
    stream = random.Random(0)
    lasts = {examples.draw_items(last, 6, stream) for _ in range(60)}
    firsts = {examples.draw_items(first, 6, stream) for _ in range(60)}
    assert lasts == {tuple("111110"), tuple("111111")}
    assert firsts == {tuple("011111"), tuple("111111")}


def test_text_blocks_come_from_the_training_part_after_a_bos(corpus: Corpus, tokenizer: Tokenizer) -> None:
    text = examples.pack_text(corpus.train, tokenizer)
    blocks = examples.draw_text(TINY, 3, text)
    assert blocks.shape == (2, 32)
    assert (blocks[:, 0] == BOS_ID).all()
    windows = text.unfold(0, 15, 1)
    for block in blocks:
        assert (windows == block[1:16]).all(1).any()


def test_some_blocks_say_their_first_half_twice_and_the_others_are_whole(corpus: Corpus, tokenizer: Tokenizer) -> None:
    text = examples.pack_text(corpus.train, tokenizer)
    for share in (0.0, 1.0):
        blocks = examples.draw_text(replace(TINY, repeat_share=share), 3, text)[:, 1:]
        whole = (text.unfold(0, 31, 1)[:, None] == blocks).all(2).any(0)
        twice = (blocks[:, :15] == blocks[:, 16:]).all(1)
        assert (whole == (share == 0.0)).all()
        assert (twice == (share == 1.0)).all()


# the corpus


def test_the_corpus_is_split_sorted_and_hashed() -> None:
    paragraphs = {f"Paragraph number {i} of many." for i in range(200)}
    corpus = make_corpus(paragraphs)
    assert set(corpus.train) | set(corpus.held_out) == paragraphs
    assert not set(corpus.train) & set(corpus.held_out)
    assert len(corpus.held_out) == 4
    assert corpus == make_corpus(set(paragraphs))
    assert corpus.sha256 == hashlib.sha256("\n".join(corpus.paragraphs).encode()).hexdigest()
    assert make_corpus(paragraphs - {"Paragraph number 7 of many."}).sha256 != corpus.sha256


def test_prose_is_kept_and_code_is_not() -> None:
    source = '''
def f():
    """Return the largest of the values that were given to this function, or
    the default.

    >>> f(1, 2, 3) and so on with enough characters to be long enough to count.

    x : int, 1, 2, 3, [4, 5], (6, 7), {8: 9}, 10, 11, 12, 13, 14, 15, 16, 17, 18.
    """
    "A string which is not a docstring, however much it looks like a sentence of prose."
'''
    expected = "Return the largest of the values that were given to this function, or the default."
    assert list(prose(source)) == [expected]


def test_another_version_is_refused() -> None:
    found = importlib.metadata.version("einops")
    with pytest.raises(InputError, match=rf"needs einops 0\.0\.1 \(found {found}\).*requirements\.lock"):
        load_corpus({"einops": "0.0.1"})
    with pytest.raises(InputError, match=r"no-such-package 1\.0 \(found None\)"):
        load_corpus({"no-such-package": "1.0"})


def test_another_text_is_refused() -> None:
    packages = {"einops": importlib.metadata.version("einops")}
    corpus = load_corpus(packages, sha256=None)
    assert load_corpus(packages, sha256=corpus.sha256) == corpus
    with pytest.raises(InputError, match=rf"sha256 {corpus.sha256}, expected 0000.*docstrings of einops"):
        load_corpus(packages, sha256="0" * 64)


# the entry


@pytest.fixture
def tiny_entry(monkeypatch: pytest.MonkeyPatch, corpus: Corpus) -> None:
    monkeypatch.setattr(entry, "load_corpus", lambda: corpus)
    for name in RECIPES:
        monkeypatch.setitem(RECIPES, name, SMALL[name])
    few = functools.partial(evaluate.accuracy_table, examples=2, bands=((1, 8), (257, 384)))
    monkeypatch.setattr(card_module, "accuracy_table", few)


@pytest.mark.usefixtures("tiny_entry")
def test_the_entry_writes_a_directory_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    assert entry.main(["--out", str(out), "--steps", "3", "--seed", "5"]) == 0
    assert {path.name for path in out.iterdir()} == {
        "card.json", "config.json", "generation_config.json", "MODEL_CARD.md", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(out)
    assert isinstance(model, GemmaForCausalLM)
    assert AutoTokenizer.from_pretrained(out)("11")["input_ids"][0] == BOS_ID
    card = json.loads((out / "card.json").read_text())
    assert (card["recipe"]["steps"], card["recipe"]["seed"]) == (3, 5)
    assert card["parameters"] == model.num_parameters()
    assert (out / "MODEL_CARD.md").read_text() == card_module.render_card(card)


@pytest.mark.usefixtures("tiny_entry")
@pytest.mark.slow
def test_the_entry_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert entry.main(["--out", str(whole), "--steps", "5"]) == 0

    def stop(run: loop.Run, *args: object, **options: object) -> None:
        loop.train(run, *args, checkpoint_seconds=0.0, on_step=_stop_at_three)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(entry, "train", stop)
        with pytest.raises(InterruptedRunError):
            entry.main(["--out", str(broken), "--steps", "5"])
    assert entry.main(["--out", str(broken), "--steps", "5"]) == 2
    assert "--resume it, or delete it" in capsys.readouterr().err
    assert entry.main(["--out", str(broken), "--steps", "5", "--resume"]) == 0
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert not (broken / loop.CHECKPOINT).exists()


def _stop_at_three(run: loop.Run) -> None:
    if run.step == 3:
        raise InterruptedRunError


@pytest.mark.usefixtures("tiny_entry")
def test_bad_requests_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--out", str(tmp_path), "--steps", "0"]) == 2
    assert capsys.readouterr().err == "error: --steps: expected a whole number of at least 1, found 0\n"
    assert entry.main(["--out", str(tmp_path), "--resume"]) == 2
    assert capsys.readouterr().err.startswith("error: no checkpoint to resume in")


# what was trained


@pytest.mark.parametrize(("name", "most", "bytes_a_weight"), SHIPPED)
def test_a_shipped_model_is_what_the_design_asks_for(name: str, most: int, bytes_a_weight: int) -> None:
    directory = EMBEDDED_DIRECTORIES[name]
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert model.num_parameters() <= most
    assert (directory / "model.safetensors").stat().st_size <= bytes_a_weight * model.num_parameters() + 50_000
    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, RECIPES[name].stored)}
    assert (model.config.num_key_value_heads, model.config.tie_word_embeddings) == (1, True)
    assert model.config.max_position_embeddings == 8192
    assert not (directory / loop.CHECKPOINT).exists()


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


@pytest.mark.parametrize("name", RECIPES)
def test_the_embedded_models_read_with_one_tokenizer(name: str) -> None:
    """So that a text is the same tokens for all of them."""
    files = [EMBEDDED_DIRECTORIES[each] / "tokenizer.json" for each in ("embedded", name)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_no_band_straddles_a_trained_length() -> None:
    for longest in {length for recipe in RECIPES.values() for length in recipe.longest.values()}:
        assert all(high <= longest or low > longest for low, high in evaluate.BANDS)


def test_exact_is_what_generation_gives(embedded: GemmaForCausalLM, embedded_tokenizer: Tokenizer) -> None:
    """One forced pass against Hugging Face's own greedy generation, on prompts that end right and on some that do not."""
    prompts = [
        examples.encode_example(task, task.items(length, 9), embedded_tokenizer, TINY)
        for task in (AppendixTask("sum-ones"), AppendixTask("copy", uniform=True), AppendixTask("copy-last", hint=True))
        for length in (3, 12, 300)
    ]
    measured = evaluate.exact(embedded, prompts)
    generated = []
    for prompt in prompts:
        ids = torch.tensor([prompt.ids[: prompt.n_prompt]])
        wanted = list(prompt.ids[prompt.n_prompt :])
        out = embedded.generate(  # pyright: ignore[reportAttributeAccessIssue]
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=len(wanted), eos_token_id=EOS_ID
        )
        generated.append(out[0, prompt.n_prompt :].tolist() == wanted)
    assert measured == generated
    assert set(generated) == {True, False}


def test_exact_asks_for_every_token_of_the_line(embedded: GemmaForCausalLM, embedded_tokenizer: Tokenizer) -> None:
    task = AppendixTask("sum-ones")
    right = examples.encode_example(task, task.items(5), embedded_tokenizer, TINY)
    wrong = []
    for place in range(right.n_prompt, len(right.ids)):
        ids = list(right.ids)
        ids[place] = ids[place] + 1
        wrong.append(replace(right, ids=tuple(ids)))
    assert evaluate.exact(embedded, [right, *wrong], batch=4) == [True] + [False] * len(wrong)


def test_the_cards_accuracy_is_measured_again(embedded: GemmaForCausalLM, embedded_tokenizer: Tokenizer) -> None:
    """A prompt more or less may tip on another processor's rounding; the rows must agree to that."""
    rows = evaluate.accuracy_table(
        embedded,
        embedded_tokenizer,
        Recipe().trained_lengths(),
        variants=(AppendixTask("sum-ones"), AppendixTask("copy-first", uniform=True)),
        bands=((1, 8), (33, 48)),
    )
    shipped = {
        (row["task"], row["uniform"], row["hint"], row["tidy"], row["separator_every"], row["length_from"]): row
        for row in json.loads((EMBEDDED / "card.json").read_text())["accuracy"]
    }
    for row in rows:
        stated = shipped[row.task, row.uniform, row.hint, row.tidy, row.separator_every, row.length_from]
        assert stated["examples"] == row.examples
        assert abs(stated["accuracy"] - row.accuracy) <= 1.5 / row.examples


def test_bits_per_byte_of_an_even_guess(corpus: Corpus, tokenizer: Tokenizer) -> None:
    """A model whose logits are all equal needs log2(vocabulary) bits a token."""
    model = loop.start(TINY, "data").model.eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.zero_()
    paragraphs = corpus.held_out
    tokens = len(examples.pack_text(paragraphs, tokenizer))
    n_bytes = sum(len(paragraph) + 1 for paragraph in paragraphs)
    assert evaluate.bits_per_byte(model, paragraphs, tokenizer) == pytest.approx(10 * tokens / n_bytes)
