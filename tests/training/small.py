"""The recipes of the embedded models, made tiny."""

from __future__ import annotations

from dataclasses import replace

from ostools.training.recipe import Recipe

TINY = Recipe(
    steps=7, task_tokens=300, text_tokens=64, text_length=32, steps_per_group=3, warmup_steps=2, n_layers=1, d_model=16,
    n_heads=2, d_head=8, d_mlp=32, context_length=1024,
)  # fmt: skip


SMALL = {
    "embedded": TINY,
    "embedded-short": replace(TINY, length_law="falling", length_scale=6.0, curriculum_steps=0, stored="bfloat16"),
    "embedded-windowed": replace(
        TINY, architecture="gemma3", n_layers=2, window=4, full_layers=(1,), length_law="falling", stored="bfloat16"
    ),
}
"""Each recipe made tiny, and what makes it another than the first kept."""
