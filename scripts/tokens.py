"""docs/findings/tokens.md: what three real models do to all tokens of a text, by distance, layer
and precision.

    python -m scripts.tokens [MODEL ...] [--page-only]

Every text of every model is stored in artefacts/tokens as it is measured: a run that was cut off
goes on where it stopped. The page says what is measured so far. Some seven minutes on one core for
each small model, as many for the large one, of which fewer texts are measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import ostools as ost
from ostools.ground import words
from ostools.measure.collapse.result import Collapse
from ostools.measure.collapse.verdicts import Reading
from ostools.measure.jacobian.distance import InfluenceByDistance
from ostools.measure.profiles.position_effect import PASSAGES
from ostools.reporting.style.notebook import picture_of
from ostools.results import write_atomically
from ostools.theory.profiles import rank_correlation
from ostools.theory.statistics.intervals import spearman_interval

ROOT = Path(__file__).parents[1]
STORE = ROOT / "artefacts" / "tokens"
PAGE = ROOT / "docs" / "findings" / "tokens.md"
KINDS = ("facts", "story")


@dataclass(frozen=True)
class Plan:
    """What is measured of a model: texts, their tokens, queries and cotangents of a text, how many
    texts are measured over `STATES` tokens too, and whether an untrained twin is."""

    texts: int = 6
    tokens: int = 64
    queries: int = 4
    cotangents: int = 3
    long: int = 3
    untrained: bool = True


PLANS = {
    "gemma-3-270m": Plan(),
    "smollm2-135m-instruct": Plan(long=6),
    "qwen2.5-coder-1.5b-instruct": Plan(long=6, untrained=False),
}
LENGTHS = (8, 128)
"""Digits of the pairs whose distance stands beside one rounding."""
STATES = 128
"""Tokens of the text whose states are compared, and of its sensitivity layer by layer."""


def texts(model: Any, count: int, tokens: int) -> list[Any]:
    """The beginnings of the project's own passages, which no model was trained on."""
    chosen = [passage.text for passage in PASSAGES if passage.kind in KINDS][:count]
    encoded = [ost.encode(model, text) for text in chosen]
    return [ost.Prompt.from_ids(model, prompt.ids[:tokens]) for prompt in encoded]


def steps(name: str, plan: Plan) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """What is measured of a model, each with the name that it is stored by."""
    options: dict[str, Any] = {"queries": plan.queries, "cotangents": plan.cotangents}
    yield (
        "states",
        lambda model: ost.token_homogenization(
            model, texts(model, 1, STATES)[0], untrained=plan.untrained
        ),
    )
    for number in range(plan.texts):
        yield (
            f"distance-{number}",
            lambda model, number=number: ost.influence_by_distance(
                model, texts(model, plan.texts, plan.tokens)[number], controls="shuffled", **options
            ),
        )
    yield (
        "rounding",
        lambda model: ost.collapse(
            model, "figure-5a", lengths=LENGTHS, dtypes=["bfloat16-once", "bfloat16"], layers="all"
        ),
    )
    if plan.untrained:
        yield (
            "distance-untrained",
            lambda model: ost.influence_by_distance(
                ost.models.untrained_model(model, "initialised"),
                texts(model, plan.texts, plan.tokens),
                **options,
            ),
        )
    for number in range(plan.long):
        yield (
            f"long-{number}",
            lambda model, number=number: ost.influence_by_distance(
                model, texts(model, plan.long, STATES)[number], **options
            ),
        )
    yield (
        "sensitivity",
        lambda model: ost.sensitivity(
            model,
            texts(model, 1, STATES)[0],
            linearisations=["full"],
            layers="all",
            method="sketch",
            cotangents=4,
        ),
    )


