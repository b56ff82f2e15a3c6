"""Train one laboratory model (float32 or bfloat16, one thread), and load it behind the hooks of
every loaded model.

Cost: 40 ms a step for the default shape on one core (32 prompts of at most 36 tokens), four times
that with 16 layers.

A model's directory holds `lab.json` (the config), and once the training ended `losses.json` and
`model.safetensors`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformer_lens.model_bridge import TransformerBridge
from transformers import Qwen2ForCausalLM

from ostools.ground.errors import InputError, in_words
from ostools.ground.progress import Progress, tell
from ostools.models.describe import Metadata, remember
from ostools.models.families import FAMILIES
from ostools.models.files.config import quiet
from ostools.models.load import give_tokenizer, wrapped
from ostools.results import write_atomically
from studies.laboratory.config import CONFIG, LabConfig, read_config
from studies.laboratory.decoder import lab_decoder
from studies.laboratory.prompts import BOS, EOS, IDS, LETTERS, PAD, LabTask, lab_tokenizer

WEIGHTS, LOSSES = "model.safetensors", "losses.json"
LOSS_EVERY = 50
_FAMILY = next(family for family in FAMILIES if family.model_type == "qwen2")
_LONGEST_ANSWER = 6  # digits and the end: a count below 100,000
_ADDED_UP = {
    functional.linear,
    functional.embedding,
    functional.scaled_dot_product_attention,
    torch.matmul,
}
"""Functions that add up many products, forwards or backwards."""


def train_lab(config: LabConfig, folder: Path, progress: Progress | None = None) -> Path:
    """Train the model of a config on the CPU, and write it to `folder`, which is returned. The same
    config gives the same bits.

    A folder with the finished model of this config is left as it is. Raises `InputError` where it
    is of another config.
    """
    if (folder / WEIGHTS).exists():
        if read_config(folder) != config:
            raise InputError(
                f"the model in {str(folder)!r} is of another config: choose another directory"
            )
        return folder
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model, optimiser = start(config)
        losses = []
        for step in range(config.steps):
            losses.append(train_step(config, step, model, optimiser))
            tell(progress, step + 1, config.steps)
    finally:
        torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    means = [
        float(np.mean(losses[at : at + LOSS_EVERY])) for at in range(0, len(losses), LOSS_EVERY)
    ]
    (folder / CONFIG).write_text(config.to_json(), encoding="utf-8")
    (folder / LOSSES).write_text(json.dumps(means) + "\n", encoding="utf-8")
    write_atomically(
        folder / WEIGHTS,
        lambda part: save_file(_stored_weights(model, config), part, {"format": "pt"}),
    )
    return folder


def start(config: LabConfig) -> tuple[Qwen2ForCausalLM, torch.optim.Optimizer]:
    """The model with the weights that the config's seed draws, and its optimiser."""
    model = lab_decoder(config).train()
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return model, torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.98), fused=True)


def train_step(
    config: LabConfig, step: int, model: Qwen2ForCausalLM, optimiser: torch.optim.Optimizer
) -> float:
    """One step; its loss, the mean over the tokens of the answers."""
    for group in optimiser.param_groups:
        group["lr"] = config.learning_rate * config.schedule_at(step)
    ids, is_answer = (torch.from_numpy(part) for part in batch_at(config, step))
    logits = logits_in(config.dtype, model, ids[:, :-1])
    losses = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    weights = is_answer[:, 1:].flatten()
    loss = (losses * weights).sum() / weights.sum()
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(
        model.parameters(), config.gradient_clip, error_if_nonfinite=True
    )
    optimiser.step()
    return loss.item()


def logits_in(
    dtype: str, model: Qwen2ForCausalLM, ids: Int[Tensor, "row pos"]
) -> Float[Tensor, "row pos token"]:
    """The model's logits in float32, from a pass in `dtype`; gradients go to the float32 weights of
    the model.

    "bfloat16" is what transformers computes with a model whose weights and activations are
    bfloat16. Every weight is rounded to it at each step. What each operation returns is rounded to
    it: residual stream, queries, keys and values after rotation, and logits. RMS norms are float32
    inside, as in transformers. A sum of products (`AddedUp`) is float32 inside and rounded once.
    The attention of a layer counts as one of them: scores and softmax are float32 inside. Gradients
    are rounded where their tensors are. The loss, the weights that are stepped and the optimiser
    are float32.

    Cost: 1.5 times a step in float32 (process time, one thread) on a CPU without units for
    bfloat16; torch's own products in it took 7 times as long there.
    """
    if dtype == "float32":
        return model(ids, use_cache=False).logits
    rounded = {name: weight.bfloat16() for name, weight in model.named_parameters()}
    with AddedUp():
        return torch.func.functional_call(
            model, rounded, (ids,), {"use_cache": False}
        ).logits.float()


