"""The measurements that a report's sections need: each once, whatever is refused noted by section and left out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from transformer_lens.model_bridge import TransformerBridge

from hooks import HookError
from mitigations import MitigationError
from mitigations.window import own_windows
from ostools import tasks
from ostools.experiments import Study, position_effect, study
from ostools.experiments.position import PositionEffect
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress, part_of, tell
from ostools.measure import (
    Collapse,
    FailureStage,
    Sensitivity,
    bounds,
    collapse,
    compare,
    evaluate,
    failure_stage,
    profile,
    sensitivity,
)
from ostools.measure.answers.evaluate import Evaluation
from ostools.measure.attention.attention import attention
from ostools.measure.bounds.described import undescribed
from ostools.models import Prompt
from ostools.models.shape import Shape
from ostools.reporting.report import asked as scope
from ostools.reporting.sections.measurements import LeftOut, Measurements
from ostools.results import Frame, Provenance, frame_of

Found = TypeVar("Found")

# The steps of a run: the share of it that each takes on the embedded model, for the progress bar, and the sections it is for.
_STEPS: dict[str, tuple[int, frozenset[str]]] = {
    "collapse": (40, frozenset({"collapse", "precision"})),
    "position": (20, frozenset({"position"})),
    "sensitivity": (25, frozenset({"sensitivity", "layers"})),
    "path sum": (10, frozenset({"sensitivity"})),
    "attention": (1, frozenset({"attention"})),
    "evaluate": (10, frozenset({"evaluate"})),
    "failure-stage": (12, frozenset({"failure-stage"})),
    "study": (20, frozenset({"mitigations"})),
}


def measure(
    model: TransformerBridge,
    prompt: Prompt,
    lengths: list[int],
    sections: Collection[str] | None = None,
    progress: Progress | None = None,
) -> Measurements:
    """What the sections show; None: all of them, but what takes long on a model of this size (`unasked`)."""
    asked = [name for name in scope.NAMES if sections is None or name in sections]
    ids = tuple(prompt.ids.tolist())
    found = Measurements(
        Provenance.collect(model, ids, measurement="report", lengths=lengths, sections=list(asked)),
        "".join(prompt.tokens) if prompt.text is None else prompt.text,
        prompt.tokens,
    )
    if sections is None:
        for name, reason in scope.unasked(Shape.of(model), len(ids)).items():
            asked.remove(name)
            found.left_out.append(LeftOut(name, reason))
    extent = scope.extent_of(Shape.of(model))
    collapse_asked = {"collapse", "precision"} & set(asked) and lengths == extent.lengths(max(lengths))
    found.reduced = " ".join(words for words in (extent.words, extent.length_words if collapse_asked else "") if words)
    steps = _Steps(asked, progress, found.left_out)
    _collapses(steps, found, model, lengths)
    if "position" in asked:
        found.position = steps.run("position", "position", lambda part: _position(model, part))
    _profiles(steps, found, model, prompt)
    if "attention" in asked:
        found.attention = steps.run("attention", "attention", lambda part: attention(model, prompt))
    if "evaluate" in asked:
        _evaluations(steps, found, model)
    if "failure-stage" in asked:
        found.failure_stage = steps.run("failure-stage", "failure-stage", lambda part: _failure_stage(model, part))
    if "mitigations" in asked:
        found.study = steps.run("study", "mitigations", lambda part: _study(model, found.evaluations, part))
    return found


def _collapses(steps: _Steps, found: Measurements, model: TransformerBridge, lengths: list[int]) -> None:
    """Figure 5's prompts with the model cast; the ones in every format too, in the same passes."""
    section = steps.first("collapse", "precision")
    if section is None:
        return

    def curve(name: str, part: Progress | None) -> Collapse:
        if name != scope.ONES or "precision" not in steps.asked:
            return collapse(model, name, lengths=_lengths(model, name, lengths), dtypes=scope.CASTS, progress=part)
        found.precision = _in_formats(found.left_out, model, _lengths(model, name, lengths), part)
        return _cast_alone(found.precision)

    curves = steps.each("collapse", section, tasks.FIGURE_5, curve)
    found.collapses = curves if "collapse" in steps.asked else []
    found.casts = curves if "precision" in steps.asked else []


