"""A LoRA merged into its base by PEFT: the model whose weights were merged by plain arithmetic, to the bit; else one refusal.

The files are written by hand in PEFT's format.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure.unloaded import Unloaded
from ostools.models import describe, load_model
from ostools.models.files.adapter import _matched
from ostools.models.files.sources import locate
from ostools.runs.cells import checkpoint_hash
from tests.adapters import dyadic, factors, merge, write_adapter
from tests.checkpoints import make_model, write_checkpoint, write_tokenizer
from tests.sets import quick

pytest.importorskip("peft")
IDS = torch.randint(6, 262, (2, 19), generator=torch.Generator().manual_seed(3))
TARGETS = {
    "llama": ["q_proj", "v_proj", "down_proj"],
    "gemma3-multimodal": ["k_proj", "up_proj"],
    "gpt2": ["c_attn", "c_proj"],
    "neox": ["query_key_value", "dense_h_to_4h"],
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "base", "llama", seed=1)


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    parts = factors(make_model("llama", seed=1), ["q_proj", "down_proj"])
    return write_adapter(tmp_path / "adapter", base, parts, ["q_proj", "down_proj"])


@pytest.mark.parametrize("family", quick(TARGETS, "llama", "gemma3-multimodal"))
@pytest.mark.parametrize("dtype", quick(["float32", "bfloat16"], "float32"))
def test_merged_by_plain_arithmetic(family: str, dtype: str, tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", family, seed=1)
    model = make_model(family, seed=1)
    parts = factors(model, TARGETS[family])
    assert parts
    found = load_model(write_adapter(tmp_path / "adapter", base, parts, TARGETS[family]), device="cpu", dtype=dtype)
    whole = tmp_path / "merged"
    shutil.copytree(base, whole)
    merge(model, parts).save_pretrained(whole)
    wanted = load_model(whole, device="cpu", dtype=dtype)
    assert describe(found).weight_hash == describe(wanted).weight_hash
    assert torch.equal(found(IDS), wanted(IDS))
    assert not torch.equal(found(IDS), load_model(base, device="cpu", dtype=dtype)(IDS))
    if dtype == "float32" and family in ("llama", "neox"):
        assert torch.equal(found(IDS), model(IDS, use_cache=False).logits)


def test_ranks_and_alphas_by_module_rank_stabilised(tmp_path: Path, base: Path) -> None:
    model = make_model("llama", seed=1)
    ranks = {"model.layers.0.mlp.down_proj": 1, "model.layers.1.mlp.down_proj": 1}
    ranks |= {"model.layers.1.self_attn.q_proj": 16}
    parts = factors(model, ["q_proj", "down_proj"], lambda name: ranks.get(name, 4))
    directory = write_adapter(
        tmp_path / "adapter", base, parts, ["q_proj", "down_proj"], use_rslora=True,
        rank_pattern={"down_proj": 1, r"layers\.1\.self_attn\.q_proj": 16}, alpha_pattern={"layers.0.self_attn.q_proj": 6},
    )  # fmt: skip
    alphas = {"model.layers.0.self_attn.q_proj": 6}
    wanted = merge(model, parts, lambda name: alphas.get(name, 8) / math.sqrt(ranks.get(name, 4)))
    assert torch.equal(load_model(directory, device="cpu")(IDS), wanted(IDS, use_cache=False).logits)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"target_modules": r".*\.(q|k)_proj"}, r"(q|k)_proj$"),
        ({"target_modules": ["q_proj", "k_proj"], "exclude_modules": ["layers.0.self_attn.k_proj"]}, r"q_proj$|1.*k_proj$"),
        ({"target_modules": ["q_proj"], "layers_to_transform": 0, "layers_pattern": "layers"}, r"0.*q_proj$"),
    ],
)  # fmt: skip
def test_the_modules_that_the_settings_name(settings: dict[str, Any], names: str, tmp_path: Path, base: Path) -> None:
    model = make_model("llama", seed=1)
    parts = {name: pair for name, pair in factors(model, ["q_proj", "k_proj"]).items() if re.search(names, name)}
    directory = write_adapter(tmp_path / "adapter", base, parts, None, **settings)
    assert torch.equal(load_model(directory, device="cpu")(IDS), merge(model, parts)(IDS, use_cache=False).logits)
    file = directory / "adapter_model.safetensors"
    one = next(iter(parts))
    save_file({key: value for key, value in load_file(file).items() if one not in key}, file)
    with pytest.raises(InputError, match=rf"found no {re.escape(one)}.lora_A.*names|factors of a LoRA .* found none"):
        load_model(directory, device="cpu")


def test_tables_and_modules_that_it_brings_whole(tmp_path: Path, base: Path) -> None:
    """Llama's tables are not tied here; PEFT writes the table that the adapter stands on beside its factors."""
    model = make_model("llama", seed=1)
    parts = factors(model, ["q_proj", "embed_tokens"])
    a, b = parts.pop("model.embed_tokens")
    more = {
        "base_model.model.model.embed_tokens.lora_embedding_A": a,
        "base_model.model.model.embed_tokens.lora_embedding_B": b,
        "base_model.model.model.embed_tokens.base_layer.weight": model.model.embed_tokens.weight + 1,
        "base_model.model.lm_head.weight": dyadic(tuple(model.lm_head.weight.shape), 1),
        "base_model.model.model.norm.weight": dyadic((32,), 2),
    }
    directory = write_adapter(
        tmp_path / "adapter",
        base,
        parts,
        ["q_proj", "embed_tokens"],
        more=more,
        modules_to_save=["lm_head", "model.norm"],
    )
    model.model.embed_tokens.weight.data += 1
    merge(model, parts | {"model.embed_tokens": (a, b)})
    model.lm_head.weight.data = more["base_model.model.lm_head.weight"]
    model.model.norm.weight.data = more["base_model.model.model.norm.weight"]
    assert torch.equal(load_model(directory, device="cpu")(IDS), model(IDS, use_cache=False).logits)


