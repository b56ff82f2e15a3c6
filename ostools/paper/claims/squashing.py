"""The claims about over-squashing: section 5, on prompts whose digits are drawn, and the U-shape on
records.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ostools.ground.words import number
from ostools.paper.claims.claim import (
    PaperClaim,
    ResultsByPart,
    Verdict,
    above_zero,
    decide,
    require_data,
)
from ostools.paper.claims.parts import CERTIFIED, EQUATION_4, OVER_SQUASHING, PRINTED
from ostools.results import Column, Frame
from ostools.theory.profiles import rank_correlation

_section_5 = partial(PaperClaim, needs=(OVER_SQUASHING,))
_u_shape = partial(PaperClaim, needs=("retrieval",))

ROUNDING = 1e-4
"""Relative: measured norms are float32."""
DEGENERATE = 0.99
RATE_WITHIN = 0.01
"""Largest relative difference of the observed rate from the predicted one, at the last power that
is above rounding.
"""
_DIGITS = (
    "is below 0 over the digits of the sequence (95% Student interval over the prompts). There is "
    "no verdict if the interval contains zero."
)


def _prompts(results: ResultsByPart) -> Iterator[tuple[Frame, Frame, list[int]]]:
    """Measured norms and path sums of each prompt by position, and the positions of its digits."""
    result_by_name = results[OVER_SQUASHING]
    for name, measured in result_by_name.items():
        if name.startswith("measured-"):
            paths = result_by_name[f"paths-{name.removeprefix('measured-')}"]
            yield (
                measured.frame,
                paths.frame,
                [int(place) for place in paths.provenance.parameters["digits"]],
            )


def _norms(measured: Frame, linearisation: str) -> Column:
    rows = measured[(measured["linearisation"] == linearisation) & (measured["layer"] == 0)]
    return rows.set_index("position")["operator_norm"].sort_index()


def _paths(paths: Frame, variant: str) -> Column:
    return paths[paths["variant"] == variant].set_index("position")["value"].sort_index()


def _against_bound(results: ResultsByPart, variant: str) -> tuple[int, int, float]:
    """Number of tokens, of those whose frozen norm is above the bound, and the least bound over
    norm.
    """
    tokens, above, least = 0, 0, np.inf
    for measured, paths, _ in _prompts(results):
        norms, bound = _norms(measured, "frozen"), _paths(paths, variant)
        above += int((bound < norms * (1 - ROUNDING)).sum())
        tokens += len(norms)
        least = min(least, float((bound / norms.where(norms > 0)).min()))
    require_data(tokens, "no token was measured")
    return tokens, above, least


def bound_holds(results: ResultsByPart) -> Verdict:
    tokens, above, least = _against_bound(results, CERTIFIED)
    sentence = (
        "with attention and norm scales held, as the theorem assumes, the certified form of the "
        f"bound holds at {tokens - above} of {tokens} tokens (the least bound / measured is "
        f"{number(least)}). The printed form has a constant C that is not given, so a single "
        "prompt cannot break it"
    )
    return decide(above == 0, sentence)


def equation_4_holds(results: ResultsByPart) -> Verdict:
    tokens, below, least = _against_bound(results, EQUATION_4)
    sentence = (
        f"sigma_psi^L times the printed sum is below the measured norm at {below} of {tokens} "
        f"tokens (the least bound / measured is {number(least)}). sigma_psi is taken from the MLPs "
        "at these tokens, so it is at most their Lipschitz constant. The theorem leaves its beta "
        "open, and here it is the first norm's. The measured norms contain the value projections, "
        "which footnote 2 leaves out"
    )
    require_data(not below, f"{sentence}. With a greater sigma_psi the bound may hold")
    return decide(True, sentence)


def depends_on_position(results: ResultsByPart) -> Verdict:
    spreads: list[float] = []
    for measured, _, digits in _prompts(results):
        norms = _norms(measured, "full").loc[digits]
        names = measured.drop_duplicates("position").set_index("position")["token_id"].loc[digits]
        alike = norms.groupby(names).agg(["max", "min", "size"])
        alike = alike[(alike["size"] > 1) & (alike["min"] > 0)]
        spreads += (alike["max"] / alike["min"]).tolist()
    require_data(spreads, "in every prompt each digit stands at one position alone")
    least, median = min(spreads), float(np.median(spreads))
    sentence = (
        "by its position in a prompt, the same digit has sensitivities that differ by a factor of "
        f"{number(median)}, largest over smallest (median of {len(spreads)} digits; the least is "
        f"{number(least)})"
    )
    return decide(least > 1 + ROUNDING, sentence)


def depends_on_attention(results: ResultsByPart) -> Verdict:
    samples, ranks = [], []
    for measured, paths, _ in _prompts(results):
        norms = _norms(measured, "full").to_numpy()
        ranks.append(rank_correlation(_paths(paths, PRINTED).to_numpy(), norms))
        samples.append(ranks[-1] - rank_correlation(_equal_attention_paths(len(norms)), norms))
    mean_words = (
        f" (the mean with the model's attention is {number(float(np.mean(ranks)))})"
        if ranks
        else ""
    )
    quantity = (
        "rank correlation of path sum and measured norms, with the model's attention minus with "
        f"equal weights{mean_words}"
    )
    return above_zero(samples, quantity, "prompts")


def _equal_attention_paths(pos: int) -> np.ndarray:
    """The path sum of two layers whose attention is equal over all earlier tokens: what the
    position alone would say. More layers rank the tokens alike: sooner is more, but for the last
    token's own skip."""
    step = np.tril(np.ones((pos, pos))) / np.arange(1, pos + 1)[:, None] + np.eye(pos)
    return (step @ step)[-1]


