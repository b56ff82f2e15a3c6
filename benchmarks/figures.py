"""Figures 2, 3 and 4 on the embedded model, 30 lengths each, against the limit of five minutes.

Figure 4 is made of Figure 3's answers; run by itself it costs what Figure 3 costs, and stands in the sum once more as such.
"""

from __future__ import annotations

import time

import torch

import ostools as ost
from ostools import experiments
from ostools.experiments.figures import figure2, figure3

LIMIT = 300.0  # seconds, on two cores


def main() -> None:
    """Print the seconds of each figure, the sum of the three commands, and the answers a second."""
    model = ost.load_model()
    torch.set_num_threads(1)  # as `ostools reproduce figure` does for a model this small
    lengths = (len(figure2.LENGTHS), len(figure3.LENGTHS))
    print(f"figures 2 to 4 on the embedded model, {lengths[0]} and {lengths[1]} lengths, {len(figure3.SEEDS)} seeds")
    start = time.perf_counter()
    copying = experiments.figure_2(model)
    middle = time.perf_counter()
    counting = experiments.figure_3(model)
    seconds = {"figure 2": middle - start, "figure 3": time.perf_counter() - middle}
    experiments.figure_4_of(counting)
    seconds["figure 4"] = seconds["figure 3"]
    for name, answers in (("figure 2", copying.frame), ("figure 3", counting.frame)):
        print(f"  {name}: {seconds[name]:6.1f} s, {len(answers)} answers, {len(answers) / seconds[name]:.0f} a second")
    whole = sum(seconds.values())
    print(f"  three commands: {whole:.0f} s ({'within' if whole <= LIMIT else 'OVER'} {LIMIT:.0f} s)")


if __name__ == "__main__":
    main()
