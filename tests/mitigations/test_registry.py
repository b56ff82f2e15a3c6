"""Mitigations by name: what a text means, what it is refused for, and that a label leads back."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from jaxtyping import Int
from torch import Tensor

from ostools import hooks, mitigations
from ostools.mitigations import (
    BUILT_IN,
    Composed,
    Hint,
    Interleave,
    Mitigation,
    MitigationError,
    RepeatPrompt,
    Separator,
    compose,
    label,
    mitigation,
    running,
)
from ostools.mitigations import label as label_of
from ostools.mitigations import mitigation as named
from ostools.mitigations.named import listing
from ostools.mitigations.registry import Registry
from tests.checkpoints import tiny_model


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("separator", Separator()),
        ("separator:every=2,text=,", Separator(2, ",")),
        ("separator:text=,,every=4", Separator(4, ",")),
        (" separator : every=5 ", Separator(5)),
        ("separator:text= ", Separator(3, " ")),
        ("interleave", Interleave()),
        ("hint:text=Look at = and , twice", Hint("Look at = and , twice")),
        ("repeat-prompt:times=3", RepeatPrompt(3)),
        ("separator + hint", Composed((Separator(), Hint()))),
    ],
)
def test_what_a_text_means(spec: str, meant: Mitigation) -> None:
    assert named(spec) == meant
    assert named(label_of(meant)) == meant
    assert named(meant) is meant


NEEDED = {"sliding-window": ":window=4", "attention-temperature": ":factor=2.0"}


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_every_built_in_name_is_a_class_that_is_there(name: str) -> None:
    made = named(name + NEEDED.get(name, ""))
    assert isinstance(made, Mitigation)
    assert label_of(made).split(":")[0] == name


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("seperator", "unknown mitigation 'seperator': did you mean 'separator'"),
        ("", "unknown mitigation ''"),
        ("separator:evry=3", "has no option 'evry': did you mean 'every'"),
        ("separator:every=three", "every: Input should be a valid integer, .* found 'three'"),
        ("separator:every=3.0", "every: expected a whole number, found '3.0'"),
        ("separator:every=3,hint", "found '3,hint'; give another mitigation by itself"),
        ("separator:every=0", "expected every of at least 1, found 0"),
        ("separator:every=1,every=2", "option 'every' is given twice"),
        ("sliding-window", "mitigation 'sliding-window' of ostools: .*window"),
    ],
)
def test_what_a_text_is_refused_for(spec: str, message: str) -> None:
    with pytest.raises(MitigationError, match=message):
        named(spec)


@dataclass(frozen=True)
class Options(Mitigation):
    """One option of every kind that a text can give."""

    whole: int = 0
    real: float = 0.0
    yes: bool = False
    words: str = ""
    either: int | None = None
    choice: Literal["all", "some"] | tuple[int, ...] = "all"


OPTIONS = Registry(
    "thing",
    Mitigation,
    {"options": f"{__name__}:Options", "text": "os:sep"},
    "no.such.group",
    ValueError,
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("whole=-3,real=1e-2,yes=true,words=a b", Options(-3, 0.01, True, "a b")),
        ("either=7,yes=no", Options(either=7)),
        ("either=none", Options()),
        ("choice=some", Options(choice="some")),
        ("choice=1+3+5", Options(choice=(1, 3, 5))),
    ],
)
def test_options_are_read_by_their_types(text: str, meant: Options) -> None:
    assert OPTIONS.make(f"options:{text}") == meant
    assert OPTIONS.make(OPTIONS.label(meant)) == meant


def test_a_label_that_no_text_leads_to_is_a_repr() -> None:
    for awkward in (
        Hint("check, n=3"),
        Hint("a + b"),
        Separator(2, " + "),
        Composed((Hint("a + b"), Separator())),
    ):
        assert label_of(awkward) == repr(awkward)


# Other people's mitigations and tasks: real distributions, built as wheels and installed beside
# ostools, good and broken.


EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plugin"
TOKENS: Int[Tensor, "batch pos"] = torch.randint(
    10, 200, (2, 23), generator=torch.Generator().manual_seed(0)
)

BROKEN_PROJECT = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "ostools-broken"
version = "0.0.1"

[project.entry-points."ostools.mitigations"]
raises-on-import = "ostools_broken.raises:Anything"
not-there = "ostools_broken.things:Nowhere"
separator = "ostools_broken.things:Leaking"
no-mitigation = "ostools_broken.things:FORTY_TWO"
leaking-chunks = "ostools_broken.things:Leaking"

[project.entry-points."ostools.tasks"]
unfinished = "ostools_broken.things:Unfinished"
copy-last = "ostools_broken.things:Unfinished"
no-task = "ostools_broken.things:Leaking"

[tool.hatch.build.targets.wheel]
packages = ["ostools_broken"]
"""
BROKEN_THINGS = '''
from dataclasses import dataclass

from ostools import hooks
from ostools.tasks import Task
from ostools_example.chunked import ChunkedAttention

FORTY_TWO = 42


@dataclass(frozen=True)
class Leaking(ChunkedAttention):
    """Says chunks, and hides nothing in the last layer."""

    def hooks(self, model):
        return hooks.mask_scores(model, self.sees, layers=range(model.cfg.n_layers - 1))


class Unfinished(Task):
    name = "unfinished"
'''


