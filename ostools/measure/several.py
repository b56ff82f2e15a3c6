"""Results of several prompts in one call: one table, each prompt's own result, and their mean over relative position.

Prompts have different lengths, and norms of different prompts different sizes. So a mean is one of shares, and over relative
position, as of a corpus (`ost.corpus`, which draws the prompts from texts itself).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd

from ostools.ground.errors import InputError
from ostools.models.chat import CHAT_PROVENANCE
from ostools.results import Frame, Provenance, Result, frame_of
from ostools.theory import corpora

PromptResult = TypeVar("PromptResult", bound=Result)
PROFILE = ["source", "kind", "linearisation", "norm", "layer", "position", "value"]
"""The columns of profiles in long form: a row a token."""


class PromptResults(Generic[PromptResult]):
    """Results of several prompts, in their order: index 0 is that of the first prompt, and a loop goes over all.

    The table has their rows, with each prompt's number, from 1, in the column `prompt`. In the provenance `prompts` has, by
    number, the token ids and whatever else is one prompt's own.
    """

    results: tuple[PromptResult, ...]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[PromptResult]:
        return iter(self.results)

    def __getitem__(self, index: int) -> PromptResult:
        return self.results[index]

    def over_position(self, bins: int | None = None) -> Frame:
        """The mean profile over relative position, with its 95% interval over prompts.

        One row a source (linearisation, or variant), norm, layer and bin: source, kind, linearisation, norm, layer, prompts,
        bin, start, end (of the bin, as parts of the prompt), then the share of the bin's tokens over its even share (1: as much
        as if all tokens were equal): mean, low, high (bootstrap over prompts; NaN of fewer than three).

        bins: at most the tokens of the shortest prompt; None: these, or 32. Raises `InputError` for more, for a profile of sum
        0, and where some prompts were measured and some estimated.
        """
        shortest = min(len(frame_of(result)["position"].unique()) for result in self.results)
        count = min(corpora.BINS, shortest) if bins is None else corpora.checked_bins(bins, [shortest])
        rows: Frame = pd.concat([self._profiles(result).assign(prompt=k) for k, result in enumerate(self.results)])
        keys = ["source", "kind", "linearisation", "norm", "layer"]
        tables = []
        for key, group in rows.groupby(keys, sort=False):
            profiles = [
                prompt_rows.sort_values("position")["value"].to_numpy(float)
                for _, prompt_rows in group.groupby("prompt")
            ]
            if len(profiles) < len(self.results):
                raise InputError(
                    "over_position: expected every prompt by one method, found some exact and some estimated: measure with "
                    "method='exact' or method='sketch'"
                )
            tables.append(_means(profiles, count).assign(**dict(zip(keys, key, strict=True))))
        order = [*keys, "prompts", "bin", "start", "end", "mean", "low", "high"]
        return pd.concat(tables, ignore_index=True)[order]

    @classmethod
    def _profiles(cls, result: PromptResult) -> Frame:
        """The result's profiles, one value a token, in the columns of `PROFILE`."""
        raise NotImplementedError


def one_of_several(value: object, expected: Sequence[type]) -> str:
    """The end of a message about a result of several prompts where one prompt's was expected; empty for all else."""
    if not (isinstance(value, PromptResults) and isinstance(value[0], tuple(expected))):
        return ""
    return f": it is the result of {len(value)} prompts, and found[0] of it is that of the first"


def _means(profiles: Sequence[np.ndarray], bins: int) -> pd.DataFrame:
    binned = []
    for values in profiles:
        if not (np.isfinite(values.sum()) and values.sum() > 0):
            raise InputError(
                "over_position: expected profiles with a sum above 0, found another sum: shares of it are not defined"
            )
        binned.append(corpora.binned((values / values.sum())[None], bins)[0])
    shares, place = np.stack(binned), np.arange(bins)
    low, high = corpora.interval_of_mean(shares)
    columns = {"prompts": len(profiles), "bin": place, "start": place / bins, "end": (place + 1) / bins}
    return pd.DataFrame({**columns, "mean": shares.mean(0), "low": low, "high": high})


def join_results(
    results: Sequence[Result], own_parameters: Sequence[str]
) -> tuple[pd.DataFrame, Provenance, tuple[Any, ...]]:
    """Join results into the table, the provenance and the results of a `PromptResults`.

    `own_parameters`: names of parameters that are each prompt's own.
    """
    frames = [result.frame.assign(prompt=number) for number, result in enumerate(results, start=1)]
    table: Frame = pd.concat(frames, ignore_index=True)
    own_parameters = (*own_parameters, *CHAT_PROVENANCE)
    prompts = {
        str(number): {"token_ids": result.provenance.token_ids}
        | {name: value for name, value in result.provenance.parameters.items() if name in own_parameters}
        for number, result in enumerate(results, start=1)
    }
    first_provenance = results[0].provenance
    parameters = {name: value for name, value in first_provenance.parameters.items() if name not in own_parameters} | {
        "prompts": prompts
    }
    return (
        table[["prompt", *results[0].frame.columns]],
        replace(first_provenance, token_ids=None, parameters=parameters),
        tuple(results),
    )
