"""Linear probe of a number: ridge regression, whose penalty is chosen on training groups.

Representations are centred and divided by one number, their root mean squared length in training: a
probe is then the same in every rotated basis, and its penalty means the same at every place. Cost:
one fit an inner fold, and one more. scikit-learn is imported by the first fit: `import ostools` and
every other measurement do without.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

Rows = Float[np.ndarray, "prompt d"]
Labels = Int[np.ndarray, " prompt"]

PENALTIES = tuple(10.0**power for power in range(0, -11, -1))
"""Penalties a prompt: the strongest first, which stands where several are as good."""
_INNER = 3  # folds of groups by which the penalty is chosen
_CONSTANT = 1e-9  # of the mean's own length: what varies less is rounding


@dataclass(frozen=True)
class Probe:
    """number = (x - mean) w + b. `penalty`: the one chosen."""

    mean: Float[np.ndarray, " d"]
    weights: Float[np.ndarray, " d"]
    offset: float
    penalty: float

    def predict(self, rows: Rows) -> Float[np.ndarray, " prompt"]:
        """Predict the number, not rounded."""
        return (rows - self.mean) @ self.weights + self.offset


def coordinates(rows: Rows) -> Float[np.ndarray, "prompt _"]:
    """The rows in as many orthonormal directions as there are prompts, where they have more
    columns: a penalised probe has no part outside their span, and is the same in every basis of it.
    """
    return rows if rows.shape[1] <= len(rows) else np.asarray(np.linalg.qr(rows.T, mode="r")).T


def fitted(rows: Rows, labels: Labels, groups: Labels) -> Probe:
    """Fit a probe to these prompts.

    The penalty is the one with the least error on groups that an inner probe has not seen; with
    fewer groups than folds there is nothing to choose by, and the strongest stands.
    """
    from sklearn.model_selection import GroupKFold

    mean = rows.mean(0)
    centred = rows - mean
    size = float(np.sqrt((centred**2).sum(1).mean()))
    if size <= _CONSTANT * float(np.linalg.norm(mean)):
        centred, size = np.zeros_like(centred), 1.0
    x, errors = centred / size, np.zeros(len(PENALTIES))
    folds = min(_INNER, len(np.unique(groups)))
    for train, held_out in GroupKFold(folds).split(x, groups=groups) if folds > 1 else ():
        weights, offsets = _ridge(x[train], labels[train], PENALTIES)
        errors += ((x[held_out] @ weights.T + offsets - labels[held_out, None]) ** 2).sum(0)
    penalty = PENALTIES[int(errors.argmin())]
    weights, offsets = _ridge(x, labels, (penalty,))
    return Probe(mean, weights[0] / size, float(offsets[0]), penalty)


def _ridge(
    x: Rows, labels: Labels, penalties: tuple[float, ...]
) -> tuple[Float[np.ndarray, "penalty d"], Float[np.ndarray, " penalty"]]:
    """Weights and offsets of all penalties, out of one decomposition."""
    from sklearn.linear_model import Ridge

    targets = np.tile(labels.astype(float)[:, None], len(penalties))
    strengths = np.array(penalties) * len(x)  # one a target
    model = Ridge(alpha=strengths, solver="svd")  # pyright: ignore[reportArgumentType]
    ridge = model.fit(x, targets)
    return ridge.coef_.reshape(len(penalties), -1), np.atleast_1d(ridge.intercept_)
