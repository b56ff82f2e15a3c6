"""Linear probes of numbers: ridge regression, whose penalty is chosen on training groups.

Representations are centred and divided by one number, their root mean squared length in training: a
probe is then the same in every rotated basis, and its penalty means the same at every place. Cost:
one singular value decomposition an inner fold, and one more, whatever the number of labels and
penalties. scikit-learn is imported by the first fit: `import ostools` and every other measurement
do without.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

Rows = Float[np.ndarray, "_ d"]
Labels = Int[np.ndarray, "prompt label"]

PENALTIES = 10.0 ** -np.arange(11)
"""Penalties a prompt: the strongest first, which stands where several are as good."""
_INNER = 3  # folds of groups by which the penalty is chosen
_CONSTANT = 1e-9  # of the mean's own length: what varies less is rounding


def coordinates(rows: Rows) -> Float[np.ndarray, "prompt _"]:
    """The rows in as many orthonormal directions as there are prompts, where they have more
    columns: a penalised probe has no part outside their span, and is the same in every basis of it.
    """
    return rows if rows.shape[1] <= len(rows) else np.asarray(np.linalg.qr(rows.T, mode="r")).T


def predicted(
    rows: Rows, labels: Labels, groups: Int[np.ndarray, " prompt"], others: Rows
) -> tuple[Float[np.ndarray, "other label"], Float[np.ndarray, " label"]]:
    """Fit a probe of each column of labels to these prompts; what each says of `others`, not
    rounded, and its penalty.

    The penalty is the one with the least error on groups that an inner probe has not seen; with
    fewer groups than folds there is nothing to choose by, and the strongest stands.
    """
    from sklearn.model_selection import GroupKFold

    mean = rows.mean(0)
    centred = rows - mean
    size = float(np.sqrt((centred**2).sum(1).mean()))
    if size <= _CONSTANT * float(np.linalg.norm(mean)):
        centred, size = np.zeros_like(centred), np.inf
    x, errors = centred / size, np.zeros((len(PENALTIES), labels.shape[1]))
    folds = min(_INNER, len(np.unique(groups)))
    for train, held_out in GroupKFold(folds).split(x, groups=groups) if folds > 1 else ():
        said = _ridge(x[train], labels[train], x[held_out])
        errors += ((said - labels[held_out]) ** 2).sum(1)
    chosen = errors.argmin(0)
    said = _ridge(x, labels, (others - mean) / size)
    return np.stack([said[c, :, k] for k, c in enumerate(chosen)], axis=1), PENALTIES[chosen]


def _ridge(x: Rows, labels: Labels, others: Rows) -> Float[np.ndarray, "penalty other label"]:
    """What probes of every penalty say of `others`, out of one decomposition."""
    mean, common = x.mean(0), labels.mean(0)
    u, s, vt = np.linalg.svd(x - mean, full_matrices=False)
    shrunk = s / (s**2 + PENALTIES[:, None] * len(x))
    return common + ((others - mean) @ vt.T * shrunk[:, None]) @ (u.T @ (labels - common))
