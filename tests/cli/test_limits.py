"""Memory and time of a command: noted before it starts, refused before a model is loaded, one line
where they run out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ostools.cli import limits, terminal
from ostools.cli.commands import MEASURED, Command
from ostools.ground.memory import Free
from ostools.ground.out_of_memory import chunk
from ostools.ground.progress import tell
from ostools.measure import attribution, bytes_of
from ostools.measure.jacobian import linearisation_run
from ostools.measure.measurement import RECORDS
from ostools.measure.unloaded import Unloaded
from ostools.models.files.sources import locate
from tests.cli.asking import assert_one_forecast, assert_refused
from tests.sets import quick

PROMPT = ("sensitivity", "--prompt", "The 11")


@pytest.mark.usefixtures("no_model")
def test_what_does_not_fit_is_refused_before_the_model_is_loaded(
    run, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "free_memory", lambda: Free(1 << 10, "on this machine"))
    found = run(*PROMPT, "--model", directory)
    assert_refused(
        found,
        "of it before the work begins, found 0.00 GiB free on this machine",
        "load the model with --load-dtype bfloat16",
    )


@pytest.mark.usefixtures("no_model")
def test_layers_that_the_configuration_lacks_are_refused_before_the_model_is_loaded(
    run, directory: str
) -> None:
    for command in (PROMPT, ("collapse",)):
        assert_refused(
            run(*command, "--layers", "0:99", "--model", directory),
            "layers: expected 'all' or numbers out of 0..2",
        )


def asked_of(command: Command) -> str:
    """The command with a prompt where it takes one, else with its defaults."""
    if command.prompts and command.name != "collapse":
        return f"{command.name} --prompt 11"
    return command.name


def kinds_of(command: Command) -> tuple[str, ...]:
    name = command.measurement.__name__
    return tuple(RECORDS[name].memory) if name in RECORDS else (name,)


FORECAST = [command for command in MEASURED if command.runs_model and not command.loads_model]
ASKED = quick(
    [*map(asked_of, FORECAST), "report"],
    "report",
    *{kinds_of(c): asked_of(c) for c in FORECAST}.values(),
)
"""Of the commands that hold the same kinds of things, one is quick."""


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("line", ASKED)
def test_every_command_that_runs_a_model_tells_its_forecast_in_a_dry_run(
    run, tmp_path: Path, line: str
) -> None:
    code, out, err = run(*line.split(), "--dry-run")
    assert (code, out) == (0, "")
    assert_one_forecast(err)
    assert list(tmp_path.iterdir()) == []


def _forecast(run, *asked: str) -> dict[str, float]:
    code, out, _ = run(*asked, "--dry-run", "--json", "--quiet")
    forecast = json.loads(out)
    assert code == 0
    assert set(forecast) == {"memory", "work"}
    assert 0 < forecast["work"] < forecast["memory"]
    return forecast


@pytest.mark.usefixtures("no_model")
def test_a_forecast_is_of_the_prompt_and_the_logit(run) -> None:
    """A logit is one row, and a mitigation makes the prompt longer."""
    asked = ("sensitivity", "--prompt", "Once upon a time there was a girl named Ann. " * 4)
    whole = _forecast(run, *asked)
    assert _forecast(run, *asked, "--logit", ".")["work"] < whole["work"]
    asked = ("bounds", "--variants", "local", "--prompt", "Once upon a time")
    assert (
        _forecast(run, *asked, "--mitigation", "repeat-prompt:times=9")["work"]
        > _forecast(run, *asked)["work"]
    )
    attribution = ("sensitivity", "attribution", *asked[3:], "--dry-run", "--max-memory", "1kB")
    assert_refused(run(*attribution), "GiB are allowed")


@pytest.mark.usefixtures("no_model")
def test_an_attribution_holds_its_gradients_graph() -> None:
    """331 MiB were measured at 1,024 tokens; the patterns alone take 147."""
    model = Unloaded(locate(None, None), torch.float32, "cpu")
    assert bytes_of(attribution, model, 1024) == pytest.approx(331 << 20, rel=0.3)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    "line",
    ["explore", "report --run .", "reproduce figure 8", "evaluate --answers x.jsonl --lengths 1"],
)
def test_a_dry_run_is_refused_where_no_model_runs(run, line: str) -> None:
    assert_refused(run(*line.split(), "--dry-run"), "--dry-run")


def test_a_longer_prompt_under_a_mitigation_holds_more_in_every_measurement_of_a_task() -> None:
    model = Unloaded(locate(None, None), torch.float32, "cpu")
    for command in MEASURED:
        if (
            {"task", "lengths", "mitigation"} <= command.names
            and command.runs_model
            and not (command.memory)
        ):
            values: Any = {"task": "count-ones", "lengths": [64]}
            plain = bytes_of(command.measurement, model, **values)
            values["mitigation"] = "separator:every=1"
            assert bytes_of(command.measurement, model, **values) > plain, command.name


def test_into_a_log_a_command_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("ostools.ground.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr(terminal.GLOBALS, "quiet", False)
    with terminal.progress("measuring cells") as progress:
        for done in range(4):
            tell(progress, done, 40)
            now[0] += 6
    assert (
        capsys.readouterr().err == "measuring cells: 1 of 40, 2% done after 6 s, about 4 min left\n"
    )


@pytest.mark.parametrize("fits", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_memory_that_runs_out_is_smaller_chunks_and_then_one_line(
    run, directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    sizes: list[int] = []
    planned = linearisation_run.planned

    def hungry(*args: Any, **how: Any) -> Any:
        sizes.append(chunk(4096))
        if not fits or sizes[-1] > 1024:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return planned(*args, **how)

    monkeypatch.setattr(linearisation_run, "planned", hungry)
    result = run(*PROMPT, "--linearisations", "frozen", "--model", directory, "--out", "x.json")
    if fits:
        assert (result[0], sizes) == (0, [4096, 2048, 1024])
        assert (tmp_path / "x.json").exists()
    else:
        assert_refused(
            result, "out of memory: sensitivity does not fit", "GiB free", "shorten the prompt"
        )
        assert sizes == [4096, 2048, 1024, 512, 256]
        assert list(tmp_path.iterdir()) == []


def test_a_recipe_for_a_gpu_is_forecast_from_a_configuration_and_a_tokenizer(
    run, tmp_path: Path
) -> None:
    """On a machine without a GPU and without the weights; the work itself is refused there."""
    directory = tmp_path / "no-weights"
    directory.mkdir()
    for file in locate("embedded", None).directory.iterdir():
        if file.suffix == ".json" and "index" not in file.name:
            (directory / file.name).write_bytes(file.read_bytes())
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("device: cuda\nparts: {figure-5: {lengths: '1:8'}}\n", encoding="utf-8")
    asked = (
        "reproduce",
        "--recipe",
        str(recipe),
        "--figures",
        "5",
        "--out",
        str(tmp_path / "out"),
        "--model",
    )
    forecasts = []
    for model in (str(directory), "embedded"):
        code, out, err = run(*asked, model, "--dry-run", "--json", "--quiet")
        assert code == 0, err
        forecasts.append(json.loads(out)["memory"])
    assert forecasts[0] == pytest.approx(
        forecasts[1], rel=0.05
    )  # the weights, counted from the shape
    assert not (tmp_path / "out").exists()
    if not torch.cuda.is_available():
        assert_refused(run(*asked, str(directory)), "cuda")
