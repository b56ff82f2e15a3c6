"""The claims about over-squashing: section 5, on prompts whose digits are drawn, and the U-shape on records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ostools.experiments.reproduce.claim import Claim, ResultsByPart, UntestedError, Verdict, decide
from ostools.experiments.reproduce.parts import CERTIFIED, EQUATION_4, OVER_SQUASHING, PRINTED
from ostools.experiments.reproduce.weighing import above_zero
from ostools.ground.words import number
from ostools.theory.profiles import rank_correlation

ROUNDING = 1e-4
"""Relative: measured norms are float32."""
DEGENERATE = 0.99
RATE_WITHIN = 0.01
"""How near the observed rate of the powers must be to the predicted one, at the last power that is above rounding."""


def _prompts(results: ResultsByPart) -> Iterator[tuple[Any, Any, list[int]]]:
    """Of each prompt the measured norms and the path sums by position, and where its digits stand."""
    result_by_name = results[OVER_SQUASHING]
    for name, measured in result_by_name.items():
        if name.startswith("measured-"):
            seed = name.removeprefix("measured-")
            digits = results[OVER_SQUASHING][f"paths-{seed}"].provenance.parameters["digits"]
            yield measured.frame, result_by_name[f"paths-{seed}"].frame, [int(place) for place in digits]


def _norms(measured: Any, linearisation: str) -> Any:
    rows = measured[(measured["linearisation"] == linearisation) & (measured["layer"] == 0)]
    return rows.set_index("position")["operator_norm"].sort_index()


def _paths(paths: Any, variant: str) -> Any:
    return paths[paths["variant"] == variant].set_index("position")["value"].sort_index()


def bound_holds(results: ResultsByPart) -> Verdict:
    """The certified path sum against the measured norm, token by token, under the theorem's two assumptions."""
    least, above, tokens = np.inf, 0, 0
    for measured, paths, _ in _prompts(results):
        norms, bound = _norms(measured, "frozen"), _paths(paths, CERTIFIED)
        ratio = (bound / norms.where(norms > 0)).dropna()
        above += int((bound < norms * (1 - ROUNDING)).sum())
        tokens += len(norms)
        least = min(least, float(ratio.min()))
    if not tokens:
        raise UntestedError("no token was measured")
    sentence = (
        f"with attention and norm scales held, as the theorem assumes, the certified form of the bound holds at "
        f"{tokens - above} of {tokens} tokens (the least bound / measured is {number(least)}). The printed form has a "
        "constant C that is not given, so a single prompt cannot break it"
    )
    return decide(above == 0, sentence, tokens=tokens, broken=above, least_ratio=least)


def equation_4_holds(results: ResultsByPart) -> Verdict:
    """sigma_psi^L times the printed sum against the measured norm, token by token, under the theorem's two assumptions."""
    below, tokens, least = 0, 0, np.inf
    for measured, paths, _ in _prompts(results):
        norms, bound = _norms(measured, "frozen"), _paths(paths, EQUATION_4)
        below += int((bound < norms * (1 - ROUNDING)).sum())
        tokens += len(norms)
        least = min(least, float((bound / norms.where(norms > 0)).min()))
    if not tokens:
        raise UntestedError("no token was measured")
    numbers = {"tokens": tokens, "below": below, "least_ratio": least}
    sentence = (
        f"sigma_psi^L times the printed sum is below the measured norm at {below} of {tokens} tokens (the least bound / "
        f"measured is {number(least)}). sigma_psi is taken from the MLPs at these tokens, so it is at most their Lipschitz "
        "constant. The theorem leaves its beta open, and here it is the first norm's. The measured norms contain the value "
        "projections, which footnote 2 leaves out"
    )
    if below:
        raise UntestedError(f"{sentence}. With a greater sigma_psi the bound may hold", **numbers)
    return decide(True, sentence, **numbers)


