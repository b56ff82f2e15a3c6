"""Text to token ids and back, with nothing silent on the way.

The special tokens that the tokenizer puts before a text stand there once; those that it puts behind
one (EOS) are left out: a prompt is continued; a user's text never becomes one; what cannot be
encoded so is refused. The bridge's own `to_tokens` cuts a text alike (`load.give_tokenizer`), but
reads markers in it (`<|im_start|>`) as tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import torch
from jaxtyping import Int
from torch import Tensor

from ostools.ground import (
    InputError,
    PreTrainedTokenizerBase,
    TransformerBridge,
    checked_arguments,
    refusal,
    whole_number,
)
from ostools.hooks.torch_state import default_torch_state
from ostools.models.chat import SPECIAL, TEXT, Chat, origins, render
from ostools.models.tokenizer_calls import (
    frame,
    ids_and_places,
    lead,
    markers_in,
    note_once,
    required,
    text_ids,
    token_ids,
    token_text,
    token_texts,
)

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class EncodingOptions(TypedDict, total=False):
    """How a text becomes tokens: keywords of `encode`, of every measurement of a text or a task,
    and of the command line.

    Args:
        bos: whether the tokenizer's BOS, into which attention sinks, stands before a plain text;
            None: as the tokenizer does by itself. Not for a chat, whose template writes its special
            tokens, nor for ids.
        chat: whether a text is a user's turn in the tokenizer's chat template, with the opening of
            the answer. None: a text is not, a task's question is where there is a template.
        system: a system prompt before it, in the chat template.
        thinking: whether the model is to think before it answers, if its template has the switch
            `enable_thinking`.
    """

    bos: bool | None
    chat: bool | None
    system: str | None
    thinking: bool


@dataclass(frozen=True, eq=False)
class Prompt:
    """Token ids, and what to show for each of them.

    Attributes:
        ids: what the model gets, special tokens included, int64 on the CPU.
        tokens: one non-empty string for each id, the text it stands for. Bytes that are not text by
            themselves are shown as `<0xE2>`.
        text: what was encoded, after the chat template if there is one; None for a prompt of ids.
        bos: whether the first id is the tokenizer's BOS.
        origins: where each token comes from, one of `models.ORIGINS`. None where that is not known:
            for a prompt of ids, and for a tokenizer that does not say which characters its tokens
            come from.
        chat: how the chat template was asked; None where it was not used.
        markers: how many markers of the tokenizer the text holds that were read as plain text.
        chosen_bos: `bos=` of `encode`; None: the tokenizer's own way, or a prompt that is no plain
            text.
        bos_not_added: the tokenizer's BOS, as text, where it has one and by itself puts none before
            a text; None elsewhere.
        left_out: what the tokenizer puts behind a text (its EOS), as texts. It is not in the
            prompt.
        order: the seed by which `shuffled` put its tokens in another order; None: in their own.
    """

    text: str | None
    ids: Int[Tensor, " pos"]
    tokens: tuple[str, ...]
    bos: bool
    origins: tuple[str, ...] | None = None
    chat: Chat | None = None
    markers: int = 0
    chosen_bos: bool | None = None
    bos_not_added: str | None = None
    left_out: tuple[str, ...] = ()
    order: int | None = None

    @property
    def provenance(self) -> dict[str, Any]:
        """Entries of a provenance: chat template, markers in the text, a chosen BOS, special tokens
        that a reader may miss.
        """
        values = {
            "markers_as_text": self.markers or None,
            "bos": self.chosen_bos,
            "bos_not_added": self.bos_not_added,
            "left_out": self.left_out or None,
            "shuffled": self.order,
        }
        chat_values = {} if self.chat is None else self.chat.provenance
        return chat_values | {name: value for name, value in values.items() if value is not None}

    def shuffled(self, seed: int = 0) -> "Prompt":
        """The same tokens with those of the text in random order: a control that leaves no syntax.

        Special tokens and a template's stay where they are; where origins are not known, a leading
        BOS. Raises `InputError` where the order of the ids does not change: it would be no control.
        """
        origins = self.origins or (SPECIAL,) * self.bos + (TEXT,) * (len(self.ids) - self.bos)
        places = torch.tensor(
            [place for place, origin in enumerate(origins) if origin == TEXT], dtype=torch.int64
        )
        order = torch.arange(len(self.ids))
        order[places] = places[
            torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
        ]
        if torch.equal(self.ids[order], self.ids):
            raise InputError(
                f"shuffled: expected tokens whose order changes, found {len(places)} that stay as "
                "they are: give a longer text, or another seed"
            )
        tokens = tuple(self.tokens[place] for place in order.tolist())
        return replace(self, text=None, ids=self.ids[order], tokens=tokens, order=seed)

    @classmethod
    def from_ids(
        cls, model: TransformerBridge, ids: Int[Tensor, " pos"] | Sequence[int]
    ) -> "Prompt":
        """The prompt of given token ids, for a model with or without a tokenizer. Special tokens
        are not added.

        Raises `InputError` for ids that are not one row of whole numbers, for an empty row, for
        more ids than the model's context, for an id without an embedding, and for two leading BOS.
        """
        return _prompt(model, None, _whole_numbers(ids))


@checked_arguments(InputError)
def encode(model: TransformerBridge, text: str, **encoding: Unpack[EncodingOptions]) -> Prompt:
    """The prompt of a text, after the special tokens that the tokenizer puts before it. The text
    itself never becomes one.

    Options: `EncodingOptions`. What the tokenizer puts behind a text (its EOS) is left out: a
    prompt is continued, and ends in its text's last token. `Prompt.left_out`, and every provenance,
    say so. `Prompt.chat` says what became of `thinking`.

    Raises `InputError` for `bos=True` if the tokenizer has no BOS; for empty text; for text longer
    than the context; for text that the tokenizer cannot keep from becoming a special token; for two
    leading BOS, unknown tokens and ids outside the embedding; for a system prompt that the template
    does not take; for `thinking` if it has no switch; for `system` or `thinking` without a chat,
    and `bos` with one; and for a template that rewrites the message.
    """
    require_chat(**encoding)
    if not text:
        raise InputError("expected a prompt, found empty text: give it at least one character")
    tokenizer = required(model.tokenizer)
    markers = markers_in(tokenizer, text)
    if markers:
        note_once(
            f"the text {text[:40]!r} holds markers of the chat template ({markers}), read as plain "
            "text; give the user's words alone, with chat=True"
        )
    if encoding.get("chat"):
        rendered = render(tokenizer, text, encoding.get("system"), encoding.get("thinking", False))
        about_chat = {"origins": origins(tokenizer, rendered), "chat": rendered.chat}
        return _prompt(model, rendered.text, rendered.ids, markers=markers, **about_chat)
    bos = encoding.get("bos")
    before, body, (_, after) = lead(tokenizer, bos), text_ids(tokenizer, text), frame(tokenizer)
    if left_out := tuple(token_text(tokenizer, index) for index in after):
        note_once(
            f"the tokenizer puts {' '.join(left_out)} behind a text; it is left out: a prompt ends "
            "in its text's last token"
        )
    is_as_it_does = bos is None and tokenizer.bos_token_id not in before
    return _prompt(
        model,
        text,
        [*before, *body],
        origins=(SPECIAL,) * len(before) + (TEXT,) * len(body),
        markers=markers,
        chosen_bos=bos,
        bos_not_added=tokenizer.bos_token if is_as_it_does else None,
        left_out=left_out,
    )


def require_chat(**encoding: Unpack[EncodingOptions]) -> None:
    """Refuse, with `InputError`, what only a chat template knows of where there is none, and `bos`
    where there is one.
    """
    chat_options = [
        name for name in ("system", "thinking") if encoding.get(name) not in (None, False)
    ]
    if chat_options and not encoding.get("chat"):
        raise InputError(
            f"{chat_options[0]}: expected a chat, found plain text: ask in the chat template, or "
            f"leave {chat_options[0]} out"
        )
    if encoding.get("chat") and encoding.get("bos") is not None:
        raise InputError(
            "bos: expected plain text, found a chat, whose template writes its special tokens: "
            "leave bos out, or ask without the template, chat=False"
        )


def prompt_ids(tokenizer: PreTrainedTokenizerBase, text: str, bos: bool | None = None) -> list[int]:
    """The ids that `encode` makes of a plain text. Raises as it does."""
    return [*lead(tokenizer, bos), *text_ids(tokenizer, text)]


def count_tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, **encoding: Unpack[EncodingOptions]
) -> int:
    """Number of ids that `encode` would make of a text, where there is a tokenizer and no model
    yet.
    """
    require_chat(**encoding)
    if encoding.get("chat"):
        options = encoding.get("system"), encoding.get("thinking", False)
        return len(render(tokenizer, text, *options).ids)
    return len(prompt_ids(tokenizer, text, encoding.get("bos")))


def fitted(model: TransformerBridge, prompt: Prompt) -> Prompt:
    """The prompt, if it is one of this model. Raises `InputError` for one that was made for another
    model: its ids have other tokens here, no embedding, or no place in the context."""
    own_prompt = Prompt.from_ids(model, prompt.ids)
    for index, token, expected in zip(
        prompt.ids.tolist(), prompt.tokens, own_prompt.tokens, strict=False
    ):
        if token != expected:
            raise InputError(
                f"expected a Prompt of this model, found one of another: its token {index} is "
                f"{token!r}, here it is {expected!r}; make it again with ost.encode(model, text) "
                "or ost.Prompt.from_ids(model, ids)"
            )
    return replace(prompt, ids=own_prompt.ids, tokens=own_prompt.tokens, bos=own_prompt.bos)


def _whole_numbers(ids: object) -> list[int]:
    """One row of integers, whatever the user gave."""
    with refusal(f"one row of token ids, found {type(ids).__name__}"):
        tensor = torch.as_tensor(ids)
    # An empty list has no integers in it, but it is refused for being empty.
    if tensor.ndim != 1 or (tensor.numel() and tensor.dtype not in _INTEGERS):
        raise InputError(
            f"expected one row of whole numbers, found shape {tuple(tensor.shape)} of "
            f"{tensor.dtype}"
        )
    return tensor.tolist()


def require_context(count: int, context: int) -> None:
    """Refuse a prompt of more tokens than the model has positions for."""
    if count > context:
        raise InputError(
            f"expected at most {context} tokens (the model's context), found {count}: shorten the "
            "prompt or use a model with a longer context"
        )


def one_token(model: TransformerBridge, token: str | int) -> int:
    """The id of a text that the tokenizer makes one token of, or of an id itself; others are
    refused with `InputError`.
    """
    if not isinstance(token, str):
        return whole_number("a token's id", token, most=int(model.W_E.shape[0]) - 1)
    ids = token_ids(tokenizer_of(model), token, add_special_tokens=False, split_special_tokens=True)
    if len(ids) != 1:
        words = [token_text(model.tokenizer, index) for index in ids]
        raise InputError(
            f"expected text that is one token, found {token!r}, which is {len(ids)}: {words}; "
            "give one of them, or an id"
        )
    return ids[0]


@checked_arguments(InputError)
def context_length(model: TransformerBridge) -> int:
    """The longest prompt the model has positions for, in tokens."""
    return int(model.cfg.n_ctx)


def tokenizer_of(model: TransformerBridge) -> PreTrainedTokenizerBase:
    """The model's tokenizer. Raises `InputError` for a model without one."""
    return required(model.tokenizer)


