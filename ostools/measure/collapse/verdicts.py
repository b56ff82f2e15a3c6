"""At which lengths a pair is hidden: the one place that decides it, for tables, charts, findings
and other measurements.

A pair is hidden at a length where its float64 distance, with the same stored weights, is below the
rounding noise of the difference y - y* (`pair_noise`), or where the two come out as the same
numbers. Which of these lengths make a range is `theory.distances`. A length at which nothing was
measured, as the dtype overflows, is in no range.

A distance is read at a site, of the whole vector there or of its pieces by head, in a norm
(`Reading`). Figure 5 reports the "difference in representation at the last layer", the Linf norm of
v^(L) - v*^(L), "averaged out over each head" (section 4). v^(L) has no heads, and the paper does
not say what they are of it. Here it is cut into as many chunks of d_model / H as there are heads
(`per="head-chunk"`). The other reading is every head's own output in the last block
(`site="attention"`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Literal, get_args

from ostools import tasks
from ostools.ground.errors import InputError
from ostools.ground.names import checked_name
from ostools.ground.words import runs
from ostools.results import Frame, Provenance
from ostools.tasks import CollapseTask
from ostools.theory.distances import IN_A_ROW, NORMS, HiddenRange, hidden_ranges

Site = Literal["residual", "y", "logits", "attention", "v", "v^(L)"]
Per = Literal["vector", "head-chunk", "head-output"]
VECTOR, HEAD_CHUNK, HEAD_OUTPUT = get_args(Per)
READINGS = {
    "residual": (VECTOR, HEAD_CHUNK),
    "y": (VECTOR, HEAD_CHUNK),
    "logits": (VECTOR,),
    "attention": (HEAD_OUTPUT,),
}
"""The sites, and what is compared at each: the whole vector, or pieces with their mean, least and
greatest.
"""
SITE_WORDS = {
    "residual": "v^(L)",
    "y": "y",
    "logits": "the logits",
    "attention": "the last block's heads",
}
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
    site: str
    per: str
    norm: str

    @classmethod
    def with_defaults(
        cls, site: str, per: str | None, norm: str, *, over_heads: bool = False
    ) -> Reading:
        """The reading of those names; the site residual may be written v, as the paper does.

        per: None is the whole vector, or with `over_heads` its pieces by head, where the site has
            them.

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
        """The rows of a `Collapse`'s table that are read so, after the last block or after every
        one that was measured.

        Raises `InputError` where there are none, with those there are.
        """
        table = frame if every_layer else behind_all_blocks(frame)
        rows = table[
            (table["site"] == self.site) & (table["per"] == self.per) & (table["norm"] == self.norm)
        ]
        if rows.empty:
            known_readings = (
                table[["site", "per", "norm"]].drop_duplicates().astype(str).agg("/".join, axis=1)
            )
            raise InputError(
                f"no rows of {'/'.join(astuple(self))} in this result: there are {', '.join(known_readings)}"
            )
        return rows

    @property
    def words(self) -> str:
        """The distance in words: "L2 distance at y"."""
        over = f", mean over {PIECES[self.per]}" if PIECES[self.per] else ""
        return f"{NORM_WORDS[self.norm]} distance at {SITE_WORDS[self.site]}{over}"


TOP_TOKEN, IDENTICAL = "top-token", "identical-logits"
MEASURED, OVERFLOWS = "measured", "not finite"
"""The `status` of a row."""
TO_THE_END, IN_A_RANGE, UNDECIDED, TOLD_APART = (
    "hidden to the end",
    "hidden in a range",
    "not decided",
    "apart",
)
"""The kinds of verdict, beside `OVERFLOWS`: a range that goes on to the longest length tried;
ranges that end before it; no range, but hidden at the longest length tried, or too few lengths for
a range; no range; nothing measured, as the dtype overflows."""
ONE_CURVE = ["task", "pair", "seed", "dtype", "site", "layer"]
"""What a curve over lengths is one of."""
_WORDS = {TOP_TOKEN: ("the same", "different"), IDENTICAL: ("identical", "different")}


@dataclass(frozen=True)
class Curve:
    """One curve: at which of its `lengths`, ascending, the pair is `hidden`; `tokens` of v at each.

    `key`: the values of `ONE_CURVE`. At the sites "top-token" and "identical-logits" hidden is the
    same there. `finite`: False where the dtype overflows; then there are no lengths.
    """

    key: tuple[Any, ...]
    lengths: list[int]
    tokens: list[int]
    hidden: list[bool]
    finite: bool = True


