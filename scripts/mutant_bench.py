"""Where `make mutants` tries a planted error: in a fork of a pytest that has collected every test,
or that collects anew.

What is collected has the house imported. A mutant of a function gets its code into the function
objects that are there, and the tests that called the function before, the quickest first, run in a
fork until one fails. An error that shows at import (a default, a table, a class body), or in a
function that no test calls, has a pytest of its own, which imports the file with it.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Generic, Protocol, TypeVar

import pytest

CAUGHT, SURVIVED, TIME = "caught", "survived", "out of time"

OPTIONS = (
    "-x",
    "-q",
    "-s",
    "-p",
    "no:cacheprovider",
    "-W",
    # pytest cannot rewrite the asserts of plugins that were loaded before it; it need not.
    "ignore::pytest.PytestAssertRewriteWarning",
    "-m",
    "not slow",
)


class Planted(Protocol):
    """What the bench has to know of a mutant."""

    @property
    def path(self) -> str: ...

    def planted(self, text: str) -> str: ...


Some = TypeVar("Some", bound=Planted)


@dataclass(frozen=True)
class Ran:
    """One test where nothing is planted: seconds of the processor, and the functions of ours that
    it called.
    """

    seconds: float
    called: frozenset[str]


def preload() -> None:
    """What every test file imports of others: the forks share it. Nothing of this house, which
    pytest has to see first.
    """
    import beartype  # noqa: F401
    import hypothesis  # noqa: F401
    import pandas  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch
    import transformer_lens.model_bridge  # noqa: F401

    torch.set_num_threads(1)
    assert not any(name.split(".")[0] == "ostools" for name in sys.modules)


class Bench:
    """A copy of the tree, in which one error after the other is planted.

    `kept` is a file of what each test called. It is asked again where the test's file has changed,
    or what tests stand on.
    """

    def __init__(self, tree: Path, kept: Path) -> None:
        self.tree = tree
        self.kept = kept
        files = [
            path
            for room in ("ostools", "hooks", "mitigations", "tests")
            for path in (tree / room).rglob("*.py")
        ]
        self._sources = digest(
            tree, sorted(path for path in files if not path.name.startswith("test_"))
        )

    def collected(
        self, folders: Sequence[str], mutants: Sequence[Some], tell: Callable[[Some, str], None]
    ) -> None:
        """Tries the mutants of functions that tests call, and tells each outcome; the others are
        left.
        """

        def run() -> int:
            return int(pytest.main([*OPTIONS, *folders], plugins=[Collected(self, mutants, tell)]))

        status = forked(lambda: self.in_the_tree(run), None)
        if status != 0:
            raise SystemExit(
                f"expected a pytest that ends well where nothing is planted, found exit status {status}"
            )

    def alone(self, mutant: Planted, tests: Sequence[str]) -> str:
        """A pytest that imports the file with the error: those of the tests that call a function of
        it, or else all of them.

        Where there is no test at all it survives.
        """
        if not tests:
            return SURVIVED
        known = self.known()
        calling = {
            file_of(name)
            for name, ran in known.items()
            if any(place.startswith(f"{mutant.path}:") for place in ran.called)
        }
        tests = [test for test in tests if test in calling] or tests

        def run() -> int:
            self.aside()
            return int(pytest.main([*OPTIONS, *tests]))

        seconds = sum(ran.seconds for name, ran in known.items() if file_of(name) in tests)
        with self.planted(mutant):
            status = forked(lambda: self.in_the_tree(run), 3 * seconds + 90)
        return outcome(status)

    @contextmanager
    def planted(self, mutant: Planted) -> Iterator[tuple[str, str]]:
        """The file's text before and after; the error stands in the tree meanwhile, for
        subprocesses and later imports.
        """
        file = self.tree / mutant.path
        text, there = file.read_text("utf-8"), file.stat()
        changed = mutant.planted(text)
        try:
            file.write_text(changed, "utf-8")
            os.utime(file, (there.st_atime, there.st_mtime + 10))
            yield text, changed
        finally:
            file.write_text(text, "utf-8")
            os.utime(file, (there.st_atime, there.st_mtime))

    def known(self) -> dict[str, Ran]:
        """What each test called."""
        found: dict[str, Ran] = {}
        for line in self.kept.read_text("utf-8").splitlines() if self.kept.is_file() else ():
            read = json.loads(line)
            if read["of"] == self.of(file_of(read["test"])):
                found[read["test"]] = Ran(read["seconds"], frozenset(read["called"]))
        return found

    @cache  # noqa: B019
    def of(self, test: str) -> str:
        """What a record of this test file's calls depends on."""
        file = self.tree / test
        return f"{digest(self.tree, [file] if file.is_file() else [])}:{self._sources}"

    def in_the_tree(self, run: Callable[[], int]) -> int:
        """In a fork. No bytecode is written: a mutant is none of the file's."""
        sys.dont_write_bytecode = True
        os.environ["PYTHONPATH"] = str(self.tree)
        os.chdir(self.tree)
        root = str(Path(__file__).parents[1])
        sys.path[:] = [str(self.tree), *(place for place in sys.path if place not in ("", root))]
        for name in [
            name for name in sys.modules if name == "scripts" or name.startswith("scripts.")
        ]:
            del sys.modules[name]
        return run()

    def aside(self) -> None:
        """In a fork: what its tests print goes nowhere, and what they write goes before the next
        fork's.
        """
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        folder = self.tree.parent / "temporary"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)


