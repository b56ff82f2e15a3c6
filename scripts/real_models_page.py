"""The page on real models, written from stored cells: tables, and the sentences that they decide."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit
from scipy.stats import binomtest

from ostools.measure.bounds.variants import VARIANTS

Cells = dict[str, dict[str, Any]]
SKETCH = "8"
"""Cotangents of the sketches of which the page has rows: the default."""

HEAD = """# What holds on real models

Every headline of this tool, on three pretrained models that nobody here trained; what does not hold
stands first. `make real-models` measures what is not stored yet of the two small ones and writes
this page. Twenty prompts of four kinds (facts, code, repeated digits, story), five of each, of 32,
48, 64, 96 and 128 tokens; of Qwen the four of 32 tokens, by sketches of 16 cotangents, float32
derivatives of bfloat16 weights ([its answers](behaviour.md)). Intervals are 95%, by Student's t
over prompts or passages, cut where no value can be; a prompt is one sample. The weights are those
of the 4-bit files, dequantised.
"""


def page(store: Path, models: Sequence[str], before: str) -> str:
    """The whole page. Of a model without cells of a section the lines stay that `before`, the page
    as it was, has there.

    A question that was not measured of a model has no row; one that was refused says why.
    """
    stored = {name: cells for name in models if (cells := _read(store / name))}
    sections = {
        part.partition("\n\n")[0]: part.partition("\n\n")[2] for part in before.split("\n## ")[1:]
    }
    parts = [HEAD, merged(_models(stored), before.partition("\n## ")[0], models) + "\n"]
    for title, section in SECTIONS.items():
        old = sections.get(title, "")
        if body := merged(section(stored), old, models) or old:
            parts.append(f"## {title}\n\n{body.rstrip()}\n")
    return "\n".join(parts)


_OF_MODEL = re.compile(r"(?:\| |- \*\*)([\w.-]+)(?: \||: )")
_Lines = dict[str, dict[str, list[str]]]


def merged(new: str, old: str, models: Sequence[str]) -> str:
    """`new`, and of models without lines in it those of `old`: rows of the table with the same
    head, items of a list.
    """
    own, kept = _lines(new, models), _lines(old, models)
    lines: list[str] = []
    written: set[str] = set()
    for key, model, line in _placed(new, models):
        if model is None:
            lines.append(line)
        if key not in written and (line.startswith("| ---") or (model is not None and not key)):
            written.add(key)
            known = kept.get(key, {}) | own.get(key, {})
            lines += [row for name in models for row in known.get(name, [])]
    return "\n".join(lines)


def _lines(text: str, models: Sequence[str]) -> _Lines:
    """The lines of every model, by the head of their table ("": a list)."""
    found: _Lines = {}
    for key, model, line in _placed(text, models):
        if model is not None:
            found.setdefault(key, {}).setdefault(model, []).append(line)
    return found


def _placed(text: str, models: Sequence[str]) -> Iterator[tuple[str, str | None, str]]:
    """Each line with the head of the table that it is in, and the model that it is of."""
    key = ""
    for line in text.splitlines():
        key = line if line.startswith("| model |") else key if line.startswith("|") else ""
        found = _OF_MODEL.match(line)
        yield key, found[1] if found and found[1] in models else None, line


def _read(folder: Path) -> Cells:
    return {
        path.stem.replace("--", "/"): json.loads(path.read_text("utf-8"))
        for path in sorted(folder.glob("*.json"))
    }


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, and an empty line after it."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


RANKS, AT_LEAST_ONE = (-1.0, 1.0), (1.0, np.inf)
"""What a rank correlation, and a sum of sizes over the size of a sum, can be."""


def interval(
    values: Sequence[float] | np.ndarray,
    digits: int = 2,
    possible: tuple[float, float] = (-np.inf, np.inf),
) -> str:
    """Mean and 95% interval over prompts, without the values that cannot be."""
    numbers = np.asarray(values, dtype=float)
    numbers = numbers[np.isfinite(numbers)]
    if len(numbers) < 3:
        return "–"
    half = (
        float(stdtrit(len(numbers) - 1, 0.975)) * float(numbers.std(ddof=1)) / np.sqrt(len(numbers))
    )
    mean = float(numbers.mean())
    low, high = np.clip([mean - half, mean + half], *possible)
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _models(stored: dict[str, Cells]) -> str:
    rows = []
    for cells in stored.values():
        dates = sorted({cell["date"] for cell in cells.values()})
        first = next(iter(cells.values()))
        rows.append(
            [
                first["model"],
                f"`{first['weights'][:16]}…`",
                dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
            ]
        )
    return table(["model", "hash of the weights", "measured"], rows)


def _of(cells: Cells, prefix: str) -> list[dict[str, Any]]:
    return [
        cell for name, cell in cells.items() if name.startswith(prefix) and "refused" not in cell
    ]


def _each(
    stored: dict[str, Cells],
    prefix: str,
    row: Callable[[str, list[dict[str, Any]]], list[list[str]]],
) -> list[list[str]]:
    """The rows of every model that has cells of this kind."""
    rows = []
    for name, cells in stored.items():
        if measured := _of(cells, prefix):
            rows += row(name, measured)
    return rows


def _sensitivity(stored: dict[str, Cells]) -> str:
    def rows(name: str, cells: list[dict[str, Any]]) -> list[list[str]]:
        made = []
        for linearisation in ("full", "frozen") if SKETCH in cells[0]["sketch"] else ():
            pairs = [cell["sketch"][SKETCH][linearisation] for cell in cells]
            ranks = [pair["spearman"] for pair in pairs]
            sizes = [10 ** abs(pair["log10_size"]) for pair in pairs]
            ends = (f"{np.median(ranks):.3f}", f"{min(ranks):.3f}")
            made.append(
                [name, linearisation, *ends, f"{np.median(sizes):.2f}×", f"{max(sizes):.2f}×"]
            )
        return made

    body = _each(stored, "sensitivity/", rows)
    if not any(_of(cells, "sensitivity/") for cells in stored.values()):
        return ""
    columns = ["model", "derivative", "Spearman, median", "worst", "size off by, median", "worst"]
    return (
        f"The Frobenius norms of d y_n / d v_i^(0) by {SKETCH} random cotangents, against those by 64 others.\n\n"
        f"{table(columns, body)}\n{_references(stored)}"
    )


def _references(stored: dict[str, Cells]) -> str:
    """How often intervals hold the reference, and what holding patterns and norm scales changes."""

    def rows(name: str, cells: list[dict[str, Any]]) -> list[list[str]]:
        frozen = [cell["frozen_for_full"] for cell in cells]
        covered = [_covered(cells, which) for which in ("full", "frozen")]
        predicted = interval([one["spearman"] for one in frozen], possible=RANKS)
        return [[name, *covered, predicted, _frozen_size(cells)]]

    columns = ["model", "inside 95%, full", "frozen", "frozen for full: Spearman", "size"]
    return (
        "The share of the tokens whose 95% interval, of a sketch of 8, holds the reference; and the frozen profile as a "
        f"predictor of the full one.\n\n{table(columns, _each(stored, 'sensitivity/', rows))}"
    )


def _frozen_size(cells: list[dict[str, Any]]) -> str:
    """The median of frozen over full norms."""
    return (
        f"{10 ** float(np.median([cell['frozen_for_full']['log10_size'] for cell in cells])):.2f}×"
    )


def _covered(cells: list[dict[str, Any]], linearisation: str) -> str:
    shares = [cell["covered"][linearisation] for cell in cells if "covered" in cell]
    return f"{np.mean(shares):.1%}" if shares else "–"


BASELINES = {
    "mean": "mean attention of the last token",
    "rollout": "attention rollout",
    "value-weighted": "value-weighted attention",
    "alti": "ALTI",
}


def _profiles(cells: Cells) -> dict[str, list[dict[str, Any]]]:
    """Words of each form and attention baseline, and its agreement with both norms on every prompt."""
    forms = _of(cells, "sensitivity/")
    names = [name for name in forms[0]["forms"] if name in VARIANTS]
    profiles = {f"`{name}`": [cell["forms"][name] for cell in forms] for name in names}
    baselines = _of(cells, "attention/")
    return profiles | {
        BASELINES[name]: [cell[name] for cell in baselines] for name in BASELINES if baselines
    }


def _bounds(stored: dict[str, Cells]) -> str:
    measured = {
        name: _profiles(cells) for name, cells in stored.items() if _of(cells, "sensitivity/")
    }
    if not measured:
        return ""
    rows = [
        _form_row(name, form, cells)
        for name, profiles in measured.items()
        for form, cells in profiles.items()
    ]
    columns = [
        "model",
        "form",
        *(f"Spearman, {which}" for which in _NORMS),
        "log10 (size / frozen)",
    ]
    return (
        "".join(_answer(name, profiles, stored[name]) for name, profiles in measured.items())
        + "\nEach form and baseline of `ost.measure.attention_baselines` against the measured norms, token by token: means "
        "over prompts. `local` is a true upper bound of the frozen operator norm; the others bound nothing. `–`: an "
        "order alone."
        f"\n\n{table(columns, rows)}\n"
    )


_NORMS = ("frozen", "full")


def _ranks(cells: list[dict[str, Any]], which: str) -> list[float]:
    return [cell[which]["spearman"] for cell in cells]


def _answer(name: str, profiles: dict[str, list[dict[str, Any]]], cells: Cells) -> str:
    """The answer for one model in two sentences, every number out of the table below it."""
    means = {form: float(np.mean(_ranks(of, "full"))) for form, of in profiles.items()}
    printed = [
        f"`{form}`"
        for form, variant in VARIANTS.items()
        if variant.kind == "paper" and f"`{form}`" in means
    ]
    best = max(printed, key=means.__getitem__)
    attention = max(
        (words for words in BASELINES.values() if words in means),
        key=means.__getitem__,
        default=None,
    )
    cells_of_sketches = _of(cells, "sensitivity/")
    sketches = [cell["sketch"]["8"] for cell in cells_of_sketches if "8" in cell["sketch"]]
    ranks = [f"the best printed form, {best}, {means[best]:.2f}"]
    ranks += [f"{attention} {means[attention]:.2f}"] if attention else []
    ranks += [f"a sketch of 8 {float(np.mean(_ranks(sketches, 'full'))):.2f}"] if sketches else []
    return (
        f"- **{name}: {'yes' if means[best] >= 0.9 else 'no'}.** Rank correlation with the real norms: "
        f"{'; '.join(ranks)}.{_sizes(profiles, printed)}\n"
    )


def _sizes(profiles: dict[str, list[dict[str, Any]]], printed: Sequence[str]) -> str:
    sized = [form for form in printed if VARIANTS[form.strip("`")].scaled]
    if not sized:
        return ""
    sizes = [
        float(np.mean([cell["frozen"]["log10_size"] for cell in profiles[form]])) for form in sized
    ]
    local = float(np.mean([cell["frozen"]["log10_size"] for cell in profiles["`local`"]]))
    return (
        f" Sizes of the printed forms are off by 10^{min(sizes):.0f} to 10^{max(sizes):.0f}, of the certified `local` "
        f"by 10^{local:.0f}."
    )


def _hops(stored: dict[str, Cells]) -> str:
    def rows(name: str, cells: list[dict[str, Any]]) -> list[list[str]]:
        made = []
        for source in (source for source in ("trained", "untrained") if source in cells[0]):
            shares = {
                row["hops"]: []
                for row in cells[0][source]["summary"]
                if row["hops"] not in ("0", "all")
            }
            for cell in cells:
                for row in cell[source]["summary"]:
                    if row["hops"] in shares:
                        shares[row["hops"]].append(row["share"])
            sizes = [cell[source]["cancellation"] for cell in cells]
            cancels = interval(sizes, possible=AT_LEAST_ONE)
            made.append([name, source, *map(interval, shares.values()), cancels])
        return made

    body = _each(stored, "hops/", rows)
    if not body:
        return ""
    columns = [
        "model",
        "weights",
        "1 hop",
        "2 hops",
        "3 hops",
        "4 hops",
        "more",
        "sum of sizes / size of sum",
    ]
    return (
        "Signed shares of the frozen derivative's squared norm, by Theorem 5.1's paths of 1, 2, 3, ... attention hops: the "
        "median over the tokens before the last, then the mean over prompts. A path of 1 hop goes straight from i to n. The "
        "last column says how far parts of different hops cancel: 1 would be not at all.\n\n"
        f"{table(columns, body)}\n"
    )


def _windowed(stored: dict[str, Cells]) -> str:
    def rows(name: str, cells: list[dict[str, Any]]) -> list[list[str]]:
        forms = [form for form in cells[0] if form not in ("weights", "model", "date")]
        return [[name, f"`{form}`", *_looseness([cell[form] for cell in cells])] for form in forms]

    body = _each(stored, "windowed/", rows)
    if not body:
        return ""
    columns = [
        "model",
        "bound",
        "log10 (bound / norm), each prompt",
        "CPU seconds, median",
    ]
    return (
        "`local` multiplies bounds of single blocks, `windowed(k)` norms of k blocks that were multiplied exactly; from as "
        "many blocks as the model has it is the measured norm. What they lose is lost where norms are multiplied. On the "
        "first 8 tokens of prompts, the median token, against the exact frozen operator norm; one core, float64.\n\n"
        f"{table(columns, body)}\n"
    )


def _looseness(measured: list[dict[str, Any]]) -> list[str]:
    """log10 of bound over norm of every prompt (without the sign of a 0), and the seconds."""
    sizes = ", ".join(f"{round(one['log10_size'], 1) + 0.0:.1f}" for one in measured)
    return [sizes, f"{np.median([one['seconds'] for one in measured]):.0f}"]


_EFFECTS = {
    "y_change": "change of y_n",
    "log_prob_drop": "drop of the answer's log p",
    "kl": "KL of the next token",
}


def _ranks_of_use(cells: list[dict[str, Any]], effect: str, linearisation: str) -> list[float]:
    return [
        row["spearman"]
        for cell in cells
        for row in cell["correlations"]
        if (row["linearisation"], row["effect"]) == (linearisation, effect)
        and row["kept"] == "without the first and the last"
        and row["spearman"] is not None
    ]


def _use(stored: dict[str, Cells]) -> str:
    def rows(name: str, cells: list[dict[str, Any]]) -> list[list[str]]:
        made = []
        for effect, words in _EFFECTS.items():
            ranks = {which: _ranks_of_use(cells, effect, which) for which in ("full", "frozen")}
            intervals = (interval(rank, possible=RANKS) for rank in ranks.values())
            made.append([name, words, *intervals])
        return made

    body = _each(stored, "use/", rows)
    if not body:
        return ""
    columns = ["model", "effect of leaving the token out", "full", "frozen"]
    return (
        "Rank correlation of a token's sensitivity, `full` and `frozen`, with what changes when the token is left out. The "
        "first token, a sink, and the last are not counted.\n\n"
        f"{table(columns, body)}\n"
    )


def _form_row(name: str, words: str, cells: list[dict[str, Any]]) -> list[str]:
    form = VARIANTS.get(words.strip("`"))
    sizes = [cell["frozen"]["log10_size"] for cell in cells]
    scaled = form is not None and form.scaled and np.isfinite(sizes).all()
    ranks = (interval(_ranks(cells, which), possible=RANKS) for which in _NORMS)
    return [name, words, *ranks, interval(sizes, 1) if scaled else "–"]


def _range(stored: dict[str, Cells]) -> str:
    def rows(name: str, cells: list[dict[str, Any]]) -> list[list[str]]:
        ranges = [
            [row["linear_range"] for row in cell["tokens"] if row["linear_range"] is not None]
            for cell in cells
        ]
        every = [value for values in ranges for value in values]
        errors = [
            np.median([row["error"] for row in cell["tokens"] if row["error"] is not None])
            for cell in cells
        ]
        certificates = [cell["certificate"]["full"] for cell in cells]
        arithmetic = [certificate["within"] for certificate in certificates]
        return [
            [
                name,
                interval([np.median(values) for values in ranges], 3),
                f"{min(every):.3f} to {max(every):.3f}",
                interval(errors, 1),
                interval([cell["spearman"] for cell in cells], possible=RANKS),
                f"{np.median(arithmetic):.1%}, {max(arithmetic):.1%}",
                f"{np.median([_within(certificate) for certificate in certificates]):.0%}",
            ]
        ]

    body = _each(stored, "range/", rows)
    if not body:
        return ""
    columns = [
        "model",
        "linear range, median token",
        "all tokens",
        "error at t = 1",
        "Spearman at t = 1",
        "within, arithmetic: median, worst",
        "within, sketch of 8",
    ]
    return (
        "Each token moved towards another real token, drawn from the whole vocabulary (`ost.measure.linear_range`), "
        "v + t (v' - v), on the prompts of 32 tokens: the largest t up to which the real derivative predicts y_n "
        "within 10%, and the error and rank correlation at t = 1, where the token is replaced. The last two columns certify "
        "the measured profile, with 95% confidence: [arithmetic and "
        "sampling](../reading-the-numbers.md#the-certificate-of-a-run) (the median prompt)."
        f"\n\n{table(columns, body)}\n"
    )


def _within(certificate: dict[str, float]) -> float:
    return (1 + certificate["within"]) * (1 + certificate["widest"]) - 1


def _position(stored: dict[str, Cells]) -> str:
    def rows(name: str, cells: list[dict[str, Any]]) -> list[list[str]]:
        return [
            [
                name,
                row["source"],
                _decades(row, "start"),
                _decades(row, "end"),
                str(row["passages"]),
                row["shape"],
            ]
            for row in cells[0]["contrasts"]
        ]

    body = _each(stored, "position", rows)
    if not body:
        return ""
    columns = ["model", "of", "first third", "last third", "passages", "shape"]
    return (
        "Natural passages of 48 tokens, each in three rotations, so that every token stands once in each third: position alone "
        "is left (`ost.measure.position_effect`). Times the middle third's norm.\n\n"
        "![Norm of the last token's derivative by position, Gemma 3 270M](position.png)\n\n"
        f"{table(columns, body)}"
    )


def _decades(row: dict[str, Any], end: str) -> str:
    value, low, high = (10 ** row[f"{end}{part}"] for part in ("", "_low", "_high"))
    return f"{value:.2f}× [{low:.2f}, {high:.2f}]"


def _collapse(stored: dict[str, Cells]) -> str:
    rows = []
    for name, cells in stored.items():
        for key, cell in cells.items():
            if key.startswith("figure-5/"):
                rows.append([name, key.partition("/")[2], _ranges(cell)])
    if not rows:
        return ""
    return (
        "Ranges of lengths in which the pair at y is closer than the rounding noise of bfloat16, and at how many of them "
        "it is (every length up to 520 of `figure-5a`, up to 256 of the others; eight in a row make a range). Gemma 3's "
        "sliding window has 512 tokens.\n\n"
        + table(["model", "prompts", "hidden in bfloat16 at y"], rows)
    )


def _ranges(cell: dict[str, Any]) -> str:
    if "refused" in cell:
        return f"refused: {cell['refused'][:120]}"
    ranges = [
        row for row in cell["ranges"] if row.get("site") == "y" and row.get("dtype") == "bfloat16"
    ]
    words = [
        f"{row['first']} to {row['last']}{' (the longest tried)' if row['open'] else ''}, {row['hidden']} of {row['tried']}"
        for row in ranges
        if row.get("first") is not None
    ]
    return "; ".join(words) or "in no range"


def _repeated(stored: dict[str, Cells]) -> str:
    def rows(name: str, cells: list[dict[str, Any]]) -> list[list[str]]:
        hidden = [
            cell
            for cell in cells
            if any(r.get("site") == "y" and r.get("first") is not None for r in cell["ranges"])
        ]
        return [[name, f"{len(hidden)} of {len(cells)}"]]

    body = _each(stored, "repeated/", rows)
    if not body:
        return ""
    return (
        "Up to 128 copies, bfloat16: of how many prompts is the pair hidden at y over a range of lengths?\n\n"
        + table(["model", "prompts that are hidden"], body)
    )


def _answers(stored: dict[str, Cells]) -> str:
    def of_model(name: str, cells: list[dict[str, Any]]) -> list[list[str]]:
        return [_answer_row(name, cell["rows"]) for cell in cells]

    rows = _each(stored, "answers/", of_model)
    if not rows:
        return ""
    columns = [
        "model",
        "task",
        "asked",
        "right",
        "right by content",
        "log p of the right line",
    ]
    return (
        "Of 4, 8, 16 and 32 items, five sequences each, greedy. A base model is asked few-shot, with the answer line begun. "
        f"Intervals of shares are Wilson's.\n\n{table(columns, rows)}"
    )


def _answer_row(name: str, answers: list[dict[str, Any]]) -> list[str]:
    right = sum(answer["correct"] is True for answer in answers)
    wilson = binomtest(right, len(answers)).proportion_ci(method="wilson")
    return [
        name,
        f"`{answers[0]['task']}`",
        answers[0]["elicitation"],
        f"{right} of {len(answers)} [{wilson.low:.0%}, {wilson.high:.0%}]",
        f"{sum(answer['content_correct'] is True for answer in answers)} of {len(answers)}",
        interval([answer["log_probability"] for answer in answers], 1),
    ]


def _probes(stored: dict[str, Cells]) -> str:
    def of_model(name: str, cells: list[dict[str, Any]]) -> list[list[str]]:
        rows: dict[tuple[str, str], dict[str, str]] = {}
        for row in cells[0]["rows"]:
            if row["site"] in ("y", "length") and row["control"] != "shuffled":
                share = f"{row['accuracy']:.0%} [{row['low']:.0%}, {row['high']:.0%}]"
                rows.setdefault((row["site"], row["control"]), {})[row["test"]] = share
        return [[name, *key, *(by_test[test] for test in tests)] for key, by_test in rows.items()]

    tests = ("same lengths", "interpolated", "extrapolated")
    rows = _each(stored, "probes", of_model)
    if not rows:
        return ""
    return (
        "How often a linear probe reads the count of ones off y, of sequences it was not trained on. It is worth what it is "
        "above its controls: random weights, the length alone.\n\n"
        + table(["model", "of", "control", *tests], rows)
    )


SECTIONS: dict[str, Callable[[dict[str, Cells]], str]] = {
    "Does Theorem 5.1 say which tokens matter?": _bounds,
    "How loose is the certified bound?": _windowed,
    "Hops: over how many attention edges does information travel?": _hops,
    "Is sensitivity use?": _use,
    "How far does the derivative carry?": _range,
    "Probes": _probes,
    "Answers": _answers,
    "Collapse: any prompt, its last token repeated": _repeated,
    "Collapse: the paper's prompts": _collapse,
    "Over-squashing by position": _position,
    "Sensitivity: a sketch of few cotangents": _sensitivity,
}
"""In the order of the page: what does not hold stands first."""
