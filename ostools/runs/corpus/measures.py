"""What is measured of a window: `MEASURES`, by name; its values over the window's tokens, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

import mitigations
from mitigations import Mitigation
from ostools.ground.errors import InputError, unknown_name
from ostools.ground.names import METHOD_KINDS, checked_name
from ostools.ground.progress import Progress
from ostools.measure.attention.attention import attention
from ostools.measure.jacobian.memory import sensitivity_bytes
from ostools.measure.jacobian.norms import choose_method
from ostools.measure.jacobian.routes import LINEARISATIONS
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.measure.mitigated_prompts import MitigatedPrompts, acting_bytes, of_the_pass
from ostools.measure.passes.batches import patterns_bytes
from ostools.models import Prompt
from ostools.models.shape import Shape
from ostools.results import Frame
from ostools.runs.corpus.pairs import PAIRS, checked_dtypes, pair_rows, pairs_bytes
from ostools.runs.corpus.windows import Window

MEASURES = ("sensitivity", "attention", PAIRS)


@dataclass(frozen=True)
class Measure:
    """What is measured: a name out of `MEASURES`, of which derivative, and of the sensitivity how ("" where there is none); of
    pairs in which dtypes; and under which mitigation of the forward pass."""

    name: str
    linearisation: str = ""
    method: str = ""
    dtypes: tuple[str, ...] = ()
    mitigation: Mitigation | None = None

    @classmethod
    def from_options(
        cls,
        name: str,
        linearisation: str | None,
        method: str | None,
        dtypes: Sequence[str] | None,
        d_model: int,
        mitigation: Mitigation | str | None = None,
    ) -> Measure:
        """Checked. `method` None: exact, but a sketch for models wider than d_model 256. Never by
        the memory that is free: one corpus holds one kind of number."""
        checked_name("measure", name, MEASURES)
        pass_mitigation = of_the_pass(
            "corpus", mitigation, "the windows of a corpus are tokens, which it cannot rewrite"
        )
        if dtypes is not None and name != PAIRS:
            raise InputError(f"dtypes: expected them with measure {PAIRS!r} alone, found {name!r}: leave them out")
        if name != "sensitivity":
            for option, value in (("linearisation", linearisation), ("method", method)):
                if value is not None:
                    raise InputError(
                        f"{option}: expected it with measure 'sensitivity' alone, found {name!r}: leave it out"
                    )
            dtype_names = checked_dtypes(dtypes) if name == PAIRS else ()
            return cls(name, "", "", dtype_names, pass_mitigation)
        kind = checked_name("linearisation", "full" if linearisation is None else linearisation, LINEARISATIONS)
        if method not in (None, *METHOD_KINDS):
            raise unknown_name("method", method, METHOD_KINDS)
        return cls(name, kind, method or choose_method(d_model, exact_fits=True).method, mitigation=pass_mitigation)

    @property
    def kind(self) -> str:
        """Whether its values are measured or estimated."""
        return METHOD_KINDS[self.method] if self.method else "measured"

    @property
    def quantity(self) -> str:
        """What its values are, in words: the operator norm is known of exact Jacobians alone."""
        if self.name == PAIRS:
            return "L2 distance at y"
        if self.name == "attention":
            return "attention weight, mean over layers and heads"
        return "operator norm" if self.method == "exact" else "Frobenius norm"

    @property
    def as_dict(self) -> dict[str, Any]:
        """Its fields and what they make of its values."""
        columns = {"measure": self.name, "linearisation": self.linearisation, "method": self.method}
        columns |= {"dtypes": list(self.dtypes)} if self.name == PAIRS else {}
        columns |= {} if self.mitigation is None else {"mitigation": mitigations.label(self.mitigation)}
        return {**columns, "kind": self.kind, "quantity": self.quantity}

    def rows(
        self,
        model: TransformerBridge,
        windows: Sequence[Window],
        first: int,
        *,
        seed: int,
        max_memory: int | None,
        progress: Progress | None,
    ) -> Frame:
        """Of windows of one length, the first of which is number `first`: a row a token; of pairs a row a window and dtype."""
        if self.name == PAIRS:
            return pair_rows(model, windows, first, self.dtypes, self.mitigation, progress)
        prompts = [Prompt.from_ids(model, window.ids) for window in windows]
        values = self.values(model, prompts, seed=seed, max_memory=max_memory, progress=progress)
        tables = [
            pd.DataFrame(
                {
                    "length": len(window.ids),
                    "window": first + index,
                    "text": window.text,
                    "start": window.start,
                    "position": range(len(window.ids)),
                    "token_id": window.ids,
                    "value": value,
                }
            )
            for index, (window, value) in enumerate(zip(windows, values, strict=True))
        ]
        return pd.concat(tables, ignore_index=True)

    def values(
        self,
        model: TransformerBridge,
        prompts: Sequence[Prompt],
        *,
        seed: int,
        max_memory: int | None,
        progress: Progress | None,
    ) -> list[np.ndarray]:
        """Of every window, which have one length, a value for each of its tokens. `seed`: of an estimate's directions.

        Raises `InactiveMitigationError` for a mitigation that does not change a logit of one of them.
        """
        if self.name == "sensitivity":
            how: dict[str, Any] = {"linearisations": [self.linearisation], "method": self.method, "seed": seed}
            how |= {"mitigation": self.mitigation, "max_memory": max_memory, "progress": progress or False}
            results = sensitivity(model, list(prompts), **how)
            column = "operator_norm" if self.method == "exact" else "frobenius_norm"
            return [result.frame[column].to_numpy(dtype=float) for result in results]
        with MitigatedPrompts.of("corpus", model, prompts, self.mitigation).acting(model):
            return [attention(model, prompt).last.double().mean((0, 1)).numpy() for prompt in prompts]

    def memory(self, shape: Shape, length: int, max_memory: int | None = None) -> int:
        """Bytes that a window of so many tokens holds beside the model."""
        if self.name == PAIRS:
            return pairs_bytes(shape, length, self.dtypes, self.mitigation)
        if self.name == "sensitivity":
            kinds = (self.linearisation,)
            held_bytes = sensitivity_bytes(shape, length, kinds, method=self.method, max_memory=max_memory)
        else:
            held_bytes = patterns_bytes(shape, length)
        return max(held_bytes, acting_bytes(shape, length, self.mitigation))
