"""Reading of a distance: a site, the whole vector there or its pieces by head, and a norm.

Figure 5 reports the "difference in representation at the last layer", the Linf norm of v^(L) - v*^(L), "averaged out over each
head" (section 4). v^(L) has no heads, and the paper does not say what they are of it. Here it is cut into as many chunks of
d_model / H as there are heads (`per="head-chunk"`). The other reading is every head's own output in the last block
(`site="attention"`).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from ostools.ground.errors import InputError
from ostools.ground.names import checked_name
from ostools.results import Frame
from ostools.theory.distances import NORMS

VECTOR, HEAD_CHUNK, HEAD_OUTPUT = "vector", "head-chunk", "head-output"
READINGS = {
    "residual": (VECTOR, HEAD_CHUNK),
    "y": (VECTOR, HEAD_CHUNK),
    "logits": (VECTOR,),
    "attention": (HEAD_OUTPUT,),
}
"""The sites, and what is compared at each: the whole vector, or pieces with their mean, least and greatest."""
SITE_WORDS = {"residual": "v^(L)", "y": "y", "logits": "the logits", "attention": "the last block's heads"}
NORM_WORDS = {"l1": "L1", "l2": "L2", "linf": "L∞", "cosine": "cosine"}
PIECES = {
    HEAD_CHUNK: "heads (chunks of d_model / H)",
    HEAD_OUTPUT: "heads (their outputs in the last block)",
    VECTOR: "",
}
"""What a mean, a least and a greatest are over."""
_PAPERS = {"v": "residual", "v^(L)": "residual"}


def behind_all_blocks(frame: Frame) -> Frame:
    """The rows of a `Collapse`'s table without v^(l) of the layers before the last."""
    return frame[frame["layer"] == frame["layer"].max()]


@dataclass(frozen=True)
class Reading:
    """One way of reading the distance of a pair."""

    site: str
    per: str
    norm: str

    @classmethod
    def with_defaults(cls, site: str, per: str | None, norm: str, *, over_heads: bool = False) -> Reading:
        """The reading of those names; the site residual may be written v, as the paper does.

        per: None is the whole vector, or with `over_heads` its pieces by head, where the site has them.

        Raises `InputError` for an unknown name, and for pieces that the site does not have.
        """
        site = checked_name("site", site, (*READINGS, *_PAPERS))
        site = _PAPERS.get(site, site)
        checked_name("norm", norm, NORMS)
        known_pers = READINGS[site]
        if per is not None and per not in known_pers:
            raise InputError(f"at {site}: expected per {' or '.join(known_pers)}, found {per!r}")
        return cls(site, per or known_pers[-1 if over_heads else 0], norm)

    def of(self, frame: Frame, *, every_layer: bool = False) -> Frame:
        """The rows of a `Collapse`'s table that are read so, after the last block or after every one that was measured.

        Raises `InputError` where there are none, with those there are.
        """
        table = frame if every_layer else behind_all_blocks(frame)
        rows = table[(table["site"] == self.site) & (table["per"] == self.per) & (table["norm"] == self.norm)]
        if rows.empty:
            known_readings = table[["site", "per", "norm"]].drop_duplicates().astype(str).agg("/".join, axis=1)
            raise InputError(
                f"no rows of {'/'.join(astuple(self))} in this result: there are {', '.join(known_readings)}"
            )
        return rows

    @property
    def distance(self) -> str:
        """The distance in words, without its site: "L∞ distance", or "L∞ distance, mean over heads (...)"."""
        over = f", mean over {PIECES[self.per]}" if PIECES[self.per] else ""
        return f"{NORM_WORDS[self.norm]} distance{over}"

    @property
    def words(self) -> str:
        """The distance in words: "L2 distance at y"."""
        over = f", mean over {PIECES[self.per]}" if PIECES[self.per] else ""
        return f"{NORM_WORDS[self.norm]} distance at {SITE_WORDS[self.site]}{over}"