def depends_on_position(results: ResultsByPart) -> Verdict:
    """The measured norms of the sequence's digits: how far the largest and the least of one token are apart."""
    spreads = []
    for measured, _, digits in _prompts(results):
        norms = _norms(measured, "full").loc[digits]
        names = measured.drop_duplicates("position").set_index("position")["token_id"].loc[digits]
        alike = norms.groupby(names).agg(["max", "min", "size"])
        alike = alike[(alike["size"] > 1) & (alike["min"] > 0)]
        spreads += [float(row["max"] / row["min"]) for _, row in alike.iterrows()]
    if not spreads:
        raise UntestedError("in every prompt each digit stands at one position alone")
    least = min(spreads)
    return decide(
        least > 1 + ROUNDING,
        f"by its position in a prompt, the same digit has sensitivities that differ by a factor of "
        f"{number(float(np.median(spreads)))}, largest over smallest (median of {len(spreads)} digits; the least is "
        f"{number(least)})",
        median_factor=float(np.median(spreads)),
        least_factor=least,
        digits=len(spreads),
    )


def depends_on_attention(results: ResultsByPart) -> Verdict:
    """How much better the path sum ranks the tokens with the model's attention than with equal weights, one for each prompt."""
    samples, ranks = [], []
    for measured, paths, _ in _prompts(results):
        norms = _norms(measured, "full").to_numpy()
        ranks.append(rank_correlation(_paths(paths, PRINTED).to_numpy(), norms))
        samples.append(ranks[-1] - rank_correlation(_equal(len(norms)), norms))
    mean_words = f" (the mean with the model's attention is {number(float(np.mean(ranks)))})" if ranks else ""
    what = f"rank correlation of path sum and measured norms, with the model's attention minus with equal weights{mean_words}"
    return above_zero(samples, what, "prompts")


def _equal(pos: int) -> np.ndarray:
    """The path sum of two layers whose attention is equal over all earlier tokens: what the position alone would say. More
    layers rank the tokens alike: sooner is more, but for the last token's own skip."""
    step = np.tril(np.ones((pos, pos))) / np.arange(1, pos + 1)[:, None] + np.eye(pos)
    return (step @ step)[-1]


def sooner_keeps_more(results: ResultsByPart) -> Verdict:
    """Measured: minus the rank correlation of position and norm over the sequence's digits, one for each prompt."""
    samples = [
        -rank_correlation(np.array(digits, dtype=float), _norms(measured, "full").loc[digits].to_numpy())
        for measured, _, digits in _prompts(results)
    ]
    return above_zero(
        samples, "minus the rank correlation of position and measured sensitivity, over the digits", "prompts"
    )


def paths_grow(results: ResultsByPart) -> Verdict:
    """Predicted: the same of the path sum weighted by attention."""
    samples = [
        -rank_correlation(np.array(digits, dtype=float), _paths(paths, PRINTED).loc[digits].to_numpy())
        for _, paths, digits in _prompts(results)
    ]
    return above_zero(samples, "minus the rank correlation of position and weighted paths, over the digits", "prompts")


def only_the_first(results: ResultsByPart) -> Verdict:
    """The model's own patterns as Proposition 5.2 has them: (A + I) / 2 of each block, taken again and again."""
    limit: Any = results[OVER_SQUASHING]["spectra"].limit  # pyright: ignore[reportAttributeAccessIssue]
    lazy = limit[limit["matrix"] == "lazy"]
    lazy = lazy[lazy["layer"] != "all"]
    powers = int(lazy["power"].max())
    last = lazy[lazy["power"] == powers].set_index("layer")
    if last.empty:
        raise UntestedError("no pattern was measured")
    remainder = last["remainder"].astype(float)
    simple = last["predicted_rate"].astype(float) < 1
    falls = last["observed_rate"].fillna(0.0).astype(float) < 1
    near = (last["observed_rate"] / last["predicted_rate"] - 1).abs() < RATE_WITHIN
    sentence = (
        f"by ((A + I) / 2)^{powers} of the model's own patterns, {number(float(remainder.min()))} to "
        f"{number(float(remainder.max()))} of "
        f"the last token's mass is still off the first token. What is left falls in {int(falls.sum())} of {len(last)} blocks, "
        f"and in {int(near.sum())} at the predicted rate. A finite depth does not reach the limit itself"
    )
    return decide(
        bool((simple & falls).all()),
        sentence,
        largest_left=float(remainder.max()),
        blocks=len(last),
        at_rate=int(near.sum()),
    )


