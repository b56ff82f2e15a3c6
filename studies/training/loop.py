"""The training loop: one thread, float32; the same recipe gives the same bits.

Cost: about 9,000 tokens a second on one core for the default architecture; memory below 1 GB.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import Gemma3ForCausalLM, GemmaForCausalLM

from studies.training.examples import Batch, batches
from studies.training.recipe import Recipe

LOSS_EVERY = 50
Decoder = GemmaForCausalLM | Gemma3ForCausalLM
_CLASSES: dict[str, type[Decoder]] = {"gemma": GemmaForCausalLM, "gemma3": Gemma3ForCausalLM}


@dataclass
class Run:
    """A run in progress: the model, its optimiser, the next step, and what was measured on the way.

    `losses` holds the step and the mean losses on prompts and on text since the row before, in nats
    a token.
    """

    recipe: Recipe
    model: Decoder
    optimiser: torch.optim.Optimizer
    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    losses: list[tuple[int, float, float]] = field(default_factory=list)
    recent: list[tuple[float, float]] = field(default_factory=list)

    def note(self, losses: tuple[float, float]) -> None:
        """Keep a step's two losses; every `LOSS_EVERY` steps, and at the end, their means go into
        `losses`.
        """
        self.recent.append(losses)
        if self.step % LOSS_EVERY == 0 or self.step == self.recipe.steps:
            task, text = (
                sum(column) / len(self.recent) for column in zip(*self.recent, strict=True)
            )
            self.losses.append((self.step, task, text))
            self.recent = []


def start(recipe: Recipe) -> Run:
    """A fresh run, its weights drawn from the recipe's seed."""
    torch.manual_seed(recipe.seed)
    model = _CLASSES[recipe.architecture]._from_config(
        recipe.model_config(), attn_implementation="sdpa"
    )
    model.train()
    return Run(recipe, model, _optimiser(recipe, model))


def _optimiser(recipe: Recipe, model: Decoder) -> torch.optim.Optimizer:
    """AdamW, without decay of the norms' weights.

    Muon learned text and counting in half the steps, but at the rates where it did, attention
    became one-hot within a thousand steps (no norm on queries and keys holds the scores), and
    copying was then never learned.
    """
    groups = [
        {
            "params": [p for p in model.parameters() if p.dim() == 2],
            "weight_decay": recipe.weight_decay,
        },
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True)


def weighted_loss(
    model: Decoder, ids: Int[Tensor, "batch pos"], weights: Float[Tensor, "batch pos"]
) -> Float[Tensor, ""]:
    """Weighted mean cross-entropy of each token given those before it; logits only where a weight
    is not zero.
    """
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    counts = weights[:, 1:] != 0
    logits = model.lm_head(hidden[:, :-1][counts])
    losses = functional.cross_entropy(logits, ids[:, 1:][counts], reduction="none")
    target_weights = weights[:, 1:][counts]
    return (losses * target_weights).sum() / target_weights.sum()


def train_step(run: Run, batch: Batch) -> tuple[float, float]:
    """One update of the weights; the loss on the prompts and on the text, in nats a token."""
    for group in run.optimiser.param_groups:
        group["lr"] = run.recipe.learning_rate * run.recipe.schedule_at(run.step)
    run.optimiser.zero_grad(set_to_none=True)
    task_loss = weighted_loss(run.model, batch.task_ids, batch.task_weights)
    task_loss.backward()
    text_loss = weighted_loss(run.model, batch.text_ids, torch.ones(batch.text_ids.shape))
    (run.recipe.text_loss_weight * text_loss).backward()
    torch.nn.utils.clip_grad_norm_(
        run.model.parameters(), run.recipe.gradient_clip, error_if_nonfinite=True
    )
    run.optimiser.step()
    run.step += 1
    run.tokens += batch.task_ids.numel() + batch.text_ids.numel()
    return task_loss.item(), text_loss.item()


def train(
    run: Run,
    tokenizer: Tokenizer,
    text: Int[Tensor, " corpus"],
    on_step: Callable[[Run], None] = lambda run: None,
) -> None:
    """Train to the recipe's last step."""
    began = time.monotonic()
    for batch in batches(run.recipe, run.step, tokenizer, text):
        run.note(train_step(run, batch))
        run.seconds = time.monotonic() - began
        on_step(run)
