"""The sections that every page has: what was run, how to read it, how to run it again.
`GLOSSARY`: terms as reports, charts and the documentation use them; `python -m scripts.glossary`
writes docs/glossary.md of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ostools.ground import title_of
from ostools.reporting.page.section import Part, Section
from ostools.reporting.sections.records import Measurements
from ostools.results import Provenance

CAVEATS = (
    (
        "Measured norms are exact derivatives. Estimated norms come from random probes and have "
        "intervals."
    ),
    "The certified bounds drawn here are bounds of the derivative with attention patterns and "
    "norm scales frozen. Those are the assumptions of Theorem 5.1. They do not bound the real "
    "derivative.",
    "Theorem 4.2 assumes that positional information decays with distance, “e.g. as in RoPE”. "
    "Rotary positions did not do that where it was measured, on random decoders. Whether a "
    "distance falls is therefore measured here.",
    "A U, in the strip at the top: over natural passages that are rotated by thirds, both outer "
    "thirds have larger norms than the middle one, and both 95% intervals over passages exclude "
    "zero. That is the paper's over-squashing. Recency: the last third alone. Primacy: the first "
    "alone. None: the test shows neither. One prompt's profile confounds place and content.",
    "Norms say how far y can move. They do not say whether an answer depends on a token: a small "
    "norm may be enough, and a large one may not be used.",
    (
        "Intervals of answers (Wilson, 95%) are over the prompts that were drawn. A greedy "
        "answer to one prompt has no interval."
    ),
)


def run_section(measured: Measurements) -> Section:
    """Provenance, the prompt, and what was left out."""
    parts = [Part(terms=origin_terms(measured.provenance))]
    if {"sensitivity", "layers", "attention"} & measured.results.keys():
        parts.append(Part("The prompt whose tokens are measured", quote=measured.prompt))
    if measured.reduced:
        parts.append(
            Part("Less than in a full report of a small model", findings=[measured.reduced])
        )
    if measured.left_out:
        omissions = [f"{section}: {reason}" for section, reason in measured.left_out]
        parts.append(Part("Left out, and why", items=omissions))
    return Section("run", "What was run", "What was run", "", parts)


def origin_terms(provenance: Provenance) -> list[tuple[str, str]]:
    """Where numbers of one model come from, as terms and values; what is not known is left out."""
    model = provenance.model
    size = "size not known"
    if "n_parameters" in model:
        size = f"{int(model['n_parameters']):,} parameters"
    if "n_layers" in model:
        size += (
            f": {model['n_layers']} layers, d_model {model['d_model']}, {model['n_heads']} heads "
            f"({model['n_key_value_heads']} key/value), vocabulary {int(model['d_vocab']):,}"
        )
    attention = model.get("attention_implementation")
    rows = {
        "model": title_of(model),
        "revision": str(model.get("revision") or "none (not from a hub)"),
        "stored as": model.get("quantisation"),
        "weights (XXH3)": str(model.get("weight_hash")),
        "architecture": f"{model.get('architecture')}, {size}",
        "dtype, device": f"{model.get('dtype')} on {model.get('device')}"
        + (f", {attention} attention" if attention else ""),
        "time": provenance.time,
        "versions": versions_of(provenance.versions),
        "active edits": "; ".join(provenance.edits),
    }
    return [(term, str(value)) for term, value in rows.items() if value]


def versions_of(versions: Mapping[str, str]) -> str:
    """Libraries and their versions, in one line."""
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def reading_section() -> Section:
    """How far the numbers carry, and what the words mean."""
    words = Part("Words", terms=[(term.name, term.explained) for term in GLOSSARY])
    return Section(
        "reading", "Reading the numbers", "Reading the numbers", "", [Part(items=CAVEATS), words]
    )


def again_section(command: str) -> Section:
    """The exact command."""
    return Section("again", "Run it again", "Run it again", "", [Part(code=command)])


@dataclass(frozen=True)
class Term:
    """A term, what it means, where the paper has it ("": the word is ours), and where the
    documentation says more.
    """

    name: str
    means: str
    paper: str
    more: str

    @property
    def explained(self) -> str:
        """The meaning and its place in the paper, in one paragraph."""
        return f"{self.means} Paper: {self.paper}." if self.paper else self.means


GLOSSARY = (
    Term(
        "Representation of the last token, y",
        "What the final norm makes of the last token's vector. The paper writes y_n. The next "
        "token is predicted from it alone, so what it does not hold cannot be answered.",
        "Section 2",
        "theory.md#section-1",
    ),
    Term(
        "Representational collapse",
        "The representations of two different sequences come so close that a model of limited "
        "precision cannot tell them apart. The paper's two sequences differ by one repetition of "
        "the last token.",
        "Theorem 4.2; formally Theorem B.3",
        "theory.md#section-4",
    ),
    Term(
        "Rounding noise",
        "How far a representation moves only because a model runs in few bits: its distance from "
        "the same representation in float64. The word is ours. In the paper lower precision "
        "makes collapse come sooner, and distances are near machine precision.",
        "Section 4, “Quantisation and Tokenisation” and “Measuring representational collapse”",
        "theory.md#section-4",
    ),
    Term(
        "Hidden range",
        "A range of lengths at which the float64 distance of the two sequences is below the "
        "rounding noise of their difference in a dtype: at eight tried lengths in a row or more. "
        "The word is ours. It says nothing about lengths that were not tried.",
        "",
        "reading-the-numbers.md",
    ),
    Term(
        "Over-squashing",
        "Too little of a token's information reaches the last token, because attention has to "
        "pass it on through all layers. The word comes from graph neural networks.",
        "Section 2, “Over-squashing”, and Section 5",
        "theory.md#section-2",
    ),
    Term(
        "Sensitivity",
        "The norm of the derivative of y by the embedding v_i of token i: how far the last "
        "token's representation moves when the embedding moves a little. A small norm does not "
        "prove that the answer ignores the token.",
        "Section 5",
        "theory.md#section-2",
    ),
    Term(
        "Full and frozen",
        "Two derivatives. The full one is the network's own. The frozen one holds attention "
        "weights and the scales of the norms, as the paper's two simplifying assumptions do. The "
        "two words are ours.",
        "Section 5, assumptions (i) and (ii)",
        "theory.md#section-2",
    ),
    Term(
        "Path sum",
        "The sum over all ways from token i through the layers to the last token, each weighted "
        "by the attention that it takes.",
        "the right-hand side of Theorem 5.1, Equation (1)",
        "theory.md#section-3",
    ),
    Term(
        "Certified bound",
        "A number that the norm of a derivative provably does not exceed, computed from this "
        "model's weights. It is of the frozen derivative, and says nothing about the full one. "
        "The paper's own forms need constants that a real model does not have, so they are drawn "
        "as the paper's and not as bounds. The word is ours. How many times too large a bound "
        "is, is its looseness.",
        "",
        "theory.md#section-3-2",
    ),
    Term(
        "Believed here",
        "Of a form that is no bound, such as the paper's printed ones: on this prompt it has the "
        "order and the size of the measured norms, by rules that were fixed beforehand. It says "
        "nothing about another prompt. The word is ours.",
        "",
        "theory.md#section-3-3",
    ),
    Term(
        "U-shape",
        "What stands near the start or the end of a prompt is retrieved better than what stands "
        "between. The paper explains the start by the many paths from it, and the end by a bias "
        "towards recent tokens that is learnt in training. Here the word is used of sensitivity "
        "too.",
        "Section 5, “U-shape effect”",
        "reading-the-numbers.md",
    ),
    Term(
        "Mitigation",
        "A change of the prompt or of the forward pass that may help. The paper's are tokens "
        "between repeated ones, such as a comma after every third digit, and a hint in the "
        "prompt.",
        "Section 4, “A simple solution to representational collapse”; Figure 2 (b)",
        "theory.md#section-7",
    ),
    Term(
        "Matrix entropy",
        "The entropy of the squared singular values of the matrix of all tokens' states in a "
        "layer, over their sum: 0 where all tokens are one vector. A layer where it is low is "
        "called a compression valley (arXiv 2510.06477).",
        "",
        "theory.md#section-4",
    ),
    Term(
        "Effective rank",
        "The exponential of the entropy of the singular values themselves: in how many "
        "directions the tokens of a layer differ, from 1 to their number (Roy and Vetterli 2007).",
        "",
        "theory.md#section-4",
    ),
    Term(
        "Massive activation",
        (
            "A token, as a rule the first, whose state is many times longer than the others' "
            "(arXiv 2510.06477)."
        ),
        "",
        "theory.md#section-4",
    ),
    Term(
        "Sink rate",
        "The share of a block's heads that put more than 0.3 of their attention on the first "
        "token, in the mean over later queries. Of one head it is the share of its queries "
        "(arXiv 2410.10781).",
        "",
        "theory.md#section-4",
    ),
    Term(
        "Activation patching",
        "An activation of one run is put into another run, of a prompt of as many tokens, to see "
        "how much of the answer goes with it. Denoising puts the clean run's into the corrupt "
        "one, noising the corrupt run's into the clean one. A share is of the gap between the "
        "two runs. The words are the field's.",
        "",
        "theory.md#section-8",
    ),
    Term(
        "Attention knockout",
        "Some tokens can no longer attend to some others, in a few layers in a row. What the "
        "answer loses had come along these edges, or along what they feed. The word is the "
        "field's.",
        "",
        "theory.md#section-8",
    ),
)
