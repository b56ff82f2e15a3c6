"""The measurements that a report's sections need, each once; what is refused is noted and left out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from transformer_lens.model_bridge import TransformerBridge

from hooks import HookError
from mitigations import MitigationError
from mitigations.window import own_windows
from ostools import tasks
from ostools.experiments import Study, position_effect, study
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress, part_of, tell
from ostools.measure import (
    Collapse,
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
from ostools.measure.bounds.variants import undescribed
from ostools.models import Prompt
from ostools.models.shape import Shape
from ostools.reporting.findings.answers import answer_counts
from ostools.reporting.findings.collapse import task_of
from ostools.reporting.report import extent as scope
from ostools.reporting.sections.measurements import LeftOut, Measurements
from ostools.results import Frame, Provenance, frame_of

Outcome = TypeVar("Outcome")

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
"""The share of each step on the embedded model, for the progress bar, and the sections it is for."""


def measure(
    model: TransformerBridge,
    prompt: Prompt,
    lengths: list[int],
    sections: Collection[str] | None = None,
    progress: Progress | None = None,
) -> Measurements:
    """Results of the sections; None: of all but what takes long at this size (`only_by_name`)."""
    names = [name for name in scope.NAMES if sections is None or name in sections]
    ids, shape = tuple(prompt.ids.tolist()), Shape.of(model)
    measured = Measurements(
        Provenance.collect(model, ids, measurement="report", lengths=lengths, sections=list(names)),
        "".join(prompt.tokens) if prompt.text is None else prompt.text,
        prompt.tokens,
    )
    if sections is None:
        reasons = scope.only_by_name(shape, len(ids))
        names = [name for name in names if name not in reasons]
        measured.left_out += [LeftOut(name, reason) for name, reason in reasons.items()]
    extent = scope.extent_of(shape)
    has_default_lengths = {"collapse", "precision"} & set(names) and lengths == extent.lengths(max(lengths))
    words = (extent.words, extent.length_words if has_default_lengths else "")
    measured.reduced = " ".join(filter(None, words))
    _Run(model, prompt, extent, names, measured, progress).measure(lengths)
    return measured


class _Run:
    """One report's measurements, one after the other, with their progress and refusals."""

    def __init__(
        self,
        model: TransformerBridge,
        prompt: Prompt,
        extent: scope.Extent,
        names: list[str],
        measured: Measurements,
        progress: Progress | None,
    ) -> None:
        self.model, self.prompt, self.extent = model, prompt, extent
        self.names, self.measured, self.progress = names, measured, progress
        self.steps_done = 0
        self.total = 100 * sum(share for share, sections in _STEPS.values() if sections & set(names))

    def measure(self, lengths: list[int]) -> None:
        """Fill `measured` in the order of the report."""
        measured, model = self.measured, self.model
        self._collapses(lengths)
        if "position" in self.names:
            # By a sketch: its error is small beside the intervals over hundreds of tokens.
            sizes: Any = {
                "passages": scope.PASSAGES,
                "tokens": scope.PASSAGE_TOKENS,
                "cotangents": self.extent.cotangents,
            }
            measured.position = self._step(
                "position", lambda part: position_effect(model, method="sketch", progress=part, **sizes)
            )
        self._profiles()
        if "attention" in self.names:
            measured.attention = self._step("attention", lambda part: attention(model, self.prompt))
        if "evaluate" in self.names:
            self._evaluations()
        if "failure-stage" in self.names:
            settings: Any = {
                "lengths": scope.FAILURE_STAGE_LENGTHS,
                "dtypes": scope.FAILURE_STAGE_DTYPES,
                "seeds": scope.FAILURE_STAGE_SEEDS,
            }
            measured.failure_stage = self._step(
                "failure-stage", lambda part: failure_stage(model, scope.FAILURE_STAGE_TASK, progress=part, **settings)
            )
        if "mitigations" in self.names:
            measured.study = self._step("mitigations", self._study, "study")

    def _step(
        self,
        section: str,
        work: Callable[[Progress | None], Outcome],
        step: str = "",
        shares: int = 1,
        subject: str = "",
    ) -> Outcome | None:
        """One step, or one of its `shares`; None where it is refused. Tried again, it counts once."""
        size = 100 * _STEPS[step or section][0] // shares
        start, end = self.steps_done, min(self.steps_done + size, self.total)
        try:
            return work(part_of(self._tell, start, end, self.total, self.total))
        except (InputError, HookError, MitigationError) as error:
            self.measured.left_out.append(LeftOut(section, f"{subject}{error}"))
            return None
        finally:
            self._tell(end, self.total)

    def _by_name(
        self, section: str, names: Collection[str], work: Callable[[str, Progress | None], Outcome], step: str = ""
    ) -> list[Outcome]:
        """The results by name; the reasons of refusals are noted with their names."""
        results = [
            self._step(section, lambda part, name=name: work(name, part), step, len(names), f"{name}: ")
            for name in names
        ]
        return [result for result in results if result is not None]

    def _tell(self, steps_done: int, total: int) -> None:
        self.steps_done = max(steps_done, self.steps_done)
        tell(self.progress, self.steps_done, total)

    def _collapses(self, lengths: list[int]) -> None:
        """Figure 5's prompts with the model cast; the ones in every format too, in the same passes."""
        section = next((name for name in ("collapse", "precision") if name in self.names), None)
        if section is None:
            return
        windows = {window for window in own_windows(self.model).values() if window <= scope.LONGEST_WINDOW}
        # One pass holds all lengths of ones: they go on past the model's sliding window.
        of_ones = sorted({*lengths, *range(32, max(windows, default=0) + 32, 32)})

        def curve(name: str, part: Progress | None) -> Collapse:
            if name == scope.ONES and "precision" in self.names:
                self.measured.precision = self._in_formats(of_ones, part)
                return _casts_of(self.measured.precision)
            curve_lengths = of_ones if name == scope.ONES else lengths
            return collapse(self.model, name, lengths=curve_lengths, dtypes=scope.CASTS, progress=part)

        curves = self._by_name(section, tasks.FIGURE_5, curve, "collapse")
        self.measured.collapses = curves if "collapse" in self.names else []
        self.measured.casts = curves if "precision" in self.names else []

    def _in_formats(self, lengths: list[int], progress: Progress | None) -> Collapse:
        """The curve of ones in every format; a refused one (overflow, no hook) is noted and left out."""
        formats = list(self.extent.formats)
        while True:
            try:
                return collapse(self.model, scope.ONES, lengths=lengths, dtypes=formats, progress=progress)
            except (InputError, HookError) as error:
                words = re.findall(r"[\w-]+", str(error))
                refused = next((name for name in formats[len(scope.CASTS) :] if name in words), None)
                if refused is None:
                    raise
                formats.remove(refused)
                self.measured.left_out.append(LeftOut("precision", f"{scope.ONES} in {refused}: {error}"))

    def _profiles(self) -> None:
        """Sensitivity at the embeddings and at every layer in one pass, with shape and path sums."""
        measured, model, prompt = self.measured, self.model, self.prompt
        norms: Sensitivity | None = None
        if "layers" in self.names:
            norms = measured.layers = self._step(
                "layers", lambda part: sensitivity(model, prompt, layers="all", progress=part), "sensitivity"
            )
        if "sensitivity" not in self.names:
            return
        if norms is None:  # every layer may be too much where the embeddings alone are not
            norms = self._step("sensitivity", lambda part: sensitivity(model, prompt, progress=part))
        if norms is not None:
            rows: Frame = frame_of(norms)
            measured.sensitivity = replace(norms, frame=rows[rows["layer"] == 0].reset_index(drop=True))
            measured.profile = self._step("sensitivity", lambda part: profile(norms))
            self._bounds(measured.sensitivity)

    def _bounds(self, norms: Sensitivity) -> None:
        """Path sums beside the norms, without the forms that the model's blocks do not allow."""
        reasons = undescribed(self.model, list(self.extent.forms))
        for reason in dict.fromkeys(reasons.values()):
            names = ", ".join(name for name in reasons if reasons[name] == reason)
            self.measured.left_out.append(LeftOut("sensitivity", f"{names}: {reason}"))
        variants = [name for name in self.extent.forms if name not in reasons]
        norm = self.extent.mlp_norm
        paths = self._step(
            "sensitivity",
            lambda part: bounds(self.model, self.prompt, variants=variants, mlp_norm=norm, progress=part),
            "path sum",
        )
        if paths is not None:
            self.measured.comparison = compare(norms, paths)

    def _evaluations(self) -> None:
        """Answers to each task; a task of which none could be read is noted and left out."""
        results = self._by_name(
            "evaluate",
            scope.EVALUATION,
            lambda name, part: evaluate(self.model, name, progress=part, **self.extent.answers),
        )
        self.measured.evaluations += [result for result in results if result.read]
        for result in (result for result in results if not result.read):
            texts = len(frame_of(result))
            reason = f"{task_of(result)}: none of {texts} texts holds an answer in the form that was asked for"
            self.measured.left_out.append(LeftOut("evaluate", reason))

    def _study(self, progress: Progress | None) -> Study:
        """The study, on the task that `task_with_room` names."""
        unmitigated = self.measured.evaluations or [
            evaluate(self.model, name, **self.extent.answers) for name in scope.EVALUATION
        ]
        return study(
            self.model,
            task_with_room(unmitigated),
            mitigations=scope.MITIGATIONS,
            lengths=scope.STUDY_LENGTHS,
            seeds=self.extent.study_seeds,
            dtypes=(),
            sensitivity_lengths=0,
            progress=progress,
        )


