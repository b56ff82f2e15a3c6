"""What would load as another model without a word, or give numbers that cannot be trusted: refused.

One function a trap, each with the sentence that says which wrong number it stops. Who reads what
calls them: `weights` and `build` for a checkpoint, `adopt` for a model in memory, `tokenizer` for
its tokens.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement
from torch import nn

from ostools.ground import InputError, PreTrainedModel, PreTrainedTokenizerBase, refusal, short_repr
from ostools.models.families import Family
from ostools.models.tokenizer_calls import token_ids

PLAIN_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""The dtypes, by their names in a header, in which a number stands for itself."""
_DECIDE_NUMBERS = ("torch", "transformers", "transformer-lens")
_OWN_NAME = re.compile(
    r"(paged\|)?(eager|sdpa|flash_attention_\d|flex_attention)|kernels-community/.*"
    r"|(batched|grouped)_mm|deepgemm|sonicmoe|ostools-.*"
)
"""Names of attention and of experts in transformers 5.20 to 5.23; kernels-community: of whom it
takes flash attention where it is missing.
"""


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object."""
    if not path.is_file():
        raise InputError(
            f"expected {path.name} in {path.parent}, found none: is this a Hugging Face model?"
        )
    with refusal(f"a JSON object in {path}, found something else"):
        return {**json.loads(path.read_text("utf-8"), object_hook=_with_infinity)}


def _with_infinity(content: dict[str, Any]) -> object:
    """The object, or the number that it stands for, which JSON cannot write, as transformers writes
    one: {"__float__": "Infinity"}.
    """
    return float(content["__float__"]) if content.keys() == {"__float__"} else content


# ---- libraries


@lru_cache
def check_versions() -> None:
    """Refuse a version of torch, transformers or TransformerLens that the package does not allow.

    pip can be overridden, and nothing else would say so: transformers 5.24 renames its cache, so
    that answers are other ones without a word.
    """
    try:
        requirements = [Requirement(line) for line in requires("oversquashing-tools") or ()]
    except PackageNotFoundError:  # a source tree that was not installed says nothing
        return
    for requirement in requirements:
        if requirement.name not in _DECIDE_NUMBERS:
            continue
        installed = version(requirement.name)
        if not requirement.specifier.contains(installed, prereleases=True):
            raise InputError(
                f"expected {requirement}, found {installed}, in which numbers may be other ones "
                f"without a word: pip install '{requirement}'"
            )


# ---- settings


def refuse_quantised(config: Mapping[str, object], directory: Path) -> None:
    """Refuse weights in few bits, whose numbers stand for others; those of a model that
    transformers dequantised from a GGUF file and saved are whole.
    """
    settings = config.get("quantization_config") or {}
    method = settings.get("quant_method") if isinstance(settings, dict) else settings
    if not settings or method == "gguf":
        return
    raise InputError(
        "expected full-precision weights, found a quantised checkpoint (quant_method "
        f"{str(method)[:60]}) in {directory}: use the original or a GGUF file of it; or load it "
        "with transformers, dequantise it there, and take it with ost.adopt"
    )


def require_own_functions(what: str, *configs: object) -> None:
    """Refuse attention, a mask or experts that are not transformers' own, by the name that a
    configuration gives them or under "eager" and "sdpa", with which ostools itself computes: they
    would be left out, or measured as if they were transformers', without a word.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    attention = ("attention", "_attn_implementation_internal")
    for (kind, setting), functions in (
        (attention, ALL_ATTENTION_FUNCTIONS),
        (attention, ALL_MASK_ATTENTION_FUNCTIONS),
        (("experts", "_experts_implementation_internal"), ALL_EXPERTS_FUNCTIONS),
    ):
        for name in {"eager", "sdpa", *(getattr(config, setting, None) for config in configs)}:
            function = functions.get(name)
            home = str(getattr(function, "__module__", ""))
            name_there = getattr(function, "__name__", "")
            # functools.wraps gives names, not places.
            is_there = getattr(sys.modules.get(home), name_there, None) is function
            is_own = home.startswith(("transformers.", "ostools.")) and is_there
            if function is not None and not is_own:
                raise InputError(
                    f"expected {kind} that is transformers' own in {what}, found {name!r}, which "
                    f"is another: it would not be measured; choose 'eager' or 'sdpa', and make a "
                    "change of attention with hooks or a mitigation"
                )


