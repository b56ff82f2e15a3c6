"""Public chat templates, reduced to what one user turn needs, each on a tiny tokenizer with the
control tokens that it writes.

What is kept of each is what it writes for a user turn behind an optional system prompt: markers,
blanks, what it strips, where it puts the system prompt, what it refuses, and its switch for
thinking.
"""

from dataclasses import dataclass
from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedTokenizerFast

from tests.checkpoints import tiny_model

_GEMMA_TURN = (
    "{{ '<start_of_turn>user\n' + %s + messages[-1]['content'] | trim + '<end_of_turn>\n' }}"
)
_GEMMA_ANSWER = "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
_LLAMA_ANSWER = "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
_QWEN_TURNS = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
_PHI_TURNS = "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
_SYSTEM = "{% set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"


@dataclass(frozen=True)
class Template:
    """A template, and the control tokens that it writes.

    strips: whether blanks at the message's ends are lost. bos: the token at the start, which the
        tokenizer adds too.
    """

    source: str
    control: tuple[str, ...]
    strips: bool = False
    bos: str | None = None
    sentencepiece: bool = False


TEMPLATES = {
    "gemma-2": Template(
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}" + _GEMMA_TURN % "''" + _GEMMA_ANSWER,
        ("<start_of_turn>", "<end_of_turn>"),
        strips=True,
        bos="<bos>",
        sentencepiece=True,
    ),
    "gemma-3": Template(
        "{{ bos_token }}"
        + _SYSTEM
        + _GEMMA_TURN % "(system + '\n\n' if system else '')"
        + _GEMMA_ANSWER,
        ("<start_of_turn>", "<end_of_turn>"),
        strips=True,
        bos="<bos>",
        sentencepiece=True,
    ),
    "llama-3.2": Template(
        "{{ bos_token }}"
        + _SYSTEM
        + "{% if not date_string is defined %}{% if strftime_now is defined and false %}"
        "{% set date_string = strftime_now('%d %b %Y') %}{% else %}{% set date_string = '01 Jan 2026' %}{% endif %}"
        "{% endif %}{{ '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ' "
        "+ date_string + '\n\n' + system | trim + '<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n' + "
        "messages[-1]['content'] | trim + '<|eot_id|>' }}" + _LLAMA_ANSWER,
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        strips=True,
        bos="<|begin_of_text|>",
    ),
    "qwen-3": Template(
        _QWEN_TURNS + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
        "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
        "{% endif %}",
        ("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    ),
    "mistral": Template(
        "{{ bos_token }}"
        + _SYSTEM
        + "{{ '[INST] ' + (system + '\n\n' if system else '') + messages[-1]['content'] + "
        "'[/INST]' }}",
        ("[INST]", "[/INST]"),
        bos="<bos>",
        sentencepiece=True,
    ),
    "phi-3": Template(
        _PHI_TURNS
        + "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    ),
    # Its role marks are no tokens of their own, and a message ends without one: a mark of
    # punctuation joins the line's end.
    "olmo-2": Template(
        "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '\n' }}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}",
        (),
        bos="<|endoftext|>",
    ),
}


@cache
def on_template(name: str) -> TransformerBridge:
    """A tiny model whose tokenizer has that template."""
    return with_template(TEMPLATES[name])


def with_template(template: Template) -> TransformerBridge:
    """A tiny model with the template and its control tokens."""
    model = tiny_model("llama", d_vocab=320, context=1024, fresh=True)
    model._tokenizer = _tokenizer(template)
    return model


def _tokenizer(template: Template) -> PreTrainedTokenizerFast:
    bos = template.bos or "<bos>"
    special = ["<unk>", bos, *template.control]
    spelled = _pieces() if template.sentencepiece else _bytes()
    vocabulary = {piece: index for index, piece in enumerate([*special, *spelled])}
    tokenizer = Tokenizer(_bpe(vocabulary, template.sentencepiece))
    # As Qwen has it: the tags of thinking are added tokens, and not special.
    tokenizer.add_tokens(
        [AddedToken(token, special="think" not in token, normalized=False) for token in special]
    )
    if template.sentencepiece:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
    if template.bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, vocabulary[bos])]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template.source
    return fast


def _bpe(vocabulary: dict[str, int], sentencepiece: bool) -> models.BPE:
    merges = [("▁", "H"), ("\n", "\n")] if sentencepiece else [("?", "Ċ"), ("Ċ", "Ċ"), ("Ġ", "H")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    return models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=sentencepiece)


def _pieces() -> list[str]:
    letters = [chr(code) for code in range(33, 127)]
    return [*letters, "▁", "\n", *(f"<0x{byte:02X}>" for byte in range(128, 256))]


def _bytes() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())
