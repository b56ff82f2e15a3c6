"""GGUF files: the model is that of the dequantised weights, converted once; what the reader would
drop is refused.
"""

import importlib.util
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

import ostools as ost
from ostools.models import describe, load_model
from ostools.models.files import gguf, gguf_cache, sources
from ostools.models.files.gguf_tokenizer import read_header
from ostools.models.files.sources import PackagedModel, locate
from tests.checkpoints import refused
from tests.models.gguf.write import stands_for, write_gguf

IDS = torch.tensor([[2, 40, 50, 60, 60, 61, 70, 71]])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSTOOLS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_the_model_is_that_of_the_dequantised_weights(family: str, tmp_path: Path) -> None:
    """Equal to transformers' own reading and to
    Q8_0 by its definition.
    """
    file = write_gguf(tmp_path / "tiny.gguf", family)
    model = load_model(file, dtype="float32", device="cpu")
    logits = model(IDS)
    assert torch.equal(logits, stands_for(family)(IDS, use_cache=False).logits)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32,
        attn_implementation="eager",
    )  # fmt: skip
    assert torch.equal(logits, theirs(IDS, use_cache=False).logits)
    text = "the tin 12 </s>in"
    own = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    assert model.tokenizer(text).input_ids == own(text).input_ids
    assert model.tokenizer.chat_template == own.chat_template
    described = describe(model)
    assert (described.name, described.title) == (str(file), "tiny.gguf, Q8_0")
    assert described.quantisation is not None
    assert described.quantisation.startswith(
        "Q8_0, dequantised to float32 from tiny.gguf (SHA-256 "
    )
    assert "of tiny.gguf, Q8_0 in float32" in repr(
        ost.sensitivity(model, ost.models.Prompt.from_ids(model, [2, 40, 50]))
    )


def test_a_second_load_reads_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the file has moved, and where the package gguf is gone; another content is
    converted anew.
    """
    first = load_model(write_gguf(tmp_path / "a.gguf", "llama"), dtype="float32", device="cpu")(IDS)
    moved = Path(shutil.move(tmp_path / "a.gguf", tmp_path / "b.gguf"))
    with monkeypatch.context() as gone:
        gone.setattr(gguf, "read_model", lambda *_: pytest.fail("converted again"))
        gone.setattr(importlib.util, "find_spec", lambda name: None)
        assert torch.equal(load_model(moved, dtype="float32", device="cpu")(IDS), first)
    write_gguf(moved, "llama", seed=1)
    assert not torch.equal(load_model(moved, dtype="float32", device="cpu")(IDS), first)
    assert len(_folders(cache)) == 2


def test_the_quantisation_is_that_of_the_header(tmp_path: Path) -> None:
    """By general.file_type, whatever the name says; without one, the type of most weights."""
    assert (
        read_header(write_gguf(tmp_path / "q2_k.gguf", "llama", file_type=15)).quantisation
        == "Q4_K_M"
    )
    assert (
        read_header(write_gguf(tmp_path / "q2_k.gguf", "llama", file_type=None)).quantisation
        == "Q8_0"
    )


@pytest.mark.parametrize(
    ("written", "match"),
    [
        ({"said": {"llama.rope.scaling.type": "yarn"}}, r"transformers has, found llama.rope.scaling.type = 'yarn'"),
        ({"said": {"llama.attention.clamp_kqv": 8.0}}, r"transformers has, found llama.attention.clamp_kqv = 8.0"),
        ({"said": {"llama.attention.sliding_window": 8}}, r"transformers has, found llama.attention.sliding_window = 8"),
        ({"said": {"llama.rope.freq_base_swa": 1.0}}, r"transformers has, found llama.rope.freq_base_swa = 1.0"),
        ({"tensors": {"rope_freqs.weight": torch.arange(1, 9.0)}}, r"transformers has, found llama.rope_freqs.weight = "),
        ({"tensors": {"blk.0.attn_q.bias": torch.ones(64)}}, r"tensors that transformers reads .* found \d+ weights for"),
        ({"unsaid": ("blk.1.ffn_up.weight",)}, r"found 1 missing \(model.layers.1.mlp.up_proj.weight\)"),
        ({"said": {"tokenizer.ggml.pre": "unheard-of"}}, r"tokenizer.ggml.pre = 'unheard-of' in tiny.gguf: texts"),
        ({"architecture": "gemma"}, r"architecture that is read \(llama, .*\), found 'gemma' in tiny.gguf"),
        ({"family": "gemma3", "d_head": 128}, r"divided by the square root of 256, .* found heads of 128 in 6 layers"),
        ({"said": {"split.count": 3}}, r"one GGUF file with all weights, found tiny.gguf, one of 3"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(written: dict[str, Any], match: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"family": "llama"} | written
    refused(match, load_model, write_gguf(tmp_path / "tiny.gguf", **options))


def _grown(content: bytes) -> bytes:
    """The rows of the embedding are said to be 2^40."""
    place = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 8
    return content[:place] + struct.pack("<Q", 1 << 40) + content[place + 8 :]


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda content: content[: len(content) // 2], "truncated or corrupt"),
        (lambda content: b"PK" + content[2:], "truncated or corrupt"),
        (lambda content: b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (_grown, "truncated or corrupt"),
        (lambda content: content[:-200] + np.full(100, np.nan, np.float16).tobytes(), "NaN or infinite|finite"),
    ],
)  # fmt: skip
def test_broken_files_and_files_that_lie(
    spoil: Callable[[bytes], bytes], match: str, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", "llama")
    file.write_bytes(spoil(file.read_bytes()))
    refused(match, load_model, file)


@pytest.fixture
def in_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model in two packages; the folder where they are installed."""
    file = write_gguf(tmp_path / "tiny.gguf", "llama")
    content, site = file.read_bytes(), tmp_path / "site"
    for package, part in (("gguf_part_a", content[:1000]), ("gguf_part_b", content[1000:])):
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").write_text(
            "raise RuntimeError('no code of the package is run')"
        )
        (site / package / "part").write_bytes(part)
    parts = (("gguf_part_a", "part"), ("gguf_part_b", "part"))
    model = PackagedModel(
        "Tiny 7M",
        file.name,
        gguf_cache.file_hash(file),
        parts,
        "pip install tiny==1",
        "MIT",
        "tiny",
    )
    monkeypatch.setitem(sources.PACKAGED_MODELS, "tiny-7m", model)
    return site


