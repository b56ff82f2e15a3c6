"""Targets of attacks: each draws a case and calls the command line with it, under the law of
`attempts`.

The suite takes a few cases of each, `make stress` ten thousand in all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning
from starlette.testclient import TestClient

from ostools.cli.global_options import on_one_line
from ostools.explorer.app import application
from ostools.explorer.recipe import Runs
from ostools.explorer.views import Subject
from ostools.models import load_model
from ostools.tasks import questions
from tests.hostile.attempts import Attempt, Reached, assert_lawful, attempt, watched
from tests.hostile.spoiling import (
    KINDS,
    NASTY,
    PICKLE,
    as_json,
    read_files,
    spoiled_bytes,
    spoiled_checkpoint,
    spoiled_json,
    sweep_files,
    texts,
    values,
    write_files,
)

Files = dict[str, bytes]
_CELL = re.compile(r"cells/([0-9a-f]{16}\.[0-9a-f]{8})\.[0-9a-f]{16}\.parquet")
_SMALL: dict[str, Any] = {
    "d_model": 8,
    "n_heads": 2,
    "n_key_value_heads": 1,
    "d_head": 4,
    "d_mlp": 8,
}
_SMALL |= {"n_layers": 1, "context": 256}
_SWEEP = b"""models: tiny
tasks: copy-last
lengths: [2, 3]
mitigations: [none, hint]
measurements: [evaluate, bounds]
device: cpu
"""


@dataclass(frozen=True)
class Ground:
    """Files before they are spoiled: a tiny checkpoint, and the directory of a sweep on it, one of
    whose cells failed.
    """

    directory: Path
    checkpoint: Files
    results: Files


@dataclass(frozen=True)
class Target:
    """`case` draws what `work` does in an empty directory; `share` of all cases are this target's."""

    name: str
    share: float
    case: Callable[[Ground], st.SearchStrategy[Any]]
    work: Callable[[Ground, Any, Path], Attempt]


@contextmanager
def prepared() -> Iterator[Ground]:
    """The ground to attack from, without a network, the tiny model loaded once. Deleted in the end."""
    import huggingface_hub.constants

    import ostools.models.load as loading
    from tests.checkpoints import write_checkpoint

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
        stack.enter_context(patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True))
        checkpoint = read_files(write_checkpoint(directory / "tiny", "gemma", **_SMALL))
        (directory / "sweep.yaml").write_bytes(_SWEEP)
        made = attempt(["sweep", "run", "sweep.yaml", "--out", "results"], directory, within=600)
        # `path-sum` refuses the one length that does not fit, so that there is a record of a
        # failure.
        (directory / "sweep.yaml").write_bytes(_SWEEP.replace(b"[2, 3]", b"[2, 3, 200]"))
        failed = attempt(["sweep", "run", "sweep.yaml", "--out", "results"], directory, within=600)
        assert (made.code, failed.code) == (0, 1), (made, failed)
        held: dict[str, Any] = {}
        load = loading.load_model

        def loaded(name: Any = None, **options: Any) -> Any:
            """The tiny model from memory wherever it is asked for as it is; the embedded one too,
            which is larger.
            """
            if name not in (None, "embedded", "tiny"):
                return load(name, **options)
            key = json.dumps(options, default=str, sort_keys=True)
            if key not in held:
                held[key] = load(directory / "tiny", **options)
            return held[key]

        stack.enter_context(patch("ostools.models.load_model", loaded))
        yield Ground(directory, checkpoint, read_files(directory / "results"))


def check(target: Target, ground: Ground, case: Any) -> None:
    """One case, in an empty directory of its own. Nothing of it is left, and nothing was executed."""
    below = Path(tempfile.mkdtemp(dir=ground.directory))
    try:
        target.work(ground, case, below)
        assert not any(path.name == "executed" for path in below.rglob("executed")), (
            "code was executed"
        )
    finally:
        shutil.rmtree(below, ignore_errors=True)


def attack(target: Target, ground: Ground, cases: int, start: int | None = None) -> None:
    """So many cases of a target; hypothesis makes the first that breaks the law small and raises
    it. `start` is a seed.
    """

    def one(case: Any) -> None:
        check(target, ground, case)

    many = settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=start is None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
        print_blob=False,
    )
    tested = many(given(target.case(ground))(one))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)  # a checkpoint is large to print
        (tested if start is None else seed(start)(tested))()


