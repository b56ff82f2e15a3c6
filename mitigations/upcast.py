"""Float32 for chosen parts of a model that runs in 16 bits: does precision cost the answer, and where?

Section 4 of the paper: two representations that differ by less than the format resolves are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mitigations.base import Mitigation, MitigationError
from mitigations.registry import nearest

if TYPE_CHECKING:  # torch and TransformerLens take seconds, and a name with its options needs none of them
    from transformer_lens.model_bridge import TransformerBridge

PARTS = ("attention", "mlp", "norms", "residual", "unembedding")
"""What can be computed in float32: those of `hooks.upcast`."""


@dataclass(frozen=True)
class Upcast(Mitigation):
    """Compute parts of a bfloat16 or float16 model in float32, with the weights that it has.

    parts: some of "attention", "mlp", "norms", "residual", "unembedding", as `hooks.upcast` defines them. The default is all
    of them, which gives what the same weights give in float32. A model that is not in 16 bits is left as it is, and there
    Upcast is inactive.

    Raises `MitigationError` for an unknown part and for an empty list; on a model, for what `hooks.upcast` refuses.
    """

    parts: Sequence[str] = PARTS

    def __post_init__(self) -> None:
        if not isinstance(self.parts, str | Sequence):
            raise MitigationError(f"Upcast: expected parts such as {PARTS[:2]}, found {self.parts!r:.60}")
        parts = (self.parts,) if isinstance(self.parts, str) else tuple(self.parts)
        for part in parts:
            if part not in PARTS:
                raise MitigationError(f"Upcast: unknown part {part!r}: {nearest(str(part), PARTS)}")
        if not parts:
            raise MitigationError(f"Upcast: expected at least one part of {', '.join(PARTS)}, found none")
        object.__setattr__(self, "parts", tuple(part for part in PARTS if part in parts))

    def hooks(self, model: TransformerBridge) -> AbstractContextManager[None]:
        import hooks

        dtypes = {parameter.dtype for parameter in model.parameters()}
        return hooks.upcast(model, self.parts) if dtypes & set(hooks.SIXTEEN_BITS) else nullcontext()

    def verify(self, record: Mapping[str, Any]) -> None:
        """Raise `MitigationError` if attention is upcast and a pattern is in 16 bits."""
        import hooks
        from mitigations import invariants

        for layer, pattern, _ in invariants.layers_of(record, "Upcast"):
            if "attention" in self.parts and pattern.dtype in hooks.SIXTEEN_BITS:
                raise MitigationError(
                    f"Upcast: expected attention in float32, found a pattern of {pattern.dtype} in layer {layer}"
                )
