"""Twenty passages of four kinds on which claims about real models are tested: facts, code, repeated digits, story.

They stand in `passages.jsonl`. Each has at least 128 tokens under the tokenizers of Gemma and SmolLM2. They were written for
this project, so that no model was trained on them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Kind = Literal["facts", "code", "digits", "story"]
KINDS: tuple[str, ...] = get_args(Kind)
NATURAL: tuple[str, ...] = ("facts", "code", "story")
"""The kinds whose tokens differ from place to place: there, position is not confounded with repetition."""


@dataclass(frozen=True)
class Passage:
    """A text with its kind."""

    kind: str
    text: str


def _read() -> tuple[Passage, ...]:
    lines = Path(__file__).with_name("passages.jsonl").read_text("utf-8").splitlines()
    return tuple(Passage(**json.loads(line)) for line in lines)


PASSAGES = _read()
"""Five of each kind, in the order of `KINDS`."""
