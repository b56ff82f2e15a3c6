"""Ways to spoil what a user may be handed: text, JSON, a checkpoint's files, a directory of
results, the words of a command.

Everything is drawn by hypothesis, so that a failure is made small and can be had again.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

NASTY = (
    "", " ", "\x00", "\x1b[31m", "\x1b]0;x\x07", "\u202e", "\u2066", "\ufeff", "\ud800", "\udcff", "\U0010ffff", "\r\n",
    "<bos>", "<s>", "</script>", "{{ 7 * 7 }}", "{% for %}", "%s%n", "$(touch x)", "`touch x`", "; touch x", "../x",
    "/etc/passwd", "-", "--", "-1", "nan", "inf", "1e999", "9" * 30, "9" * 5000, "a" * 5000, "\u0661", "1:", ":1", "0:0",
    "1:1000000", "1:1000000," * 40 + "1", "a=b", "a:b=c,d=", "float32", "none", "embedded", "e\u0301" * 40, "(" * 200,
)  # fmt: skip
"""Words that have broken programs."""

DEEP = 100_000


class _Marker:
    """What a pickle does that is loaded."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch executed",)


PICKLE = pickle.dumps(_Marker())
CODE = "import os\nos.system('touch executed')\nraise RuntimeError('ran code from a checkpoint')\n"

texts = (
    st.sampled_from(NASTY)
    | st.text(max_size=40)
    | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zs", "Co"]), max_size=12)
)
"""Any Unicode: half of it what breaks lines, turns directions or is no character at all."""

numbers = st.sampled_from(
    [0, -1, 1, 2**31, 2**63, 10**9, 10**30, 0.5, -0.0, 1e300, float("nan"), float("inf")]
)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def spoiled_json(draw: st.DrawFn, content: Any) -> Any:
    """A JSON value of which one or two places hold something else, are gone, or are new."""
    spoiled = json.loads(json.dumps(content))
    for _ in range(draw(st.integers(1, 2))):
        place, inside = spoiled, True
        while inside and isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys))
            inside = (
                isinstance(place[key], dict | list)
                and bool(place[key])
                and draw(st.integers(0, 3)) > 0
            )
            if inside:
                place = place[key]
                continue
            what = draw(st.sampled_from(["value", "value", "value", "gone", "added"]))
            if what == "gone":
                del place[key]
            elif what == "added" and isinstance(place, dict):
                place[draw(texts)] = draw(values)
            else:
                place[key] = draw(values)
    return spoiled


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@st.composite
def spoiled_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes cut off, with bits flipped, or replaced."""
    what = draw(
        st.sampled_from(
            ["cut", "flip", "flip", "insert", "random", "deep", "pickle", "empty", "text"]
        )
    )
    if what == "cut":
        return content[: draw(st.integers(0, max(len(content) - 1, 0)))]
    if what in ("flip", "insert") and content:
        found = bytearray(content)
        near = draw(st.booleans())  # headers are short, and decide more than data
        for _ in range(draw(st.integers(1, 8))):
            place = draw(st.integers(0, min(len(found), 400) - 1 if near else len(found) - 1))
            if what == "flip":
                found[place] ^= 1 << draw(st.integers(0, 7))
            else:
                found[place:place] = draw(st.binary(min_size=1, max_size=6))
        return bytes(found)
    if what == "deep":
        return draw(st.sampled_from([b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP]))
    if what == "pickle":
        return PICKLE
    if what == "text":
        return draw(texts).encode("utf-8", "surrogatepass")
    return b"" if what == "empty" else draw(st.binary(max_size=200))


@st.composite
def spoiled_safetensors(draw: st.DrawFn, content: bytes) -> bytes:
    """A safetensors file whose header says something else than its data, or whose length does."""
    size = struct.unpack("<Q", content[:8])[0]
    header, data = content[8 : 8 + size], content[8 + size :]
    if draw(st.integers(0, 3)) == 0:
        length = draw(
            st.sampled_from(
                [0, 1, size - 1, size + 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
            )
        )
        return struct.pack("<Q", length) + header + data
    if (
        draw(st.integers(0, 3)) == 0
    ):  # NaN, infinity and other values in the data: the header is whole
        place = draw(st.integers(0, len(data) // 4 - 1)) * 4
        value = draw(st.sampled_from([float("nan"), float("inf"), 3e38]))
        return content[: 8 + size] + data[:place] + struct.pack("<f", value) + data[place + 4 :]
    changed = as_json(draw(spoiled_json(json.loads(header))))
    return struct.pack("<Q", len(changed)) + changed + data


@st.composite
def spoiled_checkpoint(draw: st.DrawFn, files: dict[str, bytes]) -> dict[str, bytes | str]:
    """A checkpoint's files by name, one or two of them spoiled. A text in place of bytes is a
    command to `write_files`.
    """
    found: dict[str, bytes | str] = dict(files)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(files)))
        what = draw(
            st.sampled_from(
                ["json", "json", "json", "bytes", "bytes", "gone", "kind", "index", "code"]
            )
        )
        if what == "json":
            content = files[name]
            if name.endswith(".safetensors"):
                found[name] = draw(spoiled_safetensors(content))
            elif name.endswith(".json"):
                found[name] = as_json(draw(spoiled_json(json.loads(content))))
            else:
                found[name] = draw(texts).encode("utf-8", "surrogatepass")
        elif what == "bytes":
            found[name] = draw(spoiled_bytes(files[name]))
        elif what == "gone":
            found.pop(name, None)
        elif what == "kind":
            found[name] = draw(st.sampled_from(KINDS))
        elif what == "index":
            weights = found.pop("model.safetensors", b"")
            shard = draw(
                st.sampled_from(
                    [
                        "../outside",
                        "/etc/passwd",
                        "..",
                        "",
                        "a/b",
                        "model\x00",
                        "model-1.safetensors",
                    ]
                )
                | texts
            )
            found["model.safetensors.index.json"] = as_json(
                {"weight_map": draw(st.just({"a": shard}) | values)}
            )
            found["model-1.safetensors"] = weights
        else:
            found |= {"modeling.py": CODE.encode(), "pytorch_model.bin": PICKLE}
            names = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
            auto = {"auto_map": dict.fromkeys(names, "modeling.Model")}
            target = draw(st.sampled_from(["config.json", "tokenizer_config.json"]))
            found[target] = as_json(json.loads(files[target]) | auto)
    return found


KINDS = ("a directory", "a link to itself", "a link to nothing", "a link outside")


def write_files(directory: Path, files: dict[str, bytes | str]) -> None:
    """The files, or what stands in their place: a directory, a pipe, a link."""
    directory.mkdir(parents=True)
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content == "a directory":
            path.mkdir()
        elif content == "a pipe":
            os.mkfifo(path)
        else:
            links = {
                "a link to itself": path,
                "a link to nothing": "nothing",
                "a link outside": "/etc/hostname",
            }
            path.symlink_to(links.get(content, "/dev/zero"))


def read_files(directory: Path) -> dict[str, bytes]:
    """Every file below a directory by its relative name."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