def prevented(results: ResultsByPart) -> Verdict:
    """The share of the measured sensitivity (sum of norms over all tokens) that is the first token's, at the real depth."""
    shares = []
    for measured, _, _ in _prompts(results):
        norms = _norms(measured, "full")
        shares.append(float(norms.iloc[0] / norms.sum()))
    if not shares:
        raise UntestedError("no prompt was measured")
    return decide(
        max(shares) < DEGENERATE,
        f"{number(100 * min(shares))}% to {number(100 * max(shares))}% of the measured sensitivity is to the first token",
        largest_share=max(shares),
        prompts=len(shares),
    )


def _ends(results: ResultsByPart, quantity: str) -> dict[str, Any]:
    ends: Any = results["retrieval"]["retrieval"].ends  # pyright: ignore[reportAttributeAccessIssue]
    rows = ends[ends["quantity"] == quantity].set_index("end")
    if not {"first", "last"} <= set(rows.index):
        raise UntestedError("fewer than three positions of the wanted record were asked")
    return rows.to_dict("index")


def _u(ends: dict[str, Any], what: str) -> Verdict:
    """Both ends above the positions between."""
    descriptions = []
    for end in ("first", "last"):
        row = ends[end]
        interval = "" if pd.isna(row["low"]) else f" [{number(row['low'])}, {number(row['high'])}]"
        descriptions.append(f"{end} {number(row['difference'])}{interval}, {row['verdict']}")
    seeds = int(ends["first"]["seeds"])
    sentence = f"{what}, at an end minus at the positions between: {'; '.join(descriptions)} ({seeds} seeds)"
    verdicts = {ends[end]["verdict"] for end in ("first", "last")}
    numbers = {f"{end}_difference": float(ends[end]["difference"]) for end in ("first", "last")}
    if "below" not in verdicts and verdicts != {"above"}:
        raise UntestedError(f"{sentence}: at least one end is undecided", **numbers)
    return decide(verdicts == {"above"}, sentence, **numbers)


def u_shape_of_retrieval(results: ResultsByPart) -> Verdict:
    """How likely the wanted record's value is, by where the record stands."""
    frame: Any = results["retrieval"]["retrieval"].frame
    named_count = int(frame["found"].astype(bool).sum())
    if not named_count:
        raise UntestedError(
            f"none of {len(frame)} answers names the wanted record's value, so it is not retrieved at all"
        )
    if named_count == len(frame):
        sentence = f"all {len(frame)} answers name the wanted value, so no position is seen to be harder"
        raise UntestedError(sentence, asked=len(frame))
    verdict = _u(_ends(results, "log_probability"), "log probability of the value")
    return Verdict(
        verdict.outcome, f"{verdict.sentence}; {named_count} of {len(frame)} answers name it", verdict.numbers
    )


def u_shape_of_sensitivity(results: ResultsByPart) -> Verdict:
    return _u(_ends(results, "log_sensitivity"), "log sensitivity to the wanted record's tokens")