def measure(name: str) -> None:
    """Measure and store what is not stored yet of one model."""
    folder = STORE / name
    folder.mkdir(parents=True, exist_ok=True)
    missing = [
        (step, run)
        for step, run in steps(name, PLANS[name])
        if not (folder / f"{step}.parquet").exists()
    ]
    if missing:
        model = ost.load_model(name, dtype="float32")
        for step, run in missing:
            run(model).save(folder / f"{step}.parquet")
            print(name, step, flush=True)


def stored(name: str, step: str) -> Any:
    """The stored result, None where it is not measured yet."""
    path = STORE / name / f"{step}.parquet"
    return ost.load_result(path) if path.exists() else None


def distances(name: str, step: str = "distance") -> InfluenceByDistance | None:
    """The texts of one model that are measured, with their controls, as one result."""
    results = [stored(name, f"{step}-{number}") for number in range(PLANS[name].texts)]
    measured = [
        (number, result) for number, result in enumerate(results, start=1) if result is not None
    ]
    if not measured:
        return None
    tables = [result.frame.assign(prompt=number) for number, result in measured]
    if (untrained := stored(name, f"{step}-untrained")) is not None:
        tables.append(untrained.frame.assign(source="untrained"))
    return InfluenceByDistance.of(pd.concat(tables, ignore_index=True), measured[0][1].provenance)


def squashing(name: str) -> pd.DataFrame | None:
    """By layer: entropy of the states, and how far y moves, in its own size, with an earlier token
    that moves by its own.
    """
    states, profile = stored(name, "states"), stored(name, "sensitivity")
    if states is None or profile is None:
        return None
    table: Any = states.frame
    table = table[
        (table["source"] == "model") & (table["tokens"] == table["tokens"].max())
    ].set_index("layer")
    rows: Any = profile.frame
    between = rows[(rows["position"] > 0) & (rows["position"] < rows["position"].max())]
    influence: Any = between.groupby("layer")["frobenius_norm"].median() * table["rest_norm"]
    columns = ["normalised_entropy", "rest_normalised_entropy", "rest_mean_cosine", "sink_rate"]
    # Above the last block nothing is left that could move an earlier token to the last one.
    return table[columns].assign(influence=influence).iloc[:-1]


def table_of(columns: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *rows])


def rate(row: dict[str, Any]) -> str:
    if np.isnan(row["p"]):
        return "left open"
    return f"{row['p']:.2f}" + (
        "" if np.isnan(row["low"]) else f" [{row['low']:.2f}, {row['high']:.2f}]"
    )


def distance_rows(results: dict[str, InfluenceByDistance]) -> list[list[str]]:
    rows = []
    for name, result in results.items():
        laws: Any = result.laws.set_index(["source", "from_distance"])
        for source in dict.fromkeys(result.laws["source"]):
            whole, later = laws.loc[(source, 0)].to_dict(), laws.loc[(source, 1)].to_dict()
            medians: Any = result.by_distance[result.by_distance["source"] == source].set_index(
                "distance"
            )["median"]
            near, far = medians.loc[1], medians.loc[int(whole["distances"]) - 1]
            numbers = [
                f"{near:.2f}",
                f"{far:.3f}",
                rate(whole),
                "" if np.isnan(whole["gamma"]) else f"{whole['gamma']:.3f}",
                rate(later),
                str(whole["verdict"]),
            ]
            rows.append([name, source, str(whole["texts"]), *numbers])
    return rows


def state_rows(names: list[str]) -> list[list[str]]:
    rows = []
    for name in names:
        if (result := stored(name, "states")) is None:
            continue
        table: Any = result.frame[result.frame["tokens"] == result.frame["tokens"].max()]
        for source, part in table.groupby("source", sort=False):
            low, rest = (
                part.loc[part[column].idxmin()]
                for column in ("normalised_entropy", "rest_normalised_entropy")
            )
            ratio = part["first_norm"] / part["rest_norm"]
            sink: Any = part["sink_rate"]
            last = int(part["layer"].max())
            rows.append(
                [
                    *(
                        name,
                        str(source),
                        f"{low['normalised_entropy']:.2f} at {int(low['layer'])} of {last}",
                    ),
                    f"{rest['rest_normalised_entropy']:.2f} at {int(rest['layer'])}",
                    f"{part['rest_effective_rank'].min():.0f}",
                    f"{part['rest_mean_cosine'].max():.2f} at {int(part.loc[part['rest_mean_cosine'].idxmax(), 'layer'])}",
                    f"{ratio.max():.0f} at {int(part.loc[ratio.idxmax(), 'layer'])}",
                    f"{sink.mean():.0%}, most {sink.max():.0%}",
                ]
            )
    return rows


