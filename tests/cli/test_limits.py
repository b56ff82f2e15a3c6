"""Memory and time of a command: noted before it starts, refused before a model is loaded, one line
where they run out.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ostools.cli import limits
from ostools.cli.commands import MEASURED, Command
from ostools.ground.memory import chunk
from ostools.measure.jacobian import linearisation_run
from ostools.measure.measurement import RECORDS
from ostools.models.files.sources import locate
from ostools.paper.claims.parts import PARTS
from tests.cli.asking import assert_one_forecast, assert_refused
from tests.sets import quick

PROMPT = ("sensitivity", "--prompt", "The 11")


@pytest.mark.usefixtures("no_model")
def test_what_does_not_fit_is_refused_before_the_model_is_loaded(
    run, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "available_memory", lambda _: 1 << 10)
    assert_refused(
        run(*PROMPT, "--model", directory),
        "of it before the work begins, found 0.000977 MiB free",
        "load the model with --load-dtype bfloat16",
    )
    _, _, narrow = run(*PROMPT, "--model", directory, "--load-dtype", "bfloat16")
    assert "--load-dtype" not in narrow


def asked_of(command: Command) -> str:
    """The command with a prompt where it takes one, else with its defaults."""
    return f"{command.name} --prompt 11" if command.of_kind("prompt") else command.name


FORECAST = [command for command in MEASURED if command.of_kind("model")]
ASKED = quick(
    [*map(asked_of, FORECAST), "report"],
    "report",
    *{tuple(RECORDS[c.measurement.__name__].memory): asked_of(c) for c in FORECAST}.values(),
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
    assert (code, set(forecast)) == (0, {"memory", "work"})
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
def test_a_reproduction_is_forecast_of_parts_that_another_model_may_have_left(
    run, tmp_path: Path
) -> None:
    asked = ("reproduce", "--figures", "5", "--out", "out")
    new = _forecast(run, *asked)
    (tmp_path / "out").mkdir()
    for name in ("claims.csv", *[f"{name}.json" for name in PARTS]):
        (tmp_path / "out" / name).write_text("{}")
    assert _forecast(run, *asked) == new


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    "line",
    ["explore", "report --run .", "evaluate --answers x.jsonl --lengths 1"],
)
def test_a_dry_run_is_refused_where_no_model_runs(run, line: str) -> None:
    assert_refused(run(*line.split(), "--dry-run"), "--dry-run")


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
        assert (sizes, list(tmp_path.iterdir())) == ([4096, 2048, 1024, 512, 256], [])


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
    asked = ["reproduce", "--recipe", str(recipe), "--figures", "5", "--out", "out", "--model"]
    forecasts = []
    for model in (str(directory), "embedded"):
        code, out, err = run(*asked, model, "--dry-run", "--json", "--quiet")
        assert code == 0, err
        forecasts.append(json.loads(out)["memory"])
    # The weights are counted from the shape.
    assert forecasts[0] == pytest.approx(forecasts[1], rel=0.05)
    assert not (tmp_path / "out").exists()
    if not torch.cuda.is_available():
        assert_refused(run(*asked, str(directory)), "cuda")