def test_where_the_numbers_come_from(adapter: Path, base: Path, tmp_path: Path) -> None:
    found = ost.sensitivity(load_model(adapter, device="cpu"), ost.Prompt.from_ids(load_model(base), [2, 40, 50]))
    model = found.provenance.model
    assert re.fullmatch(rf"LoRA, r 4, alpha 8, of {re.escape(str(adapter))} \(sha256 [0-9a-f]{{16}}\)", model["origin"])
    assert (model["name"], model["base"]) == (str(adapter), str(base))
    before = checkpoint_hash(locate(adapter, None))
    assert before != checkpoint_hash(locate(base, None))
    moved = shutil.move(base, tmp_path / "elsewhere")
    again = load_model(adapter, device="cpu", base=moved)
    assert describe(again).weight_hash == model["weight_hash"]
    file = adapter / "adapter_model.safetensors"
    save_file({key: 2 * value for key, value in load_file(file).items()}, file)
    assert checkpoint_hash(locate(adapter, None, moved)) != before
    assert describe(load_model(adapter, device="cpu", base=moved)).origin != model["origin"]
    assert describe(load_model(adapter, device="cpu", base=moved)).weight_hash != model["weight_hash"]


def test_its_own_tokenizer_and_else_that_of_its_base(adapter: Path, base: Path) -> None:
    assert load_model(adapter, device="cpu").tokenizer.chat_template == load_model(base).tokenizer.chat_template
    counted = Unloaded(locate(adapter, None), torch.float32, "cpu")
    assert counted.pos("1 1") == Unloaded(locate(base, None), torch.float32, "cpu").pos("1 1") == 4
    write_tokenizer(adapter, bos=False, chat_template="own")
    assert load_model(adapter, device="cpu").tokenizer.chat_template == "own"
    assert Unloaded(locate(adapter, None), torch.float32, "cpu").pos("1 1") == 3


def _settings(**changed: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        file = directory / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))

    return change