@dataclass(frozen=True)
class Limits:
    """Numbers of the model at which a range may begin or end: sliding windows and context in
    tokens, and the longest sequence of this task that it was trained on, in items; None where it is
    not known."""

    windows: tuple[int, ...] = ()
    context: int | None = None
    trained: int | None = None

    @classmethod
    def of(cls, provenance: Provenance, task: str) -> Limits:
        limits: Any = provenance.parameters.get("limits", {})
        trained = trained_length(task, provenance.model.get("trained_lengths"))
        return cls(tuple(limits.get("sliding_windows", ())), limits.get("context"), trained)


@dataclass(frozen=True)
class CurveVerdict:
    """Verdict on one curve: its kind, its ranges, at how many of the tried lengths it is hidden,
    and the same in words."""

    kind: str
    ranges: tuple[HiddenRange, ...]
    lengths: list[int]
    hidden: int
    words: str

    @property
    def where(self) -> str:
        """The ranges alone, for a table: "138 to 501", "138 on, up to 256"; without one the kind,
        or "–" where it is apart.
        """
        if not self.ranges:
            return "–" if self.kind == TOLD_APART else self.kind
        spans = (
            f"{span.first} on, up to {span.last}" if span.open else f"{span.first} to {span.last}"
            for span in self.ranges
        )
        return ", ".join(spans)


def trained_length(task: str, trained: Mapping[str, int] | None) -> int | None:
    """The longest sequence of this task that the model was trained on, in items; None where its
    card does not say.
    """
    trained_name = (
        tasks.task(task, CollapseTask).trained_as if task in tasks.COLLAPSE_TASKS else None
    )
    return None if trained_name is None else (trained or {}).get(trained_name)


def is_hidden(distance: Any, noise: Any, computed: Any) -> Any:
    """Which rows are hidden; `computed`: the distance of the two as they came out."""
    return (distance < noise) | (computed == 0)


def hidden_curves(
    table: Frame, reference: str, per: str = VECTOR, norm: str = "l2"
) -> Iterator[Curve]:
    """Every curve of a `Collapse`'s table but those of the `reference` dtype, of rows without their
    float64 distance, and of a norm in which a difference has no noise (the cosine)."""
    table = table[(table["per"] == per) & (table["norm"] == norm) & (table["dtype"] != reference)]
    table = table.sort_values(by="length", kind="stable")
    for key, group in table.groupby(ONE_CURVE, sort=False):
        finite = "status" not in group or not bool((group["status"] == OVERFLOWS).any())
        group = group[group["float64_distance"].notna() & group["pair_noise"].notna()]
        if finite and group.empty:
            continue
        hidden = is_hidden(group["float64_distance"], group["pair_noise"], group["mean"])
        lengths, tokens = group["length"].tolist(), group["tokens"].tolist()
        yield Curve(key, lengths, tokens, hidden.tolist(), finite)
        *curve, site, layer = key
        if site == "logits":
            for name, column in ((TOP_TOKEN, "same_top_token"), (IDENTICAL, "identical_logits")):
                yield Curve((*curve, name, layer), lengths, tokens, group[column].tolist(), finite)


def over_seeds(curves: Iterable[Curve]) -> list[Curve]:
    """One curve for all seeds of a pair, dtype, site and layer: hidden at a length where it is in
    every seed.
    """
    groups: dict[tuple[Any, ...], list[Curve]] = {}
    for curve in curves:
        task, pair, _, *other_keys = curve.key
        groups.setdefault((task, pair, None, *other_keys), []).append(curve)
    return [_in_every(key, group) for key, group in groups.items()]


def _in_every(key: tuple[Any, ...], curves: list[Curve]) -> Curve:
    hidden: dict[int, bool] = {}
    tokens: dict[int, int] = {}
    for curve in curves:
        tokens = dict(zip(curve.lengths, curve.tokens, strict=True)) | tokens
        for n, is_hidden in zip(curve.lengths, curve.hidden, strict=True):
            hidden[n] = is_hidden and hidden.get(n, True)
    lengths = sorted(hidden)
    finite = all(curve.finite for curve in curves)
    return Curve(key, lengths, [tokens[n] for n in lengths], [hidden[n] for n in lengths], finite)


def deciding(curves: Iterable[Curve]) -> set[tuple[str, int, int]]:
    """(pair, seed, length) of the lengths that decide where a range begins and ends: both ends, and
    the lengths beside them.
    """
    deciding_lengths = set()
    for curve in curves:
        _, pair, seed, *_ = curve.key
        for span in hidden_ranges(curve.hidden, curve.lengths):
            start, end = curve.lengths.index(span.first), curve.lengths.index(span.last)
            neighbours = {
                *curve.lengths[max(start - 1, 0) : start + 1],
                *curve.lengths[end : end + 2],
            }
            deciding_lengths |= {(pair, seed, n) for n in neighbours}
    return deciding_lengths