class Collected(Generic[Some]):
    """A plugin of pytest: in place of running the tests once, it runs some of them for each mutant."""

    def __init__(
        self, bench: Bench, mutants: Sequence[Some], tell: Callable[[Some, str], None]
    ) -> None:
        self.bench, self.mutants, self.tell = bench, mutants, tell
        self.failed = False
        self.functions: dict[str, list[FunctionType]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        files: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            files[file_of(item.nodeid)].append(item)
        self.find_functions()
        known = self.bench.known()
        for name, items in files.items():
            if not all(item.nodeid in known for item in items):
                self._call(name, items)
        known = self.bench.known()
        for mutant in self.mutants:
            self._try(mutant, files, known)
        return True

    def find_functions(self) -> None:
        for thing in gc.get_objects():
            if type(thing) is FunctionType:  # isinstance would ask things of others, which warn
                self.functions[self._place(thing.__code__)].append(thing)
        gc.freeze()

    def _place(self, code: CodeType) -> str:
        """A function's name for people and for the record: file, name, first line."""
        file = code.co_filename.removeprefix(f"{self.bench.tree}/")
        return f"{file}:{code.co_qualname}:{code.co_firstlineno}"

    def _call(self, name: str, items: Sequence[pytest.Item]) -> None:
        """Runs the tests of a file where nothing is planted, in a fork that writes down what each
        of them called.
        """
        status = forked(lambda: self._watched(items), None)
        if status != 0:
            pytest.exit(
                f"expected tests that pass where nothing is planted; one of {name} does not", 4
            )

    def _watched(self, items: Sequence[pytest.Item]) -> int:
        self.bench.aside()
        lines: list[str] = []
        for item, following in zip(items, (*items[1:], None), strict=True):
            called: set[CodeType] = set()

            def note(frame: FrameType, event: str, _: Any, called: set[CodeType] = called) -> None:
                if event == "call":
                    called.add(frame.f_code)

            before = time.process_time()
            sys.setprofile(note)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.setprofile(None)
            if self.failed:
                return 1
            ours = sorted(
                self._place(code)
                for code in called
                if code.co_filename.startswith(f"{self.bench.tree}/")
            )
            record = {
                "test": item.nodeid,
                "of": self.bench.of(file_of(item.nodeid)),
                "called": ours,
            }
            lines.append(json.dumps(record | {"seconds": time.process_time() - before}))
        with self.bench.kept.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        return 0

    def _try(
        self, mutant: Some, files: dict[str, list[pytest.Item]], known: dict[str, Ran]
    ) -> None:
        """Tells the outcome, or nothing where the error shows at import or no test calls the
        function.
        """
        with self.bench.planted(mutant) as (before, after):
            swaps = self.swaps(mutant.path, before, after)
            items = in_order(files, known, {self._place(old) for old, _ in swaps})
            if not items:
                return
            seconds = sum(known[item.nodeid].seconds for item in items)
            status = forked(lambda: self.run_swapped(swaps, items), 3 * seconds + 20)
        self.tell(mutant, outcome(status))

    def swaps(self, path: str, before: str, after: str) -> list[tuple[CodeType, CodeType]]:
        """The code of each function that differs, before and after; nothing where no function that
        is there can be changed.
        """
        module = sys.modules.get(
            ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")
        )
        if module is None or module.__spec__ is None:
            return []
        loader: Any = module.__spec__.loader
        file = str(self.bench.tree / path)
        with warnings.catch_warnings(
            action="ignore", category=SyntaxWarning
        ):  # `is` before a literal
            old, new = (loader.source_to_code(text.encode(), file) for text in (before, after))
        found = list(differing(old, new))
        able = found and all(here.co_flags & CO_OPTIMIZED for here, _ in found)
        there = [(here, now) for here, now in found if self.functions.get(self._place(here))]
        fits = all(len(here.co_freevars) == len(now.co_freevars) for here, now in there)
        return there if able and fits else []

    def run_swapped(
        self, swaps: Sequence[tuple[CodeType, CodeType]], items: Sequence[pytest.Item]
    ) -> int:
        for old, new in swaps:
            for function in self.functions[self._place(old)]:
                function.__code__ = new
        self.bench.aside()
        for item, following in zip(items, (*items[1:], None), strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return 1
        return 0


def differing(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The pieces of code that differ, the outer ones first: functions by what is in them too, what
    runs at import by itself.
    """
    inner, now = (
        [one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new)
    )
    itself = len(inner) != len(now) or _without(old) != _without(new)
    if itself or (old.co_flags & CO_OPTIMIZED and old != new):
        yield old, new
    for here, there in zip(inner, now, strict=False):
        yield from differing(here, there)


def _without(code: CodeType) -> CodeType:
    """The code without the pieces in it, and without the columns where they end."""
    own = tuple(None if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_consts=own, co_linetable=b"")


def in_order(
    files: dict[str, list[pytest.Item]], known: dict[str, Ran], called: set[str]
) -> list[pytest.Item]:
    """The tests of every file that calls one of these functions: first those that call it, a quick
    file before a slow one.

    The others of these files follow, since what a fixture computed for the first test of a file all
    of them hold to account.
    """
    direct, others = list[list[pytest.Item]](), list[pytest.Item]()
    for items in files.values():
        calling = [item for item in items if called & known[item.nodeid].called]
        if calling:
            direct.append(sorted(calling, key=lambda item: known[item.nodeid].seconds))
            others.extend(item for item in items if item not in calling)
    direct.sort(key=lambda items: sum(known[item.nodeid].seconds for item in items))
    return [*(item for items in direct for item in items), *others]


def file_of(test: str) -> str:
    """The file of a test, by the name that pytest gives the test."""
    return test.split("::")[0]


def outcome(status: int | None) -> str:
    """What a fork's exit status says of a mutant."""
    return SURVIVED if status == 0 else TIME if status is None else CAUGHT


def forked(run: Callable[[], int], limit: float | None) -> int | None:
    """A fork's exit status; None where it took more than `limit` seconds of the processor."""
    child = os.fork()
    if child == 0:
        status = 3
        try:
            if limit is not None:
                used = time.process_time()
                resource.setrlimit(
                    resource.RLIMIT_CPU, (int(used + limit) + 1, int(used + limit) + 2)
                )
            status = run()
        finally:
            sys.stdout.flush()
            os._exit(status)
    give_up = (
        None if limit is None else time.monotonic() + 30 * limit
    )  # asleep, it takes no processor
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if give_up is not None and time.monotonic() > give_up:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def digest(tree: Path, files: Iterable[Path]) -> str:
    """Another one where a file of the tree is another."""
    found = hashlib.sha256()
    for file in files:
        found.update(
            f"{file.relative_to(tree)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode()
        )
    return found.hexdigest()[:12]
