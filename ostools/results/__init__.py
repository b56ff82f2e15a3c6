"""What every measurement returns: a tidy table, and where it came from.

A `Result` is a frozen dataclass around a pandas DataFrame (one row is one measurement) and the
`Provenance` of the run. Saving is atomic: a file appears whole or not at all.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import pandas as pd

from ostools.ground import InputError, checked_name, checked_path, title_of
from ostools.mitigations.named import NONE
from ostools.results.files import (
    FIXED,
    PICTURES,
    TABLES,
    checked_output,
    decoded_fields,
    encoded_fields,
    save_table,
    table_as_json,
    write_atomically,
)
from ostools.results.table_head import Chart, Column, Frame, Looks, Row, TableHead

if TYPE_CHECKING:
    from ostools.ground import TransformerBridge

__all__ = [
    "AGREES_WITHIN",
    "FIXED",
    "PICTURES",
    "TABLES",
    "Chart",
    "Column",
    "Frame",
    "Looks",
    "Provenance",
    "Result",
    "Row",
    "TableHead",
    "checked_output",
    "frame_of",
    "load_result",
    "of_earlier_version",
    "save_table",
    "write_atomically",
]
_VERSIONED = ("oversquashing-tools", "torch", "transformers", "transformer-lens")
AGREES_WITHIN = {"float64": 1e-9, "float32": 1e-4}
"""How far a measured number may move under another number of threads or other CPU kernels, which
add in another order; of the largest number in its column, by the arithmetic that computed it. In 16
bits every sum is rounded, and nothing is promised."""


@cache
def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _VERSIONED}


def _arithmetic() -> dict[str, object]:
    """In which order torch adds here: by how many threads, and by which of its CPU kernels. And
    attention's scores in 16 bits, where the dtype's name has no "-eager"."""
    import torch

    return {
        "threads": torch.get_num_threads(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "agrees_within": AGREES_WITHIN,
        "scores_in_16_bits": "float32",
    }


@dataclass(frozen=True)
class Provenance:
    """Everything needed to get the same numbers again.

    `model` is the `ModelDescription` as a mapping (name, revision, weight hash, architecture,
    dtype, device, attention implementation, ...), empty where there is none; `parameters` the
    arguments of the measurement, `token_ids` the prompt as the model saw it, `edits` the edits of
    the forward pass that were active, each in words, with the number of its with-block or hook,
    which no other has in whatever process, where words do not say what it does.
    `arithmetic`: the threads and the CPU kernels of torch, which decide the last bits, and within
    what the same command agrees under others (`AGREES_WITHIN`); empty in files that were written
    before it was noted. `rows`: how many rows the result had when it was made, by its class,
    where it holds other tables that were made of all of them.
    """

    model: Mapping[str, Any]
    parameters: Mapping[str, Any]
    token_ids: tuple[int, ...] | None
    versions: Mapping[str, str]
    edits: tuple[str, ...] = ()
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    arithmetic: Mapping[str, object] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def collect(
        cls,
        model: TransformerBridge,
        token_ids: tuple[int, ...] | None = None,
        **parameters: object,
    ) -> Provenance:
        """The provenance of a run on `model` now, with the arguments that define its numbers."""
        from ostools import hooks
        from ostools.mitigations.registry import LOADED
        from ostools.models import describe

        parameters |= {"own_files": dict(LOADED)} if LOADED else {}
        described = asdict(describe(model))  # first, as it refuses what is no model
        edits = tuple(str(edit) for edit in hooks.active_edits(model))
        return cls(described, parameters, token_ids, _versions(), edits, arithmetic=_arithmetic())

    @classmethod
    def without_model(cls, **parameters: object) -> Provenance:
        """The provenance of a run on nothing but numbers, with the arguments (seeds, sizes) that
        define them.
        """
        return cls({}, parameters, None, _versions(), arithmetic=_arithmetic())

    @property
    def mitigation(self) -> str | None:
        """The one mitigation that all of it was measured under; None where there was none, or
        several.
        """
        mitigation = self.parameters.get("mitigation")
        if not isinstance(mitigation, str) or mitigation == NONE:
            return None
        return f"{mitigation} (inactive)" if self.is_inactive else mitigation

    @property
    def is_inactive(self) -> bool:
        """Whether its mitigation changed no text and no logit."""
        return self.parameters.get("status") == "inactive"

    def as_dict(self) -> dict[str, Any]:
        """The same as plain, JSON-able values; NaN and infinity, which JSON has not, as texts."""
        return json.loads(json.dumps(asdict(self), default=str), parse_constant=str)


@dataclass(frozen=True, eq=False)
class Result:
    """A tidy table `frame` with the `provenance` of its numbers.

    A class says how it is shown: `chart` draws it, `findings` puts it into sentences, `tables` are
    what a terminal shows (none: the `summary`, or the `frame`). What draws and says is imported
    when it is called, so that a result can be measured and saved without it.
    """

    tables: ClassVar[tuple[TableHead, ...]] = ()
    key: ClassVar[tuple[str, ...]] = ()
    """What tells its rows apart; and what is the same in all of them (`of_one`)."""
    of_one: ClassVar[tuple[str, ...]] = ()

    frame: pd.DataFrame
    provenance: Provenance

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.__repr__ = Result.__repr__  # before `dataclass` writes one with every table in it

    def __post_init__(self) -> None:
        """Count the rows from 0; a named index, which holds a column, becomes that column again."""
        has_named_index = any(name is not None for name in self.frame.index.names)
        object.__setattr__(self, "frame", self.frame.reset_index(drop=not has_named_index))
        if self.frame.empty:
            raise InputError(f"{type(self).__name__}: expected at least one row, found none")
        if len(fields(self)) > len(fields(Result)):
            self._require_all_rows()
        self._require_one_result()

    def _require_all_rows(self) -> None:
        """Refuse a part of the rows beside what was made of all, and note how many these are."""
        name = type(self).__name__
        count = self._rows_of_all or len(self.frame)
        if len(self.frame) != count:
            raise InputError(
                f"{name}: expected the {count} rows that its other tables were made of, found "
                f"{len(self.frame)}: keep the result whole, and select rows of its `frame` for "
                "numbers of your own"
            )
        object.__setattr__(self, "provenance", replace(self.provenance, rows={name: count}))

    def _require_one_result(self) -> None:
        """Refuse rows of several results in one table, which would be told as one curve."""
        key = [name for name in self.key if name in self.frame]
        if key and self.frame.duplicated(key).any():
            raise InputError(
                f"{type(self).__name__}: expected one row for each {', '.join(self.key)}, found "
                "several: keep rows of several results apart"
            )
        for name in self.of_one:
            if name in self.frame and len(values := self.frame[name].unique()) > 1:
                raise InputError(
                    f"{type(self).__name__}: expected rows of one {name}, found "
                    f"{', '.join(map(str, values))}: keep rows of several results apart"
                )

    @property
    def _rows_of_all(self) -> int | None:
        """Of how many rows its other tables were made; None of a new result, and of a file from
        before that was noted.
        """
        return self.provenance.rows.get(type(self).__name__)

    def __repr__(self) -> str:
        """What it is and of what model, and the first rows."""
        rows, columns = self.frame.shape
        model, measurement = self.provenance.model, self.provenance.parameters.get("measurement")
        title = f"{type(self).__name__}: {rows:,} rows of {columns} columns"
        title += f" ({measurement})" if measurement else ""
        title += f", of {title_of(model)} in {model['dtype']}" if model else ""
        title += f", under {self.provenance.mitigation}" if self.provenance.mitigation else ""
        text = f"{title}\n{self.frame.head().to_string(max_colwidth=24)}"
        # What a terminal would obey, in a token or a name, is spelled out.
        return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)

    def plot(self, size: str | float | int | None = None, *, title: bool = True) -> Chart:
        """The chart of this result (Altair); shows itself in a notebook, without a network.

        Args:
            size: "column" (3.3 inches wide) or "page" (6.8) of a paper, "slide" (letters of 19
                points where it fills a slide), or a width in inches. Panels become narrower and
                long words take several lines; a file is scaled down by what is still too wide. Such
                a chart is finished: it is shown and saved, and not layered with others. None: as
                wide as a screen has room for.
            title: False leaves out the title and the notes below it, for a figure whose caption
                says them.

        `.save("figure.pdf")` of a chart embeds its fonts; the text of `.save("figure.svg")` is
        text. Raises `InputError` for a size that cannot be used.
        """
        from ostools.reporting.charts import finished

        return finished(self, size, title)

    def chart(self) -> Chart:
        """The chart in its own size (Altair). Raises `InputError` for a class that draws none."""
        raise InputError(
            f"expected a result that has a chart, found {type(self).__name__}: give the class a "
            "`chart` method"
        )

    def shown_tables(self) -> list[tuple[str, Frame]]:
        """Title and rows of each table that a terminal and a page show, without those that have no
        row.
        """
        usual = TableHead("summary" if hasattr(self, "summary") else "frame")
        tables = (head.of(self) for head in self.tables or (usual,))
        return [(title, table) for title, table in tables if len(table)]

    def findings(self) -> list[str]:
        """Sentences that the numbers say, the most important one first; none of a result that has
        no words.
        """
        return []

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> object:
        """What a notebook shows: the chart, or why there is none and the first rows; in a terminal
        one line.
        """
        from ostools.reporting.style.notebook import result_bundle

        return result_bundle(self)

    def save(
        self, path: str | Path, *, size: str | float | int | None = None, title: bool = True
    ) -> Path:
        """Write the table (.parquet .csv .json) or the chart (.html .png .svg .pdf), by the ending
        of `path`.

        `size` and `title`: of a picture (.png .svg .pdf), as in `plot`. HTML needs no network, and
        static pictures no browser. Raises `InputError` for another ending, for a path that cannot
        be written, and for a size or a title of what is no picture; what was at `path` before then
        still stands.
        """
        target = checked_output(path)
        ending = target.suffix.lower()
        if (size is not None or not title) and ending not in FIXED:
            raise InputError(
                f"size and title are of a picture: expected a name ending in {' '.join(FIXED)}, "
                f"found {target}"
            )
        if ending == ".html":
            from ostools.reporting.page.page import chart_page

            page = chart_page(self.plot(), f"ostools: {type(self).__name__.lower()}")
            return write_atomically(target, lambda part: part.write_text(page, encoding="utf-8"))
        if ending in PICTURES:
            chart = self.plot(size, title=title)
            return write_atomically(
                target, lambda part: chart.save(str(part), format=cast(Literal["png"], ending[1:]))
            )
        return save_table(self.frame, self.provenance.as_dict(), target, encoded_fields(self))

    def as_json(self) -> dict[str, object]:
        """`provenance` and `rows` as plain values; what is missing or not finite is None."""
        return table_as_json(self.frame, self.provenance.as_dict())


def load_result(path: str | Path) -> Result:
    """The result that `Result.save` wrote: its class, all of its tables and its provenance, to the
    last bit.

    It is drawn (`.plot()`), compared (`ost.compare`) and saved like a new one. Tuples in
    `provenance.parameters` are lists, and objects in a column are what Parquet makes of them.

    path: a .parquet or .json file; CSV has no place for where numbers come from. Nothing in the
    file is run: the class is found by its name among the results of ostools. Raises `InputError`
    for a file that holds no result.
    """
    source = checked_path(path)
    if source.suffix.lower() not in (".parquet", ".json"):
        raise InputError(
            f"path {source}: expected a name ending in .parquet or .json, found {source.suffix!r}"
        )
    if not source.is_file():
        raise InputError(
            f"path {source}: expected a file, found "
            f"{'no regular file' if source.exists() else 'nothing'}"
        )
    import ostools.measure
    import ostools.paper
    import ostools.sweep  # noqa: F401 -- the classes by whose name the file is read

    try:
        if source.suffix.lower() == ".parquet":
            frame = pd.read_parquet(source)
            document = {
                "provenance": frame.attrs["ostools"],
                # Parquet has every column whole, in the order that its rows have by now.
                "result": {**frame.attrs["ostools_result"], "columns": {}},
            }
        else:
            document = json.loads(source.read_text("utf-8"))
            columns = document["result"]["dtypes"].keys()
            if any(row.keys() != columns for row in document["rows"]):
                raise ValueError("rows that have not the columns of the table")
            frame = pd.DataFrame(document["rows"], columns=[*columns], dtype=object)
        provenance, stored = document["provenance"], document["result"]
        fields_by_name = decoded_fields(stored, frame, _built)
        _refuse_rounded_scores(fields_by_name["frame"], provenance)
        return _built(stored["class"], {**fields_by_name, "provenance": provenance})
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    except Exception as error:  # whatever a broken file makes a reader raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise InputError(
            f"{source}: expected a result as Result.save writes it, found another file ({reason})"
        ) from None


def _refuse_rounded_scores(frame: pd.DataFrame, provenance: Mapping[str, Any]) -> None:
    """`InputError` for 16-bit numbers from before their scores were float32, which today's names
    would take for others.
    """
    if "scores_in_16_bits" in provenance.get("arithmetic", {}):
        return
    dtypes = {
        str(provenance.get("model", {}).get("dtype")),
        *(frame["dtype"].astype(str) if "dtype" in frame else ()),
    }
    if narrow := sorted(dtypes & {"bfloat16", "float16"}):
        raise InputError(
            f"expected {narrow[0]} with attention's scores in float32, found a result of an "
            f"earlier ostools, which rounded them (today's '{narrow[0]}-eager'): measure it again"
        )


def _built(name: str, values: Mapping[str, Any]) -> Result:
    """A result of the class of ostools with that name. Raises `TypeError` for fields that are not
    the class's own.
    """
    classes = {kind.__name__: kind for kind in _below(Result)}
    kind = classes[checked_name("result", name, classes)]
    names = {field.name for field in fields(kind)}
    # A field that the class had once is passed over where it held nothing, or what the class now
    # computes of its frame.
    values = {
        key: value
        for key, value in values.items()
        if key in names or not (value is None or isinstance(getattr(kind, key, None), property))
    }
    where = {**values["provenance"], "edits": tuple(values["provenance"]["edits"])}
    where["token_ids"] = None if where["token_ids"] is None else tuple(where["token_ids"])
    return kind(**{**values, "provenance": Provenance(**where)})


def _below(kind: type[Result]) -> Iterator[type[Result]]:
    """The class and all its subclasses that ostools has."""
    if kind.__module__.startswith("ostools."):
        yield kind
    for subclass in kind.__subclasses__():
        yield from _below(subclass)


def of_earlier_version(result: Result, what: str) -> InputError:
    """The refusal of a stored result whose numbers are not those of its class today."""
    version = result.provenance.versions.get("oversquashing-tools", "of an unknown number")
    return InputError(
        f"expected {type(result).__name__} as this version measures it, found {what}, which an "
        f"earlier ostools (version {version}) wrote: measure it again"
    )


def frame_of(result: Result) -> Frame:
    """The table of a result, for code that selects and groups all the time."""
    return result.frame