# --- the words of a command line


def _options() -> dict[str, list[str]]:
    """Every option of every command, by the command."""
    from ostools.cli.commands import COMMANDS
    from ostools.cli.options import declared

    return {
        command.name: [
            word for option in declared(command) for word in option.opts if word.startswith("-")
        ]
        for command in COMMANDS.values()
    }


def _words(ground: Ground) -> st.SearchStrategy[Any]:
    # Where a file is to be written is the user's to say: only names of this directory are asked
    # for.
    inside = [word for word in NASTY if not word.startswith(("/", ".."))]
    free = st.sampled_from(inside) | st.text(max_size=12).filter(
        lambda text: "/" not in text and not text.startswith("..")
    )
    usual = st.sampled_from(
        [
            "tiny",
            "4",
            "1:3",
            "float32",
            "cpu",
            "copy-last",
            "local",
            "full",
            "x.csv",
            "x.html",
            "embedded",
            "0",
        ]
    )

    def of(command: str) -> st.SearchStrategy[list[str]]:
        options = [word for word in known[command] if word not in ("--help", "--ray-address")]
        option = st.sampled_from(options) if options else free
        pair = st.tuples(option, usual | free).map(list)
        alone = (option | free | usual).map(lambda word: [word])
        pieces = st.lists(pair | pair | alone, max_size=5)
        return pieces.map(
            lambda found: [*command.split(), *(word for piece in found for word in piece)]
        )

    known = _options()
    called = st.sampled_from(sorted(known)).flatmap(of)
    return called | called | called | st.lists(free, max_size=4)


def _worded(ground: Ground, case: Any, below: Path) -> Attempt:
    """As far as the work itself, which begins where a command shows progress."""

    def reached(description: str) -> Any:
        raise Reached(description)

    with patch("ostools.cli.terminal.progress", reached):
        return attempt(
            [word.replace("\0", "") if index else word for index, word in enumerate(case)], below
        )


_WORKING = (
    ("sensitivity", "--prompt", "a b", "--method", "exact", "--json"),
    ("attention", "--prompt", "a b", "--out", "x.html"),
    ("collapse", "--prompt", "a b", "--item", "a", "--lengths", "1:2"),
    ("bounds", "--prompt", "a b", "--variants", "local"),
    ("collapse", "--lengths", "1:2", "--dtypes", "float32"),
    ("evaluate", "--lengths", "2:3", "--task", "copy-last", "--max-new-tokens", "2"),
    ("ablate", "--task", "copy-last", "--lengths", "3"),
    ("mitigate", "--mitigations", "hint", "--lengths", "4:5"),
)
_SPECS = st.builds(
    "{}:{}={}".format,
    st.sampled_from(
        [
            "copy-last",
            "count-ones",
            "count-ones-bernoulli",
            "hint",
            "separator",
            "sliding-window",
            "temperature",
        ]
    ),
    st.sampled_from(["uniform", "every", "window", "sinks", "p", "position", "scale", "mode"])
    | texts,
    st.sampled_from(["0", "-1", "1", "true", "1e308", "nan", "9" * 30, "9" * 5000]) | texts,
)
_NUMBERS = st.sampled_from(
    [
        "0",
        "-1",
        "1",
        "nan",
        "inf",
        "1e308",
        "1e-308",
        "1e999",
        "9" * 18,
        "9" * 30,
        "9" * 5000,
        "0x1",
    ]
)
_WORDS = """
full frozen local windowed(999999999) windowed(9999999999) float16 float64 bfloat16-kv exact estimate cot-zero-shot all last
cpu:0 cpu:1 meta cuda:0 mps cpu:-1 xla 0:2 1,0 : 0,0,0 , 1:1 2,2 1000000 0.0 9.9 0.mlp 0.0:1:0 0.0:99:0 -1.0
"""
_VALUES = (
    _NUMBERS
    | _NUMBERS.map("{}GiB".format)
    | st.sampled_from(_WORDS.split())
    | _SPECS
    | texts
    | values.map(str)
)
_TRIED = """
--relative-error --max-memory --max-new-tokens --sensitivity-lengths --level --seed --seeds --load-dtype --layers --lengths
--length --task --mitigation --linearisations --variants --dtypes --device --positions --method --mode --targets --measures
--prompt --item --model
"""


