"""What every measurement on one prompt shares: the prompt itself, its columns, and how progress is told."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

from ostools.models import Prompt, encode

# progress(done, total): called as work proceeds; the command line draws its bar from it.
Progress = Callable[[int, int], None]


def as_prompt(model: TransformerBridge, prompt: str | Prompt) -> Prompt:
    """The prompt in tokens; text is encoded with the model's own tokenizer, special tokens added once."""
    return encode(model, prompt) if isinstance(prompt, str) else prompt


def token_columns(prompt: Prompt) -> pd.DataFrame:
    """One row a token: position (from 0), token_id, token (as text, for display)."""
    ids = prompt.ids.tolist()
    return pd.DataFrame({"position": range(len(ids)), "token_id": ids, "token": list(prompt.tokens)})
