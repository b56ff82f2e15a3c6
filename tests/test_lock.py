"""requirements.lock pins everything: a package that comes with another one too, or an install
tomorrow is another one.
"""

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> None:
    """Every package that `name` with these extras needs here, itself among them."""
    for extra in extras | {""}:
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for text in metadata.requires(name) or ():
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                needed(str(canonicalize_name(wanted.name)), frozenset(wanted.extras), seen)


def test_the_lock_pins_all_that_is_needed_and_all_of_it_is_here() -> None:
    found = re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE)
    pinned = {
        str(canonicalize_name(name)): str(version).partition("+")[0] for name, version in found
    }
    ours, seen = "oversquashing-tools", set()
    # `make mutants` installs its own, as `make stress` once did; a virtual environment brings its
    # setuptools.
    extras = frozenset(metadata.metadata(ours).get_all("Provides-Extra") or ()) - {
        "stress",
        "mutants",
    }
    needed(ours, extras, seen)
    names = {name for name, _ in seen} - {ours, "setuptools"}
    assert len(names) > 50
    assert sorted(names - set(pinned)) == []
    assert {name: pinned.get(name) for name in names} == {
        name: metadata.version(name).partition("+")[0] for name in names
    }