@default_torch_state()
def _prompt(model: TransformerBridge, text: str | None, ids: list[int], **fields: Any) -> Prompt:
    """Check ids against the model, and find what to show for each."""
    context, d_vocab = int(model.cfg.n_ctx), int(model.W_E.shape[0])
    if not ids:
        raise InputError("expected at least one token, found none: give a longer prompt")
    require_context(len(ids), context)
    outside = [index for index in ids if not 0 <= index < d_vocab]
    if outside:
        raise InputError(
            f"expected token ids from 0 to {d_vocab - 1}, found {outside[0]}: it has no embedding"
        )
    tokenizer = model.tokenizer
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is not None and ids[:2] == [bos, bos]:
        raise InputError(
            f"expected one leading {getattr(tokenizer, 'bos_token', '')!r}, found two: leave it "
            "out, encoding adds it once"
        )
    text_by_id = token_texts(tokenizer, ids)
    tokens = tuple(text_by_id[index] for index in ids)
    return Prompt(text, torch.tensor(ids), tokens, bos is not None and ids[0] == bos, **fields)


def offsets(model: TransformerBridge, prompt: Prompt) -> list[tuple[int, int]]:
    """For every token of the prompt the first and the one after the last of its characters in
    `prompt.text`.

    Special tokens that stand for no character have an empty span. Raises `InputError` for a prompt
    made of ids, and for a tokenizer that does not know, or whose answer does not fit the prompt's
    ids.
    """
    if prompt.text is None:
        raise InputError(
            "expected a prompt made of text, found one made of token ids: which text they come "
            "from is not known"
        )
    tokenizer = tokenizer_of(model)
    if not tokenizer.is_fast:
        raise InputError(
            "expected a tokenizer that says which characters its tokens come from, found "
            f"{type(tokenizer).__name__}: load the model with a tokenizer.json"
        )
    ids = prompt.ids.tolist()
    # As `encode` asks: a plain text holds no special token, a chat template its own; before either
    # may stand some.
    options = {"add_special_tokens": False, "split_special_tokens": prompt.chat is None}
    encoded_ids, places = ids_and_places(tokenizer, prompt.text, **options)
    before = len(ids) - len(encoded_ids)
    if before < 0 or ids[before:] != encoded_ids:
        raise InputError(
            "expected the prompt's own ids from its text, found others: encode it again with this "
            "model"
        )
    return [(0, 0)] * before + places
