"""Every family that the oracle knows, held against it: random weights of each, stories260K, and the
embedded model.

What is compared shares nothing: not the reading of the configuration, not the forward pass, not a
formula. In float64 both round angles to float32 in the same way, so that nothing but the order of
sums is left between them.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools import hooks
from tests.checkpoints import STORIES, make_model, tiny_model, trained
from tests.oracle.decoder import Decoder, decoder
from tests.oracle.measures import collapse_distances, jacobians, local_sums

IDS = [2, 40, 50, 60, 60, 61, 70]
TEXT = "Once upon a time, there"
SAME = 1e-9
"""Of the largest entry: sums of some thousand float64 products, one after the other through every
block.
"""

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma": {},
    "gemma2": {"n_layers": 3},
    "gemma3": {"n_layers": 3},
}
PRETRAINED = ("stories", "embedded")
every_family = pytest.mark.parametrize("family", MODELS)
every_checkpoint = pytest.mark.parametrize("name", PRETRAINED)


@cache
def random(family: str, scale: float) -> tuple[TransformerBridge, Decoder]:
    """The bridge, and the oracle on the weights of a Hugging Face model that no bridge has touched."""
    settings: Any = {
        "seed": 21,
        "scale": scale,
        "dtype": torch.float64,
        "d_model": 16,
        "d_mlp": 24,
        **MODELS[family],
    }
    bare = make_model(family, **settings)
    return tiny_model(family, **settings), decoder(bare.config.to_dict(), bare.state_dict())


@cache
def pretrained(name: str) -> tuple[TransformerBridge, Decoder]:
    """The checkpoint as `load_model` reads it, in float64, and as the oracle reads its two files."""
    model = ost.models.view_in(trained(name), torch.float64)
    folder = STORIES if name == "stories" else Path(ost.__file__).parent / "models" / "embedded"
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return model, decoder(config, load_file(folder / "model.safetensors"))


def ids_of(model: TransformerBridge) -> list[int]:
    return ost.encode(model, TEXT).ids.tolist()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    size = float(expected.abs().max())
    assert size > 0
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= SAME * size


def logits_are_the_oracles(model: TransformerBridge, oracle: Decoder, ids: list[int]) -> None:
    with torch.no_grad(), hooks.exact_arithmetic(model):
        found = model(torch.tensor([ids]))[0, -1]
    close(found, oracle.logits(oracle.last(oracle.embedded(ids))[1]))


def derivatives_are_the_oracles(model: TransformerBridge, oracle: Decoder, ids: list[int]) -> None:
    """The norms of both Jacobians, by the formulas that `sensitivity` takes."""
    prompt = ost.Prompt.from_ids(model, ids)
    frame: Any = ost.sensitivity(
        model, prompt, linearisations=["full", "frozen"], method="exact"
    ).frame
    for name in ("full", "frozen"):
        exact = jacobians(oracle, ids, held=name == "frozen")
        rows = frame[frame["linearisation"] == name]
        for norm, order in (("operator", 2), ("frobenius", "fro")):
            close(
                torch.tensor(rows[f"{norm}_norm"].to_numpy()),
                torch.linalg.matrix_norm(exact, ord=order),
            )


def path_sums_are_the_oracles(model: TransformerBridge, oracle: Decoder, ids: list[int]) -> None:
    bound = ost.bounds(model, ost.Prompt.from_ids(model, ids), variants="local").frame["value"]
    close(torch.tensor(bound.to_numpy()), local_sums(oracle, ids))


def collapse_is_the_oracles(
    model: TransformerBridge, oracle: Decoder, lengths: tuple[int, ...]
) -> None:
    """Distances relative to the vectors' own size: two nearly equal ones leave the rounding of that
    size.
    """
    task = ost.tasks.figure_5a()
    table: Any = ost.collapse(model, task, lengths=lengths, dtypes=["float64"]).reference
    for length in lengths:
        exact = collapse_distances(oracle, ost.encode(model, task.text(length)).ids.tolist())
        for site, (distance, size) in exact.items():
            (row,) = table[(table["length"] == length) & (table["site"] == site)].to_dict("records")
            assert abs(row["distance"] - distance) <= SAME * size, site
            assert abs(row["relative"] - distance / size) <= SAME, site


LAWS: tuple[Any, ...] = (
    logits_are_the_oracles,
    derivatives_are_the_oracles,
    path_sums_are_the_oracles,
)
every_law = pytest.mark.parametrize("law", LAWS)


@every_family
@every_law
def test_random_weights(law: Callable[..., None], family: str) -> None:
    law(*random(family, 2.0), IDS)


@every_family
def test_collapse_of_random_weights(family: str) -> None:
    collapse_is_the_oracles(*random(family, 1.0), (1, 2, 7))


@pytest.mark.slow
@every_checkpoint
@every_law
def test_pretrained_weights(law: Callable[..., None], name: str) -> None:
    model, oracle = pretrained(name)
    law(model, oracle, ids_of(model))