def _tensors(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    def changed(directory: Path) -> None:
        file = directory / "adapter_model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)

    return changed


Q = "base_model.model.model.layers.0.self_attn.q_proj"
REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another kind": (_settings(peft_type="IA3"), "expected peft_type LORA in .*, found peft_type = 'IA3': merge it with PEFT"),
    "a changed base": (_settings(init_lora_weights="pissa"), "expected a base that training began from .* = 'pissa'"),
    "unknown": (_settings(use_something_new=True), "settings that are known here .*use_something_new = True"),
    "an expression of nothing": (_settings(target_modules=".*z"), "expected names of modules as target_modules in"),
    "a broken expression": (_settings(target_modules="(q_proj"), "expected names or regular expressions in .*, found one"),
    "another rank": (_settings(r=5), "expected ranks of 1 to 4 in .*, as the factors have, found 5"),
    "not named": (_settings(target_modules=["q_proj"]), "down_proj.lora_A.weight, which .* does not name"),
    "missing": (_settings(target_modules=["q_proj", "down_proj", "k_proj"]), "found no .*k_proj.lora_A.*, which .* names"),
    "no such module": (
        _tensors(lambda found: found.update({f"{Q.replace('.0.', '.7.')}.lora_A.weight": torch.ones(4, 32)})),
        "found model.layers.7.self_attn.q_proj.lora_A.weight, which the base model does not have",
    ),
    "half a pair": (_tensors(lambda found: found.pop(f"{Q}.lora_B.weight")), "found no .*q_proj.lora_B.*, which .* names"),
    "no key of a LoRA": (
        _tensors(lambda found: found.update({"model.hada_w1_a": torch.ones(2)})),
        "only tensors of a LoRA, found model.hada_w1_a",
    ),
    "not a number": (
        _tensors(lambda found: found[f"{Q}.lora_A.weight"].fill_(math.nan)),
        "finite numbers of 16 bits or more, found others in",
    ),
    "a whole model too": (
        lambda path: shutil.copy(path.parent / "base" / "model.safetensors", path),
        "expected an adapter or a whole model in .*, found both",
    ),
    "no base": (_settings(base_model_name_or_path=None), r"expected base_model_name_or_path in .* with base=\.\.\. \(--base\)"),
    "a base that is not there": (
        _settings(base_model_name_or_path="./nowhere"),
        r"base model of the adapter .*: expected a directory .* at './nowhere', found nothing there.* with base=\.\.\.",
    ),
    "upon an adapter": (
        lambda path: (path.parent / "base" / "adapter_config.json").write_text("{}"),
        "expected a whole model as the base of the adapter .*, found an adapter in .*base",
    ),
    "no settings": (lambda path: (path / "adapter_config.json").write_text("["), "expected JSON in .*adapter_config.json"),
    "its own code": (
        lambda path: (path / "tokenizer_config.json").write_text('{"auto_map": {}}'),
        "found remote code .*adapter/tokenizer_config.json",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, adapter: Path) -> None:
    change, match = REFUSED[case]
    change(adapter)
    with pytest.raises(InputError, match=match) as refusal:
        load_model(adapter, device="cpu")
    assert "\n" not in str(refusal.value)


def test_what_is_switched_off_is_not_refused(adapter: Path) -> None:
    """A newer PEFT writes settings that are not known here, off by default."""
    before = load_model(adapter, device="cpu")(IDS)
    _settings(
        use_something_new=False, new_config=None, new_list=[], init_lora_weights="gaussian", eva_config={"rho": 2}
    )(adapter)
    assert torch.equal(load_model(adapter, device="cpu")(IDS), before)


@pytest.mark.parametrize("case", ["both tables", "one table", "factors of one"])
def test_one_of_two_tied_tables_is_refused(case: str, tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", "gemma", seed=1)
    model = make_model("gemma", seed=1)
    targets = ["q_proj"] if case != "factors of one" else ["q_proj", "lm_head"]
    parts, table = factors(model, targets), dyadic((268, 32), 1)
    saved = {"both tables": ["embed_tokens", "lm_head"], "one table": ["lm_head"]}.get(case, [])
    names = {"embed_tokens": "model.embed_tokens", "lm_head": "lm_head"}
    more = {f"base_model.model.{names[name]}.weight": table.clone() for name in saved}
    directory = write_adapter(tmp_path / "adapter", base, parts, targets, more=more, modules_to_save=saved or None)
    if case == "both tables":
        merge(model, parts).lm_head.weight.data.copy_(table)
        expected = model(IDS, use_cache=False).logits
        assert torch.equal(load_model(directory, device="cpu")(IDS), expected)
        _tensors(lambda found: found["base_model.model.lm_head.weight"].add_(1))(directory)
    with pytest.raises(InputError, match="expected the input and the output table changed alike"):
        load_model(directory, device="cpu")


@pytest.mark.parametrize(
    ("family", "more", "match"),
    [
        ("llama", {"device_map": "disk"}, "found device_map: merge it with PEFT"),
        ("mixtral", {}, "found experts in Mixtral, which transformers stacks"),
    ],
)
def test_bases_that_are_not_merged_into(family: str, more: dict[str, Any], match: str, tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", family)
    with pytest.raises(InputError, match=match):
        load_model(write_adapter(tmp_path / "adapter", base, {}, ["q_proj"]), device="cpu", **more)


def test_a_pattern_that_never_ends() -> None:
    with pytest.raises(InputError, match=r"found .*, which takes too long to match"):
        _matched("(a|aa)+[^a.]", [f"{'a' * 60}.a"], Path("adapter_config.json"))


@pytest.mark.parametrize("name", ["rank_pattern", "modules_to_save"])
def test_a_pattern_where_peft_would_match_it(name: str, adapter: Path) -> None:
    pattern = "(a|aa)+[^a.]"
    _settings(**{name: {pattern: 2} if name in ("rank_pattern", "alpha_pattern") else pattern})(adapter)
    with pytest.raises(InputError, match=f"expected names of modules as {name} in "):
        load_model(adapter, device="cpu")


def test_an_alpha_of_no_module_is_refused(adapter: Path) -> None:
    _settings(alpha_pattern={"layers.7.q_proj": 2})(adapter)
    with pytest.raises(InputError, match="expected names of changed modules as alpha_pattern"):
        load_model(adapter, device="cpu")
