"""`ostools predict-errors`: do collapse and sensitivity of a prompt tell right answers from wrong ones?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import RANGE, Chat, Device, Dtype, Model, Out, Task, parse_lengths
from ostools.cli.kit.steps import at_work, check, give

if TYPE_CHECKING:
    from ostools.experiments import ErrorPrediction
    from ostools.runs.forecast import Unloaded


def predict_errors(
    task: Task = "count-ones-bernoulli",
    lengths: Annotated[str, typer.Option(metavar="RANGE", help=RANGE.format("8:64", "8,16,32:40"))] = "8,16,24,32,40",
    seed: Annotated[list[int] | None, typer.Option(metavar="N", help="A seed; repeatable. Default: 0 to 15.")] = None,
    linearisation: Annotated[
        str, typer.Option(metavar="NAME", help="Of the sensitivity: full, frozen, ...; none: it is not measured.")
    ] = "full",
    method: Annotated[
        str, typer.Option(metavar="NAME", help="Of the sensitivity: auto, exact, sketch or estimate.")
    ] = "auto",
    max_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Where an answer is cut; else 48 tokens after the longest right answer."),
    ] = None,
    chat: Chat = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Compare collapse and sensitivity of each prompt with whether its answer is right: do they predict the error?

    They are compared by the area under the ROC curve, over all prompts and among those of the same length, and by logistic
    regression with the length beside it. Intervals are over seeds. Choose lengths at which some answers are right and others
    wrong.

    \b
    Example:
      ostools predict-errors --task copy-last:uniform=true --lengths 100:200 --linearisation none --out errors.png
    """
    from ostools import experiments, tasks
    from ostools.cli.kit import largest
    from ostools.experiments.error_prediction import SEEDS

    check(out)
    wanted, form = parse_lengths(lengths), tasks.task(task)
    measured = None if linearisation == "none" else linearisation

    def memory(on: Unloaded) -> int:
        seeds = len(seed or SEEDS) if form.random else 1
        most = max(largest.answers(on, form, wanted, each=seeds), largest.pairs(on, form, wanted, ("float64",)))
        if measured is None:
            return most
        pos = on.longest(form, wanted).tokens
        return max(most, largest.sensitivity(on, pos, (measured,), method=method))

    with at_work("measuring", model, device, dtype, memory) as (loaded, progress):
        result = experiments.error_prediction(
            loaded,
            form,
            lengths=wanted,
            seeds=seed or None,
            linearisation=measured,
            method=method,
            chat=chat,
            max_new_tokens=max_new_tokens,
            progress=progress,
        )
    give(result, out, _show)


def _show(result: ErrorPrediction) -> None:
    from ostools.reporting.findings.error_prediction import PREDICTORS, error_prediction_findings

    rows = [
        (
            PREDICTORS[str(row["predictor"])],
            *(row[name] for name in ("compared", "pairs", "area", "low", "high", "verdict")),
        )
        for row in result.summary.to_dict("records")
    ]
    names = ["predictor", "compared", "pairs", "area", "from", "to", "verdict"]
    output.print_table("Do larger values stand where the answer is right?", names, rows, left=2)
    columns = ("held", "seeds", "spread", "odds_ratio", "low", "high", "verdict")
    rows = [
        (PREDICTORS[str(row["predictor"])], *(row[name] for name in columns)) for row in result.odds.to_dict("records")
    ]
    names = ["predictor", "held", "seeds", "step, decades", "odds ratio", "from", "to", "verdict"]
    output.print_table("By how much? The odds of a right answer, one step up", names, rows, left=2)
    output.print_text(["", *error_prediction_findings(result)])
