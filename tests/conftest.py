"""One thread a worker (two torch threads on two busy cores are slower than one), and no deadlines:
nothing is timed here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

from tests import annotations

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

annotations.install()
torch.set_num_threads(1)
# `make test` tries a few examples of every property, `make test-slow` more: it runs pytest with
# --hypothesis-profile full.
settings.register_profile("project", deadline=None, derandomize=True, max_examples=8)
settings.register_profile("full", settings.get_profile("project"), max_examples=25)
settings.load_profile("project")

LONGEST = (
    "sweep/test_ray.py",
    "test_tutorials.py",
    "measure/test_families.py",
    "sweep/test_run.py",
    "sweep/test_forecast.py",
    "sweep/test_memory.py",
    "test_docs.py",
    "test_reproducible.py",
    "paper/test_reproduction.py",
    "measure/bounds/test_certified.py",
    "sweep/test_faults.py",
)
"""Files that take minutes, the longest first: the slow tests begin with them, or one worker would
end alone with the last.
"""


QUICK_FAMILIES = {"gemma2", "gemma3", "gpt2", "neox", "bloom", "mixtral"}
"""One of each mechanism: grouped heads, rotations, gated MLPs and soft caps; windows and norms of
queries and keys; layer norms, biases and learned positions; parallel blocks; ALiBi; experts."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A law of many families is quick for `QUICK_FAMILIES`, and slow for the others."""
    families = getattr(sys.modules.get("tests.checkpoints"), "EVERY_FAMILY", ())
    by_law: dict[tuple[Path, str], list[tuple[pytest.Item, set[str]]]] = {}
    for item in items:
        given = getattr(item, "callspec", None)
        names = {
            value for value in (given.params.values() if given else ()) if isinstance(value, str)
        } & {*families}
        if names:
            by_law.setdefault((item.path, getattr(item, "originalname", "")), []).append(
                (item, names)
            )
    for cases in by_law.values():
        quick = [
            names <= QUICK_FAMILIES and not item.get_closest_marker("slow") for item, names in cases
        ]
        for item, names in cases:
            if any(quick) and not names <= QUICK_FAMILIES:
                item.add_marker(pytest.mark.slow)
    first = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path, len(first)))


@pytest.fixture(scope="session", autouse=True)
def _results_are_measured_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Workers share one folder, where `tests.reporting.every` stores its results."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ["OSTOOLS_TEST_RESULTS"] = str(tmp_path_factory.getbasetemp().parent)


@pytest.fixture(scope="session", autouse=True)
def _signals_are_heard() -> None:
    """Those that tests send, and that under nohup or in the background of a script are ignored, by
    what is started here too.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _no_trace() -> Iterator[None]:
    """The shared models and tokenizers are after every test what they were before it: whoever
    changes one asks for its own.
    """
    yield
    _must_be_unchanged("this test", numbers=False)


@pytest.fixture(scope="module", autouse=True)
def _no_trace_in_a_file() -> Iterator[None]:
    yield
    _must_be_unchanged("a test of this file", numbers=True)


def _must_be_unchanged(who: str, numbers: bool) -> None:
    # What nobody has imported nobody has shared.
    if "tests.checkpoints" not in sys.modules:
        return
    from tests import traces
    from tests.checkpoints import forget_changed

    changed = traces.changes(numbers)
    for shared, _ in changed:
        forget_changed(shared)
    if changed:
        said = "\n".join(said for _, said in changed)
        pytest.fail(
            f"{who} changed what others share; ask for one of its own (fresh=True):\n{said}",
            pytrace=False,
        )


@pytest.fixture(scope="session")
def embedded() -> TransformerBridge:
    """The trained model that comes with the package, loaded once a process; no test may change it."""
    from tests.checkpoints import trained

    return trained("embedded")


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Gemma on disk."""
    # Inside, here and below: what is imported before pytest is configured escapes the check of its
    # annotations.
    from tests.checkpoints import write_checkpoint

    return str(write_checkpoint(tmp_path_factory.mktemp("cli") / "tiny", "gemma"))


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused has to be refused before a model is loaded."""

    def never(*found: object, **options: object) -> None:
        raise AssertionError("loaded a model first")

    monkeypatch.setattr("ostools.models.load_model", never)


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Runs `ostools` with these arguments in an empty directory: exit code, stdout, stderr."""
    from ostools import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_quieten_libraries", lambda: None)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ostools", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capfd.readouterr()
        return int(stopped.value.code or 0), out, err

    return call
