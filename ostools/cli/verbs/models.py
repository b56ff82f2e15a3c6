"""`ostools list models`: what there is to load, and by which route a model goes."""

import json
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import hf_hub_download

from ostools.cli import terminal
from ostools.ground import InputError, in_words
from ostools.models.families import FAMILIES, Family
from ostools.models.files.checks import read_json, refuse_quantised
from ostools.models.files.config import family_of_settings, quiet
from ostools.models.files.gguf import describe_gguf
from ostools.models.files.gguf_tokenizer import read_header
from ostools.models.files.sources import (
    EMBEDDED_DIRECTORIES,
    GGUF,
    PACKAGED_MODELS,
    is_installed,
)

_NAMES_OF_YOUR_OWN = {
    "./my-model": "a directory with config.json, *.safetensors and a tokenizer",
    "./my-model.gguf": "a GGUF file, dequantised; needs the package gguf",
    "google/gemma-7b": "a hub id; a gated one needs HF_TOKEN, one in the local cache no network",
}


def models(*, check: str | None = None) -> None:
    """List what can be loaded: the embedded models, real ones in packages, the families of models,
    and how to name a model.

    Args:
        check: a directory with a config.json, a GGUF file, or a hub id: say
            instead by which route that model goes, and what is refused of it. No weights are read.
    """
    if check is not None:
        terminal.print_text(checked_route(check))
        return
    families = [
        {"family": family.name, "architecture": family.architecture, **family.routes}
        for family in FAMILIES
        if family.refused is None
    ]
    refused_families = [
        {
            "family": family.name,
            "loaded": "by the generic route" if family.generic_instead else "no",
            "why": family.refused,
        }
        for family in FAMILIES
        if family.refused is not None
    ]
    names = [{"name": name, "what": what} for name, what in named_models()]
    terminal.give_tables({"Models": names, "Families": families, "Others": refused_families})


def named_models() -> Iterator[tuple[str, str]]:
    """Names that --model takes, and what they are."""
    for name, directory in EMBEDDED_DIRECTORIES.items():
        card = json.loads((directory / "card.json").read_text("utf-8"))
        yield name, f"{card['architecture']}, {card['parameters']:,} parameters, in this package"
    for name, model in PACKAGED_MODELS.items():
        state = "installed" if is_installed(name) else f"not installed: {model.make}"
        yield name, f"{model.about} ({model.licence}); {state}"
    yield from _NAMES_OF_YOUR_OWN.items()


def checked_route(name: str) -> list[str]:
    """Route of the model with that config.json, or of that GGUF file, in sentences. `InputError`
    for one that goes by none.
    """
    directory = Path(name).expanduser()
    if directory.suffix == GGUF and directory.is_file():
        header = read_header(directory)
        with quiet():
            _, family, tokenizer = describe_gguf(header, directory.name)
        count = sum(tensor.n_elements for tensor in header.tensors.values())
        bos = tokenizer.bos_token if tokenizer.add_bos_token else "nothing"
        return [
            f"{directory.name}: {header.architecture}, {header.quantisation}, "
            f"{count:,} weights; its tokenizer puts {bos} in front of a text.",
            *_in_words(family),
        ]
    is_local = directory.is_dir()
    try:
        file = Path(directory / "config.json" if is_local else hf_hub_download(name, "config.json"))
        config = read_json(file)
    except Exception as error:  # of the hub: of many kinds
        raise InputError(
            f"check: expected a directory or a hub id with a config.json, or a GGUF file, found "
            f"{name!r}: {in_words(error)}"
        ) from None
    refuse_quantised(config, directory)
    return _in_words(family_of_settings(config, str(file)))


def _in_words(family: Family) -> list[str]:
    """What is measured of a family, and what is refused."""
    if family.generic:
        return [
            f"{family.module}: no record; the generic route, if v^(l) and y are proven at load.",
            "Measured: sensitivity and attribution (linearisation full, of a logit too), collapse, "
            "evaluate, probe, faithfulness; frozen where each block has one softmax over keys. "
            "Refused: detached, bounds, hops and masks, which need more of the inside of a block.",
        ]
    missing = [route for route, has in family.routes.items() if not has]
    return [f"{family.name}: by its record. Refused or slower: {', '.join(missing) or 'nothing'}."]