_DIGITS = (
    "is below 0 over the digits of the sequence (95% Student interval over the prompts). There is no verdict if the interval "
    "contains zero."
)
CLAIMS = (
    Claim(
        "theorem-5.1-bound",
        "Section 5, below Theorem 5.1",
        "the sensitivity depends on the sum of the weighted paths between the token i at the input and the final layer",
        "agrees if at every token the certified path sum is at least the measured norm of d y_n / d v_i^(0), up to rounding "
        f"(relative {ROUNDING:g}). The certified sum has spectral norms in place of the printed constants. Attention and norm "
        "scales are held, as the theorem assumes.",
        bound_holds,
        (OVER_SQUASHING,),
        construction="with spectral norms the bound follows from the triangle inequality and the chain rule for every model",
    ),
    Claim(
        "equation-4",
        "Appendix B.2, Theorem B.5, equation 4",
        r"Let σ_{ψ} be the maximal Lipschitz constant of any $\psi^{(\ell)}$",
        "agrees if at every token sigma_psi^L times the sum of equation 4, as it is printed (docs/fidelity.md), is at least "
        f"the measured norm of d y_n / d v_i^(0), up to rounding (relative {ROUNDING:g}), with attention and norm scales held. "
        "sigma_psi is taken from the MLPs at these tokens, so it is at most their Lipschitz constant. If the equation holds "
        "with it, it holds with that constant too. If it does not hold with it, there is no verdict.",
        equation_4_holds,
        (OVER_SQUASHING,),
    ),
    Claim(
        "depends-on-position",
        "Section 5, first takeaway",
        "the sensitivity to an input token depends on its position in the sequence",
        "agrees if the largest measured norm of a digit exceeds its smallest by more than rounding "
        f"(relative {ROUNDING:g}), for every digit that stands at several positions of a prompt.",
        depends_on_position,
        (OVER_SQUASHING,),
        construction="under the causal mask equal tokens at two positions have different rows and columns of attention, so "
        "equal norms would be a coincidence",
    ),
    Claim(
        "depends-on-attention",
        "Section 5, second takeaway",
        "the sensitivity to an input token depends on the attention weights",
        "agrees if the path sum ranks the tokens more like the measured norms with the model's attention weights than with "
        "equal weights, which depend on the position alone. The difference of the two rank correlations is above 0 (95% "
        "Student interval over prompts). There is no verdict if the interval contains zero.",
        depends_on_attention,
        (OVER_SQUASHING,),
    ),
    Claim(
        "sooner-keeps-more",
        "Section 5, below Theorem 5.1",
        "for tokens coming sooner in the sequence, there will be more opportunity for their information to be preserved",
        f"agrees if the rank correlation of position and measured sensitivity {_DIGITS}",
        sooner_keeps_more,
        (OVER_SQUASHING,),
    ),
    Claim(
        "paths-grow-for-sooner",
        "Section 5, below Theorem 5.1",
        "The paths instead grow very quickly for tokens coming sooner in the sequence.",
        f"agrees if the rank correlation of position and the path sum, weighted by the attention of this model, {_DIGITS}",
        paths_grow,
        (OVER_SQUASHING,),
    ),
    Claim(
        "only-the-first-token",
        "Proposition 5.2 (Proposition B.8)",
        "the output representation will only depend on the first input token",
        "agrees if ((A + I) / 2)^L of every block's own mean pattern A moves all mass towards the first token. That is: its "
        "second eigenvalue is below 1, and the mass off the first token still falls at the last power.",
        only_the_first,
        (OVER_SQUASHING,),
        construction="softmax under the causal mask gives row-stochastic triangular patterns whose later diagonal entries are "
        "below 1, and powers of such patterns go to the first column",
    ),
    Claim(
        "limit-is-prevented",
        "Section 5, above Proposition 5.2",
        "Fortunately, there are many mechanisms which prevent this from happening",
        f"agrees if in every prompt less than {DEGENERATE:.0%} of the measured sensitivity is to the first token.",
        prevented,
        (OVER_SQUASHING,),
    ),
    Claim(
        "u-shape-of-retrieval",
        "Section 5, U-shape effect",
        "LLMs seem to perform better at retrieval tasks when the information to be retrieved is located either near the "
        "start or the end of the sequence",
        "agrees if the right value is likelier with the wanted record first than between, and likelier with it last than "
        "between: both 95% intervals over seeds are above 0. Does not agree if one of them is below 0. There is no verdict "
        "if the intervals leave it open, if no answer names the value, or if every answer does.",
        u_shape_of_retrieval,
        ("retrieval",),
    ),
    Claim(
        "u-shape-of-sensitivity",
        "Section 5, U-shape effect",
        "tokens at the start of the sequence have more opportunity for the information to be maintained at the end",
        "agrees if the last token is more sensitive to the wanted record where it stands first than between, and where it "
        "stands last than between: both 95% intervals over seeds are above 0. Does not agree if one of them is below 0. There "
        "is no verdict if the intervals leave it open.",
        u_shape_of_sensitivity,
        ("retrieval",),
    ),
)
