"""The lemmas and propositions on numbers, the corollary on counting, and the paper's remedies."""

from __future__ import annotations

from typing import Any

from ostools.experiments.lemmas import STATED
from ostools.experiments.reproduce.claim import Claim, ResultsByPart, UntestedError, Verdict, decide
from ostools.experiments.study.verdicts import HELPS, HURTS, LARGER, SMALLER

_PROVED = "it is a statement about numbers, with a proof and without a model"


def _lemma(name: str, results: ResultsByPart) -> Verdict:
    """Every check of a statement under its hypotheses, and of how it breaks without one of them."""
    frame: Any = results["lemmas"]["lemmas"].frame
    rows = frame[frame["lemma"].astype(str).str.split("/").map(lambda names: name in names)]
    stated, without = rows[rows["hypotheses"] == STATED], rows[rows["hypotheses"] != STATED]
    if stated.empty:
        raise UntestedError(f"no check of {name} was run")
    passed_count, broken = int(stated["passed"].sum()), int(without["passed"].sum())
    sentence = f"{passed_count} of {len(stated)} checks on numbers hold as stated"
    if len(without):
        sentence += f"; without one of its hypotheses it breaks in {broken} of {len(without)} checks"
    failed = stated.loc[~stated["passed"].astype(bool), "computed"]
    sentence += "".join(f"; FAILED: {words}" for words in failed)
    return decide(
        passed_count == len(stated),
        sentence,
        held=passed_count,
        checks=len(stated),
        breaks=broken,
        without=len(without),
    )


def _about(lemma: str, place: str, words: str) -> Claim:
    rule = (
        "agrees if every check of the statement under its hypotheses holds on numbers (drawn ones and worst cases). "
        "Numbers do not prove it."
    )
    return Claim(
        f"lemma-{lemma}", place, words, rule, lambda results: _lemma(lemma, results), ("lemmas",), construction=_PROVED
    )


def impossible_counts(results: ResultsByPart) -> Verdict:
    """Neighbouring counts below the noise of their difference, whose right answers begin differently."""
    summary: Any = results["counting"]["counting"].summary  # pyright: ignore[reportAttributeAccessIssue]
    descriptions, tested, twice, once = [], 0, 0, 0
    for row in summary.to_dict("records"):
        descriptions.append(
            f"{row['dtype']}: the pair is {row['impossible_status']}, {row['tested_pairs']} pairs tested there; both "
            f"first tokens are right in {row['right_twice']} of them, and one alone in {row['right_once']}"
        )
        tested, twice, once = tested + row["tested_pairs"], twice + row["right_twice"], once + row["right_once"]
    sentence = "; ".join(descriptions)
    numbers = {"tested_pairs": int(tested), "right_twice": int(twice), "right_once": int(once)}
    if not tested:
        raise UntestedError(
            f"no pair of counts is hidden and has right answers whose first tokens differ ({sentence})",
            **numbers,
        )
    if not twice and not once:
        raise UntestedError(
            f"where the pair is hidden no first token is right, so nothing could have contradicted it ({sentence})",
            **numbers,
        )
    return decide(twice == 0, sentence, **numbers)


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


def prompting_matters(results: ResultsByPart) -> Verdict:
    """The hint's verdict on answers, in either direction."""
    verdict = _remedy(results, "hint", "answers")
    return decide(True, verdict.sentence, **verdict.numbers)


def keep_distant(results: ResultsByPart) -> Verdict:
    return _remedy(results, "separator", "collapse")


CLAIMS = (
    _about(
        "B.1",
        "Appendix B.1, Lemma B.1",
        "adding a new element to a sequence results in the softmax value of a specific token to decrease",
    ),
    _about("4.1", "Section 4, Lemma 4.1", "Then, the L_1 difference of their softmax tends to 0."),
    _about(
        "B.2",
        "Appendix B.1, Lemma B.2",
        "the total variation between the two sequences goes to 0 with n",
    ),
    _about("B.4", "Appendix B.1, Lemma B.4", "the total variation of the softmax does not decay to 0"),
    _about(
        "B.6",
        "Appendix B.2, Lemma B.6",
        "has 1 as its largest eigenvalue. Moreover, such eigenvalue has multiplicity 1 if each row except the first has at "
        "least 2 non-zero entries.",
    ),
    _about(
        "B.7",
        "Appendix B.2, Lemma B.7",
        "The product of two row-stochastic matrices is again row-stochastic. Moreover, the product of two triangular "
        "row-stochastic matrices is a triangular row-stochastic matrix.",
    ),
    _about("B.8", "Appendix B.2, Proposition B.8", "will only be sensitive to the first token"),
    _about(
        "B.9",
        "Section 6, Proposition 6.1 (B.9)",
        "A Transformer without positional encodings and a causal attention mechanism is immediately unable to count.",
    ),
    Claim(
        "counting-impossible",
        "Section 6, Corollary 6.2",
        "Counting in certain situations becomes impossible due to representational collapse.",
        "agrees if two neighbouring counts beyond the collapse (float64 distance below the noise of the difference), "
        "whose right answers begin with different tokens, never both get the right first token. There is no verdict if "
        "there is no such pair, or if none of these first tokens is right.",
        impossible_counts,
        ("counting",),
    ),
    _about(
        "B.10",
        "Appendix B.3, Corollary B.10",
        "at least one sequence will be given the wrong count for large enough finite n",
    ),
    Claim(
        "tokens-keep-distant",
        "Section 4, A simple solution",
        "introduce additional tokens throughout the sequence to help keep the representations distant",
        "agrees if a comma after every third digit makes the float64 distance at y of n and n + 1 items larger. This is the "
        "verdict of `study`, paired by length, at 95% over all its verdicts (Bonferroni).",
        keep_distant,
        ("remedies",),
    ),
    Claim(
        "affected-by-prompting",
        "Section 3.1, on drawn digits",
        "seems to be affected by the prompting",
        "agrees if the paper's hint changes how many answers to copy-last are right on drawn digits, where a model "
        "that always says 0 is not always right. This is the verdict of `study`, paired by length, at 95% over all its "
        "verdicts (Bonferroni).",
        prompting_matters,
        ("remedies",),
        construction="every prompt enters the computation, and a change of the answers in either direction meets the rule",
    ),
)