def require_own_names(settings: Mapping[str, object] | Mapping[int, object], what: str) -> None:
    """Refuse attention or experts that a config.json names and transformers has not: the model
    would be measured with transformers' own in their place.
    """
    for setting, value in settings.items():
        if re.fullmatch(r"_?(attn|experts)_implementation", str(setting)) is None:
            if isinstance(value, dict):
                require_own_names(value, what)
            continue
        for name in value.values() if isinstance(value, dict) else [value]:
            if name is not None and not _OWN_NAME.fullmatch(str(name)):
                raise InputError(
                    f"{setting}: expected a function of transformers in {what}, found "
                    f"{short_repr(name)}: it would not be measured; choose 'eager' or 'sdpa'"
                )


# ---- weights


def check_dtypes(dtypes: Mapping[str, str], family: Family, directory: Path) -> None:
    """Refuse a tensor whose numbers do not stand for themselves: without their scales they are
    another model's. `dtypes`: by a tensor's name, as a header calls them.
    """
    for name, dtype in dtypes.items():
        is_read = not (family.ignored and re.search(family.ignored, name))
        if dtype not in PLAIN_DTYPES and is_read:
            raise InputError(
                f"expected weights of 16 bits or more in {directory}, found {short_repr(name)} of "
                f"dtype {short_repr(dtype)}, whose numbers stand for others: use the "
                "original or a GGUF file of it; or load it with transformers, dequantise it there, "
                "and take it with ost.adopt"
            )


def check_loaded(
    family: Family,
    directory: Path,
    *,
    missing_keys: Iterable[str],
    unexpected_keys: Iterable[str],
    mismatched_keys: Iterable[tuple[str, torch.Size, torch.Size]],
    **_more: object,
) -> None:
    """Refuse a model of which a parameter did not come from the checkpoint (it would be random), or
    a checkpoint with weights that the model would ignore; by what transformers says of the loading.
    """
    ignored = family.ignored or r"\A\Z"
    unexpected = sorted(key for key in unexpected_keys if not re.search(ignored, key))
    for key, actual, want in sorted(mismatched_keys):
        raise InputError(
            f"expected {key} of shape {tuple(want)} as config.json says, found {tuple(actual)} in "
            f"{directory}: weights and config.json belong to different models"
        )
    if missing := sorted(missing_keys):
        raise InputError(
            f"expected every weight of {family.module} in {directory}, found {len(missing)} "
            f"missing ({_first(missing)}): they would be random; fetch the checkpoint again"
        )
    if unexpected:
        raise InputError(
            f"expected only weights of {family.module} in {directory}, found {len(unexpected)} "
            f"more ({_first(unexpected)}): the model would ignore them; is config.json this "
            "checkpoint's own?"
        )


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + ", ..." * (len(names) > 3)


def check_tied(module: PreTrainedModel, where: Path) -> None:
    """Refuse two weights that differ where the configuration ties them: transformers takes the two
    for two, or the one for both, by its version.
    """
    for first, second in module.get_expanded_tied_weights_keys(all_submodels=True).items():
        weights = module.get_parameter(first), module.get_parameter(second)
        if weights[0] is not weights[1] and not torch.equal(*weights):
            raise InputError(
                f"expected one weight as {first} and as {second} in {where}, as "
                "tie_word_embeddings in config.json says, found two that differ: set it to false "
                "if the output layer has weights of its own"
            )


