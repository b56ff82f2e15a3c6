"""The claims about over-squashing: section 5, on prompts whose digits are drawn, and the U-shape on
records.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd

from ostools.ground import number
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
    """Measured norms and path sums of each prompt by position, and the positions of its digits.
    Raises `UntestedError` where there is none.
    """
    result_by_name = results[OVER_SQUASHING]
    names = [name for name in result_by_name if name.startswith("measured-")]
    require_data(names, "no prompt was measured")
    for name in names:
        paths = result_by_name[name.replace("measured", "paths")]
        digits = paths.provenance.parameters["digits"]
        yield result_by_name[name].frame, paths.frame, [int(place) for place in digits]


def _norms(measured: Frame, linearisation: str) -> Column:
    rows = measured[(measured["linearisation"] == linearisation) & (measured["layer"] == 0)]
    return rows.set_index("position")["operator_norm"].sort_index()


def _paths(paths: Frame, variant: str) -> Column:
    return paths[paths["variant"] == variant].set_index("position")["value"].sort_index()


def _below_the_norm(results: ResultsByPart, variant: str) -> tuple[int, str]:
    """Number of tokens at which the bound is below the frozen norm; the same in words, with the
    least bound over norm.
    """
    ratios: Column = pd.concat(
        [_paths(paths, variant) / _norms(norms, "frozen") for norms, paths, _ in _prompts(results)]
    )
    below = int((ratios < 1 - ROUNDING).sum())
    least = number(float(ratios.min()))
    return below, f"at {below} of {len(ratios)} tokens (least bound / measured: {least})"


def bound_holds(results: ResultsByPart) -> Verdict:
    below, words = _below_the_norm(results, CERTIFIED)
    sentence = f"the certified form of the bound is below the measured norm {words}"
    return decide(below == 0, sentence)


def equation_4_holds(results: ResultsByPart) -> Verdict:
    below, words = _below_the_norm(results, EQUATION_4)
    sentence = f"sigma_psi^L times the printed sum is below the measured norm {words}"
    return decide(True, sentence, not below, ". With a greater sigma_psi the bound may hold")


def depends_on_position(results: ResultsByPart) -> Verdict:
    spreads: list[float] = []
    for measured, _, digits in _prompts(results):
        full = measured[(measured["linearisation"] == "full") & (measured["layer"] == 0)]
        groups = full[full["position"].isin(digits)].groupby("token_id")["operator_norm"]
        alike = groups.agg(["max", "min", "size"]).query("size > 1 and min > 0")
        spreads += (alike["max"] / alike["min"]).tolist()
    require_data(spreads, "in every prompt each digit stands at one position alone")
    sentence = (
        "largest over smallest sensitivity of the same digit in a prompt: "
        f"{number(float(np.median(spreads)))} (median of {len(spreads)} digits; the least is "
        f"{number(min(spreads))})"
    )
    return decide(min(spreads) > 1 + ROUNDING, sentence)


def depends_on_attention(results: ResultsByPart) -> Verdict:
    samples = []
    for measured, paths, _ in _prompts(results):
        norms = _norms(measured, "full").to_numpy()
        with_attention = rank_correlation(_paths(paths, PRINTED).to_numpy(), norms)
        samples.append(with_attention - rank_correlation(_equal_attention_paths(len(norms)), norms))
    quantity = (
        "rank correlation of path sum and measured norms, with the model's attention minus with "
        "equal weights"
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
    words = f"minus the rank correlation of position and {quantity}, over the digits"
    return above_zero(samples, words, "prompts")


def only_the_first(results: ResultsByPart) -> Verdict:
    last: Frame = results[OVER_SQUASHING]["powers"].frame
    observed, predicted = last["observed_rate"].fillna(0.0), last["predicted_rate"]
    falls, least = (predicted < 1) & (observed < 1), float(last["remainder"].min())
    near = ((observed / predicted - 1).abs() < RATE_WITHIN).sum()
    sentence = (
        f"off the first token ((A + I) / 2)^{last['power'].max()} of the model's own patterns "
        f"leaves {number(least)} to {number(float(last['remainder'].max()))} of the last token's "
        f"mass. It falls in {falls.sum()} of {len(last)} blocks, in {near} at the predicted rate"
    )
    return decide(bool(len(last) and falls.all()), sentence)


def prevented(results: ResultsByPart) -> Verdict:
    norms_by_prompt = [_norms(measured, "full") for measured, _, _ in _prompts(results)]
    shares = [float(norms.iloc[0] / norms.sum()) for norms in norms_by_prompt]
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
    ends = result.ends[result.ends["quantity"] == quantity].set_index("end")
    require_data(len(ends), "fewer than three positions of the wanted record were asked")
    sentence = (
        f"{words}, at an end minus at the positions between: "
        f"{'; '.join(result.ends_words(quantity))} ({ends['seeds'].max()} seeds)"
    )
    verdicts = {*ends.loc[list(judged), "verdict"]}
    return decide(verdicts == {"above"}, sentence, "below" in verdicts or verdicts == {"above"})


def u_shape_of_retrieval(results: ResultsByPart) -> Verdict:
    names_value = results["retrieval"]["retrieval"].frame["found"].astype(bool)
    words = f"{names_value.sum()} of {len(names_value)} answers name the wanted record's value"
    require_data(names_value.nunique() == 2, words)
    verdict = _ends_above(results, "log_probability", "log probability of the value")
    return Verdict(verdict.outcome, f"{verdict.sentence}; {words}")


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
