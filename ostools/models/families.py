"""The families of models that ostools knows: decoder-only, causal, with hooks that mean the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """How a checkpoint of one `model_type` becomes a bridge.

    `architecture` is what config.json says, `module` the transformers class whose weights are loaded (for a
    multimodal checkpoint only its text part), `renames` maps checkpoint keys to that class's, and keys that match
    `ignored` hold nothing that the text model would compute with (the vision part; a stored mask).
    """

    architecture: str
    module: str
    renames: tuple[tuple[str, str], ...] = ()
    ignored: str | None = None


FAMILIES: dict[str, Family] = {
    "gemma": Family("GemmaForCausalLM", "GemmaForCausalLM"),
    "gemma2": Family("Gemma2ForCausalLM", "Gemma2ForCausalLM"),
    "gemma3_text": Family("Gemma3ForCausalLM", "Gemma3ForCausalLM"),
    "gemma3": Family(
        "Gemma3ForConditionalGeneration",
        "Gemma3ForCausalLM",
        # Both spellings of the text part's keys: as published, and as newer transformers hold them in memory.
        renames=(
            (r"^language_model\.model\.", "model."),
            (r"^language_model\.lm_head\.", "lm_head."),
            (r"^model\.language_model\.", "model."),
        ),
        ignored=r"^(model\.)?(vision_tower|multi_modal_projector)\.",
    ),
    "llama": Family("LlamaForCausalLM", "LlamaForCausalLM"),
    # Older checkpoints carry the causal mask and its constant as if they were weights.
    "gpt2": Family("GPT2LMHeadModel", "GPT2LMHeadModel", ignored=r"(^|\.)h\.\d+\.attn\.(masked_)?bias$"),
}

EMBEDDED = "embedded"
"""The name of the model that the package carries."""

BARE_HUB_IDS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")
"""The hub's few models of these families that have no organisation in front."""

KNOWN_HUB_IDS = (
    "google/gemma-2b",
    "google/gemma-2b-it",
    "google/gemma-7b",
    "google/gemma-7b-it",
    "google/gemma-2-2b",
    "google/gemma-2-2b-it",
    "google/gemma-2-9b",
    "google/gemma-2-9b-it",
    "google/gemma-2-27b",
    "google/gemma-3-270m",
    "google/gemma-3-1b-pt",
    "google/gemma-3-1b-it",
    "google/gemma-3-4b-pt",
    "google/gemma-3-4b-it",
    "google/gemma-3-12b-pt",
    "google/gemma-3-12b-it",
    "google/gemma-3-27b-it",
    "meta-llama/Llama-2-7b-hf",
    "meta-llama/Llama-2-13b-hf",
    "meta-llama/Meta-Llama-3-8B",
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.2-3B",
    "openai-community/gpt2",
    "openai-community/gpt2-medium",
    "openai-community/gpt2-large",
    "openai-community/gpt2-xl",
    "distilbert/distilgpt2",
    *BARE_HUB_IDS,
)
"""Well-known ids of these families: to suggest a right name for a wrong one, not a limit on what loads."""
