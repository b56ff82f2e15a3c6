"""The claims of Figures 8 and 9, the lemmas and propositions on numbers, counting, and the paper's
remedies.
"""

from functools import partial

import numpy as np

from ostools.ground import number
from ostools.paper.claims.claim import (
    FIT_FROM,
    LEAST_RATE,
    UNDECIDED,
    PaperClaim,
    ResultsByPart,
    Verdict,
    decide,
    log_log_slopes,
    require_data,
    vanishes,
)
from ostools.paper.lemmas import ALL_HYPOTHESES
from ostools.results import Frame
from ostools.theory.statistics.fits import fit_decay, over_seeds


def synthetic_converges(results: ResultsByPart) -> Verdict:
    frame = results["figure-8"]["figure"].frame
    long = frame[(frame["length"] >= FIT_FROM) & (frame["reading"] == frame["reading"].iloc[0])]
    curves = long.pivot(index="length", columns="seed", values="l1")
    low, high, slope = _slope(curves)
    fitted = fit_decay(curves.index.to_numpy(float), curves.mean(axis=1).to_numpy())
    falls = vanishes(fitted)
    sentence = f"L1 distance goes as n to the power {slope} from {FIT_FROM} on: {fitted.verdict}"
    agrees, stays = high < 0 and falls is True, low > -LEAST_RATE and high >= 0
    why = ", and one to a level is not ruled out" if high < 0 else UNDECIDED
    return decide(agrees, sentence, agrees or stays or falls is False, why)


def variation_decays(results: ResultsByPart) -> Verdict:
    figure = results["figure-9"]["figure"]
    noisy = int(figure.provenance.parameters["noisy"])
    beyond = figure.frame[figure.frame["length"] > 10 * noisy]
    low, high, slope = _slope(beyond.pivot(index="length", columns="seed", values="delta"))
    above = int((figure.frame["delta"] > figure.frame["bound"]).sum())
    sentence = (
        f"beyond n = {10 * noisy} delta goes as n to the power {slope}; it is above our bound, "
        f"which implies Lemma B.2, at {above} of {len(figure.frame)} points"
    )
    return decide(high < 0 and above == 0, sentence, above or not low <= 0 <= high, UNDECIDED)


def _slope(curves: Frame) -> tuple[float, float, str]:
    """The interval over seeds of a log-log slope, and the slope in words."""
    mean, low, high = over_seeds(list(log_log_slopes(curves)))
    words = f"{number(mean)} [{number(low)}, {number(high)}] over {curves.shape[1]} seeds"
    require_data(np.isfinite(low), f"{words}: two lengths and two seeds, without a 0, are needed")
    return low, high, words


UNBOUNDED = "without bounded scores"
"""What Lemma 4.1 leaves out of Lemma B.2's hypotheses: it is judged by its own words."""


def _lemma_holds(name: str, results: ResultsByPart, left_out: str = "") -> Verdict:
    """Verdict on all checks of a statement under its hypotheses, and of how it breaks without one
    of them.

    left_out: a hypothesis that the words do not have. A check that breaks without it contradicts
        them.
    """
    frame = results["lemmas"]["lemmas"].frame
    rows = frame[frame["lemma"].astype(str).str.split("/").map(lambda names: name in names)]
    passed, is_stated = rows["passed"].astype(bool), rows["hypotheses"] == ALL_HYPOTHESES
    require_data(is_stated.any(), f"no check of {name} was run")
    contradicts = passed & (rows["hypotheses"] == left_out)
    sentence = (
        f"{(passed & is_stated).sum()} of {is_stated.sum()} checks on numbers hold under the "
        f"hypotheses; without one of them it breaks in {(passed & ~is_stated).sum()} of "
        f"{(~is_stated).sum()}"
    )
    if contradicts.any():
        sentence += f". The words leave a hypothesis out, and a case {left_out} contradicts them"
    return decide(bool(passed[is_stated].all() and not contradicts.any()), sentence)


def _lemma(name: str, place: str, words: str, reading: str = "", left_out: str = "") -> PaperClaim:
    rule = (
        "agrees if every check of the statement under its hypotheses holds on numbers (drawn ones "
        f"and worst cases). Numbers do not prove it.{reading}"
    )
    judge = partial(_lemma_holds, name, left_out=left_out)
    proved = "it is a statement about numbers, with a proof and without a model"
    return PaperClaim(f"lemma-{name}", place, words, rule, judge, ("lemmas",), construction=proved)


def counting_impossible(results: ResultsByPart) -> Verdict:
    summary = results["counting"]["counting"].frame
    sentence = "; ".join(
        f"{row['dtype']}: the pair is {row['impossible_status']}, {row['tested_pairs']} pairs "
        f"tested there; both first tokens are right in {row['right_twice']} of them, and one alone "
        f"in {row['right_once']}"
        for row in summary.to_dict("records")
    )
    # No first token is right: nothing could have contradicted it.
    some_right = summary[["right_twice", "right_once"]].any(axis=None)
    return decide(not summary["right_twice"].any(), sentence, some_right)


_AGREES = {"helps": True, "larger": True, "hurts": False, "smaller": False}
"""Verdicts of `ost.study` that decide; every other one leaves a claim open."""


