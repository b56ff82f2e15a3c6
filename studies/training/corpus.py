"""The plain text that the embedded model is trained on: docstrings of installed packages, pinned by
version and hash.

Nothing is shipped and nothing is downloaded: the text is read with `ast` from the source files of
packages that `requirements.lock` pins, so any machine with that lock file has the same text. Its
sha256 is checked before a step is made. Reading it takes about half a minute on one core.

The embedded model's tokenizer: byte-level BPE in which every digit is a token of its own.

Any text encodes and decodes to itself, since the alphabet is the 256 bytes and nothing is
normalised or cleaned up. `<bos>` is put in front once by the post-processor. Special tokens that a
user merely writes are plain text when encoded with `split_special_tokens=True`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ostools.ground.errors import InputError
from ostools.tasks.appendix_c import NAMES, WORDS, AppendixTask

PACKAGES: dict[str, str] = {
    "numpy": "2.4.6",
    "pandas": "3.1.1",
    "scipy": "1.17.1",
    "sympy": "1.14.0",
}
SHA256 = "a9e764954f2a6a38c5f16cc26bd33395ca6c817d66daa33486d558a2e95961b8"
HELD_OUT_SHARE = 0.02
_GENERATED = (
    "__config__.py",
    "_version.py",
    "version.py",
)  # written when a wheel is built: differ by platform


@dataclass(frozen=True)
class Corpus:
    """Paragraphs of prose, one after the other in a fixed order; the first `n_held_out` are never
    trained on.
    """

    paragraphs: tuple[str, ...]
    n_held_out: int
    sha256: str

    @property
    def train(self) -> tuple[str, ...]:
        return self.paragraphs[self.n_held_out :]

    @property
    def held_out(self) -> tuple[str, ...]:
        return self.paragraphs[: self.n_held_out]

    @property
    def n_bytes(self) -> int:
        return sum(len(paragraph.encode()) for paragraph in self.paragraphs)


def load_corpus(packages: Mapping[str, str] = PACKAGES, sha256: str | None = SHA256) -> Corpus:
    """Read the corpus and prove that it is the pinned one.

    Raises InputError when a package is missing or of another version, or the text has another hash
    (`sha256=None` leaves the hash unchecked).
    """
    installed = {name: _installed_version(name) for name in packages}
    wrong = [
        f"{name} {version} (found {installed[name]})"
        for name, version in packages.items()
        if installed[name] != version
    ]
    if wrong:
        raise InputError(
            f"the training text needs {', '.join(wrong)}: install with requirements.lock"
        )
    corpus = make_corpus({p for name in packages for p in _paragraphs(name)})
    if sha256 is not None and corpus.sha256 != sha256:
        versions = ", ".join(f"{name} {version}" for name, version in packages.items())
        raise InputError(
            f"the training text has sha256 {corpus.sha256}, expected {sha256}, from the docstrings of {versions}: "
            "reinstall these packages unmodified with requirements.lock"
        )
    return corpus


def make_corpus(paragraphs: set[str]) -> Corpus:
    """Put paragraphs into their fixed order (by their own hash, so that neighbours are unrelated)
    and hash the whole."""
    ordered = tuple(sorted(paragraphs, key=lambda text: hashlib.sha256(text.encode()).digest()))
    digest = hashlib.sha256("\n".join(ordered).encode()).hexdigest()
    return Corpus(ordered, int(len(ordered) * HELD_OUT_SHARE), digest)


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _paragraphs(name: str) -> Iterator[str]:
    for file in importlib.metadata.distribution(name).files or []:
        if file.suffix == ".py" and file.name not in _GENERATED:
            yield from prose(Path(str(file.locate())).read_text(encoding="utf-8"))


def prose(source: str) -> Iterator[str]:
    """The paragraphs of a Python source's docstrings that read like English sentences, white space
    normalised.
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        docstring = ast.get_docstring(node, clean=False) or ""
        for block in re.split(r"\n\s*\n", docstring):
            paragraph = " ".join(block.split())
            if _is_prose(paragraph):
                yield paragraph


def _is_prose(paragraph: str) -> bool:
    if (
        len(paragraph) < 60
        or not paragraph[0].isupper()
        or paragraph[-1] not in ".:"
        or ">>>" in paragraph
    ):
        return False
    return sum(c.isalpha() or c == " " for c in paragraph) > 0.85 * len(paragraph)


PAD, EOS, BOS = "<pad>", "<eos>", "<bos>"
PAD_ID, EOS_ID, BOS_ID = 0, 1, 2
VOCABULARY_SIZE = 1024
_TEMPLATE_REPEATS = (
    2000  # so that the words of the paper's prompts become tokens among megabytes of other text
)


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
