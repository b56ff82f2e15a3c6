"""Deletion curves of a prompt: its tokens taken out in the order of a profile, and in random orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ostools.measure.faithfulness.without import EFFECTS, Case
from ostools.theory.deletion import aopc, deletion_order, deletion_steps

RANDOM = "random"
"""The name of what random orders gave."""
Measure = Callable[[Sequence[Case]], Float[np.ndarray, "case effect"]]


@dataclass(frozen=True)
class Deleting:
    """Plan of a deletion: the places that may go, the orders by name, and how many are out at each point of a curve."""

    places: Int[np.ndarray, " place"]
    orders_by_name: Mapping[str, Int[np.ndarray, " place"]]
    random: Sequence[Int[np.ndarray, " place"]]
    steps: Sequence[int]

    @classmethod
    def of(
        cls,
        places: Sequence[int],
        profiles: Mapping[str, Float[np.ndarray, " pos"]],
        orders: int,
        steps: int,
        seed: int,
    ) -> Deleting:
        """`profiles`: over all tokens of the prompt; `orders`: so many random ones."""
        positions, generator = np.array(places, dtype=int), np.random.default_rng(seed)
        orders_by_name = {name: positions[deletion_order(values[positions])] for name, values in profiles.items()}
        random_orders = [generator.permutation(positions) for _ in range(orders)]
        return cls(positions, orders_by_name, random_orders, deletion_steps(len(positions), steps))

    def curves(self, make: Callable[[Sequence[int]], Case], measure: Measure) -> tuple[Any, Any]:
        """The rows of the curves and of their areas, of one way of taking tokens out (`make`)."""
        every = [*self.orders_by_name.values(), *self.random]
        cases = [make(order[:out].tolist()) for order in every for out in self.steps]
        drops = measure(cases)[:, EFFECTS.index("log_prob_drop")].reshape(len(every), len(self.steps))
        profile_drops, random = drops[: len(self.orders_by_name)], drops[len(self.orders_by_name) :]
        low, high = np.quantile(random, [0.025, 0.975], axis=0)
        curves = [
            self._curve(name, row, row, row) for name, row in zip(self.orders_by_name, profile_drops, strict=True)
        ]
        curves.append(self._curve(RANDOM, random.mean(0), low, high))
        rows = [
            self._area(name, area, aopc(random))
            for name, area in zip(self.orders_by_name, aopc(profile_drops), strict=True)
        ]
        return pd.concat(curves, ignore_index=True), pd.DataFrame(rows)

    def _curve(self, name: str, drop: np.ndarray, low: np.ndarray, high: np.ndarray) -> Any:
        return pd.DataFrame({"order": name, "deleted": list(self.steps), "drop": drop, "low": low, "high": high})

    def _area(self, name: str, area: float, random: np.ndarray) -> dict[str, Any]:
        """An order beside the random ones. It is one of them by chance in a share p of cases, itself counted."""
        low, high = np.quantile(random, [0.025, 0.975])
        as_large = int((random >= area).sum())
        row = {"order": name, "aopc": float(area), "random": float(random.mean())}
        return row | {
            "random_low": float(low),
            "random_high": float(high),
            "p": (1 + as_large) / (1 + len(random)),
        }
