"""Contributions of a prompt's tokens to one logit of the next token: its gradient times the
embedded tokens.

    part of token i = w_t^T J_i v_i        w_t: the output row of token t, the final norm inside J_i

With patterns, norm scales and activations held at the prompt (`detached`) a network is linear but
for its biases, and these parts and that of the biases add up to the logit (docs/theory.md 2). Where
less is held they do not: what is missing to the logit is the remainder.

A part is no cause: with the token gone patterns, scales and activations would be others. Cost: that
of `sensitivity` of a logit.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack, cast

import torch
from jaxtyping import Float
from torch import Tensor

from ostools import mitigations
from ostools.ground import MINUS, InputError, Linearisation, Position, TransformerBridge
from ostools.hooks.sites import is_closed
from ostools.measure.jacobian.certificate import Account, Claim, certify
from ostools.measure.jacobian.linearisation_run import planned, require_norms
from ostools.measure.jacobian.linearise import Start, differentiated, linearised
from ostools.measure.jacobian.norms import exact_jacobians
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.output import Output, logit_ids, soft_cap
from ostools.measure.position import predicted_token
from ostools.measure.prompts import token_columns
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, Prompt
from ostools.models.generic.choices import block_notes
from ostools.models.tokens import token_text
from ostools.results import Chart, Frame, Provenance, Result
from ostools.tasks import Question

_COMPLETE = "detached"
"""The linearisation whose parts add up."""


@dataclass(frozen=True, eq=False)
class Attribution(Result):
    """The parts of one logit, or of the difference of two: one row a token of the prompt, and a
    last one for the biases or the remainder.

    Columns: position and token_id (NA in the last row), token, part ("token" | "biases" |
    "remainder"), contribution: w_t^T J_i v_i, in units of the logit, of either sign. Their sum is
    the logit of token t before a soft-cap (Gemma 2), and the logit itself without. "biases"
    (`detached`) are measured, and the sum is checked: completeness holds. "remainder" is the logit
    minus the tokens' parts: completeness does not hold.

    `provenance.parameters`: logit (the id t; of a difference both), token (its text; "A − B"),
    logit_value (the model's own), soft_cap (None without one), linearisation, complete (whether the
    parts add up), adds_up_within (the error of the sum, relative to the sizes of its parts; where
    not complete that of the tokens' parts alone), certificate (the gradient against finite
    differences) and, with experts, experts.
    """

    key: ClassVar = ("part", "position")

    @property
    def of_tokens(self) -> Frame:
        """The rows of the tokens, in their order."""
        table: Frame = self.frame
        return table[table["part"] == "token"].sort_values("position")

    @property
    def remainder(self) -> Mapping[Hashable, Any]:
        """The row of the biases or the remainder."""
        table: Frame = self.frame
        rows = table[table["part"] != "token"].to_dict("records")
        if len(rows) != 1:
            raise InputError(
                "attribution: expected one row for the biases or the remainder, found "
                f"{len(rows)}: without it parts do not add up; give the whole result"
            )
        return rows[0]

    def chart(self) -> Chart:
        from ostools.reporting.charts.tokens import attribution_chart

        return attribution_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import attribution_findings

        return attribution_findings(self)


@measurement(
    command="sensitivity attribution",
    examples=('--prompt "Once upon a" --out parts.png',),
    memory=["rows"],
    sizes={"logit": 0},
    in_chunks=True,
)
def attribution(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    logit: str | int | Sequence[str | int] | None = None,
    linearisation: Linearisation | None = None,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Attribution:
    """Split a next token's logit into contributions of the prompt's tokens, and of the biases or a
    remainder.

    Args:
        logit: a text that is one token, or a token's id, or two for the difference of their logits;
            None: the token that the model, in its own dtype, ranks first.
        linearisation: what is held constant, as for `sensitivity`. `detached`: patterns, norm
            scales and activations; the parts add up. `full`: nothing, so that a part is the real
            gradient times v_i. None: detached, and full of a model whose blocks no record describes
            (the generic route).
        position: where a task's question is read, as in `collapse`.
        mitigation: a `mitigations.Mitigation` or its name with options. The text is the one that it
            rewrites, and the model runs under its hooks. It has to change the prompt or a logit, or
            it is refused.

    The arithmetic is float32, or float64 throughout for a float64 model. Active edits are
    respected. Every run is checked, and `InputError` is raised where a check fails. Of `detached`
    the parts and what the held network makes of v = 0 add up to the model's own logit, within 1e-12
    of their sizes in float64 and 1e-5 in float32. The gradient is held against finite differences
    of the logit.
    Refused are what the model's route does not hold (experts under `detached`: their router is not
    a linear map), and a `logit` of several tokens.
    """
    if linearisation is None:
        linearisation = "full" if is_closed(model) else _COMPLETE
    mitigated = MitigatedPrompts.of("attribution", model, [prompt], mitigation, position)
    tokens = mitigated.prompt
    if logit is None:
        with mitigations.running(model, mitigated.mitigation):
            logit = predicted_token(model, tokens.ids)
    target = logit_ids(model, logit)
    provenance = Provenance.collect(model, tuple(tokens.ids.tolist()), **mitigated.described(model))
    with differentiated(model, mitigated) as work:
        parts, account = _parts(work, tokens, target, linearisation)
    parameters = {
        **provenance.parameters,
        "token": MINUS.join(token_text(model.tokenizer, index) for index in target),
        "linearisation": linearisation,
        "complete": linearisation == _COMPLETE,
        **(block_notes(model) if is_closed(model) else {}),
        **account,
    }
    last = "biases" if linearisation == _COMPLETE else "remainder"
    columns = token_columns(tokens).assign(part="token")
    columns.loc[len(columns), ["token", "part"]] = "", last
    table = columns.astype({"position": "Int64", "token_id": "Int64"})
    frame = table.assign(contribution=parts.numpy())
    return Attribution(frame, replace(provenance, parameters=parameters))


def _parts(
    model: TransformerBridge, tokens: Prompt, target: tuple[int, ...], linearisation: str
) -> tuple[Float[Tensor, " part"], Account]:
    """The part of every token and, last, of the biases or the remainder, in float64; and what the
    provenance says.
    """
    start = Start.of(model, tokens.ids)
    output = Output.of(model, target)
    output.check(model, start.logits[-1], start.y)
    plan = planned(model, len(tokens.ids), rows=1)
    with linearised(model, start, [linearisation], keeps_graph=plan.keeps_graph) as linear:
        rows = exact_jacobians(linear.pull, start.embedded, logit=output.row)
        linear.release()
        require_norms(linearisation, rows.double().norm(dim=(1, 2)))
        claim = Claim.of(linear, rows, output.row[None])
        account = certify(linear, {linearisation: claim}, start.choices)[linearisation]
    parts = (rows[:, 0].double() * start.embedded.double()).sum(-1).cpu()
    logit = float(output.row.double() @ start.y.double()) + output.bias  # before a soft-cap
    remainder = logit - float(parts.sum())
    error = abs(remainder) / (float(parts.abs().sum()) + abs(logit))
    if linearisation == _COMPLETE:
        remainder = cast(float, account.pop("bias_terms")) + output.bias
    parts = torch.cat([parts, parts.new_tensor([remainder])])
    return parts, {
        "logit": target[0] if len(target) == 1 else target,
        "logit_value": output.value(start.logits[-1]),
        "soft_cap": soft_cap(model),
        "adds_up_within": error,
        **account,
    }
