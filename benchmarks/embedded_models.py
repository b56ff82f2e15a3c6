"""The three embedded models side by side: figures of docs/findings/embedded-models.md.

    python -m benchmarks.embedded_models [MODEL ...]        (without names: all three)

Collapse lengths, answers by length with and without the hint, wrong counts, certified bounds, and windows that were trained in
against windows that are forced. Some minutes on one core.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.models.families import EMBEDDED_MODELS
from ostools.theory.statistics.intervals import wilson

LONGEST = 256
BANDS = ((1, 10), (11, 20), (21, 40), (41, 60), (61, 96), (97, 160))
SEEDS = range(4)
COPYING = ("copy-first:uniform=true", "copy-last:uniform=true")
COUNTING = ("count-ones", "count-ones-bernoulli", "sum-ones")
WIDTHS = (4, 8, 16, 32, 64)
VARIANTS = ["uniform", "local", "heads", "windowed(1)"]


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or EMBEDDED_MODELS:
        model = ost.load_model(name, device="cpu")
        print(f"\n## {name}", flush=True)
        for show in (collapse, answers, favourites, bounds, windows):
            show(model)
            sys.stdout.flush()


def collapse(model: TransformerBridge) -> None:
    """One token repeated, 1 to `LONGEST` copies: the distance at y, and from where it is below the noise of a precision."""
    found = ost.collapse(model, "figure-5a", lengths=range(1, LONGEST + 1), dtypes=["float32", "bfloat16"])
    curve = found.reference_curve("theorem")["distance"]
    print("distance at y, float64:", ", ".join(f"{n}: {curve[n]:.3g}" for n in (8, 16, 32, 64, 96, 128, 192, 256)))
    rows: Any = found.collapse_lengths()
    rows = rows[rows["pair"] == "theorem"]
    for row in rows.to_dict("records"):
        print(f"  {row['dtype']:9s} {row['site']:16s} {row['collapse_length']} (pair {row['pair_collapse_length']})")
    at_y: Any = found.frame.query("pair == 'theorem' and site == 'y' and per == 'vector' and norm == 'l2'")
    for dtype, table in at_y.groupby("dtype"):
        if dtype != "float64":
            noise = table.set_index("length")["noise"]
            hidden = (curve.reindex(noise.index) < noise).sum()
            print(
                f"  {dtype}: median noise {noise.median():.3g}; distance below it at {hidden} of {len(noise)} lengths"
            )


def answers(model: TransformerBridge) -> None:
    """Right answers by band of lengths, Wilson's 95% interval over prompts."""
    lengths = sorted({n for low, high in BANDS for n in range(low, high + 1, 1 if high <= 20 else 3)})
    print("| task | " + " | ".join(f"{low}-{high}" for low, high in BANDS) + " |")
    for task in (*COPYING, *COUNTING):
        for mitigation in (None, "hint", "separator:every=3") if task in COPYING else (None, "separator:every=3"):
            if task == "sum-ones" and mitigation:
                continue
            seeds = SEEDS if "uniform" in task or "bernoulli" in task else (0,)
            asked = ost.behaviour(
                model, task, lengths=lengths, seeds=seeds, mitigation=mitigation, probability=False
            ).frame
            print(f"| {task} + {mitigation} | " + " | ".join(_band(asked, *band) for band in BANDS) + " |", flush=True)


def _band(asked: Any, low: int, high: int) -> str:
    here = asked[asked["length"].between(low, high)]["correct"].astype(bool)
    start, end = wilson(int(here.sum()), len(here))
    return f"{here.mean():.0%} ({start:.0%} to {end:.0%}, {len(here)})"


def favourites(model: TransformerBridge) -> None:
    """Which numbers stand in the wrong answers to every count from 1 to 160."""
    for task, seeds in (("count-ones", (0,)), ("count-ones-bernoulli", (0, 1))):
        found: Any = ost.behaviour(model, task, lengths=range(1, 161), seeds=seeds, probability=False).frame
        wrong = found[~found["correct"].astype(bool)]
        said = wrong["number"].value_counts()
        most = ", ".join(f"{number} ({count} times)" for number, count in said.head(8).items())
        first = wrong["length"].min()
        share = said.head(5).sum() / max(len(wrong), 1)
        print(
            f"{task}: {len(wrong)} of {len(found)} wrong, the first at {first}, {len(said)} different numbers; {most}"
        )
        keys = wrong["key"].astype(int)
        signed = (wrong["number"].astype("Float64") - keys).dropna()
        print(f"  five most frequent: {share:.0%} of the wrong; below the right one: {(signed < 0).mean():.0%}")


def bounds(model: TransformerBridge) -> None:
    """Whether the certified bounds hold, on two prompts."""
    for text in (ost.tasks.task("copy-last").prompt(24), ost.tasks.task("count-ones").prompt(40)):
        measured, paths = ost.sensitivity(model, text), ost.path_sum(model, text, variants=VARIANTS)
        table: Any = ost.compare(measured, paths).summary
        print(table[["variant", "kind", "holds", "median_log10_looseness"]].round(2).to_string(index=False))


def windows(model: TransformerBridge) -> None:
    """Windows forced onto every layer, and onto all but the last: right copies and the distance of a figure-5a pair."""
    config: Any = model.original_model.config
    own = getattr(config, "sliding_window", None)
    sizes = [width for width in WIDTHS if own is None or width <= own]
    for which in (range(model.cfg.n_layers), range(model.cfg.n_layers - 1)):
        found = ost.experiments.windows(
            model,
            COPYING[0],
            lengths=(8, 16, 32, 64),
            windows=sizes,
            seeds=SEEDS,
            pairs="figure-5a",
            layers=list(which),
        )
        table: Any = found.summary
        print(f"windows in layers {list(which)}; the model's own: {own}")
        print(
            table[["window", "active", "questions", "accuracy", "wilson_low", "wilson_high", "distance"]].to_string(
                index=False
            )
        )


if __name__ == "__main__":
    main()
