"""Which characters of a text each token of its prompt comes from."""

from __future__ import annotations

from typing import Any

from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError
from ostools.models.tokens import Prompt


def offsets(model: TransformerBridge, prompt: Prompt) -> list[tuple[int, int]]:
    """For every token of the prompt the first and the one behind the last of its characters in `prompt.text`.

    Special tokens that stand for no character have an empty span. Raises `InputError` for a prompt made of ids, and for a
    tokenizer that does not know, or whose answer does not fit the prompt's ids.
    """
    if prompt.text is None:
        raise InputError(
            "expected a prompt made of text, found one made of token ids: which text they come from is not known"
        )
    tokenizer: Any = model.tokenizer
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"expected a tokenizer that says which characters its tokens come from, found {type(tokenizer).__name__}: load the "
            "model with a tokenizer.json"
        )
    ids = prompt.ids.tolist()
    # As `encode` asks: around a text the tokenizer puts its special tokens, a chat template holds its own.
    for special, split in ((True, True), (False, False)):
        found = tokenizer(
            prompt.text,
            return_offsets_mapping=True,
            add_special_tokens=special,
            split_special_tokens=split,
            verbose=False,
        )
        if list(found.input_ids) == ids:
            return [(int(start), int(end)) for start, end in found.offset_mapping]
    raise InputError("expected the prompt's own ids from its text, found others: encode it again with this model")