def _falls_with_position(
    values_by_prompt: list[tuple[list[int], Column]], quantity: str
) -> Verdict:
    """Verdict on the rank correlation of position and values, over the digits of each prompt, being
    below 0.
    """
    samples = [
        -rank_correlation(np.array(digits, dtype=float), values.loc[digits].to_numpy())
        for digits, values in values_by_prompt
    ]
    return above_zero(
        samples,
        f"minus the rank correlation of position and {quantity}, over the digits",
        "prompts",
    )


def only_the_first(results: ResultsByPart) -> Verdict:
    last = results[OVER_SQUASHING]["powers"].frame
    require_data(not last.empty, "no pattern was measured")
    powers = int(last["power"].iloc[0])
    remainder = last["remainder"].astype(float)
    simple = last["predicted_rate"].astype(float) < 1
    falls = last["observed_rate"].fillna(0.0).astype(float) < 1
    near = int(((last["observed_rate"] / last["predicted_rate"] - 1).abs() < RATE_WITHIN).sum())
    sentence = (
        f"by ((A + I) / 2)^{powers} of the model's own patterns, {number(float(remainder.min()))} "
        f"to {number(float(remainder.max()))} of the last token's mass is still off the first "
        f"token. What is left falls in {int(falls.sum())} of {len(last)} blocks, and in {near} at "
        "the predicted rate. A finite depth does not reach the limit itself"
    )
    return decide(bool((simple & falls).all()), sentence)


def prevented(results: ResultsByPart) -> Verdict:
    norms_by_prompt = [_norms(measured, "full") for measured, _, _ in _prompts(results)]
    shares = [float(norms.iloc[0] / norms.sum()) for norms in norms_by_prompt]
    require_data(shares, "no prompt was measured")
    sentence = (
        f"{number(100 * min(shares))}% to {number(100 * max(shares))}% of the measured sensitivity "
        "is to the first token"
    )
    return decide(max(shares) < DEGENERATE, sentence)


def _ends_above(
    results: ResultsByPart, quantity: str, words: str, judged: tuple[str, ...] = ("first", "last")
) -> Verdict:
    """Verdict on `quantity` being higher at the `judged` ends than at the positions between, by
    `Retrieval.ends`.
    """
    result = results["retrieval"]["retrieval"]
    rows = result.ends[result.ends["quantity"] == quantity]
    ends = rows.set_index("end").to_dict("index")
    require_data(
        {"first", "last"} <= set(ends), "fewer than three positions of the wanted record were asked"
    )
    ends_words, seeds = "; ".join(result.ends_words(quantity)), int(ends["first"]["seeds"])
    sentence = f"{words}, at an end minus at the positions between: {ends_words} ({seeds} seeds)"
    verdicts = {ends[end]["verdict"] for end in judged}
    require_data(
        "below" in verdicts or verdicts == {"above"},
        f"{sentence}: an end that is judged is undecided",
    )
    return decide(verdicts == {"above"}, sentence)


def u_shape_of_retrieval(results: ResultsByPart) -> Verdict:
    names_value = results["retrieval"]["retrieval"].frame["found"].astype(bool)
    count, total = int(names_value.sum()), len(names_value)
    require_data(
        count,
        f"none of {total} answers names the wanted record's value, so it is not retrieved at all",
    )
    require_data(
        count < total,
        f"all {total} answers name the wanted value, so no position is seen to be harder",
    )
    verdict = _ends_above(results, "log_probability", "log probability of the value")
    return Verdict(verdict.outcome, f"{verdict.sentence}; {count} of {total} answers name it")


