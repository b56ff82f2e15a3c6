"""The families of models that ostools knows: one record each, and what everything else asks of a
family is in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from ostools.ground import TransformerBridge, original_model


class Setting(NamedTuple):
    """A setting of config.json: its name (dots lead into settings of settings), the value that a
    record asks for, and what transformers takes where it is absent."""

    name: str
    value: object
    absent: object

    def read(self, config: Mapping[str, object]) -> object:
        """Value that a config.json has there."""
        *parents, last = self.name.split(".")
        for parent in parents:
            inner = config.get(parent)
            config = inner if isinstance(inner, Mapping) else {}
        return config.get(last, self.absent)


@dataclass(frozen=True)
class Family:
    """Record of the models of one `model_type`: how a checkpoint becomes a bridge, and what a block
    is made of.

    `architecture` is what config.json says, `module` the transformers class whose weights are
    loaded where it is another one (for a multimodal checkpoint only its text part), `renames` maps
    checkpoint keys to that class's, and keys that match `ignored` hold nothing that the text model
    would compute with (the vision part; a stored mask). `when`: the settings of config.json that
    make this the record, where one `model_type` stands for several kinds of model.

    The rest describes the block. Tests hold each word of it against the modules of a loaded model.
    `norms`: where they stand about attention and MLP; `windows`: which layers may have one;
    `sinks`: a learnt score a head
    joins the softmax, so that weights of keys sum to less than 1. `copied`: q, k and v are one
    weight of the checkpoint, of which TransformerLens computes with copies. `exact`: the
    logits are Hugging Face's to the bit; else they differ by the rounding of sums in another order.
    `not_eager`: why there is no "bfloat16-eager" of it. `refused`: why such a model is not loaded
    by a record.
    `generic`: no record, but what stands in for one of a model that none describes
    (`models.generic`); the rest then says nothing.
    """

    model_type: str
    architecture: str
    name: str
    module: str = ""
    when: tuple[Setting, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    ignored: str | None = None
    norms: Literal["before", "behind", "before and behind"] = "before"
    parallel: bool = False
    positions: Literal["rotary", "rotary, part of a head", "ALiBi", "learned"] = "rotary"
    mlp: Literal["gated", "plain", "experts"] = "gated"
    windows: Literal["none", "some layers", "all layers"] = "none"
    sinks: bool = False
    copied: bool = False
    exact: bool = True
    not_eager: str | None = None
    refused: str | None = None
    generic: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "module", self.module or self.architecture)

    @property
    def generic_instead(self) -> bool:
        """Whether a model that this record refuses goes by the generic route: what is wrong is
        TransformerLens' copy of it.
        """
        return (self.refused or "").startswith("TransformerLens")

    @property
    def routes(self) -> dict[str, bool]:
        """Routes of `ROUTES`, and whether this family has them."""
        described = self.mlp != "experts"
        sequential = not self.parallel and self.norms != "behind"
        return {"certified": described, "paper's": described and sequential}


ROUTES = {
    "certified": "`bounds`: upper bounds of the frozen and of the real derivative",
    "paper's": "`bounds`: the papers' forms of Theorem 5.1, which are of a sequential block with "
    "norms before",
}
"""What a family may have, by name."""


_Gemma3 = partial(Family, norms="before and behind", windows="some layers")
_Plain = partial(Family, mlp="plain")
_ALiBi = partial(_Plain, positions="ALiBi", copied=True, exact=False)
_NeoX = partial(
    _Plain,
    positions="rotary, part of a head",
    copied=True,
    ignored=r"\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)$",
)
_STABLE = Setting("qk_layernorm", False, False)
_StableLM = partial(Family, positions="rotary, part of a head")
_FALCON = Setting("new_decoder_architecture", False, False)

_OLMO_ROTATION = "TransformerLens 4.3 rotates its queries and keys in float32, and leaves them so"
_GEMMA_3N = (
    "a block carries four residual streams (AltUp) and reads an embedding of the tokens of its "
    "own, so that there is no v^(l) through which alone y_n depends on a token"
)
_GEMMA_4 = (
    "a block reads an embedding of the tokens of its own (hidden_size_per_layer_input is not 0), "
    "or the keys and values of a block before it (num_kv_shared_layers is not 0), so that y_n "
    "depends on a token past v^(l)"
)
_GEMMA_4_PLAIN = (
    "TransformerLens 4.3's bridge of it has not been held against Hugging Face's own model"
)

FAMILIES: tuple[Family, ...] = (
    Family("gemma", "GemmaForCausalLM", "Gemma 1"),
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        "Gemma 2",
        norms="before and behind",
        windows="some layers",
    ),
    _Gemma3("gemma3_text", "Gemma3ForCausalLM", "Gemma 3"),
    _Gemma3(
        "gemma3",
        "Gemma3ForConditionalGeneration",
        "Gemma 3, text part",
        module="Gemma3ForCausalLM",
        # Both spellings of the text part's keys: as published, and as newer transformers hold them
        # in memory.
        renames=(
            (r"^language_model\.model\.", "model."),
            (r"^language_model\.lm_head\.", "lm_head."),
            (r"^model\.language_model\.", "model."),
        ),
        ignored=r"^(model\.)?(vision_tower|multi_modal_projector)\.",
    ),
    Family("llama", "LlamaForCausalLM", "Llama"),
    # Older checkpoints carry the causal mask and its constant as if they were weights.
    _Plain(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT-2",
        ignored=r"(^|\.)h\.\d+\.attn\.(masked_)?bias$",
        positions="learned",
        exact=False,
    ),
    Family("granite", "GraniteForCausalLM", "Granite"),
    Family("mistral", "MistralForCausalLM", "Mistral", windows="all layers"),
    Family("qwen2", "Qwen2ForCausalLM", "Qwen 2 and 2.5", windows="some layers"),
    Family("qwen3", "Qwen3ForCausalLM", "Qwen 3", windows="some layers"),
    Family("phi3", "Phi3ForCausalLM", "Phi-3", windows="all layers", exact=False),
    Family(
        "olmo2",
        "Olmo2ForCausalLM",
        "OLMo 2",
        norms="behind",
        not_eager=_OLMO_ROTATION,
    ),
    Family(
        "olmo3",
        "Olmo3ForCausalLM",
        "OLMo 3",
        norms="behind",
        windows="some layers",
        not_eager=_OLMO_ROTATION,
    ),
    _NeoX(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        "Pythia, GPT-NeoX",
        when=(Setting("use_parallel_residual", True, True),),
        parallel=True,
    ),
    _NeoX(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        "GPT-NeoX, sequential",
        when=(Setting("use_parallel_residual", False, True),),
    ),
    _Plain(
        "phi",
        "PhiForCausalLM",
        "Phi-1, 1.5, 2",
        when=(Setting("qk_layernorm", False, False),),
        parallel=True,
        positions="rotary, part of a head",
    ),
    Family(
        "phi",
        "PhiForCausalLM",
        "Phi with qk-norm",
        when=(Setting("qk_layernorm", True, False),),
        refused="TransformerLens 4.3 does not know its norms of queries and keys",
    ),
    _Plain(
        "falcon",
        "FalconForCausalLM",
        "Falcon 7B",
        when=(_FALCON, Setting("alibi", False, False), Setting("parallel_attn", True, True)),
        parallel=True,
        copied=True,
        exact=False,
    ),
    Family(
        "falcon",
        "FalconForCausalLM",
        "Falcon RW",
        when=(Setting("alibi", True, False),),
        refused="transformers 5.23 adds ALiBi twice where it computes attention eagerly, with the "
        "mask and with the scores",
    ),
    Family(
        "falcon",
        "FalconForCausalLM",
        "Falcon 40B, 180B",
        when=(Setting("new_decoder_architecture", True, False),),
        refused="TransformerLens 4.3 splits its grouped projection of queries, keys and values at "
        "the wrong rows",
    ),
    _ALiBi(
        "bloom",
        "BloomForCausalLM",
        "Bloom",
        when=(Setting("apply_residual_connection_post_layernorm", False, False),),
    ),
    # transformers reads none of these settings, and computes as if they were so.
    _ALiBi(
        "mpt",
        "MptForCausalLM",
        "MPT",
        when=(
            Setting("logit_scale", None, None),
            Setting("attn_config.alibi", True, True),
            Setting("attn_config.alibi_bias_max", 8, 8),
            Setting("attn_config.prefix_lm", False, False),
            Setting("attn_config.qk_ln", False, False),
            Setting("attn_config.attn_type", "multihead_attention", "multihead_attention"),
        ),
    ),
    _Plain(
        "starcoder2",
        "Starcoder2ForCausalLM",
        "StarCoder 2",
        windows="all layers",
        exact=False,
    ),
    _StableLM(
        "stablelm",
        "StableLmForCausalLM",
        "StableLM",
        when=(_STABLE, Setting("use_parallel_residual", False, False)),
    ),
    _StableLM(
        "stablelm",
        "StableLmForCausalLM",
        "StableLM, parallel",
        when=(_STABLE, Setting("use_parallel_residual", True, False)),
        parallel=True,
    ),
    Family(
        "stablelm",
        "StableLmForCausalLM",
        "StableLM 2 12B",
        when=(Setting("qk_layernorm", True, False),),
        refused="TransformerLens 4.3 shows no norm of its queries and keys, one a head",
    ),
    Family("gemma3n", "Gemma3nForConditionalGeneration", "Gemma 3n", refused=_GEMMA_3N),
    Family("gemma3n_text", "Gemma3nForCausalLM", "Gemma 3n, text alone", refused=_GEMMA_3N),
    Family(
        "gemma4",
        "Gemma4ForConditionalGeneration",
        "Gemma 4 whose blocks read the stream alone",
        when=(
            Setting("text_config.hidden_size_per_layer_input", 0, 256),
            Setting("text_config.num_kv_shared_layers", 0, 0),
        ),
        refused=_GEMMA_4_PLAIN,
    ),
    Family(
        "gemma4_text",
        "Gemma4ForCausalLM",
        "Gemma 4 whose blocks read the stream alone, text alone",
        when=(
            Setting("hidden_size_per_layer_input", 0, 256),
            Setting("num_kv_shared_layers", 0, 0),
        ),
        refused=_GEMMA_4_PLAIN,
    ),
    Family("gemma4", "Gemma4ForConditionalGeneration", "Gemma 4, other", refused=_GEMMA_4),
    Family("gemma4_text", "Gemma4ForCausalLM", "Gemma 4, other, text alone", refused=_GEMMA_4),
    Family("mixtral", "MixtralForCausalLM", "Mixtral", mlp="experts", windows="all layers"),
    Family(
        "gpt_oss", "GptOssForCausalLM", "gpt-oss", mlp="experts", windows="some layers", sinks=True
    ),
    Family("olmoe", "OlmoeForCausalLM", "OLMoE", mlp="experts"),
    Family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        "Qwen 3 MoE",
        mlp="experts",
        windows="all layers",
    ),
)
"""One record a kind of model; the first of a `model_type` whose settings (`when`) are the
configuration's is the model's.
"""

KNOWN_ARCHITECTURES = ", ".join(
    sorted({family.architecture for family in FAMILIES if family.refused is None})
)
"""The architectures that load, for refusals."""


def family_of_config(config: Mapping[str, object]) -> Family | None:
    """The record of a config.json; None for a `model_type`, or for settings of one, that no record
    describes.
    """
    for family in FAMILIES:
        if family.model_type == config.get("model_type") and all(
            setting.read(config) == setting.value for setting in family.when
        ):
            return family
    return None


def family_of(model: TransformerBridge) -> Family | None:
    """The record of a bridge by its Hugging Face configuration; None where no record describes the
    model.
    """
    family = family_of_config(original_model(model).config.to_dict())
    return family if family is not None and family.module == str(model.cfg.architecture) else None


EMBEDDED = "embedded"
"""The name of the model that is loaded by default."""
EMBEDDED_MODELS = (EMBEDDED, "embedded-short", "embedded-windowed")
"""The names of the models that the package carries."""
