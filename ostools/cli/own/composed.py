"""Measurements of a prompt or task that read another measurement: what a command line does in one
step and Python in two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from mitigations import Mitigation
    from ostools.ground.progress import Progress
    from ostools.measure import Collapse, Faithfulness, Profile
    from ostools.models import Prompt


def profile(
    model: TransformerBridge,
    prompt: str | Prompt,
    *,
    method: str = "auto",
    cotangents: int = 8,
    position: int | None = None,
    norm: str | None = None,
    mitigation: Mitigation | str | None = None,
    max_memory: int | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Say which tokens matter, and test for a U-shape.

    The measured profile with and without the sink, its shape with intervals, and full against
    frozen. A sketch reads Frobenius norms off a few random cotangents, in seconds where exact norms
    take minutes.
    """
    from ostools import measure

    measured: Any = measure.sensitivity(
        model,
        prompt,
        method=method,
        cotangents=cotangents,
        position=position,
        mitigation=mitigation,
        max_memory=max_memory,
        progress=progress,
    )
    return measure.profile(measured, norm=norm)


def faithfulness(
    model: TransformerBridge,
    prompt: str | Prompt,
    *,
    position: int | None = None,
    logit: str | None = None,
    ways: Sequence[str] = ("removed", "replaced", "masked"),
    linearisations: Sequence[str] = ("full", "frozen"),
    variants: Sequence[str] = (),
    draws: int = 4,
    orders: int = 40,
    steps: int = 12,
    seed: int = 0,
    mitigation: Mitigation | str | None = None,
    max_memory: int | None = None,
    progress: Progress | None = None,
) -> Faithfulness:
    """Ask whether sensitivity is use: take tokens out.

    Each token before the last is removed, replaced by another of its kind, and masked in attention.
    How far the last representation, the answer and the next token move is ranked beside what was
    measured and predicted of the token. Then more and more tokens go, in the order of each profile
    and in random order. With --position the answer is the token after that position, and tokens are taken
    out before it.
    """
    from ostools import measure

    given: dict[str, Any] = {"max_memory": max_memory, "mitigation": mitigation}
    measured = measure.sensitivity(model, prompt, linearisations=linearisations, position=position, **given)
    positions = "last" if position is None else "all"
    profiles: Any = [measured]
    if variants:
        profiles.append(measure.bounds(model, prompt, variants=variants, positions=positions, **given))
    return measure.faithfulness(
        model,
        profiles,
        logit=logit,
        ways=ways,
        draws=draws,
        orders=orders,
        steps=steps,
        seed=seed,
        mitigation=mitigation,
        progress=progress,
    )


def collapse(
    model: TransformerBridge,
    task: str | None = None,
    *,
    lengths: Iterable[int] = range(1, 257),
    prompt: str | Prompt | None = None,
    item: str | None = None,
    items: Literal["text", "ids"] = "text",
    dtypes: Sequence[str] = ("float32", "bfloat16", "float16"),
    seeds: Sequence[int] = (0,),
    layers: Literal["all"] | Iterable[int] | None = None,
    bos: bool = True,
    variation: bool = True,
    site: str | None = None,
    per: str | None = None,
    norm: str | None = None,
    mitigation: Mitigation | str | None = None,
    chat: bool | None = False,
    progress: Progress | None = None,
) -> Collapse:
    """Measure representational collapse (Theorem 4.2).

    Distance between the last-token representations of a sequence and of the same with its last
    token repeated.

    Args:
        items: how items are put into a prompt: as text, or each by its own token (ids), whatever
            the tokenizer merges.
        site: distance where: residual (v^(L), or v), y, logits, attention (the last block's heads).
        per: of what: vector, head-chunk (d_model / H numbers), or head-output.
        norm: l1, l2, linf or cosine.
    """
    from ostools import measure
    from ostools.cli.checks import pairs_of, reading_of

    result: Any = measure.collapse(
        model,
        pairs_of(task, prompt, item, items),
        lengths=lengths,
        dtypes=dtypes,
        seeds=seeds,
        layers=layers,
        bos=bos,
        variation=variation,
        mitigation=mitigation,
        chat=chat,
        progress=progress,
    )
    reading = reading_of(site, per, norm, by_layer=layers is not None)
    return replace(result, reading=reading)