def _lengths(model: TransformerBridge, name: str, lengths: list[int]) -> list[int]:
    """One pass holds all lengths of ones: they go on until the prompt has outgrown the model's sliding window."""
    windows = {window for window in own_windows(model).values() if window <= scope.LONGEST_WINDOW}
    beyond = range(32, max(windows, default=0) + 32, 32) if name == scope.ONES else ()
    return sorted({*lengths, *beyond})


def _in_formats(
    left_out: list[LeftOut], model: TransformerBridge, lengths: list[int], progress: Progress | None
) -> Collapse:
    """The curve of ones in every format, or without those beyond whose range the model's numbers are, or for which it has no
    hook."""
    formats: list[str] = list(scope.extent_of(Shape.of(model)).formats)
    while True:
        try:
            return collapse(model, scope.ONES, lengths=lengths, dtypes=formats, progress=progress)
        except (InputError, HookError) as error:
            words = re.findall(r"[\w-]+", str(error))
            refused = next((name for name in formats[len(scope.CASTS) :] if name in words), None)
            if refused is None:
                raise
            formats.remove(refused)
            left_out.append(LeftOut("precision", f"{scope.ONES} in {refused}: {error}"))


def _cast_alone(result: Collapse) -> Collapse:
    """The rows of the casts, of a curve in every format."""
    rows: Frame = frame_of(result)
    exact: Frame = result.reference
    cast = rows[rows["dtype"].isin(scope.CASTS)].reset_index(drop=True)
    stored = {"given", *cast["weights"]}
    return replace(result, frame=cast, reference=exact[exact["weights"].isin(stored)].reset_index(drop=True))


def _profiles(steps: _Steps, found: Measurements, model: TransformerBridge, prompt: Prompt) -> None:
    """Sensitivity at the embeddings and at every layer out of the same passes, path sums beside it."""
    section = steps.first("layers", "sensitivity")
    if section is None:
        return
    everywhere = None
    if section == "layers":
        everywhere = steps.run(
            "sensitivity", section, lambda part: sensitivity(model, prompt, layers="all", progress=part)
        )
        found.layers = everywhere
        section = steps.first("sensitivity")
    if section is None:
        return
    if everywhere is None:  # every layer may be too much where the embeddings alone are not
        everywhere = steps.run("sensitivity", section, lambda part: sensitivity(model, prompt, progress=part))
    if everywhere is not None:
        rows: Frame = frame_of(everywhere)
        found.sensitivity = replace(everywhere, frame=rows[rows["layer"] == 0].reset_index(drop=True))
        found.profile = steps.run("sensitivity", "sensitivity", lambda part: profile(everywhere))
        _bounds(steps, found, model, prompt, found.sensitivity)


def _bounds(steps: _Steps, found: Measurements, model: TransformerBridge, prompt: Prompt, profile: Sensitivity) -> None:
    """Path sums beside the profile."""
    extent = scope.extent_of(Shape.of(model))
    cheap, norm = list(extent.forms), extent.mlp_norm
    without = undescribed(model, cheap)
    for reason in dict.fromkeys(without.values()):
        names = ", ".join(name for name in without if without[name] == reason)
        found.left_out.append(LeftOut("sensitivity", f"{names}: {reason}"))
    cheap = [name for name in cheap if name not in without]
    paths = steps.run(
        "path sum",
        "sensitivity",
        lambda part: bounds(model, prompt, variants=cheap, mlp_norm=norm, progress=part),
    )
    if paths is not None:
        found.comparison = compare(profile, paths)


def _evaluations(steps: _Steps, found: Measurements, model: TransformerBridge) -> None:
    """Answers to each task; one whose answers cannot be read at all shows nothing, and is left out with the reason."""

    def answered(name: str, part: Progress | None) -> Evaluation:
        return evaluate(model, name, **scope.extent_of(Shape.of(model)).answers, progress=part)

    results = steps.each("evaluate", "evaluate", scope.EVALUATION, answered)
    for result in results:
        if result.read:
            found.evaluations.append(result)
        else:
            frame: Frame = frame_of(result)
            task = str(frame["task"].iloc[0])
            reason = f"{task}: none of {len(frame)} texts holds an answer in the form that was asked for"
            found.left_out.append(LeftOut("evaluate", reason))


