"""Prompts of a measurement and their results: encoded prompts and their columns, and one table of
several prompts.

Prompts have different lengths, and norms of different prompts different sizes. So a mean over
prompts is one of shares, and over relative position: also of the texts of a sweep
(`ost.sweep.over_texts`)."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

import numpy as np
import pandas as pd

from ostools.ground import InputError, TransformerBridge, is_whole, short_repr
from ostools.hooks import HookError
from ostools.measure.task_prompt import in_tokens_already, render_question
from ostools.models import EncodingOptions, Prompt, encode
from ostools.models.chat import PROMPT_PROVENANCE, TEXT
from ostools.models.tokens import fitted
from ostools.results import Frame, Provenance, Result, frame_of
from ostools.tasks import Question
from ostools.theory.profiles import BINS, binned, checked_bins, interval_of_mean


def by_token(rows: Frame, source: object, norm: object, kind: object) -> Frame:
    """The table of a result with a value a token: position, token, source (which of its profiles),
    norm (the value), kind (measured | estimated | certified | paper | predicted)."""
    table = rows.assign(source=source, norm=norm, kind=kind)
    return table[["position", "token", "source", "norm", "kind"]].reset_index(drop=True)


def as_prompt(model: TransformerBridge, prompt: str | Prompt) -> Prompt:
    """The prompt in tokens; text is encoded with the model's own tokenizer, special tokens added
    once. Raises `InputError` for a `Prompt` of another model."""
    return encode(model, prompt) if isinstance(prompt, str) else fitted(model, prompt)


def encoded(model: TransformerBridge, prompts: Any, encoding: EncodingOptions) -> Any:
    """Texts and a task's questions in tokens by these options, one of them or a list; what is
    neither as it is, for the measurement to refuse. Raises `InputError` for what is in tokens
    already."""
    if isinstance(prompts, str):
        return encode(model, prompts, **encoding)
    if isinstance(prompts, Question):
        return render_question(model, prompts, **encoding)
    if isinstance(prompts, Prompt):
        raise in_tokens_already([*encoding], "a Prompt")
    if isinstance(prompts, Sequence):
        return [encoded(model, prompt, encoding) for prompt in prompts]
    return prompts


@contextmanager
def prompt_named(prompts: Sequence[object], index: int) -> Iterator[None]:
    """What is refused within the block is said of that prompt, by its number and its start, where
    there are several.
    """
    try:
        yield
    except (InputError, HookError) as error:
        if len(prompts) == 1:
            raise
        prompt = prompts[index]
        text = prompt if isinstance(prompt, str) else getattr(prompt, "text", None) or "token ids"
        start = repr(text if len(text) <= 40 else text[:39] + "…")
        raise type(error)(f"prompt {index + 1} of {len(prompts)} ({start}): {error}") from error


def layers_up_to(n_layers: int, layers: Literal["all"] | Iterable[int] | None) -> tuple[int, ...]:
    """The residual streams v^(l) in order, of a model of so many blocks: 0 is the embedding, L what
    the last block leaves; None: none. Others are refused.
    """
    if layers is None:
        return ()
    if isinstance(layers, str) and layers == "all":
        return tuple(range(n_layers + 1))
    layer_list = list(layers)
    wrong = [layer for layer in layer_list if not is_whole(layer) or not 0 <= layer <= n_layers]
    if wrong or not layer_list:
        raise InputError(
            f"layers: expected 'all' or numbers out of 0..{n_layers}, found "
            f"{short_repr(wrong) if wrong else 'none'}"
        )
    return tuple(sorted(set(map(int, layer_list))))


def token_columns(prompt: Prompt) -> pd.DataFrame:
    """One row a token: position (from 0), token_id, token (as text, for display), origin (one of
    `models.ORIGINS`; missing where that is not known)."""
    ids = prompt.ids.tolist()
    columns = {"position": range(len(ids)), "token_id": ids, "token": list(prompt.tokens)}
    origins = pd.array(prompt.origins or [None] * len(ids), dtype="str")
    return pd.DataFrame({**columns, "origin": origins})


def agreeing(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Number of leading entries in which two sequences agree."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


TOKEN = ["position", "token_id", "token"]
"""The columns that say which token of which text a row is of."""


def named_by(frame: Frame) -> list[str]:
    """The columns of a table that say which token a row is of."""
    return [name for name in ("position", "token_id", "token", "origin") if name in frame]


def of_text(frame: Frame) -> Frame:
    """The rows of the user's own text; every row where it is not known whose the tokens are, and
    where none is the text's.
    """
    has_origin = "origin" in frame and bool(frame["origin"].notna().all())
    rows = frame[frame["origin"] == TEXT] if has_origin else frame
    return rows if len(rows) else frame


PromptResult = TypeVar("PromptResult", bound=Result)
PROFILE = ["source", "kind", "linearisation", "norm", "layer", "position", "value"]
"""The columns of profiles in long form: a row a token."""


class PromptResults(Generic[PromptResult]):
    """Results of several prompts, in their order: index 0 is that of the first prompt, and a loop
    goes over all.

    The table has their rows, with each prompt's number, from 1, in the column `prompt`. In the
    provenance `prompts` has, by number, the token ids and whatever else is one prompt's own.
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

        One row a source (linearisation, or variant), norm, layer and bin: source, kind,
        linearisation, norm, layer, prompts, bin, start, end (of the bin, as parts of the prompt),
        then the share of the bin's tokens over its even share (1: as much as if all tokens were
        equal): mean, low, high (bootstrap over prompts; NaN of fewer than six).

        bins: at most the tokens of the shortest prompt; None: these, or 32. Raises `InputError` for
        more, for a profile of sum 0, and where some prompts were measured and some estimated.
        """
        shortest = min(frame_of(result)["position"].nunique() for result in self.results)
        count = min(BINS, shortest) if bins is None else checked_bins(bins, [shortest])
        rows: Frame = pd.concat(
            [self._profiles(result).assign(prompt=k) for k, result in enumerate(self.results)]
        )
        keys = ["source", "kind", "linearisation", "norm", "layer"]
        tables = []
        for key, group in rows.groupby(keys, sort=False):
            by_prompt = group.sort_values(["prompt", "position"]).groupby("prompt")["value"]
            profiles = [values.to_numpy(float) for _, values in by_prompt]
            if len(profiles) < len(self.results):
                raise InputError(
                    "over_position: expected every prompt by one method, found some exact and some "
                    "estimated: measure with method='exact' or method='sketch'"
                )
            tables.append(_means(profiles, count).assign(**dict(zip(keys, key, strict=True))))
        order = [*keys, "prompts", "bin", "start", "end", "mean", "low", "high"]
        return pd.concat(tables, ignore_index=True)[order]

    @classmethod
    def _profiles(cls, result: PromptResult) -> Frame:
        """The result's profiles, one value a token, in the columns of `PROFILE`."""
        raise NotImplementedError


