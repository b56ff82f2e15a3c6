"""Take a model that a user has in memory, and check it as a loaded one.

Nothing of the user's object is changed. A second model is built of its configuration, as
`load_model` would build it, and given the same weights: none is copied. Whatever else the user's
object computes with (its modules, their settings, its buffers) is held against that second model,
and a difference is refused. So the numbers of an adopted model are those of the same weights saved
with `save_pretrained` and loaded.
"""

import copy
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from transformers.initialization import no_init_weights

from ostools.ground import (
    InputError,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TransformerBridge,
    checked_arguments,
    refusal,
)
from ostools.hooks import SIXTEEN_BITS
from ostools.hooks.torch_state import default_torch_state
from ostools.models.describe import (
    Metadata,
    buffer_digests,
    digest,
    remember,
    require_numbers,
    require_same_buffers,
    require_same_settings,
    settings_of,
)
from ostools.models.families import Family
from ostools.models.files.checks import (
    check_finite,
    check_tied,
    check_tokenizer,
    check_versions,
    require_own_functions,
    without_negative_ids,
)
from ostools.models.files.config import (
    built,
    family_of_settings,
    quiet,
    without_saved,
    without_unread,
)
from ostools.models.load import give_tokenizer, probe_of, wrapped
from ostools.models.precision.scores import check_arithmetic
from ostools.models.shape import resolve_device

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OBSERVERS = (
    "transformers.utils.output_capturing.",
    "transformers.modeling_utils.PreTrainedModel.enable_input_require_grads.",
)
"""What output_hidden_states=True and gradient checkpointing leave on modules: no number changes."""
_CHOICES = ("_attn_implementation_internal", "_experts_implementation_internal")
"""Where a configuration in memory holds the names of the functions that it computes with."""


@checked_arguments(InputError)
@default_torch_state()
def adopt(
    model: object,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    name: str = "adopted",
) -> TransformerBridge:
    """A model in memory (fine-tuned, merged, edited) in the form that `load_model` gives, on the
    same weights without a copy.

    Args:
        model: a Hugging Face model that `load_model` would load, in any mode, with any attention
            that is transformers' own. It is not changed: it trains, generates and saves as before.
        tokenizer: its tokenizer; None: the model takes token ids alone.
        name: what results call the model.

    What comes back reads the same memory: an edit of a weight in place is an edit of both. A weight
    that is replaced by another tensor (`.to(...)`, `p.data = ...`), and an edit of a joint q, k, v
    weight of which TransformerLens computes with copies (Pythia, Falcon, Bloom, MPT), is refused
    from then on: adopt the model again.

    Raises `InputError` for whatever `load_model` refuses; for hooks and replaced methods; for
    attention, masks and experts that others registered; for a module with another configuration
    than the model's; for modules, settings, buffers and logits that its configuration and weights
    do not give (adapters that are not merged, quantised layers, rotations that `.half()` has
    rounded). Cost: a few tiny forward passes.
    """
    check_versions()
    if not isinstance(model, PreTrainedModel):
        raise InputError(
            f"expected a Hugging Face model (PreTrainedModel), found {type(model).__name__}: give "
            "the one that it was made of; of one with an adapter, merge its adapter first, "
            "model.merge_and_unload()"
        )
    _refuse_hooks(model)
    family = family_of_settings(model.config.to_dict(), f"the configuration of {name}")
    configs = _configs(model)
    require_own_functions(name, *configs)
    # It may compute otherwise beyond the few tokens on which the model is tried.
    if any(config.to_dict() != model.config.to_dict() for config in configs):
        raise InputError(
            f"expected one configuration in {name}, found a module with another: set it in the "
            "model's configuration before the model is built"
        )
    weight = cast(Tensor, model.get_input_embeddings().weight)
    eager = weight.dtype in SIXTEEN_BITS and model.config._attn_implementation == "eager"
    check_arithmetic(family, eager)
    with quiet():
        twin = _twin(model, family, weight.dtype, name)
        probe = probe_of(twin)
        # Whatever was replaced in memory, and is no module, setting or weight, is in the logits.
        logits, expected = (_logits(it, twin.config, probe, name) for it in (model, twin))
        if not torch.equal(logits, expected):
            raise InputError(
                f"expected {name} to compute what its weights compute when they are saved and "
                f"loaded, found logits {float((logits - expected).abs().max()):.3g} apart: "
                "something on it was replaced in memory, or they are not finite; undo it"
            )
        bridge = wrapped(twin, family, name, eager)
    if tokenizer is not None:
        check_tokenizer(tokenizer, int(bridge.W_E.shape[0]), Path(name))
    give_tokenizer(bridge, tokenizer)
    check = _replacement_check(model, bridge, name)
    remember(bridge, Metadata(name=name, origin="adopted", check=check))
    return bridge


def _configs(model: nn.Module) -> list[PreTrainedConfig]:
    """Every configuration that a module of the model computes by."""
    configs = [getattr(part, "config", None) for part in model.modules()]
    return list({id(it): it for it in configs if isinstance(it, PreTrainedConfig)}.values())


def _refuse_hooks(model: nn.Module) -> None:
    """Refuse hooks that the user put on a module: they would act on the user's object alone."""
    for name, part in model.named_modules():
        changes = [
            kind.strip("_")
            for kind in _HOOKS
            for hook in getattr(part, kind).values()
            if not f"{hook.__module__}.{getattr(hook, '__qualname__', '')}".startswith(_OBSERVERS)
        ]
        if changes:
            raise InputError(
                f"expected a model without hooks, found {changes[0]} put into "
                f"{name or 'the model'}: remove it (accelerate puts one there for a device map), "
                "adopt the model, and edit what comes back with ostools' own hooks"
            )