def _casts_of(result: Collapse) -> Collapse:
    """The rows of the casts, of a curve in every format."""
    rows: Frame = frame_of(result)
    exact: Frame = result.reference
    casts = rows[rows["dtype"].isin(scope.CASTS)].reset_index(drop=True)
    stored = {"given", *casts["weights"]}
    return replace(result, frame=casts, reference=exact[exact["weights"].isin(stored)].reset_index(drop=True))


def task_with_room(unmitigated: Sequence[Evaluation]) -> str:
    """The task whose share of right answers is nearest to one half, of answers without a mitigation.

    Where every share is 0 or 1, the never-right task whose right line is likeliest: its log
    probability has room on both sides. Raises `InputError` where no answer was read, or all are right.
    """
    results = {task_of(result): result for result in unmitigated if result.read}
    shares = {}
    for name, result in results.items():
        right, total = answer_counts(result)
        shares[name] = right / total
    with_room = [name for name, share in shares.items() if 0 < share < 1]
    if with_room:
        return min(with_room, key=lambda name: abs(shares[name] - 0.5))
    means = {
        name: float(results[name].summary["log_probability"].to_numpy(dtype=float).mean())
        for name, share in shares.items()
        if share == 0
    }
    means = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    if not means:
        words = ", ".join(f"{share:.0%} right on {name}" for name, share in shares.items())
        raise InputError(f"nothing can help or hurt the answers to these tasks: {words or 'no answer could be read'}")
    return max(means, key=lambda name: means[name])
