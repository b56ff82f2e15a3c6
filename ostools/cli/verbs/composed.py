"""Measurements that read another measurement: one step of a command line, and two of Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ostools.ground import Progress, TransformerBridge
    from ostools.measure import Faithfulness, Profile, Sensitivity
    from ostools.measure.faithfulness.faithfulness import Way
    from ostools.mitigations import Mitigation
    from ostools.models import Prompt
    from ostools.tasks.questions import Question


def profile(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    **options: Any,
) -> Profile:
    """Say which tokens matter, and test for a U-shape.

    The measured profile with and without the sink, its shape with intervals, and full against
    frozen. A sketch reads Frobenius norms off a few random cotangents, in seconds where exact norms
    take minutes.
    """
    from ostools import measure

    measured = measure.sensitivity(model, prompt, **options)
    return measure.profile(cast("Sensitivity", measured))


def faithfulness(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    logit: str | int | Sequence[str | int] | None = None,
    ways: Way | Sequence[Way] | None = None,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Faithfulness:
    """Ask whether sensitivity is use: take tokens out.

    Each token before the last is removed, and masked in attention.
    How far the last representation, the answer and the next token move is ranked beside what was
    measured of the token.
    """
    from ostools import measure

    measured = measure.sensitivity(model, prompt, mitigation=mitigation, **options)
    return measure.faithfulness(
        model,
        cast("Sensitivity", measured),
        logit=logit,
        ways=ways,
        mitigation=mitigation,
        progress=progress,
    )
