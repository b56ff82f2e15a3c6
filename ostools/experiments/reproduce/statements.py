"""The claims within the proof of Theorem B.3, the lemmas and propositions on numbers, counting, and the paper's remedies."""

from __future__ import annotations

from functools import partial
from typing import Any

from ostools.experiments.lemmas import ALL_HYPOTHESES
from ostools.experiments.reproduce.claim import Claim, ResultsByPart, UntestedError, Verdict, claim, decide
from ostools.experiments.reproduce.collapse import FIT_FROM, rounding_floor
from ostools.experiments.reproduce.parts import ATTENTION, LAYERS
from ostools.experiments.study.verdicts import HELPS, HURTS, LARGER, SMALLER
from ostools.ground.words import number
from ostools.theory.statistics.fits import fit_decay

ROUNDING = 1e-12
"""Rounding of float64 attention weights."""
_induction = partial(claim, needs=(ATTENTION,))
_PROOF = "Appendix B.1, proof of Theorem B.3"
_FALLS = f"falls by a law without a level from n = {FIT_FROM} on, on the prompts of Figure 5 (a)"
_ALL = (
    "in every layer. A layer with fewer than eight lengths above rounding is not fitted. There is no verdict if no layer is "
    "fitted, or if some are not fitted and all others fall. A finite run does not show a limit."
)


def _all_vanish(curves: dict[str, Any], floors: dict[str, float], quantity: str) -> Verdict:
    """Fit every curve (values by length): all of them have to fall by a law without a level."""
    descriptions, falling = [], []
    for name, curve in curves.items():
        curve = curve[curve.index >= FIT_FROM]
        fitted = fit_decay(curve.index.to_numpy(dtype=float), curve.to_numpy(dtype=float), floor=floors[name])
        if fitted.verdict == "too few":
            descriptions.append(f"{name}: {fitted.used} lengths above rounding, and a fit needs 8")
            continue
        law, words = fitted.law, fitted.verdict
        if law is not None:
            words += f", rate {number(law.rate)}" + (f" to {number(law.level)}" if law.level else "")
        falling.append(law is not None and law.level == 0)
        descriptions.append(f"{name}: {words}")
    if not falling:
        raise UntestedError(f"{quantity}: no curve can be fitted ({'; '.join(descriptions)})")
    count_words = f"falls by a law without a level in {sum(falling)} of {len(falling)}"
    sentence = f"{quantity}, from n = {FIT_FROM} on: {count_words} ({'; '.join(descriptions)})"
    if all(falling) and len(falling) < len(curves):
        raise UntestedError(f"{sentence}: {len(curves) - len(falling)} of {len(curves)} curves cannot be fitted")
    return decide(all(falling), sentence, falling=sum(falling), fitted=len(falling), curves=len(curves))


def _attention_vanishes(results: ResultsByPart, quantity: str) -> Verdict:
    """Fit the mean over heads of one quantity of `ost.attention_variation`, a curve for each layer."""
    variation: Any = results[ATTENTION]["variation"]
    curves = {
        f"layer {layer}": rows.set_index("length")[quantity].sort_index()
        for layer, rows in variation.over_heads().groupby("layer")
    }
    return _all_vanish(curves, dict.fromkeys(curves, ROUNDING), f"{quantity}, the mean over heads")


@_induction(
    "attention-variation-vanishes",
    _PROOF,
    r"goes to 0 with $n \to \infty$ thanks to Lemma B.2 and our assumptions on the positional encodings",
    f"agrees if delta(alpha_n, alpha*_(n+1)) of the model's attention, the mean over heads, {_FALLS}, {_ALL}",
)
def variation_vanishes(results: ResultsByPart) -> Verdict:
    return _attention_vanishes(results, "delta")


@_induction(
    "own-weight-vanishes",
    _PROOF,
    "goes to 0 due to Lemma B.1",
    f"agrees if the weight alpha*_(n+1,n+1) of the repeated token on itself, the mean over heads, {_FALLS}, {_ALL}",
)
def own_weight_vanishes(results: ResultsByPart) -> Verdict:
    return _attention_vanishes(results, "own")