CLAIMS = (
    _section_5(
        "theorem-5.1-bound",
        "Section 5, below Theorem 5.1",
        "the sensitivity depends on the sum of the weighted paths between the token i at the input "
        "and the final layer",
        "agrees if at every token the certified path sum is at least the measured norm of d y_n / "
        f"d v_i^(0), up to rounding (relative {ROUNDING:g}). The certified sum has spectral norms "
        "in place of the printed constants. Attention and norm scales are held, as the theorem "
        "assumes.",
        bound_holds,
        construction="with spectral norms the bound follows from the triangle inequality and the "
        "chain rule for every model",
    ),
    _section_5(
        "equation-4",
        "Appendix B.2, Theorem B.5, equation 4",
        r"Let σ_{ψ} be the maximal Lipschitz constant of any $\psi^{(\ell)}$",
        "agrees if at every token sigma_psi^L times the sum of equation 4, as it is printed "
        "(docs/fidelity.md), is at least the measured norm of d y_n / d v_i^(0), up to rounding "
        f"(relative {ROUNDING:g}), with attention and norm scales held. sigma_psi is taken from "
        "the MLPs at these tokens, so it is at most their Lipschitz constant. If the equation "
        "holds with it, it holds with that constant too. If it does not hold with it, there is no "
        "verdict: this rule can agree or stay open, and cannot disagree.",
        equation_4_holds,
    ),
    _section_5(
        "depends-on-position",
        "Section 5, first takeaway",
        "the sensitivity to an input token depends on its position in the sequence",
        "agrees if the largest measured norm of a digit exceeds its smallest by more than rounding "
        f"(relative {ROUNDING:g}), for every digit that stands at several positions of a prompt.",
        depends_on_position,
        construction="under the causal mask equal tokens at two positions have different rows and "
        "columns of attention, so equal norms would be a coincidence",
    ),
    _section_5(
        "depends-on-attention",
        "Section 5, second takeaway",
        "the sensitivity to an input token depends on the attention weights",
        "agrees if the path sum ranks the tokens more like the measured norms with the model's "
        "attention weights than with equal weights, which depend on the position alone. The "
        "difference of the two rank correlations is above 0 (95% Student interval over prompts). "
        "There is no verdict if the interval contains zero.",
        depends_on_attention,
    ),
    _section_5(
        "sooner-keeps-more",
        "Section 5, below Theorem 5.1",
        "for tokens coming sooner in the sequence, there will be more opportunity for their "
        "information to be preserved",
        f"agrees if the rank correlation of position and measured sensitivity {_DIGITS}",
        lambda results: _falls_with_position(
            [(digits, _norms(measured, "full")) for measured, _, digits in _prompts(results)],
            "measured sensitivity",
        ),
    ),
    _section_5(
        "paths-grow-for-sooner",
        "Section 5, below Theorem 5.1",
        "The paths instead grow very quickly for tokens coming sooner in the sequence.",
        "agrees if the rank correlation of position and the path sum, weighted by the attention "
        f"of this model, {_DIGITS} Counted without weights they grow by construction, C(n - i + L "
        "- 1, L - 1) of them in L layers: that is not judged.",
        lambda results: _falls_with_position(
            [(digits, _paths(paths, PRINTED)) for _, paths, digits in _prompts(results)],
            "weighted paths",
        ),
    ),
    _section_5(
        "only-the-first-token",
        "Proposition 5.2 (Proposition B.8)",
        "the output representation will only depend on the first input token",
        "agrees if ((A + I) / 2)^L of every block's own mean pattern A moves all mass towards the "
        "first token. That is: its second eigenvalue is below 1, and the mass off the first token "
        "still falls at the last power.",
        only_the_first,
        construction="softmax under the causal mask gives row-stochastic triangular patterns whose "
        "later diagonal entries are below 1, and powers of such patterns go to the first column",
    ),
    _section_5(
        "limit-is-prevented",
        "Section 5, above Proposition 5.2",
        "Fortunately, there are many mechanisms which prevent this from happening",
        f"agrees if in every prompt less than {DEGENERATE:.0%} of the measured sensitivity is to "
        "the first token.",
        prevented,
    ),
    _u_shape(
        "u-shape-of-retrieval",
        "Section 5, U-shape effect",
        "LLMs seem to perform better at retrieval tasks when the information to be retrieved is "
        "located either near the start or the end of the sequence",
        "agrees if the right value is likelier with the wanted record first than between, and "
        "likelier with it last than between: both 95% intervals over seeds are above 0. Does not "
        "agree if one of them is below 0. There is no verdict if the intervals leave it open, if "
        "no answer names the value, or if every answer does.",
        u_shape_of_retrieval,
    ),
    _u_shape(
        "u-shape-of-sensitivity",
        "Section 5, U-shape effect",
        "tokens at the start of the sequence have more opportunity for the information to be "
        "maintained at the end",
        "agrees if the last token is more sensitive to the wanted record where it stands first "
        "than between: the 95% interval over seeds is above 0. Does not agree if it is below 0. "
        "There is no verdict if it leaves it open. The words are of the start only: the end is "
        "told, and not judged.",
        lambda results: _ends_above(
            results, "log_sensitivity", "log sensitivity to the wanted record's tokens", ("first",)
        ),
    ),
)