def with_interval(values: np.ndarray, against: np.ndarray) -> str:
    """Their rank correlation with its 95% interval, as if layers were independent: it is too
    narrow.
    """
    correlation = rank_correlation(values, against)
    low, high = spearman_interval(correlation, len(values))
    return f"{correlation:+.2f} [{low:+.2f}, {high:+.2f}]"


def squashing_rows(names: list[str]) -> list[list[str]]:
    rows = []
    for name in names:
        if (table := squashing(name)) is None:
            continue
        steps: Any = table.diff().dropna()
        row = [name, str(len(table))]
        row += [
            with_interval(part[column].to_numpy(), part["influence"].to_numpy())
            for part in (table, steps)
            for column in ("normalised_entropy", "rest_normalised_entropy")
        ]
        rows.append(row)
    return rows


def write_page() -> None:
    """The page and its pictures, of what is measured so far."""
    results = {name: result for name in PLANS if (result := distances(name)) is not None}
    long = {
        f"{name}, {STATES} tokens": result
        for name in PLANS
        if (result := distances(name, "long")) is not None
    }
    states = [name for name in PLANS if stored(name, "states") is not None]
    rounded = {name: result for name in PLANS if (result := stored(name, "rounding")) is not None}
    columns = [
        "model",
        "source",
        "texts",
        "G(1)",
        "G of the farthest",
        "p from r = 0",
        "γ",
        "p from r = 1",
        "verdict",
    ]
    layers = [
        "model",
        "layers",
        "all tokens",
        "without the first",
        "all tokens, steps",
        "without the first, steps",
    ]
    of_states = [
        "model",
        "source",
        "least entropy",
        "without the first token",
        "least effective rank",
    ]
    of_states += ["greatest cosine", "first norm / median", "sink rate"]
    text = TEXT.format(
        plans=plan_words(list(results)),
        distance=table_of(columns, distance_rows(results | long)),
        distance_picture=picture("distance", results),
        readings="\n".join(f"- {sentence}" for sentence in readings(results | long)),
        states=table_of(of_states, state_rows(states)),
        state_picture=picture("states", {name: stored(name, "states") for name in states}),
        squashing=table_of(layers, squashing_rows(states)),
        growth=table_of(
            [
                "model",
                "rounding",
                "items",
                "noise / norm (first layer)",
                "noise / norm (last layer)",
                "layers that hide the pair",
            ],
            [[name, *row] for name, result in rounded.items() for row in growth_rows(result)],
        ),
        rounding_picture=picture("rounding", rounded),
    )
    write_atomically(PAGE, lambda part: part.write_text(text, encoding="utf-8"))


def plan_words(names: list[str]) -> str:
    """How much was measured of each model."""
    return "; ".join(
        f"{name} {plan.texts} texts of {plan.tokens} tokens, {plan.queries} queries, {plan.cotangents} cotangents"
        for name in names
        if (plan := PLANS[name])
    )


def readings(results: dict[str, InfluenceByDistance]) -> list[str]:
    """Of each text with an interval whether its p agrees with the published one."""
    found: dict[str, Any] = {
        name: result.laws[result.laws["from_distance"] == 0].set_index("source").loc["text"]
        for name, result in results.items()
    }
    return [
        f"{name}: p is {agreement(law.to_dict())}."
        for name, law in found.items()
        if not np.isnan(law["low"])
    ]


