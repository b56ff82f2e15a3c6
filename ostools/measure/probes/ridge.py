"""Linear probes: ridge regression for a number, logistic regression for a class; the penalty is
chosen on training groups.

Representations are centred and divided by one number, their root mean squared length in training: a
probe is then the same in every rotated basis, and its penalty means the same at every place. Cost:
one fit a penalty and inner fold, and one more. scikit-learn is imported by the first fit: `import
ostools` and every other measurement do without.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

Rows = Float[np.ndarray, "prompt d"]
Labels = Int[np.ndarray, " prompt"]

PENALTIES = tuple(10.0**power for power in range(0, -11, -1))
"""Of ridge, a prompt: the strongest first, which stands where several are as good."""
INVERSE_PENALTIES = (1.0, 30.0, 1e3, 3e4)
"""Of logistic regression (scikit-learn's C), the strongest penalty first."""
_INNER = {"number": 3, "token": 2}
_STEPS = 200
_CONSTANT = 1e-9  # of the mean's own length: what varies less is rounding


@dataclass(frozen=True)
class Probe:
    """scores = (x - mean) W^T + b. Of a number the one score is the number; of a class the greatest
    says which.

    `classes`: None for a number. `penalty`: the one chosen.
    """

    mean: Float[np.ndarray, " d"]
    weights: Float[np.ndarray, "score d"]
    offset: Float[np.ndarray, " score"]
    classes: Int[np.ndarray, " score"] | None
    penalty: float

    def predict(self, rows: Rows) -> Float[np.ndarray, " prompt"]:
        """Predict the number, not rounded; or the class."""
        scores = (rows - self.mean) @ self.weights.T + self.offset
        return (
            scores[:, 0] if self.classes is None else self.classes[scores.argmax(1)].astype(float)
        )


def fitted(target: str, rows: Rows, labels: Labels, groups: Labels) -> Probe:
    """A probe of these prompts. `target`: "number" (ridge) or "token" (logistic).

    The penalty is the one with the least error on groups that an inner probe has not seen; with
    fewer groups than folds there is nothing to choose by, and the strongest stands.
    """
    from sklearn.model_selection import GroupKFold

    mean = rows.mean(0)
    centred = rows - mean
    size = float(np.sqrt((centred**2).sum(1).mean()))
    if size <= _CONSTANT * float(np.linalg.norm(mean)):
        centred, size = np.zeros_like(centred), 1.0
    # Orthonormal directions in which all rows lie: a penalised probe has no part outside them.
    n, d = centred.shape
    basis = np.eye(d) if d <= n else np.linalg.svd(centred, full_matrices=False)[2]
    x = centred @ basis.T / size
    penalties = PENALTIES if target == "number" else INVERSE_PENALTIES
    errors = np.zeros(len(penalties))
    folds = min(_INNER[target], len(np.unique(groups)))
    for train, held_out in (
        GroupKFold(folds).split(groups[:, None], groups=groups) if folds > 1 else ()
    ):
        errors += _errors(target, x, labels, train, held_out)
    penalty = penalties[int(errors.argmin())]
    fit = _ridge(x, labels, (penalty,)) if target == "number" else _logistic(x, labels, penalty)
    return Probe(mean, fit[0] @ basis / size, fit[1], fit[2], penalty)


def _errors(
    target: str, x: Rows, labels: Labels, train: np.ndarray, held_out: np.ndarray
) -> np.ndarray:
    """Errors of each penalty: squared errors of a number, wrong classes."""
    if target == "number":
        weights, offset, _ = _ridge(x[train], labels[train], PENALTIES)
        return ((x[held_out] @ weights.T + offset - labels[held_out, None]) ** 2).sum(0)
    wrong = []
    for penalty in INVERSE_PENALTIES:
        weights, offset, classes = _logistic(x[train], labels[train], penalty)
        wrong.append(
            (classes[(x[held_out] @ weights.T + offset).argmax(1)] != labels[held_out]).sum()
        )
    return np.array(wrong)


def _ridge(
    x: Rows, labels: Labels, penalties: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray, None]:
    """Weights [penalty, d] and offsets, of all penalties out of one decomposition."""
    from sklearn.linear_model import Ridge

    targets = np.tile(labels.astype(float)[:, None], len(penalties))
    strengths: Any = np.array(penalties) * len(x)  # one a target
    ridge: Any = Ridge(alpha=strengths, solver="svd").fit(x, targets)
    return ridge.coef_.reshape(len(penalties), -1), np.atleast_1d(ridge.intercept_), None


def _logistic(x: Rows, labels: Labels, penalty: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights [class, d], offsets and classes."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    classes = np.unique(labels)
    if len(classes) == 1:
        return np.zeros((1, x.shape[1])), np.zeros(1), classes
    with warnings.catch_warnings():
        # Stopping early is one more penalty, and what is tested is what was found.
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression: Any = LogisticRegression(C=penalty, max_iter=_STEPS, tol=1e-3).fit(x, labels)
    if len(classes) > 2:
        return regression.coef_, regression.intercept_, classes
    # One score, of the second class against the first: half of it for each.
    half = regression.coef_ / 2, regression.intercept_ / 2
    return np.concatenate([-half[0], half[0]]), np.concatenate([-half[1], half[1]]), classes