def installed(target: Path, *projects: Path) -> None:
    """Build each project's wheel and unpack it into `target`, without an index."""
    options = [
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--disable-pip-version-check",
        "--quiet",
        "--target",
    ]
    command = [sys.executable, "-m", "pip", "install", *options, str(target), *map(str, projects)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both distributions installed, as `site-packages` would have them."""
    home = tmp_path_factory.mktemp("plugins")
    package = home / "broken" / "ostools_broken"
    package.mkdir(parents=True)
    (home / "broken" / "pyproject.toml").write_text(BROKEN_PROJECT)
    (package / "__init__.py").touch()
    (package / "raises.py").write_text('raise RuntimeError("no licence\\nwas found")\n')
    (package / "things.py").write_text(BROKEN_THINGS)
    example = shutil.copytree(
        EXAMPLE, home / "example", ignore=shutil.ignore_patterns("__pycache__")
    )
    installed(home / "site", example, home / "broken")
    return home / "site"


@pytest.fixture
def plugins(environment: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both distributions in sight of this process."""
    monkeypatch.syspath_prepend(str(environment))
    yield
    for name in [
        name for name in sys.modules if name.split(".")[0] in ("ostools_example", "ostools_broken")
    ]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("plugins")
def test_a_mitigation_is_listed_made_from_a_text_and_labelled() -> None:
    assert "chunked-attention" in mitigations.names()
    made = mitigation("chunked-attention:chunk=8")
    home: Any = importlib.import_module("ostools_example.chunked")
    assert (made, label(made)) == (home.ChunkedAttention(8), "chunked-attention:chunk=8")
    assert mitigation(label(made)) == made
    with pytest.raises(MitigationError, match="has no option 'size': known are chunk"):
        mitigation("chunked-attention:size=8")
    with pytest.raises(
        MitigationError, match="ChunkedAttention: expected chunk of at least 1, found 0"
    ):
        mitigation("chunked-attention:chunk=0")


@pytest.mark.usefixtures("plugins")
def test_a_broken_invariant_is_an_error_wherever_the_pass_runs() -> None:
    model, leaking = tiny_model("llama", seed=1), mitigation("leaking-chunks:chunk=4")
    refusal = (
        "ChunkedAttention: expected weights of exactly 0 .* in layer 1, head 0, query 4, key 0"
    )
    with pytest.raises(MitigationError, match=refusal), running(model, leaking):
        model(TOKENS)
    with pytest.raises(MitigationError, match=refusal), running(model, compose(Hint(), leaking)):
        model(TOKENS)
    assert hooks.active_edits(model) == ()


REFUSED = {
    "raises-on-import": r"'raises-on-import' of ostools-broken: cannot be imported: RuntimeError: no licence",
    "not-there": r"'not-there' of ostools-broken: cannot be imported: AttributeError: .*Nowhere",
    "separator": r"'separator' is offered by ostools and by ostools-broken: uninstall one, or rename its entry point",
    "no-mitigation": r"'no-mitigation' of ostools-broken: expected a subclass of Mitigation, found 42",
}


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("name", REFUSED)
def test_a_mitigation_that_cannot_be_used_is_refused_with_its_owner(name: str) -> None:
    with pytest.raises(MitigationError, match=f"mitigation {REFUSED[name]}"):
        mitigation(name)


@pytest.mark.usefixtures("plugins")
def test_a_listing_survives_what_is_broken() -> None:
    rows = {row.name: row for row in listing()}
    assert rows["chunked-attention"].owner == "ostools-example"
    assert rows["chunked-attention"].usable
    assert rows["sliding-window"].usable
    for name, message in REFUSED.items():
        assert not rows[name].usable
        assert re.search(message, rows[name].summary)


def test_in_another_process_the_names_are_there_and_cost_no_torch(environment: Path) -> None:
    """Where the distributions are on the path, and nothing else was done for them."""
    program = """
import sys
from ostools import mitigations
print(mitigations.names())
mitigations.mitigation("sliding-window:window=4 + attention-temperature:factor=2 + hint")
print("torch" in sys.modules)
"""
    given = os.environ | {"PYTHONPATH": str(environment)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=given
    )
    assert done.returncode == 0, done.stderr
    names, torch_loaded = done.stdout.splitlines()
    assert "'chunked-attention'" in names
    assert "'leaking-chunks'" in names
    assert torch_loaded == "False"