def agreement(law: dict[str, Any]) -> str:
    """What an interval of p says of the published one."""
    reaches = law["low"] <= HIGH and law["high"] >= LOW
    return f"{rate(law)}: {'not told from' if reaches else 'not'} the published {LOW} to {HIGH}"


def growth_rows(result: Collapse) -> list[list[str]]:
    """A row a rounding, of the longest length: its noise in the first layer that has one and in
    the last, and at how many layers it hides the pair.
    """
    table: Any = Reading("residual", "vector", "l2").of(result.measured(), every_layer=True)
    table = table[(table["length"] == table["length"].max()) & (table["noise"] > 0)]
    rows = []
    for dtype, part in table.groupby("dtype", sort=False):
        columns = ["noise", "pair_noise", "float64_distance", "mean", "relative"]
        means = part.groupby("layer")[columns].mean().query("float64_distance > 0")
        share = means["noise"] * means["relative"] / means["mean"]
        hidden = int((means["pair_noise"] > means["float64_distance"]).sum())
        ends = [f"{words.number(share.iloc[at])} ({share.index[at]})" for at in (0, -1)]
        items = str(part["length"].iloc[0])
        rows.append([f"`{dtype}`", items, *ends, f"{hidden} of {len(share)}"])
    return rows


def picture(what: str, results: dict[str, Any]) -> str:
    """The chart of the first model, drawn and named."""
    for name, result in results.items():
        path = PAGE.with_name(f"tokens-{what}.png")
        path.write_bytes(picture_of(result.chart().to_dict(validate=False), 1.4))
        return f"![{what}, {name}]({path.name})"
    return ""


LOW, HIGH = 0.7, 0.9
"""The published p."""

TEXT = """# All tokens of a text: distance, layers, one rounding

What this year's papers report of other models, measured on these, in float32. `python -m scripts.tokens` measures it
and writes this page. The texts are the project's own passages, which no model was trained on. The words and formulas
stand in [Theory 2](../theory.md#section-2) and [4](../theory.md#section-4).

## Influence by distance

{plans}.
Queries j are spread over the second half of each text, so that every distance of a fit is measured from the same ones.
G(r) is the median over them of ‖∂y_j/∂v_(j-r)‖, Frobenius norms of the full derivative, over that of r = 0. The law
γ + β (r + 1)^-p is fitted up to half of the text. p has its 95% interval over texts where every resampling of them has
a law; without one it is not held against the published p of Pythia and Qwen2.5-0.5B, 0.7 to 0.9 (arXiv 2606.29139: all
pairs of longer texts). "left open": the interval of the fit itself holds 0.

{distance}

{readings}

{distance_picture}

## How alike the states are

One text, all numbers of v^(l) by layer l; entropies are shares of the largest. "untrained": the same architecture with
random weights.

{states}

{state_picture}

Does the valley sit where over-squashing is strongest? Rank correlation, over layers, of the entropy with the influence
of an earlier token (the median over tokens of ‖∂y_n/∂v_i^(l)‖ times the median norm of the states), and of their changes
from one layer to the next, since influence has to fall towards the last layer whatever the states do. Were the valley
where the influence is least, the numbers would be near 1. The intervals take layers for independent, and are too narrow.

{squashing}

## One rounding

Figure 5's first prompt. `bfloat16-once` is one rounding of v^(0) (of v^(1) where bfloat16 holds v^(0)), `bfloat16` the
whole model cast.

{growth}

{rounding_picture}
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", nargs="*", default=list(PLANS), metavar="MODEL", help=f"of {', '.join(PLANS)}"
    )
    parser.add_argument("--page-only", action="store_true", help="measure nothing")
    options = parser.parse_args(arguments)
    for name in [] if options.page_only else options.models:
        measure(name)
    write_page()


if __name__ == "__main__":
    main()