def test_a_model_in_packages_loads_by_name(
    in_packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ost.InputError,
        match=r"packages that hold tiny-7m .* found 0 of 2: pip install tiny==1 \(or `make",
    ):
        load_model("tiny-7m")
    monkeypatch.syspath_prepend(in_packages)
    (in_packages / "gguf_part_b" / "part").write_bytes(b"GGUF of another version")
    with pytest.raises(
        ost.InputError, match=r"expected tiny.gguf with SHA-256 \w+, found \w+: install the version"
    ):
        load_model("tiny-7m")
    whole = in_packages.parent / "tiny.gguf"
    (in_packages / "gguf_part_b" / "part").write_bytes(whole.read_bytes()[1000:])
    assert describe(load_model("tiny-7m", device="cpu")).dtype == "bfloat16"
    model = load_model("tiny-7m", dtype="float32", device="cpu")
    assert torch.equal(model(IDS), load_model(whole, dtype="float32", device="cpu")(IDS))
    assert (describe(model).name, describe(model).title) == ("tiny-7m", "Tiny 7M, Q8_0")


# ---- the cache


def _folders(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.is_dir())


@pytest.mark.parametrize(
    ("family", "dtype"), [("llama", torch.float16), ("gemma3", torch.bfloat16)]
)
def test_weights_are_rounded_once_while_they_are_converted(
    family: str, dtype: torch.dtype, tmp_path: Path, cache: Path
) -> None:
    """Into a folder of that dtype, which serves no other."""
    file = write_gguf(tmp_path / "tiny.gguf", family)
    narrow = load_model(file, dtype=dtype, device="cpu")
    (made,) = _folders(cache)
    plain, stored = stands_for(family), load_file(made / "model.safetensors")
    rounded = plain.to(dtype).state_dict()
    assert all(torch.equal(weight, rounded[name]) for name, weight in stored.items())
    dtype_name = str(dtype).removeprefix("torch.")
    held = str(describe(narrow).quantisation)
    assert held.startswith(f"Q8_0, dequantised to {dtype_name} from tiny.gguf (SHA-256 ")
    exact = load_model(file, dtype="float32", device="cpu")
    assert torch.equal(exact(IDS), stands_for(family)(IDS, use_cache=False).logits)
    asked = (torch.float32, torch.float64, dtype)
    folders = [locate(file, None, each).directory for each in asked]
    assert folders[0] == folders[1] != folders[2] == made
    assert len(_folders(cache)) == 2


@pytest.mark.parametrize(
    ("kind", "dtype"), [(7, "bfloat16"), (1, "float16"), (32, "bfloat16"), (0, "float32")]
)
def test_a_file_is_loaded_in_the_dtype_that_it_stores_and_of_fewer_bits_in_bfloat16(
    kind: int, dtype: str, tmp_path: Path
) -> None:
    """By `general.file_type`: 0 is F32, 1 F16, 7 Q8_0 and 32 BF16."""
    file = write_gguf(tmp_path / "tiny.gguf", "llama", file_type=kind)
    described = describe(load_model(file, device="cpu"))
    assert described == describe(load_model(file, dtype=dtype, device="cpu"))
    assert described.dtype == dtype
    assert f"dequantised to {dtype}" in str(described.quantisation)


def test_what_a_killed_conversion_left_goes_at_the_next(tmp_path: Path, cache: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", "llama")
    left = cache / ".converting" / "model"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    assert _folders(cache) == [left.parent]
    load_model(file, dtype="float32", device="cpu")
    assert _folders(cache) == [locate(file, None).directory]