def _working(ground: Ground) -> st.SearchStrategy[Any]:
    known = _options()

    def of(command: tuple[str, ...]) -> st.SearchStrategy[Any]:
        options = [word for word in _TRIED.split() if word in known[command[0]]]
        given = st.tuples(st.sampled_from(options), _VALUES) | st.just(("--lengths", "1:1000000"))
        return st.tuples(st.just(command), st.lists(given, min_size=1, max_size=2))

    return st.sampled_from(_WORKING).flatmap(of)


def _worked(ground: Ground, case: Any, below: Path) -> Attempt:
    command, given = case
    return attempt(
        [*command, "--model", "tiny", *(f"{option}={value}" for option, value in given)], below
    )


# --- files


def _sweep_file(ground: Ground, case: bytes, below: Path) -> Attempt:
    (below / "sweep.yaml").write_bytes(case)
    (below / "tiny").symlink_to(ground.directory / "tiny")
    return attempt(["sweep", "run", "sweep.yaml", "--out", "results", "--dry-run"], below)


def _checkpoints(ground: Ground) -> st.SearchStrategy[Any]:
    loaded = ["bounds", "--prompt", "ab", "--model", "./model", "--variants", "local"]
    forecast = ["sweep", "run", "sweep.yaml", "--out", "results", "--dry-run"]
    return st.tuples(
        spoiled_checkpoint(ground.checkpoint), st.sampled_from([loaded, loaded, forecast])
    )


def _checkpoint(ground: Ground, case: Any, below: Path) -> Attempt:
    files, command = case
    write_files(below / "model", files)
    (below / "sweep.yaml").write_bytes(_SWEEP.replace(b"tiny", b"./model"))
    return attempt(command, below)


@st.composite
def _directories(draw: st.DrawFn, ground: Ground) -> Any:
    """The directory of a sweep with one or two files spoiled, and the command that reads it."""
    found: dict[str, bytes | str] = dict(ground.results)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(ground.results)))
        content = ground.results[name]
        what = draw(st.sampled_from(["inside", "inside", "bytes", "kind", "gone", "added"]))
        if (
            what == "inside" and name == "sweep.json" and draw(st.booleans())
        ):  # one word of one cell: else it is rare
            told = json.loads(content)
            cell = draw(st.sampled_from(told["cells"]))["cell"]
            cell[draw(st.sampled_from(sorted(cell)))] = draw(
                texts | values | st.sampled_from([[], '{"a": NaN}'])
            )
            found[name] = as_json(told)
        elif what == "inside" and name.endswith(".json"):
            found[name] = as_json(draw(spoiled_json(json.loads(content))))
        elif what == "inside" and (cell := _CELL.fullmatch(name)):
            found.pop(name, None)
            changed = draw(_parquet(content) | spoiled_bytes(content))
            found[f"cells/{cell[1]}.{hashlib.sha256(changed).hexdigest()[:16]}.parquet"] = changed
        elif what == "kind":
            found[name] = draw(st.sampled_from((*KINDS, "a pipe", "a link to /dev/zero")))
        elif what == "gone":
            found.pop(name, None)
        elif what == "added":
            errors = "surrogatepass" if draw(st.booleans()) else "ignore"
            word = draw(texts).replace("/", "").replace("\0", "").encode("utf-8", errors)
            folder = draw(st.sampled_from(["", "cells/", "failed/"]))
            found[folder + (os.fsdecode(word)[:60] or "x")] = PICKLE
        else:
            found[name] = draw(spoiled_bytes(content))
    return found, draw(st.sampled_from(_READING))


_READING = (
    ["sweep", "results", "results"],
    ["sweep", "results", "results", "--json"],
    ["sweep", "results", "results", "--out", "x.csv"],
    ["report", "--run", "results", "--out", "x.html"],
    ["sweep", "run", "sweep.yaml", "--out", "results", "--dry-run"],
)


@st.composite
def _parquet(draw: st.DrawFn, content: bytes) -> bytes:
    """A table that Parquet can hold, of other columns, types or metadata than a cell's."""
    import io

    import pandas as pd

    table = pd.read_parquet(io.BytesIO(content))
    attrs = table.attrs
    what = draw(st.sampled_from(["attrs", "column", "column", "gone", "rows", "added", "arrow"]))
    if what == "arrow":
        return draw(_arrow(content))
    column = draw(st.sampled_from(list(table.columns)))
    if what == "attrs":
        attrs = draw(spoiled_json(attrs))
    elif what == "column":
        odd = [["a"], "a\x1b[31m", b"x", float("nan"), float("inf"), 2**62, None, {"a": 1}]
        table[column] = [draw(st.sampled_from(odd))] * len(table)
    elif what == "added":
        table[draw(texts).encode("utf-8", "ignore").decode()] = "\x1b[31m"
    else:
        table = table.drop(columns=[column]) if what == "gone" else table.iloc[:0]
    table.attrs = attrs if isinstance(attrs, dict) else {"ostools": attrs}
    return table.to_parquet(index=False)