def _remedy(results: ResultsByPart, mitigation: str, about: str) -> Verdict:
    """A mitigation's verdict of `ost.study`, on answers or on the collapse distance."""
    verdicts = results["remedies"]["study"].verdicts
    rows = verdicts[verdicts["mitigation"].astype(str).str.startswith(mitigation)]
    require_data(len(rows), f"{mitigation} was not measured")
    verdict, sentence = rows[about].iloc[0], str(rows["sentence"].iloc[0])
    require_data(verdict in _AGREES, f"the verdict on {about} is: {verdict}. {sentence}")
    return decide(_AGREES[verdict], sentence)


SYNTHETIC = (
    PaperClaim(
        "synthetic-converges",
        "Appendix C.3, Figure 8",
        "We see how also for sinusoidal PEs with key, queries, and values randomly sampled, the "
        "convergence still occurs.",
        f"agrees if the slope of log distance against log length from {FIT_FROM} on is negative "
        "(95% Student interval over seeds) and a law to a level is ruled out, in the first reading "
        "of Figure 8 (“vectors”: queries, keys and values are Gaussian). Does not agree if the law "
        f"is one to a level, or if the interval holds 0 and is above -{LEAST_RATE}. The other "
        "readings are not judged.",
        synthetic_converges,
        needs=("figure-8",),
        figures=(8,),
    ),
    PaperClaim(
        "total-variation-decays",
        "Appendix C.3, Figure 9",
        "It is clear how the total variation decays with length, in accordance with Lemma B.2.",
        "agrees if the slope of log delta against log length is negative beyond ten times the "
        "noisy entries (95% Student interval over seeds), and no point is above our bound, which "
        "implies Lemma B.2. Does not agree if it is positive, or a point is above the bound.",
        variation_decays,
        needs=("figure-9",),
        figures=(9,),
        construction="it is a statement about drawn numbers, without a model, and the bound falls "
        "as 1/n whatever is drawn",
    ),
)
CLAIMS = (
    _lemma(
        "B.1",
        "Appendix B.1, Lemma B.1",
        "adding a new element to a sequence results in the softmax value of a specific token to "
        "decrease",
    ),
    _lemma(
        "4.1",
        "Section 4, Lemma 4.1",
        "Then, the L_1 difference of their softmax tends to 0.",
        " The informal lemma does not ask for bounded scores, as B.2 does. Does not agree if a "
        "case without them breaks.",
        left_out=UNBOUNDED,
    ),
    _lemma(
        "B.2",
        "Appendix B.1, Lemma B.2",
        "the total variation between the two sequences goes to 0 with n",
    ),
    _lemma(
        "B.4", "Appendix B.1, Lemma B.4", "the total variation of the softmax does not decay to 0"
    ),
    _lemma(
        "B.6",
        "Appendix B.2, Lemma B.6",
        "has 1 as its largest eigenvalue. Moreover, such eigenvalue has multiplicity 1 if each row "
        "except the first has at least 2 non-zero entries.",
    ),
    _lemma(
        "B.7",
        "Appendix B.2, Lemma B.7",
        "The product of two row-stochastic matrices is again row-stochastic. Moreover, the product "
        "of two triangular row-stochastic matrices is a triangular row-stochastic matrix.",
    ),
    _lemma(
        "B.8",
        "Appendix B.2, Proposition B.8",
        "will only be sensitive to the first token",
        " The limit is of the bound: off the first token it is 0, and so is the derivative, which "
        "the bound is above. No eigenvectors are used: that the matrix “is diagonalizable”, as the "
        "proof has it, does not follow.",
    ),
    _lemma(
        "B.9",
        "Section 6, Proposition 6.1 (B.9)",
        "A Transformer without positional encodings and a causal attention mechanism is "
        "immediately unable to count.",
    ),
    PaperClaim(
        "counting-impossible",
        "Section 6, Corollary 6.2",
        "Counting in certain situations becomes impossible due to representational collapse.",
        "agrees if two neighbouring counts beyond the collapse (float64 distance below the noise "
        "of the difference), whose right answers begin with different tokens, never both get the "
        "right first token. There is no verdict if there is no such pair, or if none of these "
        "first tokens is right.",
        counting_impossible,
        needs=("counting",),
    ),
    _lemma(
        "B.10",
        "Appendix B.3, Corollary B.10",
        "at least one sequence will be given the wrong count for large enough finite n",
    ),
    PaperClaim(
        "tokens-keep-distant",
        "Section 4, A simple solution",
        "introduce additional tokens throughout the sequence to help keep the representations "
        "distant",
        "agrees if a comma after every third digit makes the float64 distance at y of n and n + 1 "
        "items larger. This is the verdict of `study`, paired by length, at 95% over all its "
        "verdicts (Bonferroni).",
        lambda results: _remedy(results, "separator", "collapse"),
        needs=("remedies",),
    ),
    PaperClaim(
        "affected-by-prompting",
        "Section 3.1, on drawn digits",
        "seems to be affected by the prompting",
        "agrees if the paper's hint changes how many answers to copy-last are right on drawn "
        "digits, where a model that always says 0 is not always right. This is the verdict of "
        "`study`, paired by length, at 95% over all its verdicts (Bonferroni).",
        lambda results: decide(True, _remedy(results, "hint", "answers").sentence),
        needs=("remedies",),
        construction="every prompt enters the computation, and a change of the answers in either "
        "direction meets the rule",
    ),
)
