"""The embedded model's tokenizer: byte-level BPE in which every digit is a token of its own.

Any text encodes and decodes to itself, since the alphabet is the 256 bytes and nothing is normalised or
cleaned up. `<bos>` is put in front once by the post-processor. Special tokens that a user merely writes are
plain text when encoded with `split_special_tokens=True`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ostools.tasks.appendix_c import NAMES, WORDS, AppendixTask

PAD, EOS, BOS = "<pad>", "<eos>", "<bos>"
PAD_ID, EOS_ID, BOS_ID = 0, 1, 2
VOCABULARY_SIZE = 1024
_TEMPLATE_REPEATS = 2000  # so that the words of the paper's prompts become tokens among megabytes of other text


def template_texts() -> list[str]:
    """The fixed words of every task: what is the same in each of its prompts and answers."""
    texts = []
    for name in NAMES:
        task = AppendixTask(name, hint=name in ("copy-last", "copy-first"))
        before, _, after = task.parts(("1",))
        texts += [before, after, "\n" + task.answer_line("")]
    texts.append(AppendixTask("count-ones", tidy=True).parts(("1",))[2])
    return [*texts, " + ", "'car", *(" " + word for word in ("car", *WORDS))]


def train_tokenizer(paragraphs: Iterable[str], vocabulary_size: int = VOCABULARY_SIZE) -> Tokenizer:
    """Learn the merges from the paragraphs and the prompts' own words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[PAD, EOS, BOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*paragraphs, *template_texts() * _TEMPLATE_REPEATS], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path, context_length: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, as AutoTokenizer reads them."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=context_length,
    )
    wrapped.save_pretrained(directory)
