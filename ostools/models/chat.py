"""A text in its model's chat template: the origin of its characters, and whether the model is to
think.

A template is a program that writes a conversation as one text. Here it writes one user turn, after
a system prompt where one is given, up to where the answer begins. It is run a second time with
marks in place of the two: what stands around the marks is the template's own, so that the user's
characters are found exactly, whatever they say.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ostools.ground import InputError, PreTrainedTokenizerBase, refusal
from ostools.models.tokenizer_calls import (
    HARMLESS,
    Span,
    control_ids,
    frame,
    ids_and_places,
    refuse_unknown,
    token_ids,
    token_texts,
)

SPECIAL, TEMPLATE, SYSTEM, TEXT, MIXED = "special", "template", "system", "text", "mixed"
ORIGINS = (SPECIAL, TEMPLATE, SYSTEM, TEXT, MIXED)
"""Where a token comes from. special: put around the whole by the tokenizer or the template (BOS,
EOS). template: the chat template's own (turn markers, role names, line ends, the opening of the
answer, a system prompt of its own). system: the system prompt that was given. text: the user's
text. mixed: several of these at once. Blanks decide only where a token has nothing else."""

ON, OFF, NO_SWITCH = "on", "off", "no switch"
"""What a provenance says about thinking."""

PROMPT_PROVENANCE = (
    "chat",
    "system",
    "thinking",
    "dated",
    "markers_as_text",
    "bos",
    "bos_not_added",
    "left_out",
    "shuffled",
)
"""The names in `Chat.provenance` and `Prompt.provenance`."""

_MESSAGE, _SYSTEM = (
    "\ue000",
    "\ue001",
)  # of private use: in no template, and no blanks that one would strip
_SWITCH = "enable_thinking"
_DATES = ("strftime_now", "date_string")


@dataclass(frozen=True)
class Chat:
    """Settings with which a chat template was rendered.

    system: the system prompt that was given, None for none. thinking: "on", "off" or "no switch".
    dated: whether the template can write the day's date, so that the prompt may be
    another one tomorrow. message: where the user's text stands in the encoded text, from the first
    character to the one after the last.
    """

    system: str | None
    thinking: str
    dated: bool
    message: Span

    @property
    def provenance(self) -> dict[str, object]:
        """For a provenance."""
        return {
            "chat": True,
            "system": self.system,
            "thinking": self.thinking,
            "dated": self.dated,
        }


@dataclass(frozen=True)
class Rendered:
    """Text that a template made of a message, and its ids. `spans`: the origin of characters by
    their place; all others are the template's."""

    text: str
    ids: list[int]
    spans: tuple[tuple[Span, str], ...]
    chat: Chat


