"""The measurements of a report: every step of its sections once, and what that holds in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.progress import Progress
from ostools.measure.unloaded import Unloaded
from ostools.models import Prompt
from ostools.models.shape import Shape
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.extent import NOT_QUICK, extent_of
from ostools.reporting.sections.records import LeftOut, Measurements, Plan, Run, Step
from ostools.results import Provenance


def measure(
    model: TransformerBridge,
    prompt: Prompt,
    lengths: list[int],
    sections: Collection[str] | None = None,
    progress: Progress | None = None,
    quick: bool = False,
) -> Measurements:
    """Results of the sections; None: of all but what takes long at this size (`only_by_name`)."""
    ids, shape = tuple(prompt.ids.tolist()), Shape.of(model)
    plan = _plan(shape, len(ids), lengths, sections, quick)
    names = [name for name in SECTIONS if sections is None or name in sections]
    asked = {"lengths": lengths, "sections": names} | ({"quick": True} if quick else {})
    measured = Measurements(
        Provenance.collect(model, ids, measurement="report", **asked),
        "".join(prompt.tokens) if prompt.text is None else prompt.text,
        prompt.tokens,
    )
    if sections is None:
        reasons = only_by_name(shape, len(ids), quick)
        measured.left_out += [LeftOut(name, reason) for name, reason in reasons.items()]
    has_default_lengths = {"collapse", "precision"} & set(plan.names) and lengths == plan.extent.lengths(max(lengths))
    words = (plan.extent.words, plan.extent.length_words if has_default_lengths else "")
    measured.reduced = " ".join(filter(None, words))
    steps = _steps(plan)
    run = Run(model, prompt, plan, measured, progress, total=round(100 * sum(step.share for step in steps)))
    for step in steps:
        step.measure(run)
    return measured


def report_memory(
    model: Unloaded,
    prompt: str | Sequence[int],
    lengths: Sequence[int],
    sections: Collection[str] | None,
    quick: bool = False,
) -> int:
    """Bytes of the largest section of a report; None: those that are measured where none is named."""
    plan = _plan(model.shape, model.pos(prompt), lengths, sections, quick)
    return max((size for step in _steps(plan) for size in step.memory(model, plan)), default=0)


def only_by_name(shape: Shape, pos: int, quick: bool = False) -> dict[str, str]:
    """The sections that a model and prompt of this size, or a quick report, have only by name, each with the reason."""
    reasons = {name: section.dear(shape, pos) for name, section in SECTIONS.items()}
    if quick:
        reasons |= dict.fromkeys(NOT_QUICK, "a quick report leaves it out")
    return {name: f"{reason}; `--section {name}` measures it" for name, reason in reasons.items() if reason}


def _plan(shape: Shape, pos: int, lengths: Sequence[int], sections: Collection[str] | None, quick: bool) -> Plan:
    dear = only_by_name(shape, pos, quick)
    chosen = [name for name in SECTIONS if (name not in dear if sections is None else name in sections)]
    return Plan(tuple(chosen), tuple(lengths), pos, extent_of(shape, quick))


def _steps(plan: Plan) -> list[Step]:
    """In the order of the report; what two sections share is measured once."""
    return list(dict.fromkeys(SECTIONS[name].step for name in plan.names))