Options = ParamSpec("Options")
OfPrompt = TypeVar("OfPrompt", covariant=True)
OfPrompts = TypeVar("OfPrompts", covariant=True)


class OneOrSeveral(Protocol[Options, OfPrompt, OfPrompts]):
    @overload
    def __call__(
        self,
        model: TransformerBridge,
        prompt: str | Prompt | Question,
        *args: Options.args,
        **options: Options.kwargs,
    ) -> OfPrompt: ...
    @overload
    def __call__(
        self,
        model: TransformerBridge,
        prompt: Sequence[str | Prompt | Question],
        *args: Options.args,
        **options: Options.kwargs,
    ) -> OfPrompts: ...


def _means(profiles: Sequence[np.ndarray], bins: int) -> pd.DataFrame:
    if not all(np.isfinite(values.sum()) and values.sum() > 0 for values in profiles):
        raise InputError(
            "over_position: expected profiles with a sum above 0, found another sum: shares of it "
            "are not defined"
        )
    shares = np.stack([binned((values / values.sum())[None], bins)[0] for values in profiles])
    low, high = interval_of_mean(shares)
    place = np.arange(bins)
    edges = {"bin": place, "start": place / bins, "end": (place + 1) / bins}
    means = {"mean": shares.mean(0), "low": low, "high": high}
    return pd.DataFrame({"prompts": len(profiles), **edges, **means})


_OF_ONE = ("runs", "read_at", "next_tokens", *PROMPT_PROVENANCE)
"""The parameters that are of one prompt, also where all prompts have them alike."""


def join_results(
    results: Sequence[Result],
) -> tuple[pd.DataFrame, Provenance, tuple[Any, ...]]:
    """Table, provenance and results of a `PromptResults`."""
    frames = [result.frame.assign(prompt=number) for number, result in enumerate(results, start=1)]
    table: Frame = pd.concat(frames, ignore_index=True)
    shared, rests = parted([result.provenance.parameters for result in results], _OF_ONE)
    prompts = {
        str(number): {"token_ids": result.provenance.token_ids, **parameters}
        for number, (result, parameters) in enumerate(zip(results, rests, strict=True), start=1)
    }
    parameters = shared | {"prompts": prompts}
    provenance = replace(results[0].provenance, token_ids=None, parameters=parameters)
    return table[["prompt", *results[0].frame.columns]], provenance, tuple(results)


def parted(
    mappings: Sequence[Mapping[str, Any]], of_each: Collection[str] = ()
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What all of them have alike, and the rest of each; the names `of_each` are of the rest."""
    shared = {
        name: value
        for name, value in mappings[0].items()
        if name not in of_each and all(name in m and m[name] == value for m in mappings)
    }
    return shared, [
        {name: value for name, value in m.items() if name not in shared} for m in mappings
    ]
