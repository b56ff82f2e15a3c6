"""What was there before training: figures of docs/findings/laboratory.md.

    python -m benchmarks.untrained [MODEL_DIRECTORY]        (without a directory: the embedded model)

Profiles, sinks and the fall of the distance, of the model and of three untrained models of each
kind. Some minutes on one core.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.measure.collapse.result import FITTED_FROM, SAME_IN_FLOAT64
from ostools.measure.profiles.profile import NO_SINK
from ostools.models import Prompt, encode
from ostools.models.untrained import KINDS
from ostools.paper.synthetic import decay_fits
from ostools.theory.profiles import rank_correlation

SEEDS = range(3)
TOKENS = 128
TEXTS = {
    "story": "Once upon a time there was a little girl who lived in a small house near the forest. Every day she went to "
    "the river and counted the fish in the water. One day she saw a big red fish that could talk. The fish asked her for a "
    "piece of bread, and she gave it to him. He was very happy and told her where to find the old boat. She ran home to "
    "tell her mother. ",
    "prose": "The weather in the north is cold and dry for most of the year. Farmers keep sheep on the hills and grow "
    "potatoes in the valleys. In summer many visitors walk along the coast, where the cliffs are high and the sea birds make "
    "their nests. A narrow road leads from the harbour to the church, and from there to the school. It was built by hand "
    "long ago. ",
    "words": "red blue tree fish house water stone bread green river boat hill sheep road bird cold summer girl mother school ",
}


def main() -> None:
    model = ost.load_model(*sys.argv[1:2])
    cases: list[tuple[str, list[TransformerBridge]]] = [("model", [model])]
    cases += [
        (kind, [ost.models.untrained_model(model, kind, seed=seed) for seed in SEEDS])
        for kind in KINDS
    ]
    profiles(cases)
    sinks(model, cases)
    laws(cases)


def prompt_of(model: TransformerBridge, text: str) -> Prompt:
    """The first `TOKENS` tokens of the text, repeated as often as it takes."""
    longer = (encode(model, text * times).ids.tolist() for times in range(1, TOKENS))
    return Prompt.from_ids(model, next(ids for ids in longer if len(ids) >= TOKENS)[:TOKENS])


def profiles(cases: list[tuple[str, list[TransformerBridge]]]) -> None:
    """The U: of each text and kind the verdicts, contrasts (decades) and shares, by exact
    Jacobians.
    """
    print("\nsensitivity\n")
    print(f"| text, {TOKENS} tokens | of | shape | start | end | first | last | like model |")
    print("|---|---|---|---|---|---|---|---|")
    columns = [
        "start_contrast",
        "end_contrast",
        "sink_share",
        "last_share",
        "spearman",
    ]
    for name, text in TEXTS.items():
        prompt, trained = prompt_of(cases[0][1][0], text), None
        for source, models in cases:
            results = [
                ost.profile(ost.sensitivity(one, prompt, linearisations="full", method="exact"))
                for one in models
            ]
            trained = trained or results[0]
            rows = pd.DataFrame([row_of(result, trained) for result in results])
            verdicts = ", ".join(
                f"{verdict} ({count})" for verdict, count in rows["verdict"].value_counts().items()
            )
            print(
                f"| {name} | {source} | {verdicts} | {' | '.join(spread(rows[column]) for column in columns)} |"
            )


def row_of(result: Any, trained: Any) -> dict[str, Any]:
    """Shape without the first token, and shares, of a profile; its rank correlation with the
    trained model's.
    """
    shape = result.shapes[result.shapes["kept"] == NO_SINK].iloc[0]
    values = (of.frame["value"].to_numpy() for of in (result, trained))
    return {
        **shape[["verdict", "start_contrast", "end_contrast"]],
        **result.summary.iloc[0][["sink_share", "last_share"]],
        "spearman": rank_correlation(*values),
    }


def sinks(model: TransformerBridge, cases: list[tuple[str, list[TransformerBridge]]]) -> None:
    """Attention on the first token, the mean over heads, texts and queries; uniform attention as
    the measure.
    """
    uniform = float(np.mean(1.0 / np.arange(2, TOKENS + 1)))
    print(
        f"\n| of | weight on the first token (uniform: {uniform:.3f}) | heads that are sinks |\n|---|---|---|"
    )
    for name, models in cases:
        prompts = [prompt_of(model, text) for text in TEXTS.values()]
        scores: list[Any] = [ost.measure.head_scores(one, prompts).summary for one in models]
        weights, heads = (
            [float(one[column].mean()) for one in scores] for column in ("first_token", "is_sink")
        )
        print(f"| {name} | {spread(weights)} | {spread(heads)} |")


def laws(cases: list[tuple[str, list[TransformerBridge]]]) -> None:
    """Theorem 4.2's distance at y from 1 to 256 copies: by which law it falls."""
    print(
        "\n| of | copies of | BOS | verdict: rate (models) | distance at 256 over that at 8 |\n|---|---|---|---|---|"
    )
    for name, models in cases:
        for task, bos in itertools.product(("figure-5a", "text"), (True, False)):
            results = [
                ost.collapse(one, task, lengths=range(1, 257), dtypes=["float32"], bos=bos)
                for one in models
            ]
            curves: list[Any] = [result.reference_curve("theorem") for result in results]
            rates: dict[str, list[float]] = {}
            for curve in curves:
                floor = SAME_IN_FLOAT64 * float((curve["distance"] / curve["relative"]).max())
                (law,) = decay_fits(
                    curve.reset_index(), ["distance"], FITTED_FROM, floor=floor
                ).to_dict("records")
                rates.setdefault(str(law["verdict"]), []).append(float(law["rate"]))
            said = ", ".join(
                f"{verdict}: {spread(one)} ({len(one)})" for verdict, one in sorted(rates.items())
            )
            falls = [
                float(curve["distance"].loc[256] / curve["distance"].loc[8]) for curve in curves
            ]
            print(
                f"| {name} | {task} | {'present' if bos else 'absent'} | {said} | {spread(falls)} |"
            )


def spread(values: Any) -> str:
    """A number, or the least and the largest of several."""
    numbers = [float(value) for value in values]
    if len(numbers) == 1:
        return f"{numbers[0]:.3g}"
    return f"{min(numbers):.3g} to {max(numbers):.3g}"


if __name__ == "__main__":
    main()