def judge(curve: Curve, limits: Limits) -> CurveVerdict:
    """The verdict of one curve; the rule is that of `theory.distances`."""
    hidden, apart_word = _WORDS.get(str(curve.key[ONE_CURVE.index("site")]), ("hidden", "apart"))
    if not curve.finite:
        dtype = curve.key[ONE_CURVE.index("dtype")]
        return CurveVerdict(OVERFLOWS, (), [], 0, f"not measured: {dtype} overflows on this model")
    ranges, count = tuple(hidden_ranges(curve.hidden, curve.lengths)), sum(curve.hidden)
    if ranges:
        kind = TO_THE_END if ranges[-1].open else IN_A_RANGE
        words = _in_words(curve, ranges, limits, hidden, apart_word)
    else:
        kind, words = _without_range(curve, count, hidden)
    return CurveVerdict(kind, ranges, curve.lengths, count, words)


def _without_range(curve: Curve, count: int, hidden: str) -> tuple[str, str]:
    count_tried, longest = len(curve.lengths), curve.lengths[-1]
    if not count:
        return (
            TOLD_APART,
            f"not {hidden} at any of the {count_tried} lengths tried, up to {longest}",
        )
    where = f"{hidden} at {count} of the {count_tried} lengths tried, up to {longest}"
    if curve.hidden[-1] or count_tried < IN_A_ROW:
        return UNDECIDED, f"not decided: {where}; a range needs {IN_A_ROW} in a row"
    return TOLD_APART, f"{where}, but not at {IN_A_ROW} in a row, which a range needs"


def _in_words(
    curve: Curve, ranges: tuple[HiddenRange, ...], limits: Limits, hidden: str, apart_word: str
) -> str:
    parts = [_range_in_words(curve, span, limits, hidden, apart_word) for span in ranges]
    if single := sum(curve.hidden) - sum(span.hidden for span in ranges):
        parts.append(
            f"and at {single} more length{'s' * (single != 1)}, fewer than {IN_A_ROW} in a row"
        )
    return f"{hidden} {'; '.join(parts)}"


def _range_in_words(
    curve: Curve, span: HiddenRange, limits: Limits, hidden: str, apart_word: str
) -> str:
    start, end = curve.lengths.index(span.first), curve.lengths.index(span.last)
    shortest = ", the shortest tried," if start == 0 else ""
    upper = f"on, up to {span.last}, the last length tried" if span.open else f"to {span.last}"
    tried, spread = curve.lengths[start : end + 1], span.last - span.first + 1
    holes = [
        n
        for n, is_hidden in zip(tried, curve.hidden[start : end + 1], strict=True)
        if not is_hidden
    ]
    is_sparse = len(tried) < spread
    count = (
        f"{len(tried)} of the {spread} lengths in the range were tried"
        if is_sparse
        else f"all {spread} lengths tried"
    )
    count += f"; not {hidden} at {runs(holes)}" if holes else f", all {hidden}" if is_sparse else ""
    after = curve.hidden[end + 1 : end + 1 + IN_A_ROW]
    ends, apart = "", after.count(False)
    if len(after) == IN_A_ROW:
        ends = f", {apart_word} again from {curve.lengths[end + 1]}"
    elif len(after) == 1:  # a range ends where the next length tried is apart
        ends = f", {apart_word} at {curve.lengths[end + 1]}, the only longer length tried"
    elif after:
        longer = f"all {apart}" if apart == len(after) else f"{apart} of the {len(after)}"
        ends = f", {apart_word} at {longer} longer lengths tried"
    why = "; ".join(
        filter(
            None, [_limit(curve, start - 1, limits) if start else "", _limit(curve, end, limits)]
        )
    )
    return f"from {span.first}{shortest} {upper} ({count}){ends}{f' ({why})' if why else ''}"


def _limit(curve: Curve, index: int, limits: Limits) -> str:
    """Which of the model's numbers the prompt reaches between the tried length of that index and
    the next one, in words.
    """
    before, tokens = curve.lengths[index], curve.tokens[index]
    if index == len(curve.lengths) - 1:
        full = limits.context is not None and tokens + 1 >= limits.context
        return (
            f"no longer prompt fits the model's context of {limits.context} tokens" if full else ""
        )
    after, tokens_after = curve.lengths[index + 1], curve.tokens[index + 1]
    for window in limits.windows:
        if tokens < window == tokens_after:
            return f"at {after} the prompt has {window} tokens, the model's sliding window"
        if tokens < window < tokens_after:
            return f"between {before} and {after} the prompt reaches {window} tokens, the model's sliding window"
    if limits.trained is not None and before <= limits.trained < after:
        return f"{limits.trained} is the longest sequence that the model was trained on"
    return ""
