"""Figure 9: noise on the first entries of a sequence, and how little of it a long softmax shows (Lemma 4.1 / B.2).

As in appendix C.3: x uniform in [0, 1]^n, noise uniform in [0, 0.1] added to the first k = 200 entries, delta = sum |y - y*| of
the two softmax vectors, 5 seeds, bars from the least to the greatest. The paper leaves open how far n goes (here 100,000), and
whether each n has its own x: here every n is a prefix of one sequence per seed, the growing sequence of the lemma, so that one
pass of cumulative sums holds all n.

For n <= k all entries are noisy and delta does not fall; then it tends to 1 / n (delta is 2 (k / n) times the mean of
e^noise - 1, to first order in k / n), with a local rate below 1 by about k / n: some 0.1 at 10 k, 0.01 at 100 k. So the law is
fitted from 100 k on, and from 10 k, too slow and said to be so, where fewer than 8 lengths reach that far.

Source: Barbero et al. 2024 (arXiv 2406.04267), Figure 9 and appendix C.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch

from ostools.experiments import decay
from ostools.ground.errors import InputError
from ostools.ground.whole_numbers import checked_lengths, checked_seeds, whole_number
from ostools.results import Provenance, Result
from ostools.theory.lemmas.softmax import first_places_bound, prefix_total_variation
from ostools.theory.statistics.fits import FEWEST

LENGTHS = decay.spread_lengths(10, 100_000, 61)


@dataclass(frozen=True, eq=False)
class Figure9(Result):
    """`frame`, one row a seed and length: length (n), seed, delta (total variation, L1, at most 2), bound (certified, of Lemma
    B.2: 2 min(k, n) e (e^eps - 1) / n).

    `fits`: how the mean over seeds falls from n = 100 k on (or 10 k), see `ostools.experiments.decay.fits`.
    """

    fits: pd.DataFrame


def figure_9(
    lengths: Sequence[int] = LENGTHS, seeds: Sequence[int] = decay.SEEDS, *, noisy: int = 200, noise: float = 0.1
) -> Figure9:
    """Total variation delta of softmax(x) and softmax(x + noise on the first `noisy` entries)
    at every n, for each seed (Figure 9).

    Args:
        lengths: numbers of entries.
        seeds: seeds of the Gaussian numbers.
        noisy: how many entries are moved.
        noise: how far they are moved, a factor of Gaussian noise.

    All is in float64. Cost: O(longest + lengths * noisy) for each seed. Raises `InputError` for lengths or `noisy` below 1,
    for seeds below 0, and for `noise` outside of 0 to 100.
    """
    length_list, chosen_seeds = checked_lengths(lengths), checked_seeds(seeds)
    whole_number("noisy", noisy, 1)
    if not isinstance(noise, int | float) or not 0.0 < noise < 100.0:
        raise InputError(f"figure 9: expected 0 < noise < 100, found {noise!r}")
    tables = []
    for seed in chosen_seeds:
        generator = torch.Generator().manual_seed(seed)
        # The noise first: a longer sequence then begins with the same numbers.
        added = noise * torch.rand(noisy, generator=generator, dtype=torch.float64)
        x = torch.rand(length_list[-1], generator=generator, dtype=torch.float64)
        x_star = x.clone()
        x_star[:noisy] += added[: len(x)]
        delta = prefix_total_variation(x, x_star, length_list).tolist()
        bound = [first_places_bound(noisy, noise, 1.0, n) for n in length_list]
        tables.append(pd.DataFrame({"length": length_list, "seed": seed, "delta": delta, "bound": bound}))
    frame = pd.concat(tables, ignore_index=True)
    provenance = Provenance.without_model(lengths=length_list, seeds=chosen_seeds, noisy=noisy, noise=noise)
    reaches_100_times = sum(n >= 100 * noisy for n in length_list) >= FEWEST
    return Figure9(frame, provenance, fits=decay.fits(frame, ["delta"], (100 if reaches_100_times else 10) * noisy))