SWEEP = {
    "models": ["embedded"], "tasks": ["copy-last", "count-ones"], "lengths": "4:6", "dtypes": ["float32"],
    "mitigations": ["none"], "seeds": [0, 1], "device": "cpu",
    "measurements": [
        {"name": "evaluate", "temperature": 0.5, "samples": 2, "max_new_tokens": 4},
        {"name": "collapse", "dtypes": ["bfloat16"], "bos": True},
        {"name": "sensitivity", "linearisations": ["full"]},
        {"name": "bounds", "variants": ["local"]},
    ],
}  # fmt: skip
"""A sweep with every key."""

FRAGMENTS = (
    "tasks: copy-last\n", "lengths: 4:6\n", "measurements: evaluate\n", "lengths: 1:1000000000000\n", "seeds: [0", "models: [",
    "!!python/object/apply:os.system ['touch executed']", "!!int ", "&a ", "*a", "<<: ", "? ", ": ", "- ", "[", "]", "{", "}",
    "---\n", "...\n", "%YAML 9.9\n", "| \n", "> \n", "'", '"', "\t", "\u2028", "2026-13-45", "0x1F", "0o7", "1_000", 
    "190:20:30", ".nan", ".inf", "1e999", "9" * 5000, "~", "yes", "null: null\n", "\x00", "#", "  ", "\n",
)  # fmt: skip


@st.composite
def sweep_files(draw: st.DrawFn) -> bytes:
    """A sweep file: one whose values are of the wrong types, or YAML that is hardly any."""
    what = draw(st.sampled_from(["values", "values", "fragments", "bytes", "deep", "large"]))
    if what == "values":
        return yaml.safe_dump(draw(spoiled_json(SWEEP)), sort_keys=False).encode(
            "utf-8", "surrogatepass"
        )
    if what == "fragments":
        pieces = draw(st.lists(st.sampled_from(FRAGMENTS) | texts, max_size=12))
        return "".join(pieces).encode("utf-8", "surrogatepass")
    if what == "deep":
        return draw(
            st.sampled_from([b"[", b"{a: ", b"- ", b"? ", b"a:\n ", b"'", b"!", b"&a ", b"%"])
        ) * draw(st.sampled_from([10, 900, 5000, 50_000]))
    if what == "large":
        key = draw(
            st.sampled_from(
                ["models", "tasks", "mitigations", "dtypes", "seeds", "lengths", "measurements"]
            )
        )
        word = {"models": "a", "tasks": "copy-last", "mitigations": "hint", "dtypes": "float32"}
        word |= {"measurements": "evaluate"}
        many = [word.get(key, 3)] * draw(st.sampled_from([100, 3000, 30_000]))
        wide = {
            "models": [f"m{i}" for i in range(300)],
            "seeds": list(range(300)),
            "tasks": "count-ones-bernoulli",
        }
        return json.dumps(SWEEP | wide | {key: many}).encode()
    return draw(spoiled_bytes(yaml.safe_dump(SWEEP).encode()))
