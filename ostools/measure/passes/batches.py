"""Which prompts go through a pass together. Those of different lengths: padded on the left where
that is proven harmless, else equal lengths only.

Padding is silent where it goes wrong: keys at the padding that are seen, positions that count it.
So a padded batch carries its mask and its position ids explicitly, and there is one only where
tests show that nothing depends on it (`padding`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import hooks
from ostools.ground import HookPoint, InputError, TransformerBridge
from ostools.hooks.register import is_observed
from ostools.measure.passes.contexts import contiguous_head, has_alibi
from ostools.mitigations.passes import own_windows
from ostools.models.families import family_of

TOKENS = 4096
"""The most tokens of a batch, padding included."""
# The longest prompt of a batch may be this much longer than its shortest: at most a third is
# padding.
_STRETCH = 1.5
# A step that generates one token reads every weight, which takes as long as a pass over so many
# tokens, at least.
_STEP = 32
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")

# What these make of a position depends on nothing but that position: padding is as harmless as
# without them.
_EDITS_OF_ONE_POSITION = frozenset({"ablate_heads", "ablate_layers"})
_WORTH_SHARING = 32  # tokens, of a prefix that is read in a pass of its own


@dataclass(frozen=True)
class Batching:
    """Route by which the representations were computed: "one pass", "packed pass" or "loop", and
    why.
    """

    name: str
    reason: str


def batching_of(model: TransformerBridge, *, is_chain: bool = True) -> Batching:
    """A pass per tree wherever the model's causality is known to allow it, the loop otherwise.
    `is_chain`: every prompt is a prefix of the longest."""
    config, family = model.original_model.config, family_of(model)
    if family is None:
        return Batching(
            "loop", f"{model.cfg.architecture} is not a family whose masks and positions are known"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    settings = [value for value in (rope, *rope.values()) if isinstance(value, dict)]
    kinds = {str(value["rope_type"]) for value in settings if "rope_type" in value}
    if unknown := sorted(kinds - set(_STATIC_ROPE)):
        return Batching(
            "loop", f"the {unknown[0]!r} rotary embedding depends on the length of the prompt"
        )
    if is_chain:
        return Batching("one pass", "every prompt is a prefix of the longest")
    if has_alibi(model):
        return Batching("loop", "ALiBi's bias counts the keys of a pass, which a tree packs")
    return Batching("packed pass", "the prompts share prefixes: packed with a tree attention mask")


@dataclass(frozen=True)
class Padding:
    allowed: bool
    reason: str


def padding(model: TransformerBridge) -> Padding:
    """Whether left padding is harmless for this model as it is now.

    It is for families whose masks are given explicitly, and positions where they are taken, in
    float32 and float64, where nothing looks into the forward pass: an edit or a capture would see
    the padding, and positions that it shifts. An edit of each position alone
    (`_EDITS_OF_ONE_POSITION`) changes nothing of another. In 16 bits sums over more keys round
    otherwise, and two tokens that are nearly as likely may change places.
    """
    if reason := _obstacle(model):
        return Padding(False, reason)
    for dtype in {parameter.dtype for parameter in model.parameters()} - {
        torch.float32,
        torch.float64,
    }:
        name = str(dtype).removeprefix("torch.")
        return Padding(False, f"in {name} the rounding of longer sums could choose another token")
    carried = "its mask" if has_alibi(model) else "mask and position ids"
    return Padding(True, f"left padding, with {carried}")


def _obstacle(model: TransformerBridge) -> str:
    """Why each prompt has to be read whole and by itself; empty where none has to."""
    batching = batching_of(model)
    if batching.name == "loop":
        return batching.reason
    edits = [edit for edit in hooks.active_edits(model) if edit.kind not in _EDITS_OF_ONE_POSITION]
    if edits:
        return f"the active edit {edits[0].kind!r} would act on the padding too"
    if any(isinstance(module, HookPoint) and is_observed(module) for module in model.modules()):
        return "what is being captured would hold the padding too"
    return ""


def shared_prefix(
    model: TransformerBridge, prompts: Sequence[Sequence[int]], steps: int = 0
) -> int:
    """Number of first tokens that all prompts share, but for the last one of each; 0 where reading
    them once may do harm.

    The padding then stands behind the prefix. That is harmless where padding is (`padding`), and
    where no window slides within the prompts and the `steps` tokens after them: a window counts the
    padding too. Prompts of one length share it in 16 bits as well: no sum is longer than by itself.
    """
    shortest, longest = min(map(len, prompts)), max(map(len, prompts))
    starts = zip(*(ids[: shortest - 1] for ids in prompts), strict=True)
    alike = len(list(takewhile(lambda tokens: len(set(tokens)) == 1, starts)))
    if len(prompts) < 2 or alike < _WORTH_SHARING or has_alibi(model) or _obstacle(model):
        return 0
    slides = any(longest + steps > window for window in own_windows(model).values())
    return 0 if shortest < longest and (slides or not padding(model).allowed) else alike


def reads_on(model: TransformerBridge) -> bool:
    """Whether tokens may be read after the keys and values of those before them, with the numbers
    of a pass over all of them.
    """
    return not has_alibi(model) and padding(model).allowed


def batches(
    lengths: Sequence[int],
    padded: bool,
    tokens: int = TOKENS,
    steps: int = 0,
    most: int | None = None,
) -> list[list[int]]:
    """The indices of prompts that go through together, shortest first: at most `tokens` tokens with
    their padding, and at most `most` prompts, if that is given.

    Equal lengths only, or where `padded` lengths within half as much again, or with less padding
    than the `steps` of another batch would take.
    """
    index_groups: list[list[int]] = []
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        length, shortest = lengths[index], lengths[batch[0] if batch else index]
        padding_tokens = len(batch) * length - sum(lengths[place] for place in batch)
        little_padding = length <= _STRETCH * shortest or padding_tokens <= _STEP * steps
        alike = length == shortest or (padded and little_padding)
        fits = (len(batch) + 1) * length <= tokens and (most is None or len(batch) < most)
        if not (batch and alike and fits):
            batch = []
            index_groups.append(batch)
        batch.append(index)
    return index_groups


class Rows:
    """Prompts on their way through a model together: what is yet unread, and the keys and values of
    what was read.

    Without padding the model is called as for one prompt alone. `cached`: whether steps go through
    a key/value cache; else everything is read again at each. `shared`: so many first tokens, the
    same in all prompts, are read once (`shared_prefix`).
    """

    def __init__(
        self,
        model: TransformerBridge,
        prompts: Sequence[Sequence[int]],
        cached: bool,
        shared: int = 0,
    ) -> None:
        self.model = model
        device = next(model.parameters()).device
        width = max(map(len, prompts))
        missing = [width - len(ids) for ids in prompts]
        # Padded with a token of its own: one that nobody trained may have an embedding that is not
        # finite.
        filled = [
            [ids[0]] * lack + list(ids[shared:]) for ids, lack in zip(prompts, missing, strict=True)
        ]
        self.unread = torch.tensor(filled, device=device)
        places, starts = (
            torch.arange(width, device=device),
            torch.tensor(missing, device=device)[:, None],
        )
        self.real = ((places < shared) | (places >= shared + starts)).long()
        self.padded = any(missing)
        from transformers.cache_utils import DynamicCache

        # Without the configuration: sliding layers would drop old keys, and edits count positions
        # from the first key.
        self.cache = DynamicCache() if cached or shared else None
        if shared and self.cache is not None:
            prefix = torch.tensor([list(prompts[0][:shared])], device=device)
            model(prefix, use_cache=True, past_key_values=self.cache, logits_to_keep=1)
            self.cache.batch_repeat_interleave(len(prompts))

    def logits(self, keep: int = 1) -> Float[Tensor, "batch keep d_vocab"]:
        """Read what is unread; the logits at so many of its last positions. `InputError` where they
        are not finite.
        """
        options: dict[str, Any] = {"use_cache": self.cache is not None, "logits_to_keep": keep}
        if self.cache is not None:
            options["past_key_values"] = self.cache
        if self.padded:
            options["attention_mask"] = self.real
            if not has_alibi(
                self.model
            ):  # whose bias counts the keys of the mask, or of all rows from the end
                positions = (self.real.cumsum(1) - 1).clamp_min(0)
                options["position_ids"] = positions[:, -self.unread.shape[1] :]
        with contiguous_head(self.model):
            logits = self.model(self.unread, **options)
        if not bool(torch.isfinite(logits).all()):
            dtype, length = str(logits.dtype).removeprefix("torch."), int(self.real.sum(1).max())
            raise InputError(
                f"the logits of a prompt of {length} tokens are not finite in {dtype}: use another "
                "dtype, or check the model's weights"
            )
        return logits

    def ahead(self, texts: Int[Tensor, "batch more"]) -> Float[Tensor, "batch more d_vocab"]:
        """The logits at each token of texts that are read behind the cache, and forgotten."""
        before, more = (self.unread, self.real), texts.shape[1]
        self.unread = texts
        self.real = torch.cat([self.real, torch.ones_like(texts)], dim=1)
        logits = self.logits(keep=more)
        cast(Any, self.cache).crop(-more)
        self.unread, self.real = before
        return logits

    def extend(self, tokens: Int[Tensor, " batch"]) -> None:
        self.real = torch.cat([self.real, torch.ones_like(self.real[:, :1])], dim=1)
        self.unread = (
            tokens[:, None]
            if self.cache is not None
            else torch.cat([self.unread, tokens[:, None]], dim=1)
        )

    def keep(self, rows: Sequence[int]) -> None:
        row_indices = torch.tensor(list(rows), device=self.unread.device)
        self.unread, self.real = self.unread[row_indices], self.real[row_indices]
        if self.cache is not None:
            self.cache.batch_select_indices(row_indices)