def _position(model: TransformerBridge, progress: Progress | None) -> PositionEffect:
    """By a sketch: the contrasts average over hundreds of tokens, and its error is small beside their intervals."""
    cotangents = scope.extent_of(Shape.of(model)).cotangents
    return position_effect(
        model,
        passages=scope.PASSAGES,
        tokens=scope.PASSAGE_TOKENS,
        method="sketch",
        cotangents=cotangents,
        progress=progress,
    )


def _failure_stage(model: TransformerBridge, progress: Progress | None) -> FailureStage:
    return failure_stage(
        model,
        scope.JUDGED,
        lengths=scope.JUDGED_LENGTHS,
        dtypes=scope.JUDGED_DTYPES,
        seeds=scope.JUDGED_SEEDS,
        progress=progress,
    )


def _study(model: TransformerBridge, known: Sequence[Evaluation], progress: Progress | None) -> Study:
    """The study, on the task that `failed_on` names; refused where there is none: nothing could be helped, and nothing hurt."""
    extent = scope.extent_of(Shape.of(model))
    plain = known or [evaluate(model, name, **extent.answers) for name in scope.EVALUATION]
    return study(
        model,
        failed_on(plain),
        mitigations=scope.MITIGATIONS,
        lengths=scope.STUDY_LENGTHS,
        seeds=extent.study_seeds,
        dtypes=(),
        sensitivity_lengths=0,
        progress=progress,
    )


def _right_share(result: Evaluation) -> float:
    summary: Frame = result.summary
    return float(summary["right"].to_numpy(dtype=float).sum() / summary["asked"].to_numpy(dtype=float).sum())


def failed_on(plain: Sequence[Evaluation]) -> str:
    """Of tasks that were answered without a mitigation the one whose share of right answers is nearest to one half.

    A task that is always right leaves nothing to gain, one that never is nothing to lose. Where there is no other, the task
    is one that is never right, whose right line is likeliest: its log probability has room on both sides. Raises `InputError`
    where no answer was read, or every one is right.
    """
    told = {str(frame_of(one)["task"].iloc[0]): one for one in plain if one.read}
    shares = {name: _right_share(one) for name, one in told.items()}
    open_still = [name for name, share in shares.items() if 0 < share < 1]
    if open_still:
        return min(open_still, key=lambda name: abs(shares[name] - 0.5))
    likely = {
        name: float(told[name].summary["log_probability"].to_numpy(dtype=float).mean())
        for name, share in shares.items()
        if share == 0
    }
    likely = {name: mean for name, mean in likely.items() if math.isfinite(mean)}
    if not likely:
        said = ", ".join(f"{share:.0%} right on {name}" for name, share in shares.items()) or "no answer could be read"
        raise InputError(f"nothing can help or hurt the answers to these tasks: {said}")
    return max(likely, key=lambda name: likely[name])


class _Steps:
    """Runs the measurements one after the other, telling the progress of the whole and noting by section what was refused."""

    def __init__(self, asked: list[str], progress: Progress | None, left_out: list[LeftOut]) -> None:
        self.asked = asked
        self.progress = progress
        self.left_out = left_out
        self.done = 0
        self.total = 100 * sum(share for share, sections in _STEPS.values() if sections & set(asked))

    def first(self, *names: str) -> str | None:
        """The first of the sections that is asked for."""
        return next((name for name in names if name in self.asked), None)

    def each(
        self, step: str, section: str, names: Collection[str], work: Callable[[str, Progress | None], Found]
    ) -> list[Found]:
        """What was found by each name; the reasons of the others are noted with theirs."""
        found = [
            self.run(step, section, lambda part, name=name: work(name, part), parts=len(names), what=f"{name}: ")
            for name in names
        ]
        return [one for one in found if one is not None]

    def run(
        self, step: str, section: str, work: Callable[[Progress | None], Found], parts: int = 1, what: str = ""
    ) -> Found | None:
        """One step, or one of its parts; None where it is refused. A step that is tried again counts once."""
        start, end = self.done, min(self.done + 100 * _STEPS[step][0] // parts, self.total)
        try:
            return work(part_of(self._tell, start, end, self.total, self.total))
        except (InputError, HookError, MitigationError) as error:
            self.left_out.append(LeftOut(section, f"{what}{error}"))
            return None
        finally:
            self._tell(end, self.total)

    def _tell(self, done: int, total: int) -> None:
        self.done = max(done, self.done)
        tell(self.progress, self.done, total)
