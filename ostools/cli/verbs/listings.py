"""`ostools list` and `ostools doctor`: what there is to name and measure, and what is missing."""

import platform
from importlib import metadata

import click
from packaging.requirements import Requirement

from ostools.cli import terminal
from ostools.cli.commands import MEASURED
from ostools.cli.terminal import on_one_line
from ostools.mitigations import named as mitigations_named
from ostools.mitigations.registry import Listed
from ostools.tasks import REPEATING_TASKS, CollapseTask, task
from ostools.tasks.appendix_c import NAMES as APPENDIX_NAMES
from ostools.tasks.appendix_c import options_of
from ostools.tasks.questions import listing

_DISTRIBUTION = "oversquashing-tools"
_OK, _MISSING, _NOTE = "ok", "MISSING", "note"
_EXTRAS = ("gguf", "ray", "hosted", "explore")
_LONGEST_PROMPT = 160
"""Characters of a prompt that a listing shows."""


def tasks() -> None:
    """List the tasks, the built-in ones and those of other distributions.

    With their options: NAME:key=value,key=value, and how the prompt of a question of four items
    begins. Then the pairs of prompts that `ostools collapse` and `ostools collapse variation`
    compare, with a prompt of six items, whose last is then repeated.
    """
    rows = []
    for listed in listing():
        if listed.name in APPENDIX_NAMES:  # the paper's prompts share a class, not their options
            listed = listed._replace(options=options_of(listed.name))
        what = task(listed.name).prompt(4) if listed.usable else listed.summary
        rows.append(_row(listed, what))
    listed_pairs = {
        name: Listed(name, "ostools", "" if name == "text" else "items=text|ids", "", True)
        for name in REPEATING_TASKS
    }
    pairs = [_row(row, task(name, CollapseTask).example) for name, row in listed_pairs.items()]
    terminal.give_tables({"Tasks": rows, "Pairs of prompts": pairs})


def mitigations() -> None:
    """List the mitigations, the built-in ones and those of other distributions.

    With their options: NAME:key=value,key=value; several joined by " + " are applied in that order.
    """
    rows = [_row(listed, listed.summary) for listed in mitigations_named.listing()]
    terminal.give_tables({"Mitigations": rows})


def measurements() -> None:
    """List the measurements: each command that runs a model, and the Python function behind it."""
    rows = [
        {
            "command": f"ostools {command.name}",
            "function": command.python,
            "what": command.summary.replace("`", ""),
        }
        for command in sorted(MEASURED, key=lambda command: command.words)
    ]
    terminal.give_tables({"Measurements": rows})


def _row(listed: Listed, what: str) -> dict[str, str]:
    what = on_one_line(what)[:_LONGEST_PROMPT]
    return {"name": listed.name, "from": listed.owner, "options": listed.options, "what": what}


def doctor() -> None:
    """Say what this installation has, and what is missing: versions, extras, models.

    Exit code 1 where something that is needed is missing.
    """
    rows = [{"what": "python", "state": _OK, "found": platform.python_version()}]
    for text in (_DISTRIBUTION, *(metadata.requires(_DISTRIBUTION) or ())):
        requirement = Requirement(text)
        marker = requirement.marker
        extras = [e for e in ("", *_EXTRAS) if marker is None or marker.evaluate({"extra": e})]
        if extras:
            rows.append(_checked(requirement, extras[0]))
    is_missing = any(row["state"] == _MISSING for row in rows)
    if not is_missing:
        from ostools.cli.verbs.models import named_models

        rows += [
            {"what": f"model {name}", "state": _NOTE, "found": what}
            for name, what in named_models()
        ]
    terminal.give_tables({"This installation": rows})
    raise click.exceptions.Exit(int(is_missing))


def _checked(requirement: Requirement, extra: str) -> dict[str, str]:
    """The row of a package that is needed, or that an extra adds."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        version = ""
    state, words = _OK, version
    if not version or not requirement.specifier.contains(version, prereleases=True):
        state = _NOTE if extra else _MISSING
        words = f"{version or 'not installed'}; expected {requirement.specifier or 'any version'}"
    what = f"{requirement.name} (extra {extra})" if extra else requirement.name
    return {"what": what, "state": state, "found": words}