def _twin(model: PreTrainedModel, family: Family, dtype: torch.dtype, name: str) -> PreTrainedModel:
    """The model of the user's configuration, as loading builds it, with the user's weights.

    Refuses modules, settings, weights or buffers that are not those of the configuration: they
    compute something else, perhaps beyond the few tokens on which the model is tried.
    """
    kind = type(model)
    if kind is not getattr(transformers, family.module):
        raise InputError(
            f"expected a {family.module} of transformers, found {kind.__module__}.{kind.__name__}: "
            "save it and use load_model"
        )
    config = type(model.config).from_dict(without_saved(copy.deepcopy(model.config.to_dict())))
    config.architectures = [family.architecture]
    without_unread(config, family)
    with refusal(f"a configuration from which {name} can be built"), no_init_weights():
        twin = built(config, family, dtype).eval().requires_grad_(False)
    twin.generation_config = copy.deepcopy(model.generation_config)
    without_negative_ids(twin.generation_config)
    expected, actual = (
        settings_of(dict(it.named_modules(remove_duplicate=False))) for it in (twin, model)
    )
    require_same_settings(
        dict.fromkeys(name for name in actual if name.startswith("class in ")) | expected,
        actual,
        "as its configuration says",
        "merge adapters, dequantise, undo what replaced modules or methods (accelerate does for a "
        "device map), or set it in the configuration before the model is built",
    )
    _share_weights(model, twin)
    check_tied(twin, Path(name))
    check_finite(twin, Path(name))
    return twin


def _share_weights(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    """Put the user's weights, and the buffers that are saved with them, into the twin, whose other
    buffers have to be equal to the user's.

    Weights in few bits stand for other numbers, and those that `.half()` rounded are not what
    loading gives: they are refused.
    """
    user_weights, weights = model.state_dict(keep_vars=True), twin.state_dict(keep_vars=True)
    require_numbers(user_weights.values())
    devices = {weight.device for weight in user_weights.values()}
    if len(devices) != 1:
        raise InputError(
            f"expected all weights on one device, found {', '.join(sorted(map(str, devices)))}: "
            "move the whole model there with model.to(...), or save it and use load_model"
        )
    shared: dict[int, Tensor] = {}
    for path, user_weight in user_weights.items():
        dtype = weights.get(path, user_weight).dtype
        # transformers keeps some weights in float32 whatever dtype it is asked for.
        is_plain = type(user_weight) in (nn.Parameter, Tensor)
        if not is_plain or user_weight.dtype not in (dtype, torch.float32):
            raise InputError(
                f"expected {path} in {str(dtype).removeprefix('torch.')}, in which transformers "
                f"computes with it, found {type(user_weight).__name__} of {user_weight.dtype}: "
                "dequantise the model first, move all of it there with model.to(...), or save it "
                "and use load_model"
            )
        view = user_weight.detach()
        if isinstance(user_weight, nn.Parameter):
            view = nn.Parameter(view, requires_grad=False)
        user_weights[path] = shared.setdefault(id(user_weight), view)
    with refusal("the weights of the configuration", "; undo what replaced modules or weights"):
        twin.load_state_dict(user_weights, assign=True)
    expected, actual = (
        buffer_digests(dict(it.named_modules()), with_saved=False) for it in (twin, model)
    )
    require_same_buffers(expected, actual)
    twin.to(resolve_device(devices.pop()))  # pyright: ignore[reportArgumentType]


def _logits(
    model: PreTrainedModel, config: PreTrainedConfig, probe: Int[Tensor, "1 pos"], name: str
) -> Float[Tensor, "1 pos d_vocab"]:
    """The model's logits in eval mode, with the functions that `config` names; afterwards the model
    is as it was.

    With weights that ask for no gradients: torch multiplies in another order where one does, also
    under `no_grad`.
    """
    weights = {path: weight.detach() for path, weight in model.named_parameters()}
    with ExitStack() as stack, torch.no_grad():
        for part in model.modules():
            stack.callback(setattr, part, "training", part.training)
        for user_config in _configs(model):
            own_choices = {choice: vars(user_config).get(choice) for choice in _CHOICES}
            stack.callback(vars(user_config).update, own_choices)
            vars(user_config).update({choice: getattr(config, choice, None) for choice in _CHOICES})
        with refusal(f"a model {name} that computes"):
            return functional_call(model.eval(), weights, (probe,), {"use_cache": False}).logits


def _replacement_check(
    user_model: PreTrainedModel, bridge: TransformerBridge, name: str
) -> Callable[[], None]:
    """Function that refuses the model once its weights were replaced: by their addresses, and by
    digests of those that TransformerLens copied."""
    model_reference = weakref.ref(user_model)
    shared = {weight.data_ptr() for weight in (*bridge.parameters(), *bridge.buffers())}

    def state(model: PreTrainedModel) -> dict[str, object]:
        return {
            path: (weight.data_ptr(), weight.data_ptr() in shared or digest("", weight))
            for path, weight in model.state_dict().items()
        }

    before = state(user_model)

    def check() -> None:
        model = model_reference()
        now = before if model is None else state(model)
        changed = [path for path in before if now.get(path) != before[path]]
        if changed:
            raise InputError(
                f"expected {name} as it was adopted, found {changed[0]} replaced since: what was "
                "adopted is not what the model is now; adopt it again"
            )

    return check
