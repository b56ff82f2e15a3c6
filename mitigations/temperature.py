"""Sharper or flatter attention: the scores multiplied by an inverse temperature, constant or growing with the position.

Sources: Chiang, Cholak, "Overcoming a theoretical limitation of self-attention", 2022 (scores times log n, so that attention
over n keys can stay on one of them); Su Jianlin, "Scaling attention by the logarithm of the length", 2021 (log n to the base of
the trained length, and never below 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mitigations.base import Mitigation, MitigationError

if TYPE_CHECKING:  # torch and TransformerLens take seconds, and a name with its options needs none of them
    from jaxtyping import Float, Int
    from torch import Tensor
    from transformer_lens.model_bridge import TransformerBridge


@dataclass(frozen=True)
class AttentionTemperature(Mitigation):
    """Sharper or flatter attention: every score is multiplied by one factor, or by a factor that grows as log n.

    The scores (scaled, soft-capped) of the query at position i are multiplied by c_i before the softmax.
    `factor`: c_i = factor, an inverse temperature. Above 1 attention is sharper, below 1 it is flatter.
    `rule="log-n"`: c_i = max(1, log(n_i) / log(base)) with n_i = i + 1, the number of positions that the query could see. With
    base e (the default) this is the log n of Chiang and Cholak from n = 3 on. With base = the trained length the first `base`
    positions stay as they are, bit for bit. Give `factor` or `rule`, not both.

    Raises `MitigationError` for both or neither, for a factor that is not finite and above 0, and for a base that is not above
    1 or comes without the rule.
    """

    factor: int | float | None = None
    rule: Literal["log-n"] | None = None
    base: int | float | None = None

    def __post_init__(self) -> None:
        if (self.factor is None) == (self.rule is None):
            raise MitigationError(
                "AttentionTemperature: expected factor=NUMBER or rule='log-n', one of them, found "
                + ("neither" if self.factor is None else "both")
            )
        if self.rule not in (None, "log-n"):
            raise MitigationError(f"AttentionTemperature: unknown rule {self.rule!r}: known is 'log-n'")
        if self.factor is not None and not (_is_number(self.factor) and self.factor > 0):
            raise MitigationError(f"AttentionTemperature: expected a finite factor above 0, found {self.factor!r}")
        if self.base is not None and self.rule is None:
            raise MitigationError(
                f"AttentionTemperature: base belongs to rule='log-n', found base={self.base!r} without"
            )
        if self.base is not None and not (_is_number(self.base) and self.base > 1):
            raise MitigationError(f"AttentionTemperature: expected a finite base above 1, found {self.base!r}")
        for field in ("factor", "base"):  # 2 and 2.0 are one mitigation, with one label
            value = getattr(self, field)
            object.__setattr__(self, field, None if value is None else float(value))

    def factors(self, query: Int[Tensor, " query"]) -> Float[Tensor, " query"]:
        """c_i of the queries at these absolute positions, float64."""
        import torch

        if self.factor is not None:
            return torch.full(query.shape, float(self.factor), dtype=torch.float64, device=query.device)
        length = math.log(self.base if self.base is not None else math.e)
        return ((query + 1).double().log() / length).clamp(min=1.0)

    def hooks(self, model: TransformerBridge) -> AbstractContextManager[None]:
        import hooks

        return hooks.scale_scores(model, self.factors)

    def verify(self, record: Mapping[str, Any]) -> None:
        """Raise `MitigationError` if a query sees a key after it, or if its weights do not sum to 1."""
        from mitigations import invariants

        for layer, pattern, _ in invariants.layers_of(record, "AttentionTemperature"):
            invariants.require_unseen("AttentionTemperature", layer, pattern, ~invariants.causal(pattern))
            invariants.require_rows_sum_to_one("AttentionTemperature", layer, pattern)


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond what a float holds
        return False
