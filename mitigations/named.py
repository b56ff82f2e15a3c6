"""Mitigations by name: the built-in ones, and those of other distributions by the entry-point group
`ostools.mitigations`.
"""

from ostools.mitigations.base import Composed, Mitigation, MitigationError, compose
from ostools.mitigations.registry import Listed, Registry, file_spec

GROUP = "ostools.mitigations"
BUILT_IN = {
    "separator": "ostools.mitigations.prompts:Separator",
    "partition": "ostools.mitigations.prompts:Partition",
    "hint": "ostools.mitigations.prompts:Hint",
    "interleave": "ostools.mitigations.prompts:Interleave",
    "repeat-prompt": "ostools.mitigations.prompts:RepeatPrompt",
    "sliding-window": "ostools.mitigations.passes:SlidingWindow",
    "attention-temperature": "ostools.mitigations.passes:AttentionTemperature",
}
"""Where each built-in mitigation is found."""

NONE = "none"
_REGISTRY = Registry("mitigation", Mitigation, BUILT_IN, GROUP, MitigationError)
AND = " + "


def names() -> tuple[str, ...]:
    """Every name that `mitigation` knows, the built-in ones first."""
    return _REGISTRY.names()


def listing() -> list[Listed]:
    """Every name with whose it is, its options and what it does."""
    return _REGISTRY.listing()


def mitigation(spec: str | Mitigation) -> Mitigation:
    """The mitigation that a text describes: `separator:every=3`,
    `sliding-window:window=64,sinks=1`. A mitigation stays itself.

    Several joined by " + " (blanks around it) are composed, in that order. Raises `MitigationError`
    for an unknown name or option (and gives the nearest), for a value of the wrong type, for a
    distribution that cannot be used, and for a file of one's own, which only the command line runs
    (`typed`).
    """
    if isinstance(spec, Mitigation):
        return spec
    if not isinstance(spec, str):
        raise MitigationError(f"expected a mitigation or its name, found {type(spec).__name__}")
    if is_in_file(spec):
        raise MitigationError(
            f"mitigation {spec!r} is code in a file: only --mitigation on the command line runs "
            "it; in Python import it and pass the object"
        )
    return compose(*(_REGISTRY.make(part) for part in spec.split(AND)))


def is_in_file(spec: str) -> bool:
    """Whether a text names a mitigation in a file of the user's own, alone or among several."""
    return any(file_spec(part) is not None for part in spec.split(AND))


def typed(spec: str) -> Mitigation:
    """The mitigation of a text that the user typed on the command line: as `mitigation`, or
    `./mine.py:AskAgain:times=2`, a class or a function of a file, which runs. Raises
    `MitigationError`."""
    parts = spec.split(AND)
    return compose(
        *(
            _REGISTRY.make(part) if file_spec(part) is None else _REGISTRY.make_from_file(part)
            for part in parts
        )
    )


def optional(spec: str | Mitigation | None) -> Mitigation | None:
    """The mitigation that a text describes, as `mitigation` gives it; None stays None."""
    return None if spec is None else mitigation(spec)


def label(mitigation: Mitigation | None) -> str:
    """Label of a mitigation in tables and charts: the text from which `mitigation` would make it;
    "none" for None.

    If no text makes it, its repr: such as one with a hint of the user's own that reads like
    options.
    """
    if mitigation is None:
        return NONE
    if isinstance(mitigation, Composed):
        parts = [label(part) for part in mitigation.parts]
        return repr(mitigation) if any(AND in part for part in parts) else AND.join(parts)
    text = _REGISTRY.label(mitigation)
    return repr(mitigation) if AND in text else text
