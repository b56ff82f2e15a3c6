"""Train one laboratory model: float32 or bfloat16, one thread, checkpoints that resume to the same bits.

Cost: 40 ms a step for the default shape on one core (32 prompts of at most 36 tokens), four times that with 16 layers.

A model's directory holds `lab.json` (the config), while it trains `checkpoint.pt` (weights, optimiser, step), and at the end
`config.json` and `model.safetensors` as transformers writes them, `card.json` and `losses.json`. What is written
replaces what was there when it is whole on the disk: after a signal or on a full disk the last checkpoint is still there.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import Qwen2ForCausalLM

from ostools.ground.errors import InputError, in_words
from ostools.ground.progress import Progress, tell
from ostools.training.lab.batches import batch_at
from ostools.training.lab.config import CONFIG, LabConfig, read_config
from ostools.training.lab.decoder import lab_decoder
from ostools.training.lab.precision import logits_in
from ostools.training.written import replaced

CHECKPOINT, WEIGHTS, CARD, LOSSES = "checkpoint.pt", "model.safetensors", "card.json", "losses.json"
LOSS_EVERY = 50
CHECKPOINT_SECONDS = 30.0


@dataclass
class LabRun:
    """A run in progress. `losses`: (step, mean loss since the row before, in nats a token of an answer)."""

    config: LabConfig
    model: Qwen2ForCausalLM
    optimiser: torch.optim.Optimizer
    step: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)

    def note(self, loss: float) -> None:
        self.recent.append(loss)
        if self.step % LOSS_EVERY == 0 or self.step == self.config.steps:
            self.losses.append((self.step, sum(self.recent) / len(self.recent)))
            self.recent = []


def start(config: LabConfig, device: str = "cpu") -> LabRun:
    """A fresh run, its weights drawn from the config's seed."""
    model: Any = lab_decoder(config)
    model.to(device).train()
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return LabRun(config, model, torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.98), fused=True))


def train_step(run: LabRun) -> float:
    """One step; its loss, the mean over the tokens of the answers."""
    config, device = run.config, next(run.model.parameters()).device
    for group in run.optimiser.param_groups:
        group["lr"] = config.learning_rate * config.schedule_at(run.step)
    ids, answered = (torch.from_numpy(part).to(device) for part in batch_at(config, run.step))
    logits = logits_in(config.dtype, run.model, ids[:, :-1])
    losses = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    weights = answered[:, 1:].flatten()
    loss = (losses * weights).sum() / weights.sum()
    run.optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), config.gradient_clip, error_if_nonfinite=True)
    run.optimiser.step()
    run.step += 1
    return loss.item()


def train_lab(
    config: LabConfig,
    directory: str | os.PathLike[str],
    *,
    device: str = "auto",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    progress: Progress | None = None,
) -> Path:
    """Train the model of a config, or go on from its checkpoint, and write it to `directory`, which is returned.

    A directory with the finished model of this config is left as it is. `device`: "auto" is cuda where there is one.
    On a CPU the same config gives the same bits, interrupted or not; a GPU adds numbers in another order.

    Raises `InputError` for a directory of another config, and where the disk does not take what is written.
    """
    folder = Path(directory)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    _require_same(config, folder)
    if (folder / WEIGHTS).exists() and not (folder / CHECKPOINT).exists():
        return folder
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        replaced(folder / CONFIG, lambda file: file.write_text(config.to_json(), encoding="utf-8"))
        run = resume(config, folder, device) if (folder / CHECKPOINT).exists() else start(config, device)
        _train(run, folder, checkpoint_seconds, progress)
        write_lab(run, folder)
    finally:
        torch.set_num_threads(threads)
    return folder


def _train(run: LabRun, folder: Path, checkpoint_seconds: float, progress: Progress | None) -> None:
    began = saved = time.monotonic()
    before = run.seconds
    while run.step < run.config.steps:
        run.note(train_step(run))
        now = time.monotonic()
        run.seconds = before + now - began
        tell(progress, run.step, run.config.steps)
        if now - saved > checkpoint_seconds or run.step == run.config.steps:
            save_checkpoint(run, folder)
            saved = time.monotonic()


def save_checkpoint(run: LabRun, folder: Path) -> None:
    """The whole state of a run, replacing the one before."""
    state = {"config": asdict(run.config), "model": run.model.state_dict(), "optimiser": run.optimiser.state_dict()}
    state |= {"step": run.step, "seconds": run.seconds, "losses": run.losses, "recent": run.recent}
    replaced(folder / CHECKPOINT, lambda file: torch.save(state, file))


def resume(config: LabConfig, folder: Path, device: str = "cpu") -> LabRun:
    """Go on from the checkpoint: the steps that follow are those of the uninterrupted run, bit for bit."""
    try:
        state = torch.load(folder / CHECKPOINT, weights_only=True, map_location=device)
    except Exception as error:  # torch raises bare ones of many kinds
        raise InputError(
            f"expected a checkpoint in {str(folder)!r}, found one that cannot be read ({in_words(error)}): delete "
            "it to start anew"
        ) from None
    if state["config"] != asdict(config):
        raise InputError(
            f"the checkpoint in {str(folder)!r} is of another config: choose another directory, or delete it"
        )
    run = start(config, device)
    run.model.load_state_dict(state["model"])
    run.optimiser.load_state_dict(state["optimiser"])
    run.step, run.seconds = state["step"], state["seconds"]
    run.losses, run.recent = [tuple(row) for row in state["losses"]], state["recent"]
    return run


def write_lab(run: LabRun, folder: Path) -> None:
    """The finished model, for transformers and `load_lab`; the checkpoint goes when all of it is on the disk.

    Trained in bfloat16 it is written with the weights that its passes used: rounded to bfloat16, in tensors of float32.
    """
    model: Any = run.model
    model.to("cpu").eval()
    if run.config.dtype == "bfloat16":
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.bfloat16())
    model.config.save_pretrained(folder)
    replaced(folder / LOSSES, lambda file: file.write_text(json.dumps(run.losses) + "\n", encoding="utf-8"))
    card: dict[str, Any] = {"trained_lengths": {f"lab-{task}": run.config.longest for task in run.config.tasks}}
    card |= {"seconds": run.seconds, "parameters": sum(weight.numel() for weight in model.parameters())}
    replaced(folder / CARD, lambda file: file.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8"))
    replaced(folder / WEIGHTS, lambda file: _save_weights(model, file))
    (folder / CHECKPOINT).unlink(missing_ok=True)


def _save_weights(model: Qwen2ForCausalLM, file: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: weight.contiguous() for name, weight in model.state_dict().items()}, file, {"format": "pt"})


def _require_same(config: LabConfig, folder: Path) -> None:
    if not (folder / CONFIG).exists():
        return
    there, wanted = asdict(read_config(folder)), asdict(config)
    changed = [name for name, value in wanted.items() if there[name] != value]
    differing = [f"{name} is {there[name]!r} there and {wanted[name]!r} here" for name in changed]
    if differing:
        raise InputError(f"the model in {str(folder)!r} is of another config: {'; '.join(differing)}")