@st.composite
def _arrow(draw: st.DrawFn, content: bytes) -> bytes:
    """A table that Parquet holds and pandas does not write: a column twice, or text that is no
    UTF-8.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = parquet.read_table(pa.BufferReader(content))
    place = draw(st.integers(0, table.num_columns - 1))
    name = draw(st.sampled_from(table.column_names) | st.just("other"))
    if draw(st.booleans()):
        table = table.append_column(name, table.column(place))
    else:
        bad = pa.array([b"\xff\xfe"] * len(table))
        words = pa.Array.from_buffers(pa.string(), len(table), bad.buffers())
        table = (
            table.append_column(name, words)
            if name == "other"
            else table.set_column(place, name, words)
        )
    parquet.write_table(table, to := pa.BufferOutputStream())
    return to.getvalue().to_pybytes()


def _result(ground: Ground, case: Any, below: Path) -> Attempt:
    files, command = case
    (below / "sweep.yaml").write_bytes(_SWEEP)
    (below / "tiny").symlink_to(ground.directory / "tiny")
    write_files(below / "results", files)
    return attempt(command, below)


# --- answers that were made elsewhere, and requests to the explorer


def _answer_files(ground: Ground) -> st.SearchStrategy[bytes]:
    rows = [
        {
            "id": one.id,
            "text": "The answer is: 0",
            "finish_reason": "stop",
            "prompt_tokens": 9,
            "seconds": 0.5,
        }
        for one in questions("copy-last", lengths=[2, 3, 4])
    ]
    spoiled = spoiled_json(rows).map(
        lambda found: b"\n".join(map(as_json, found if isinstance(found, list) else [found]))
    )
    return spoiled | spoiled_bytes(b"\n".join(map(as_json, rows)))


def _answer_file(ground: Ground, case: bytes, below: Path) -> Attempt:
    (below / "answers.jsonl").write_bytes(case)
    words = [
        "evaluate",
        "--task",
        "copy-last",
        "--lengths",
        "2:4",
        "--answers",
        "answers.jsonl",
        "--model",
        "m",
    ]
    return attempt(words, below)


def _requests(ground: Ground) -> st.SearchStrategy[bytes]:
    asked = {
        "view": "frozen",
        "prompt": "a b",
        "layer": 0,
        "dtype": "float32",
        "logit": "1",
        "chart": False,
        "before": 0,
    }
    asked |= {
        "beside": "mitigation",
        "other": "repeat-prompt:times=2",
        "head": 0,
        "dtypes": ["bfloat16"],
        "longest": 8,
    }
    return spoiled_json(asked).map(as_json) | spoiled_bytes(as_json(asked))


def _request(ground: Ground, case: bytes, below: Path) -> Attempt:
    """An answer, or a refusal in one line: an error of the server is raised here."""
    runs = Runs(Subject(load_model(ground.directory / "tiny")))
    try:
        with watched(below):
            client = TestClient(
                application(runs, "", "127.0.0.1", None), base_url="http://127.0.0.1:1"
            )
            answer = client.post("/run", content=case, headers={"content-type": "application/json"})
    finally:
        runs.close()
    if answer.status_code == 200:
        return Attempt((), 0, "", "")
    assert answer.status_code == 400, answer
    found = Attempt((), 2, "", f"ostools: {on_one_line(answer.json()['error'])}\n")
    assert_lawful(found)
    return found


TARGETS = (
    Target("words", 0.2, _words, _worded),
    Target("options", 0.2, _working, _worked),
    Target("answers", 0.05, _answer_files, _answer_file),
    Target("requests", 0.05, _requests, _request),
    Target("sweep files", 0.2, lambda _: sweep_files(), _sweep_file),
    Target("checkpoints", 0.15, _checkpoints, _checkpoint),
    Target("results", 0.15, _directories, _result),
)
