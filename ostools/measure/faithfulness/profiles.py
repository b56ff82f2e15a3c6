"""Profiles of one prompt, one value a token: measured, bounded or predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from ostools.ground import InputError
from ostools.ground.names import METHOD_KINDS
from ostools.measure.bounds.bounds import Bounds
from ostools.measure.jacobian.attribution import Attribution
from ostools.measure.jacobian.sensitivity import Sensitivity
from ostools.measure.profiles.compare import require_of_all, require_same_run
from ostools.measure.profiles.profile import profile
from ostools.results import Frame, Provenance, frame_of

ProfileSource: TypeAlias = Sensitivity | Bounds | Attribution


@dataclass(frozen=True)
class TokenProfile:
    """kind: measured | estimated | certified | paper | predicted | parts; linearisation and norm
    that its values are of, or stand beside; one value a token, none negative."""

    kind: str
    linearisation: str
    norm: str
    values: Float[np.ndarray, " pos"]


def profiles_of(results: Sequence[ProfileSource]) -> dict[str, TokenProfile]:
    """Profiles by name: the linearisation of a sensitivity, the variant of a path sum, or
    "attribution".

    A sensitivity is read at layer 0, by its operator norm, an estimate by its Frobenius norm. Of
    contributions the sizes are taken. Raises `InputError` for anything else, for none, for the same
    name twice, and for two prompts or models.
    """
    if not results:
        raise InputError(
            "faithfulness: expected at least one profile, such as ost.sensitivity(model, prompt), "
            "found none"
        )
    profile_by_name: dict[str, TokenProfile] = {}
    for result in results:
        if not isinstance(result, ProfileSource):
            raise InputError(
                "faithfulness: expected a Sensitivity, a Bounds or Contributions, found "
                f"{type(result).__name__}"
            )
        require_of_all("faithfulness", result.provenance)
        require_same_run(
            "faithfulness",
            results[0].provenance,
            result.provenance,
            "another that was given",
        )
    for result in results:
        for name, token_profile in _of(result).items():
            if name in profile_by_name:
                raise InputError(
                    f"faithfulness: expected each profile once, found two of {name!r}: leave one "
                    "out"
                )
            profile_by_name[name] = token_profile
    return profile_by_name


def require_of_model(result: ProfileSource, model: Provenance) -> tuple[int, ...]:
    """The prompt's token ids. Raises `InputError` for another model, or under an edit."""
    ids = result.provenance.token_ids
    if ids is None:
        raise InputError(
            "faithfulness: expected a profile of one prompt, found one of several: give each by "
            "itself"
        )
    require_same_run(
        "faithfulness",
        result.provenance,
        replace(model, token_ids=ids),
        "the model",
    )
    return ids


def _of(result: ProfileSource) -> Mapping[str, TokenProfile]:
    if isinstance(result, Attribution):
        sizes = result.of_tokens["contribution"].abs().to_numpy(dtype=float)
        linearisation = str(result.provenance.parameters["linearisation"])
        return {"attribution": TokenProfile("parts", linearisation, "logit", sizes)}
    if isinstance(result, Bounds):
        table: Frame = frame_of(result).assign(source=lambda rows: rows["variant"])
    else:
        table = frame_of(profile(result))
        kinds = table["method"].map(METHOD_KINDS)
        table = table.assign(source=table["linearisation"], kind=kinds)
    profile_by_name = {}
    for name, rows in table.sort_values("position", kind="stable").groupby("source", sort=False):
        kind, linearisation, norm = map(str, rows.iloc[0][["kind", "linearisation", "norm"]])
        values = rows["value"].to_numpy(dtype=float)
        profile_by_name[str(name)] = TokenProfile(kind, linearisation, norm, values)
    return profile_by_name
