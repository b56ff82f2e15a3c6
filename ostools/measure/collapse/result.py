"""Result of `collapse`: the distances of every pair, the verdicts and ranges read from them, and
its rows in a sweep's store."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from ostools.ground import InputError
from ostools.measure.collapse.distances import COLUMNS, OF_GIVEN_WEIGHTS, REFERENCE
from ostools.measure.collapse.verdicts import (
    MEASURED,
    ONE_CURVE,
    OVERFLOWS,
    VECTOR,
    Curve,
    Per,
    Reading,
    behind_all_blocks,
    hidden_curves,
    is_hidden,
)
from ostools.results import Chart, Frame, Provenance, Result, TableHead, frame_of
from ostools.theory.distances import DistanceNorm

FITTED_FROM = 8
"""Shorter lengths are left out of the fit of a curve: few copies are not yet many."""
SAME_IN_FLOAT64 = 1e-6
"""A float64 distance that small relative to ||v|| is rounding: rotary angles are float32, whatever
the model is cast to.
"""


@dataclass(frozen=True, eq=False)
class Collapse(Result):
    """One row per pair, length, dtype, site, reading and norm.

    Columns: task, pair (theorem | one-more-digit | task), seed, length (items of v), tokens (of v),
    dtype (a precision by name), weights (how they are stored: "given" where nothing was rounded),
    site (residual: v^(l), y, logits), layer (l, the number of blocks before the site; 0 is the
    embedding, L for all but residual), per (vector | head-chunk), norm (l1 | l2 | linf; of logits
    l2 alone); mean, minimum, maximum of the distance over the pieces; relative (to the same norm of
    v), ulps (distance / machine line), float64_distance (with the same stored weights),
    given_distance, given_relative (in float64 with the weights as given), noise, pair_noise (of
    y - y*), machine_line, weight_shift, each the mean over the pieces; on `logits`
    rows, total_variation (sum |p - p*|, no factor 1/2), same_top_token, identical_logits (bit for
    bit), next_token (the likeliest after v); and status: "measured", or "not finite" of a dtype
    that overflows on this model, whose rows hold no number of its own. NA where a column has no
    meaning. Head chunks are left out where the number of heads does not divide d_model.

    In 16 bits kernels may round otherwise at another length of the pass. So the lengths at both
    ends of a hidden range of whole vectors in L2, and those beside them, have the rows of passes of
    their prompts' own: `provenance.parameters["lengths_in_passes_of_their_own"]` names them, and
    `["difference_at_probed_lengths"]` says how far the shared pass is at most from passes of their
    own where both were run.

    The paper's theorem and its Figure 5 speak of v^(L), before the final norm, and `paper.figure_5`
    draws that. But "the next-token prediction usually depends purely on y_n" (section 2): what a
    model can tell apart is what differs at y.
    """

    key: ClassVar = ("pair", "seed", "length", "dtype", "site", "layer", "per", "norm")
    of_one: ClassVar = ("task",)
    tables: ClassVar = (
        TableHead(
            "curve",
            "pair seed layer length mean pair_noise machine_line",
            across="dtype",
            title="curve_title",
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        n_layers = self.provenance.model.get("n_layers")
        of_the_end = self.frame["layer"] == (
            self.frame["layer"].max() if n_layers is None else n_layers
        )
        if not self.frame.loc[of_the_end, "site"].isin(["y", "residual"]).any():
            raise InputError(
                "Collapse: expected rows of y or v^(L), behind all blocks, found none: keep those"
            )

    @property
    def reference(self) -> pd.DataFrame:
        """The float64 L2 distances after the last block, of the weights as given: task, pair, seed,
        length, tokens, site, distance, relative (to ||v||).
        """
        rows = behind_all_blocks(frame_of(self))
        rows = rows[(rows["per"] == VECTOR) & (rows["norm"] == "l2")]
        keys = ["task", "pair", "seed", "length", "tokens", "site"]
        rows = rows[[*keys, *OF_GIVEN_WEIGHTS]].drop_duplicates(keys, ignore_index=True)
        return rows.rename(columns={"given_distance": "distance", "given_relative": "relative"})

    @property
    def curve(self) -> pd.DataFrame:
        """The rows of whole vectors in L2 that were measured: at y; after every block, of v^(l),
        where several were compared.
        """
        by_layer = frame_of(self)["layer"].nunique() > 1
        return Reading("residual" if by_layer else "y").of(self.measured(), every_layer=by_layer)

    @property
    def curve_title(self) -> str:
        """The distance of `curve` in words, and the task."""
        site = "v^(l)" if frame_of(self)["layer"].nunique() > 1 else "y"
        return f"L2 distance at {site}, {frame_of(self)['task'].iloc[0]}"

    def reference_curve(self, pair: str, site: str = "y") -> pd.DataFrame:
        """The float64 distance and relative of that pair, weights as given, by length; the mean
        over the seeds (or texts) that have every length: over others it would differ in them too.
        """
        rows: Any = self.reference
        complete = rows["seed"].isin(seeds_of_every_length(self))
        rows = rows[(rows["pair"] == pair) & (rows["site"] == site) & complete]
        return rows.groupby("length")[["distance", "relative"]].mean().sort_index()

    @property
    def summary(self) -> pd.DataFrame:
        """One row a pair, seed, dtype and length (a block, where several were compared): `curve`
        with what decides.

        Columns: task, pair, seed, dtype, layer, length, tokens; distance (of the two as this dtype
        gives them), exact_distance (in float64, with the same stored weights), noise (rounding
        noise of y - y*), and hidden: exact_distance is below noise, or distance is 0. float64, the
        reference, has no `hidden` (NA).
        """
        rows = self.curve.rename(columns={"mean": "distance", "float64_distance": "exact_distance"})
        hidden = is_hidden(rows["exact_distance"], rows["pair_noise"], rows["distance"])
        is_rounded = rows["pair_noise"].notna() & (rows["dtype"] != REFERENCE.name)
        names = ["task", "pair", "seed", "dtype", "layer", "length", "tokens"]
        summary = rows[[*names, "distance", "exact_distance"]].assign(
            noise=rows["pair_noise"], hidden=hidden.astype("boolean").where(is_rounded, pd.NA)
        )
        return summary.reset_index(drop=True)

    def hidden_ranges(self, per: Per = VECTOR, norm: DistanceNorm = "l2") -> pd.DataFrame:
        """The ranges of lengths at which the pair is hidden, one row each; measured, not
        extrapolated.

        Hidden at a length: by the rule of `measure.collapse.verdicts`; at the sites "top-token" and
        "identical-logits", the top token is the same, or the logits are bit for bit. Eight tried
        lengths in a row make a range (`theory.distances`).

        Columns: task, pair, seed, dtype, site, layer; first, last, tried (lengths from first to
        last that were tried), hidden (at how many of these), open (it goes on to the longest length
        tried), apart_from (the next length tried; NA of an open range). float64 is the reference,
        and has no row.
        """
        names = ["first", "last", "tried", "hidden", "open", "apart_from"]
        rows = [
            (
                *(*curve.key.values(), span.first, span.last, span.lengths_tried, span.hidden),
                *(span.open, curve.apart_from(span)),
            )
            for curve in hidden_curves(frame_of(self), per, norm)
            for span in curve.ranges
        ]
        return pd.DataFrame(rows, columns=[*ONE_CURVE, *names]).astype({"apart_from": "Int64"})

    def verdicts(self, per: Per = VECTOR, norm: DistanceNorm = "l2") -> pd.DataFrame:
        """The verdict of each (task, pair, seed, dtype, site, layer), also of one without a range.

        Further columns: verdict (its kind, of `collapse.verdicts`), ranges (how many), first and
        last (of the first range; NA without one), tried and hidden (how many lengths were tried,
        and at how many of these the pair is hidden), longest (length tried), and status: the same
        in words."""
        rows = [
            curve.key
            | {
                "verdict": curve.kind,
                "ranges": len(curve.ranges),
                "first": curve.ranges[0].first if curve.ranges else None,
                "last": curve.ranges[0].last if curve.ranges else None,
                "tried": len(curve.lengths),
                "hidden": sum(curve.hidden),
                "longest": max(curve.lengths, default=None),
                "status": curve.words,
            }
            for curve in hidden_curves(frame_of(self), per, norm)
        ]
        names = ["verdict", "ranges", "first", "last", "tried", "hidden", "longest", "status"]
        kinds = dict.fromkeys(("first", "last", "longest"), "Int64")
        return pd.DataFrame(rows, columns=[*ONE_CURVE, *names]).astype(kinds)

    def verdicts_over_seeds(
        self, per: Per = VECTOR, norm: DistanceNorm = "l2"
    ) -> dict[tuple[str, str, str, int], Curve]:
        """The curve, with its verdict, by (pair, dtype, site, layer) of all seeds together: hidden
        at a length is hidden in every seed.
        """
        curves = hidden_curves(frame_of(self), per, norm, over_seeds=True)
        keys = ("pair", "dtype", "site", "layer")
        by_key: Any = {tuple(curve.key[name] for name in keys): curve for curve in curves}
        return by_key

    def overflowing(self) -> dict[str, str]:
        """The dtypes that overflow on this model, of which nothing was measured, each with where it
        does; "" of one of a sweep's other cells.
        """
        frame, places = frame_of(self), self.provenance.parameters.get("not_finite", {})
        dtypes = frame["dtype"][frame["status"] == OVERFLOWS].unique()
        return {dtype: places.get(dtype, "") for dtype in dtypes}

    def measured(self) -> Frame:
        """`frame` without the rows of dtypes that overflow."""
        frame = frame_of(self)
        return frame[frame["status"] == MEASURED]

    def chart(self) -> Chart:
        from ostools.reporting.charts.collapse_parts import collapse_result_chart

        return collapse_result_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.collapse import collapse_findings

        return collapse_findings(self)


def seeds_of_every_length(result: Collapse) -> list[int]:
    """The seeds that have every length; a short text of a sweep has not."""
    lengths = frame_of(result).groupby("seed")["length"].nunique()
    return lengths.index[lengths == frame_of(result)["length"].nunique()].tolist()


def next_tokens(result: Collapse) -> list[tuple[int, int, str]]:
    """Items, seed and likeliest next token of each v, in the first dtype that was measured."""
    tokens = result.measured()[["dtype", "length", "seed", "next_token"]].dropna().drop_duplicates()
    first = tokens[tokens["dtype"] == tokens["dtype"].iloc[0]] if len(tokens) else tokens
    return list(first[["length", "seed", "next_token"]].itertuples(index=False, name=None))


def reference_at_y(result: Collapse) -> pd.DataFrame:
    """The rows of `Collapse.reference` at y, each with its `rounding`.

    Below it two vectors are the same to float64's own rounding; of a distance of 0, any size will
    do.
    """
    table: Any = result.reference[result.reference["site"] == "y"]
    size = (table["distance"] / table["relative"]).where(table["relative"] > 0, 1.0)
    return table.assign(rounding=SAME_IN_FLOAT64 * size)


def exact_from(curve: pd.DataFrame) -> int | None:
    """Length of a `reference_curve` from which the two are the same to float64's own rounding;
    None: not at the longest.
    """
    relative: Any = curve["relative"]
    apart_lengths = relative[relative > SAME_IN_FLOAT64].index
    later = relative.index[relative.index > (apart_lengths.max() if len(apart_lengths) else 0)]
    return int(later.min()) if len(later) else None


def from_rows(rows: Frame, provenance: Provenance) -> Collapse:
    """The result of rows as they are measured, of several results too. Raises `InputError` for rows
    without the columns of this version.
    """
    if missing := {*COLUMNS} - {*rows.columns}:
        raise InputError(
            f"expected the rows of a collapse, found rows of another version, without "
            f"{', '.join(sorted(missing))}: measure again"
        )
    return Collapse(rows.reset_index(drop=True), provenance)
