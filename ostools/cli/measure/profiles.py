"""`ostools profile` and `spectra`: what is read off a sensitivity or the patterns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostools.cli.kit import output
from ostools.cli.kit.chat import Turn
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.mitigated import Acting, Under
from ostools.cli.kit.options import At, Cotangents, Device, Dtype, InChat, Method, Model, Out, System, Thinking
from ostools.cli.kit.prompts import Ids, Prompt, given_prompt
from ostools.cli.kit.steps import at_work, check, give

if TYPE_CHECKING:
    from ostools.measure import Profile
    from ostools.runs.forecast import Unloaded


def profile(
    prompt: Prompt = None,
    ids: Ids = None,
    method: Method = "auto",
    cotangents: Cotangents = 8,
    at: At = None,
    mitigation: Under = None,
    chat: InChat = False,
    system: System = None,
    thinking: Thinking = False,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Say which tokens matter, and test for a U-shape.

    Shows the measured profile with and without the sink, its shape with intervals, and full against frozen. A sketch reads
    Frobenius norms off a few random cotangents, in seconds where exact norms take minutes.

    \b
    Example:
      ostools profile --prompt "The capital of France is"
      ostools profile --prompt "The capital of France is" --method sketch
      ostools profile --prompt "The capital of France is" --at -2
    """
    from ostools import measure
    from ostools.cli.kit import largest

    check(out)
    given, turn = given_prompt(prompt, ids), Turn(chat, system, thinking, ids)
    under = Acting.of(mitigation, [given])

    def memory(on: Unloaded) -> int:
        how: dict[str, Any] = {"method": method, "cotangents": cotangents, "at": at}
        return under.memory(turn.of(on), lambda pos: largest.sensitivity(on, pos, ("full", "frozen"), **how))

    with at_work("differentiating", model, device, dtype, memory) as (loaded, progress):
        words, limit = turn.prompt(loaded, given), MANNERS.max_memory
        how: dict[str, Any] = {"method": method, "cotangents": cotangents, "at": at, "mitigation": under.given}
        measured = measure.sensitivity(loaded, words, max_memory=limit, progress=progress, **how)
        result = measure.profile(measured)
    give(result, out, _show_profile)


def spectra(
    prompt: Prompt = None,
    ids: Ids = None,
    mitigation: Under = None,
    chat: InChat = False,
    system: System = None,
    thinking: Thinking = False,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Follow the patterns' products through depth (Lemma B.6, Proposition 5.2).

    Eigenvalues of the row-stochastic matrices, and how fast their product's mass moves to the first token.

    \b
    Example:
      ostools spectra --prompt "The capital of France is" --out spectra.png
    """
    from ostools import measure
    from ostools.measure.passes.memory import patterns_bytes

    check(out)
    given, turn = given_prompt(prompt, ids), Turn(chat, system, thinking, ids)
    under = Acting.of(mitigation, [given])

    def memory(on: Unloaded) -> int:
        return under.memory(turn.of(on), lambda pos: patterns_bytes(on.shape, pos))

    with at_work("reading the patterns", model, device, dtype, memory, counted=False) as (loaded, _):
        result = measure.spectra(loaded, turn.prompt(loaded, given), mitigation=under.given)
    give(result, out, lambda result: _show("Products of the patterns", result.depth))


def _show_profile(result: Profile) -> None:
    top = ["position", "token", "origin", "value", "share", "share_without_sink", "over_frozen"]
    shape = ["linearisation", "kept", "verdict", "start", "middle", "end", "start_contrast", "end_contrast"]
    shares = ["linearisation", "sink_share", "last_share", "text_share", "effective_tokens", "over_frozen_median"]
    for title, frame in (
        ("Tokens that matter most to the last representation", result.top(10)[top]),
        ("Shares of the sink and of the last token, and how many tokens matter in effect", result.summary[shares]),
        ("Shape of the profile: mean log10 norm of each third, ends against the middle", result.shapes[shape]),
    ):
        _show(title, frame)
        output.print_text([""])


def _show(title: str, frame: Any) -> None:
    """A whole frame, its columns of words first."""
    numbers = [name for name, dtype in frame.dtypes.items() if dtype.kind in "if"]
    words = [name for name in frame.columns if name not in numbers]
    rows = frame[words + numbers].itertuples(index=False, name=None)
    output.print_table(title, [*map(str, words), *map(str, numbers)], rows, left=len(words))
