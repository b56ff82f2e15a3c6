"""A value as models write it: the text freed of its decoration (Markdown, LaTeX, quotation marks),
and the number in it.

Cost: linear in the text.
"""

from __future__ import annotations

import re

_LAYERS = 16  # of decoration around an answer that are taken off
_LONGEST_NUMBER = 18  # digits: what an int64 holds
_TAG = re.compile(r"\A</?answer>|</?answer>\Z", re.IGNORECASE)
_WRAPPED = re.compile(
    r"\\(?:boxed|fbox|text|textbf|mathbf|mathrm)\s*\{(.*)\}|\\\((.*)\\\)|\\\[(.*)\\\]|<(.*)>|\((.*)\)|\[(.*)\]|\{(.*)\}",
    re.DOTALL,
)
_LATEX_OPENING = re.compile(r"\A\\(?:boxed|fbox|text|textbf|mathbf|mathrm)\s*(?=\{)")
MARKS = " \t\r\n*_`$\"'\u201c\u201d\u2018\u2019\u00ab\u00bb"
_BRACKETS = {"}": "{", ")": "(", "]": "[", ">": "<"}


def free(text: str) -> str:
    """A text without its decoration: Markdown, LaTeX, quotation marks, brackets around it, the full
    stop after it; at most `_LAYERS` of them, one inside the other."""
    for _ in range(_LAYERS):
        shorter = _freer(text)
        if shorter == text:
            break
        text = shorter
    return text


def _freer(text: str) -> str:
    text = _TAG.sub("", text.strip(MARKS)).rstrip(".,;:!\\").lstrip("#>").strip(MARKS)
    if match := _WRAPPED.fullmatch(text):
        return next(group for group in match.groups() if group is not None)
    text = re.sub(r"\A\\(?=[(\[])", "", _LATEX_OPENING.sub("", text))
    for close, opening in _BRACKETS.items():
        # Of a pair around the whole line one is left here.
        if text.endswith(close) and text.count(close) > text.count(opening):
            text = text[:-1]
        if text.startswith(close) or (
            text.startswith(opening) and text.count(opening) > text.count(close)
        ):
            text = text[1:]
    return text


def leading_number(text: str) -> str:
    """The first sentence, where it is a number and no other follows: "12. I hope this helps!"."""
    first_sentence, *later_sentences = re.split(
        r"(?<=[.!;])[*_`$\"']*\s+", text.strip(), maxsplit=1
    )
    alone = digits_in(first_sentence) == free(first_sentence) and not any(
        re.search(r"\d", sentence) for sentence in later_sentences
    )
    return first_sentence if alone else text


def digits_in(text: str) -> str | None:
    """The digits of the one whole number in a text, as they are written; None where it holds none,
    several, or another kind.
    """
    words = [word for word in re.split(r"[\s:=]+", text) if re.search(r"\d", word)]
    bare = free(words[0]).strip(".,;!?'\"()*") if len(words) == 1 else ""
    negative = re.search(r"[-\u2212\u2013]\s*\d", text)
    return bare if bare.isascii() and bare.isdigit() and not negative else None


def number_in(text: str, numeric: bool) -> int | None:
    """The one whole number in an answer; None where it holds none, several, or another kind (-3,
    1.5), or over 18 digits.

    numeric: whether a number was asked for. Then an equation counts by its right side, and a
        thousand may be written 1,000.
    """
    digits = digits_in(without_thousands(text).rpartition("=")[2] if numeric else text)
    return None if digits is None or len(digits) > _LONGEST_NUMBER else int(digits)


def without_thousands(text: str) -> str:
    """1,000 as 1000; LaTeX writes the comma as {,} or as a thin space too."""
    text = re.sub(r"\{,\}|\\,", ",", text)
    return re.sub(
        r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,]|\.\d)",
        lambda match: match[0].replace(",", ""),
        text,
    )