def render(
    tokenizer: PreTrainedTokenizerBase, text: str, system: str | None = None, thinking: bool = False
) -> Rendered:
    """A user's turn in the tokenizer's template, after `system` where it is given, up to where the
    answer begins; the same control tokens as around any other text, nothing on top.

    `thinking`: whether the model is to think before it answers, where the template has the switch
    `enable_thinking`: where that changes what it writes. A template without it is left as it is.

    Raises `InputError` for no template, one that fails, takes no system prompt, or writes the
    message otherwise than whole and once (blanks at its ends aside), for empty `system`, for
    `thinking` without a switch, and for text that becomes a control token.
    """
    if not tokenizer.chat_template:
        raise InputError("expected a tokenizer with a chat template, found none: leave chat out")
    if system is not None and not (isinstance(system, str) and system.strip()):
        raise InputError(f"system: expected text, or None for no system prompt, found {system!r}")
    thinking_state = _thinking_state(tokenizer, thinking)
    text_by_mark = {_MESSAGE: text} if system is None else {_MESSAGE: text, _SYSTEM: system}
    marked = _turn(tokenizer, _MESSAGE, None if system is None else _SYSTEM, thinking)
    whole_text = _turn(tokenizer, text, system, thinking)
    spans = _spans(marked, whole_text, text_by_mark)
    (message,) = (span for span, origin in spans if origin == TEXT)
    template = str(tokenizer.get_chat_template())
    chat = Chat(system, thinking_state, any(word in template for word in _DATES), message)
    ids = _ids(tokenizer, whole_text)
    refuse_unknown(tokenizer, ids, text)
    markers = control_ids(tokenizer).difference([tokenizer.unk_token_id])
    # What the template writes of texts in which no control token can stand.
    harmless_ids = _ids(tokenizer, re.sub(f"[{_MESSAGE}{_SYSTEM}]", HARMLESS, marked))
    control, expected = ([i for i in row if i in markers] for row in (ids, harmless_ids))
    if control != expected:
        raise InputError(
            f"expected a message that leaves the chat template's {len(expected)} control tokens as "
            f"they are, found {len(control)}: the message holds text that the tokenizer reads as a "
            "control token; change it"
        )
    return Rendered(whole_text, ids, spans, chat)


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of a text that a chat template wrote, whose markers are tokens."""
    return token_ids(tokenizer, text, add_special_tokens=False, split_special_tokens=False)


def _thinking_state(tokenizer: PreTrainedTokenizerBase, thinking: bool) -> str:
    """What a provenance says about thinking; `InputError` for `thinking` without a switch."""
    on, off = (_turn(tokenizer, _MESSAGE, None, value) for value in (True, False))
    if on != off:
        return ON if thinking else OFF
    if thinking:
        raise InputError(
            f"thinking: expected a chat template with a switch ({_SWITCH}), found none: leave "
            "thinking out; a model that always thinks does so all the same"
        )
    return NO_SWITCH


def _turn(tokenizer: PreTrainedTokenizerBase, text: str, system: str | None, thinking: bool) -> str:
    """What the template writes of a message; `InputError` for a template that fails."""
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    what = "one user turn" if system is None else "a system prompt"
    options: dict[str, Any] = {_SWITCH: thinking}
    with refusal(f"a chat template that takes {what}, found"):  # templates raise what they like
        chat_text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **options
        )
        return cast(str, chat_text)


def _spans(
    marked: str, whole_text: str, text_by_mark: Mapping[str, str]
) -> tuple[tuple[Span, str], ...]:
    """Where the message and the system prompt stand in `whole_text`, in their order.

    Templates may strip blanks at their ends.
    """
    pieces = re.split(f"([{_MESSAGE}{_SYSTEM}])", marked)
    order = [piece for piece in pieces if piece in text_by_mark]
    pattern = "".join(
        rf"(\s*{re.escape(text_by_mark[piece].strip())}\s*)"
        if piece in text_by_mark
        else re.escape(piece)
        for piece in pieces
    )
    match = re.fullmatch(pattern, whole_text)
    if match is None or sorted(order) != sorted(text_by_mark):
        raise InputError(
            "expected a chat template that writes the message, and the system prompt, once and as "
            "they are, found one that leaves out, repeats or rewrites one: which tokens are the "
            "user's is not known; change the message, or leave chat or system out"
        )
    return tuple(
        (match.span(index), TEXT if mark == _MESSAGE else SYSTEM)
        for index, mark in enumerate(order, 1)
    )


def origins(tokenizer: PreTrainedTokenizerBase, rendered: Rendered) -> tuple[str, ...] | None:
    """Origin of each token, by the characters that it comes from; None where the tokenizer does not
    say which. A BOS, and what else the tokenizer puts before any text, is special.
    """
    if not tokenizer.is_fast:
        return None
    options = {"add_special_tokens": False, "split_special_tokens": False}
    _, places = ids_and_places(tokenizer, rendered.text, **options)
    texts, (before, _) = token_texts(tokenizer, rendered.ids), frame(tokenizer)
    before = before or [cast(int, tokenizer.bos_token_id)]
    specials = len(before) if rendered.ids[: len(before)] == before else 0
    letter_origins = [TEMPLATE] * len(rendered.text)
    for (low, high), origin in rendered.spans:
        letter_origins[low:high] = [origin] * (high - low)
    token_origins, at = [SPECIAL] * specials, 0
    for index, (low, high) in enumerate(places):
        # What the token says tells blanks that a tokenizer leaves out of `places`.
        token = texts[rendered.ids[index]]
        between, end = rendered.text[at:low], at + len(token)
        is_there = rendered.text.startswith(token, at) and not between.strip()
        if at <= low and end >= high and is_there:
            low, high = at, end
        at = max(at, high)
        if index >= specials:
            token_origins.append(_origin_of(letter_origins[low:high], rendered.text[low:high]))
    return tuple(token_origins)


def _origin_of(letter_origins: Sequence[str], text: str) -> str:
    """Origin of a token; blanks count where it has nothing else."""
    pairs = zip(letter_origins, text, strict=True)
    kinds = {origin for origin, letter in pairs if not letter.isspace()} or set(letter_origins)
    return kinds.pop() if len(kinds) == 1 else MIXED
