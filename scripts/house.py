"""The house as its imports draw it: `python -m scripts.house` counts files and rooms, and draws
docs/architecture.svg.

The floors are those of the contracts in pyproject.toml, by which import-linter refuses imports that
run up and circles. Every import counts: at the top of a file, inside a function, and for a type
checker alone. Not drawn are the few that pyproject.toml lets run up: a result imports its chart
when it is drawn. The imports are read from the text of the files (grimp, the library under
import-linter), and no file is imported.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
FOLDERS = ("ostools", "ostools/hooks", "ostools/mitigations")
"""The last two are links to folders at the top of the repository, which `rglob` does not follow."""
MOST = 12
"""Files in a room."""
PICTURE = ROOT / "docs" / "architecture.svg"

Imports = Mapping[str, set[str]]
"""Of each module by its dotted name, the modules that it imports."""


def modules(*packages: str) -> dict[str, Path]:
    """The files of these packages, by default of `ostools`, by dotted name; a package's `__init__`
    by the package's.
    """
    folders = [ROOT / folder for folder in packages or FOLDERS]
    files = sorted(path.relative_to(ROOT) for folder in folders for path in folder.rglob("*.py"))
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports(*packages: str) -> Imports:
    """What each module of these packages, by default `ostools`, imports of the others, wherever in
    the file.
    """
    graph = grimp.build_graph(*(packages or ("ostools",)), cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def floors() -> list[str]:
    """From the ground up, as the contracts name them; one line may hold two floors that do not
    import each other.
    """
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    found = next(one["layers"] for one in contracts if one.get("containers") == ["ostools"])
    return list(reversed(found))


def floor_of(module: str, order: list[str]) -> int:
    """The number of a module's floor; -1 for `ostools` itself, which only hands names on."""
    name = module.split(".")[1] if module.startswith("ostools.") else module.split(".")[0]
    return next((number for number, level in enumerate(order) if name in level.split(" | ")), -1)


def rooms(files: Mapping[str, Path]) -> Counter[str]:
    """How many files each folder holds."""
    return Counter(path.parent.as_posix() for path in files.values())


def picture(files: Mapping[str, Path], found: Imports, order: list[str]) -> str:
    """The floors as bands, their rooms as boxes, and at the side which floor imports which."""
    held: dict[int, list[str]] = defaultdict(list)
    for room in sorted(rooms(files)):
        level = floor_of(room.replace("/", "."), order)
        if level >= 0:
            held[level].append(room.removeprefix("ostools/").removeprefix(f"{order[level]}/"))
    for name, path in files.items():
        if path.parent.as_posix() == "ostools" and floor_of(name, order) >= 0:
            held[floor_of(name, order)].append(path.name)
    arrows = sorted({(floor_of(a, order), floor_of(b, order)) for a in found for b in found[a]})
    width, left, top, line = 760, 160, 12, 30
    rows: dict[int, list[list[str]]] = {}
    for level, names in held.items():
        rows[level] = [[]]
        used = 0.0
        for room in names:
            wide = _wide(room)
            if used + wide > width and rows[level][-1]:
                rows[level].append([])
                used = 0.0
            rows[level][-1].append(room)
            used += wide + 8
    parts, middles, y = [], {}, top
    for level in reversed(range(len(order))):
        height = line * len(rows[level]) + 12
        parts.append(
            f'<rect class="floor" x="8" y="{y}" width="{left + width + 8}" height="{height}" rx="6"/>'
        )
        parts.append(
            f'<text class="name" x="20" y="{y + height / 2 + 4}">{escape(order[level])}</text>'
        )
        for index, row in enumerate(rows[level]):
            x = float(left)
            for room in row:
                wide = _wide(room)
                place = (
                    f'x="{x:.0f}" y="{y + 8 + line * index}" width="{wide:.0f}" height="{line - 6}"'
                )
                parts.append(f'<rect class="room" {place} rx="4"/>')
                parts.append(
                    f'<text x="{x + 8:.0f}" y="{y + 24 + line * index}">{escape(room)}</text>'
                )
                x += wide + 8
        middles[level] = y + height / 2
        y += height + 10
    edge = left + width + 20
    for above, below in arrows:
        if above > below >= 0:
            bend = edge + 18 + 15 * (above - below)
            start, end = middles[above] + 4, middles[below] - 4
            curve = f"M{edge},{start:.0f} C{bend},{start:.0f} {bend},{end:.0f} {edge + 4},{end:.0f}"
            title = f"{order[above]} imports {order[below]}"
            arrow = f'<path class="arrow" d="{curve}" marker-end="url(#end)"/>'
            parts.append(f"<g><title>{escape(title)}</title>{arrow}</g>")
    wide, high = edge + 18 + 15 * len(order) - 20, y + 4
    body = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img">
<title>The floors and rooms of ostools; every import runs down</title>
<style>
svg {{ background: #ffffff }}
text {{ font: 12px system-ui, sans-serif; fill: #1f2430 }}
.name {{ font-weight: 600; font-size: 13px }}
.floor {{ fill: #f3f4f8 }}
.room {{ fill: #ffffff; stroke: #c5cad6 }}
.arrow {{ fill: none; stroke: #4c5ea8; stroke-opacity: 0.55; stroke-width: 1.2 }}
</style>
<defs><marker id="end" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse"
orient="180"><path d="M0,0 L8,4 L0,8 Z" fill="#4c5ea8"/></marker></defs>
{body}
</svg>
"""


def _wide(room: str) -> float:
    """Of a box: letters are some 6.6 pixels wide."""
    return 6.6 * len(room) + 16


def main() -> int:
    """Print what was counted and draw the picture; 1 where a room is too large."""
    files, found = modules(), imports()
    full = {room: count for room, count in rooms(files).items() if count > MOST}
    print(
        f"{len(files)} files in {len(rooms(files))} rooms; {sum(map(len, found.values()))} imports between them"
    )
    print(
        f"rooms over {MOST} files: {len(full)}",
        *(f"  {room}: {count}" for room, count in full.items()),
        sep="\n",
    )
    PICTURE.write_text(picture(files, found, floors()), encoding="utf-8")
    return 1 if full else 0


if __name__ == "__main__":
    sys.exit(main())