@claim(
    "induction-on-layers",
    _PROOF,
    "The result then follows via a simple inductive approach on the layers.",
    f"agrees if the float64 L1 distance of v^(l), l = 1 ... L, {_FALLS}, {_ALL}",
    needs=(LAYERS,),
)
def every_layer(results: ResultsByPart) -> Verdict:
    frame: Any = results[LAYERS]["collapse"].frame
    l1 = (frame["site"] == "residual") & (frame["per"] == "vector") & (frame["norm"] == "l1")
    rows = frame[l1 & (frame["layer"] > 0)].drop_duplicates(["layer", "length"])  # at the embedding it is 0
    if rows.empty:
        raise UntestedError("no block was measured")
    curves, floors = {}, {}
    for layer, layer_rows in rows.groupby("layer"):
        name = f"block {layer}"
        curves[name] = layer_rows.set_index("length")["float64_distance"].astype(float).sort_index()
        floors[name] = rounding_floor(layer_rows["mean"].astype(float), layer_rows["relative"].astype(float))
    return _all_vanish(curves, floors, "the float64 L1 distance of v^(l)")


INDUCTION = (variation_vanishes, own_weight_vanishes, every_layer)


UNBOUNDED = "without bounded scores"
"""What Lemma 4.1 leaves out of Lemma B.2's hypotheses: it is judged by its own words."""


def _lemma_holds(name: str, results: ResultsByPart, left_out: str = "") -> Verdict:
    """Verdict on all checks of a statement under its hypotheses, and of how it breaks without one of them.

    left_out: a hypothesis that the words do not have. A check that breaks without it contradicts them.
    """
    frame: Any = results["lemmas"]["lemmas"].frame
    rows = frame[frame["lemma"].astype(str).str.split("/").map(lambda names: name in names)]
    stated, without = rows[rows["hypotheses"] == ALL_HYPOTHESES], rows[rows["hypotheses"] != ALL_HYPOTHESES]
    if stated.empty:
        raise UntestedError(f"no check of {name} was run")
    passed, broken = int(stated["passed"].sum()), int(without["passed"].sum())
    sentence = f"{passed} of {len(stated)} checks on numbers hold under the hypotheses"
    if len(without):
        sentence += f"; without one of its hypotheses it breaks in {broken} of {len(without)} checks"
    failed = stated.loc[~stated["passed"].astype(bool), "computed"]
    sentence += "".join(f"; FAILED: {words}" for words in failed)
    numbers = {"held": passed, "checks": len(stated), "breaks": broken, "without": len(without)}
    counter = without[without["passed"].astype(bool) & (without["hypotheses"] == left_out)]
    if len(counter):
        sentence += f". The words leave a hypothesis out, and a case {left_out} contradicts them"
    return decide(passed == len(stated) and counter.empty, sentence, **numbers)


def _lemma(name: str, place: str, words: str, reading: str = "", left_out: str = "") -> Claim:
    rule = (
        "agrees if every check of the statement under its hypotheses holds on numbers (drawn ones and worst cases). "
        f"Numbers do not prove it.{reading}"
    )
    proved = "it is a statement about numbers, with a proof and without a model"
    return claim(f"lemma-{name}", place, words, rule, needs=("lemmas",), construction=proved)(
        partial(_lemma_holds, name, left_out=left_out)
    )


@claim(
    "counting-impossible",
    "Section 6, Corollary 6.2",
    "Counting in certain situations becomes impossible due to representational collapse.",
    "agrees if two neighbouring counts beyond the collapse (float64 distance below the noise of the difference), "
    "whose right answers begin with different tokens, never both get the right first token. There is no verdict if "
    "there is no such pair, or if none of these first tokens is right.",
    needs=("counting",),
)
def counting_impossible(results: ResultsByPart) -> Verdict:
    summary: Any = results["counting"]["counting"].summary  # pyright: ignore[reportAttributeAccessIssue]
    sentence = "; ".join(
        f"{row['dtype']}: the pair is {row['impossible_status']}, {row['tested_pairs']} pairs tested there; both "
        f"first tokens are right in {row['right_twice']} of them, and one alone in {row['right_once']}"
        for row in summary.to_dict("records")
    )
    numbers = {name: int(summary[name].sum()) for name in ("tested_pairs", "right_twice", "right_once")}
    if not numbers["tested_pairs"]:
        raise UntestedError(
            f"no pair of counts is hidden and has right answers whose first tokens differ ({sentence})", **numbers
        )
    if not numbers["right_twice"] and not numbers["right_once"]:
        raise UntestedError(
            f"where the pair is hidden no first token is right, so nothing could have contradicted it ({sentence})",
            **numbers,
        )
    return decide(numbers["right_twice"] == 0, sentence, **numbers)