def is_finite(weight: torch.Tensor) -> bool:
    """Return True where no entry is NaN or infinite, without a second tensor of its size: NaN is
    both the smallest and the largest entry wherever there is one.
    """
    return bool(torch.stack(torch.aminmax(weight.detach())).isfinite().all())


def check_finite(module: nn.Module, directory: Path) -> None:
    """Refuse a weight that is NaN or infinite in the dtype that was asked for."""
    for name, weight in module.named_parameters():
        if not is_finite(weight):
            dtype = str(weight.dtype).removeprefix("torch.")
            is_wide = dtype in ("float32", "float64")
            raise InputError(
                f"expected finite weights, found {int((~weight.isfinite()).sum())} NaN or infinite "
                f"in {name} ({dtype}) of {directory}: "
                f"{'the checkpoint is broken' if is_wide else 'try dtype float32'}"
            )


# ---- tokens


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, d_vocab: int, directory: Path) -> None:
    """Refuse a tokenizer whose ids are not rows of the embedding, or that puts BOS twice: a text
    would be another prompt.

    An embedding may have more rows than there are tokens (it is padded to a round number), and a
    token that text cannot produce (a multimodal placeholder) may lie outside; `encode` refuses such
    an id if it ever appears.
    """
    vocabulary = tokenizer.get_vocab()
    token_by_id = {index: token for token, index in vocabulary.items()}
    for token, index in vocabulary.items():
        if (last_token := token_by_id[index]) != token:
            raise InputError(
                f"expected an id for each token of {directory}, found id {index} for "
                f"{short_repr(min(token, last_token))} and for "
                f"{short_repr(max(token, last_token))}: copy the model's own tokenizer there"
            )
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    outside = {index for index in token_by_id if index >= d_vocab} - special
    size = len(tokenizer)
    if outside or d_vocab - size > max(d_vocab // 10, 128):
        raise InputError(
            f"expected a tokenizer that fits an embedding of {d_vocab} rows, found one of {size} "
            f"tokens in {directory}: it belongs to another model; copy the model's own there"
        )
    start = token_ids(tokenizer, "a")[:2]
    if tokenizer.bos_token_id is not None and start == [tokenizer.bos_token_id] * 2:
        raise InputError(
            f"expected one leading {tokenizer.bos_token!r}, found two: the tokenizer in "
            f"{directory} adds it twice; mend its post-processor"
        )


def check_declared_ids(
    tokenizer: PreTrainedTokenizerBase, tokens: Iterable[tuple[str, int, str]], directory: Path
) -> None:
    """Refuse an added token whose id is not the one that its file says: tokenizers gives it another
    without a word where that id is taken.
    """
    for text, declared_id, file in tokens:
        if (index := tokenizer.convert_tokens_to_ids(text)) != declared_id:
            raise InputError(
                f"expected the token {short_repr(text)} with id {short_repr(declared_id)} as "
                f"{directory / file} says, found it with id {index} in the tokenizer that it "
                "makes: copy the model's own tokenizer there"
            )


def ids_of_setting(value: object, name: str) -> tuple[int, ...]:
    """The token ids that a setting such as `eos_token_id` names: one, a list, or none.

    A negative id means none, as it does in transformers' `generate`, which never ends at it. Raises
    `InputError` for anything that is no whole number.
    """
    values = value if isinstance(value, list | tuple) else [value]
    ids: list[Any] = [index for index in values if index is not None]
    if any(type(index) is not int for index in ids):
        raise InputError(
            f"expected {name} to be a token id, a list of ids or null, found {short_repr(value)}"
        )
    return tuple(index for index in ids if index >= 0)


def without_negative_ids(settings: object) -> None:
    """Put None, or the ids that are left, in the place of negative ids of a generation
    configuration.
    """
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(settings, name, None)
        ids = list(ids_of_setting(value, name)) or None
        setattr(settings, name, ids if isinstance(value, list) or ids is None else value)
