"""Measured sensitivity: J_i = d y_n / d v_i^(l), a d_model x d_model matrix for every token i, by
its operator norm (the one that Theorem 5.1 bounds) and its Frobenius norm, exact or estimated.
Cost: `norms`.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Unpack

import pandas as pd
import torch
from jaxtyping import Float
from pydantic import AfterValidator, Field
from torch import Tensor

from ostools.ground import (
    METHOD_KINDS,
    AtLeast,
    InputError,
    Linearisation,
    Method,
    Position,
    Progress,
    Seed,
    SketchedMethod,
    TransformerBridge,
    allowed,
    distinct,
    with_progress,
)
from ostools.hooks.sites import is_closed, unknown_inside
from ostools.measure.jacobian.linearisation_run import measured
from ostools.measure.jacobian.linearise import DEFAULT_LINEARISATIONS, Linearised, differentiated
from ostools.measure.jacobian.norms import ACCURACY, COTANGENTS, exact_jacobians
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.output import Output, one_or_two
from ostools.measure.prompts import (
    PROFILE,
    PromptResults,
    by_token,
    join_results,
    layers_up_to,
    prompt_named,
)
from ostools.measure.swept import READ_POSITION, Swept
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, Prompt
from ostools.models.generic.choices import block_notes
from ostools.results import Chart, Frame, Provenance, Result, TableHead, of_earlier_version
from ostools.tasks import Question

_ROWS = 16
"""Cotangents that go back together where nobody planned the memory."""


@dataclass(frozen=True, eq=False)
class Sensitivity(Result):
    """Measured norms: one row is one token at one layer under one linearisation.

    Columns: position, token_id, token, origin (where the token comes from: special | template |
    system | text | mixed, see `models.ORIGINS`; missing where that is not known), linearisation
    (full | frozen | frozen-attention | frozen-norm | detached), layer (l of v_i^(l): 0 is the
    embedded token, L what the last block leaves), method ("exact" | "sketch" | "estimate"),
    operator_norm, operator_lower, operator_upper, frobenius_norm, frobenius_lower, frobenius_upper.
    The norms are pure numbers: change of y_n per change of v_i^(l).

    In exact rows both limits equal the norm. In a sketch or an estimate, each token's Frobenius
    norm has a confidence interval. `operator_norm` is missing (NaN): only limits of it are known.
    `operator_lower` is a true lower bound, far below the norm where there are few cotangents.
    `operator_upper` is `frobenius_upper`, and holds with 95% confidence.
    `provenance.parameters["runs"]` says how each linearisation was computed and checked.
    """

    tables: ClassVar = (
        TableHead(
            columns="layer position token operator_norm frobenius_norm frobenius_lower "
            "frobenius_upper",
            across="linearisation",
        ),
    )

    key: ClassVar = ("linearisation", "layer", "position")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.provenance.parameters.get("position"), int):
            raise of_earlier_version(self, "the norms of another position's y")

    @property
    def by_token(self) -> Frame:
        """The Frobenius norm of each token's embedding: position, token, source (the
        linearisation), norm, kind.
        """
        table: Frame = self.frame
        rows = table[table["layer"] == 0]
        return by_token(
            rows, rows["linearisation"], rows["frobenius_norm"], rows["method"].map(METHOD_KINDS)
        )

    def chart(self) -> Chart:
        from ostools.reporting.charts.tokens import sensitivity_chart

        return sensitivity_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.sensitivity import sensitivity_findings

        return sensitivity_findings(self)


@dataclass(frozen=True, eq=False)
class Sensitivities(Result, PromptResults[Sensitivity]):
    """The sensitivities of several prompts: one table, with the column `prompt`; the result of
    each; means over relative position."""

    results: tuple[Sensitivity, ...]

    @property
    def _rows_of_all(self) -> int:
        return sum(len(result.frame) for result in self.results)

    @classmethod
    def _profiles(cls, result: Sensitivity) -> Frame:
        frame: Frame = result.frame
        long = frame.assign(source=frame["linearisation"], kind=frame["method"].map(METHOD_KINDS))
        norm_tables = [
            long.assign(norm=norm, value=long[f"{norm}_norm"]) for norm in ("operator", "frobenius")
        ]
        table: Frame = pd.concat(norm_tables, ignore_index=True)
        # Of a sketch's operator norm bounds are known.
        return table.loc[(table["kind"] == "measured") | (table["norm"] == "frobenius"), PROFILE]

    def chart(self) -> Chart:
        from ostools.reporting.charts.tokens import several_chart

        return several_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import prompts_findings

        return prompts_findings(self)


def method_for(method: Method, cotangents: int, accuracy: float | None) -> tuple[Method, float]:
    """The method, an estimate where an accuracy is asked for, and the accuracy of an estimate."""
    if accuracy is None:
        return method, ACCURACY
    if method not in ("auto", "estimate") or cotangents != COTANGENTS:
        raise InputError(
            f"accuracy: expected an estimate, found method={method!r} and cotangents={cotangents} "
            "beside it: leave both out"
        )
    if not 0 < accuracy < 1:
        raise InputError(
            f"accuracy: expected a share between 0 and 1, such as 0.1, found {accuracy:g}"
        )
    return "estimate", float(accuracy)


def require_exact_logit(
    logit: str | int | Sequence[str | int] | None,
    method: str,
    linearisations: str | Sequence[str] | None,
) -> None:
    """Raises `InputError` for what is not measured of a logit, and for more than two tokens."""
    if logit is None:
        return
    one_or_two(logit)
    if method in ("sketch", "estimate"):
        raise InputError(
            "sensitivity: a logit's is exact in one backward pass, expected method 'auto' or "
            f"'exact' with logit=, found {method!r}"
        )
    if linearisations is not None and "detached" in distinct("linearisations", linearisations):
        raise InputError(
            "sensitivity: expected another linearisation than 'detached' with logit=: use "
            "attribution(model, prompt, logit=...), which has its parts"
        )


@measurement(
    command="sensitivity",
    examples=(
        '--prompt "The capital of France is" --out france.html',
        '--prompt "The capital of France is" --layers all --out x.png',
        "--ids 2,40,50 --model ./my-model",
        '--prompt "Once upon a" --logit " time" --logit " day"',
    ),
    memory=["rows"],
    sweep=lambda: SWEPT,
    in_chunks=True,
    checks=(method_for, require_exact_logit),
    of_prompt=Sensitivity,
    of_prompts=Sensitivities,
)
def sensitivity(
    model: TransformerBridge,
    prompt: str | Prompt | Question | Sequence[str | Prompt | Question],
    *,
    linearisations: Linearisation | Sequence[Linearisation] | None = None,
    layers: Literal["all"] | Iterable[int] = (0,),
    method: Method = "auto",
    cotangents: Annotated[int, AtLeast(2)] = COTANGENTS,
    accuracy: float | None = None,
    max_memory: int | None = None,
    seed: Seed = 0,
    position: Position | None = None,
    logit: str | int | Sequence[str | int] | None = None,
    mitigation: Mitigation | str | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Sensitivity | Sensitivities:
    """Norms ||J_i||_2 and ||J_i||_F of J_i = d y_n / d v_i^(l): how far the last token's y_n
    can move with each token i.

    v_i^(0) is the embedded token, y_n the last residual stream after the final norm (Theorem 5.1).
    In float32, or float64 of a float64 model; active edits are respected. Every run is checked: by
    the plain pass's logits, and by finite differences or autograd. `runs` in the provenance says
    how. Raises `InputError` where a check fails. Source: docs/theory.md 2.

    Args:
        prompt: a text, a `Prompt`, or a task's question (`ost.tasks.questions`), asked in the chat
            template where there is one. A list of them gives `Sensitivities`, one table of all. How
            texts and questions are encoded: `EncodingOptions`.
        linearisations: what is held constant, of full, frozen, frozen-attention, frozen-norm and
            detached. `full`: nothing, the real derivative. `frozen`: patterns and norm scales, the
            theorem's assumptions; `frozen-attention`, `frozen-norm`: one of the two. `detached`:
            these and the MLPs' activations, so that the parts add up, which is checked. None: full
            and frozen; full alone where patterns and norms are not known.
        layers: which residual streams v^(l), from the same passes: numbers from 0 to L, or "all".
        method: one of auto, exact, sketch and estimate. "exact": d_model backward passes. "sketch":
            Frobenius norms from `cotangents` random orthogonal cotangents, each with its 95%
            interval. "estimate": a sketch that grows until the median token's interval is within
            `accuracy` of its norm, 0.1 by default. "auto": exact up to d_model 256 where it fits
            into memory, else a sketch.
        cotangents: rows of a sketch, one backward pass each.
        accuracy: 0.1 asks for an estimate with as many cotangents as 10% take; `runs` says how
            many, the half-width that was reached, and how many tokens' intervals are wider than
            30%.
        seed: seed of the random cotangents of a sketch or an estimate.
        max_memory: bytes that the run may take beside the model; the default is what is free.
        position: where a task's question is read, as in `collapse`: "answer", "prompt-end",
            "last-item". For the y of an earlier token give the prompt's beginning that ends there.
        logit: a next token whose logit, before a soft-cap, takes the place of y_n; or two for the
            difference of their logits. Each is a text that is one token, or an id. Exact, in one
            pass.
        mitigation: a `mitigations.Mitigation` or its name with options. It has to change every
            prompt or a logit of it, or it is refused.
        progress: called as progress(done, total), in percent, after each block of rows.
    """
    method, half_width = method_for(method, cotangents, accuracy)
    require_exact_logit(logit, method, linearisations)
    if linearisations is None:
        is_known = not unknown_inside(model, "patterns", "norms")
        linearisations = DEFAULT_LINEARISATIONS if is_known else ("full",)
    names = distinct("linearisations", linearisations)
    if cotangents > model.cfg.d_model:
        raise InputError(
            f"cotangents: expected 2 to d_model = {model.cfg.d_model}, found {cotangents}"
        )
    is_one = isinstance(prompt, str | Prompt | Question)
    prompts: Any = [prompt] if is_one else prompt
    mitigated = MitigatedPrompts.of("sensitivity", model, prompts, mitigation, position)
    # Before anything runs: a model that cannot be trusted is refused here, and the weights are
    # noted as they are read.
    about: dict[str, Any] = {
        "linearisations": names,
        "layers": layers_up_to(int(model.cfg.n_layers), layers),
        "method": method,
        "cotangents": cotangents,
        "max_memory": max_memory,
        "seed": seed,
    }
    options: dict[str, Any] = about | {"accuracy": half_width}
    about |= {"accuracy": half_width} if method == "estimate" else {}
    about |= block_notes(model) if is_closed(model) else {}
    provenance = Provenance.collect(model, **about)
    prompts, results = mitigated.prompts, []
    # Not within `differentiated`, where the mitigation acts already: it would act twice.
    about_prompts = [mitigated.described(model, index) for index in range(len(prompts))]
    with differentiated(model, mitigated) as work:
        output = None if logit is None else Output.of(work, logit)
        of_logit = {} if output is None else output.account
        for index, part in with_progress(range(len(prompts)), progress):
            with prompt_named(prompts, index):
                frame, runs = measured(work, prompts[index], output, part, **options)
            ids = tuple(prompts[index].ids.tolist())
            parameters = {**provenance.parameters, **of_logit, **about_prompts[index], "runs": runs}
            where = replace(provenance, token_ids=ids, parameters=parameters)
            results.append(Sensitivity(frame, where))
    if is_one:
        return results[0]
    return Sensitivities(*join_results(results))


@measurement()
def jacobian(
    model: TransformerBridge,
    embedded: Float[Tensor, "pos d_model"],
    *,
    freeze: AbstractContextManager[object] | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, "pos d_out d_model"]:
    """J_i = d y_n / d v_i^(0) for every position i, by autograd. Row k of J_i is the gradient of
    component k of y_n.

    One pass over the prompt, whose graph is walked backwards by d_model cotangents, some together.
    `freeze` is entered for the forward pass only. The arithmetic is the model's own dtype. 16 bits
    are refused: the result would be off by percents.
    """
    if embedded.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"jacobian: expected float32 or float64, found {embedded.dtype}; cast a copy of the "
            "model"
        )
    with freeze or nullcontext():
        linear = Linearised(model, embedded, chunk=_ROWS)
    return exact_jacobians(linear.pull, embedded, progress)


def _require_options_that_are_used(options: Any) -> None:
    for option, method in (("cotangents", "sketch"), ("accuracy", "estimate")):
        if option in options.model_fields_set and options.method != method:
            raise InputError(
                f"method {options.method} has no {option}; leave it out, or give method: {method}"
            )


SWEPT = Swept(
    read=Sensitivity,
    options={
        "linearisations": (
            Annotated[
                Any,
                AfterValidator(partial(allowed, Linearisation | Sequence[Linearisation])),
                AfterValidator(partial(distinct, "linearisations")),
            ],
            DEFAULT_LINEARISATIONS,
        ),
        # Never "auto": it looks at the memory that is free, and one key would stand for two kinds
        # of numbers.
        "method": (
            SketchedMethod,
            "exact",
        ),
        "cotangents": Field(ge=2),
        "accuracy": Field(gt=0, lt=1),
        **READ_POSITION,
    },
    check=_require_options_that_are_used,
    draws=lambda options: None if options.method == "exact" else "by seed",
    of_texts=lambda results, _: Sensitivities(*join_results(results)),
)