class AddedUp(TorchFunctionMode):
    """Inside it a sum of products of bfloat16 numbers is added up in float32 and rounded once, as
    matrix units do it.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func not in _ADDED_UP or not any(
            _is_bfloat16(value) for value in (*args, *options.values())
        ):
            return func(*args, **options)
        wide_options = {name: _widened(value) for name, value in options.items()}
        return func(*map(_widened, args), **wide_options).bfloat16()


def _is_bfloat16(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bfloat16


def _widened(value: Any) -> Any:
    return value.float() if _is_bfloat16(value) else value


def _stored_weights(model: Qwen2ForCausalLM, config: LabConfig) -> dict[str, Tensor]:
    """Trained in bfloat16, the weights that its passes used: rounded to bfloat16, in tensors of
    float32.
    """
    weights: dict[str, Tensor] = {
        name: weight.contiguous() for name, weight in model.state_dict().items()
    }
    if config.dtype == "bfloat16":
        weights = {name: weight.bfloat16().float() for name, weight in weights.items()}
    return weights


def batch_at(
    config: LabConfig, step: int
) -> tuple[Int[np.ndarray, "row pos"], Float[np.ndarray, "row pos"]]:
    """The prompts of a step, with their answers, filled up on the right; and 1 where a token is one
    of an answer.

    They depend on the seed, the lengths and the tasks alone: models of one seed are trained on the
    same prompts whatever their positions, depth and windows.

    Half of the sequences are bits with a density of ones that is uniform on [0, 1]; half are one
    bit again and again, in which the bit that is asked for is the other one every second time.
    """
    draw = np.random.default_rng([config.seed, step])
    lengths = (
        draw.choice(
            config.longest, size=config.batch, p=_chances(config.longest, config.length_power)
        )
        + 1
    )
    ids = np.full((config.batch, int(lengths.max()) + 2 + _LONGEST_ANSWER), IDS[PAD])
    is_answer = np.zeros(ids.shape, dtype=np.float32)
    used = 0
    for row, length in enumerate(lengths.tolist()):
        question = config.tasks[int(draw.integers(len(config.tasks)))]
        answer = LabTask(question).key(items := _items(draw, question, length))
        text = [BOS, *items, LETTERS[question], *answer, EOS]
        ids[row, : len(text)] = [IDS[token] for token in text]
        is_answer[row, length + 2 : len(text)] = 1.0
        used = max(used, len(text))
    return ids[:, :used], is_answer[:, :used]


@lru_cache
def _chances(longest: int, power: float) -> Float[np.ndarray, " length"]:
    weights = np.arange(1, longest + 1) ** -power
    return weights / weights.sum()


def _items(draw: Any, question: str, length: int) -> list[str]:
    if draw.random() < 0.5:
        return [str(int(bit)) for bit in draw.random(length) < draw.random()]
    bit = int(draw.integers(2))
    items = [str(bit)] * length
    if question != "count" and draw.random() < 0.5:
        items[0 if question == "first" else -1] = str(1 - bit)
    return items


def load_lab(folder: Path) -> TransformerBridge:
    """The trained model in a directory that `train_lab` wrote, with its tokenizer of characters,
    float32.

    Every measurement runs on it. Raises `InputError` for a directory without a finished model, and
    for weights that are not those of its config.
    """
    config = read_config(folder)
    if not (folder / WEIGHTS).is_file():
        raise InputError(
            f"expected a finished model in {str(folder)!r}, found no {WEIGHTS}: train it to the end first"
        )
    model = lab_decoder(config, "eager")
    try:
        model.load_state_dict(load_file(folder / WEIGHTS))
    except Exception as error:  # bare ones, for a broken file and for weights that do not fit
        raise InputError(
            f"expected the weights of {config.name} in {str(folder)!r}: {in_words(error)}"
        ) from None
    return _bridge(
        model, config, config.name, {f"lab-{task}": config.longest for task in config.tasks}
    )


def untrained_lab(config: LabConfig) -> TransformerBridge:
    """The model of a config with the weights that its training begins with."""
    return _bridge(lab_decoder(config, "eager"), config, f"{config.name} (untrained)", None)


def _bridge(
    model: torch.nn.Module, config: LabConfig, name: str, lengths: dict[str, int] | None
) -> TransformerBridge:
    with quiet():
        bridge = wrapped(model.eval(), _FAMILY, name, eager=False)  # pyright: ignore[reportArgumentType]
    give_tokenizer(bridge, lab_tokenizer(config.context))
    remember(bridge, Metadata(name=name, trained_lengths=lengths))
    return bridge