def _remedy(results: ResultsByPart, mitigation: str, about: str) -> Verdict:
    """A mitigation's verdict of `ostools.experiments.study`, on answers or on the collapse distance."""
    verdicts: Any = results["remedies"]["study"].verdicts  # pyright: ignore[reportAttributeAccessIssue]
    rows = verdicts[verdicts["mitigation"].astype(str).str.startswith(mitigation)]
    if rows.empty:
        raise UntestedError(f"{mitigation} was not measured")
    row = rows.iloc[0]
    sentence = str(row["sentence"])
    if row[about] not in (HELPS, HURTS, LARGER, SMALLER):
        raise UntestedError(f"the verdict on {about} is: {row[about]}. {sentence}")
    return decide(row[about] in (HELPS, LARGER), sentence, **{about: str(row[about])})


@claim(
    "tokens-keep-distant",
    "Section 4, A simple solution",
    "introduce additional tokens throughout the sequence to help keep the representations distant",
    "agrees if a comma after every third digit makes the float64 distance at y of n and n + 1 items larger. This is the "
    "verdict of `study`, paired by length, at 95% over all its verdicts (Bonferroni).",
    needs=("remedies",),
)
def keep_distant(results: ResultsByPart) -> Verdict:
    return _remedy(results, "separator", "collapse")


@claim(
    "affected-by-prompting",
    "Section 3.1, on drawn digits",
    "seems to be affected by the prompting",
    "agrees if the paper's hint changes how many answers to copy-last are right on drawn digits, where a model "
    "that always says 0 is not always right. This is the verdict of `study`, paired by length, at 95% over all its "
    "verdicts (Bonferroni).",
    needs=("remedies",),
    construction="every prompt enters the computation, and a change of the answers in either direction meets the rule",
)
def prompting_matters(results: ResultsByPart) -> Verdict:
    verdict = _remedy(results, "hint", "answers")
    return decide(True, verdict.sentence, **verdict.numbers)


CLAIMS = (
    _lemma(
        "B.1",
        "Appendix B.1, Lemma B.1",
        "adding a new element to a sequence results in the softmax value of a specific token to decrease",
    ),
    _lemma(
        "4.1",
        "Section 4, Lemma 4.1",
        "Then, the L_1 difference of their softmax tends to 0.",
        " The informal lemma does not ask for bounded scores, as B.2 does. Does not agree if a case without them breaks.",
        left_out=UNBOUNDED,
    ),
    _lemma("B.2", "Appendix B.1, Lemma B.2", "the total variation between the two sequences goes to 0 with n"),
    _lemma("B.4", "Appendix B.1, Lemma B.4", "the total variation of the softmax does not decay to 0"),
    _lemma(
        "B.6",
        "Appendix B.2, Lemma B.6",
        "has 1 as its largest eigenvalue. Moreover, such eigenvalue has multiplicity 1 if each row except the first has at "
        "least 2 non-zero entries.",
    ),
    _lemma(
        "B.7",
        "Appendix B.2, Lemma B.7",
        "The product of two row-stochastic matrices is again row-stochastic. Moreover, the product of two triangular "
        "row-stochastic matrices is a triangular row-stochastic matrix.",
    ),
    _lemma(
        "B.8",
        "Appendix B.2, Proposition B.8",
        "will only be sensitive to the first token",
        " The limit is of the bound: off the first token it is 0, and so is the derivative, which the bound is above. No "
        "eigenvectors are used: that the matrix “is diagonalizable”, as the proof has it, does not follow.",
    ),
    _lemma(
        "B.9",
        "Section 6, Proposition 6.1 (B.9)",
        "A Transformer without positional encodings and a causal attention mechanism is immediately unable to count.",
    ),
    counting_impossible,
    _lemma(
        "B.10",
        "Appendix B.3, Corollary B.10",
        "at least one sequence will be given the wrong count for large enough finite n",
    ),
    keep_distant,
    prompting_matters,
)
