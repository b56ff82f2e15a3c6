"""The documentation site: it builds without a warning, says nothing that is not so, and asks no
network for anything.
"""

import contextlib
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ostools.models.files.sources import EMBEDDED_DIRECTORIES, is_installed
from scripts import glossary, listings, printed

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ROOMS = (
    *(
        "ostools",
        "ostools.models",
        "ostools.measure",
        "ostools.tasks",
        "ostools.paper",
        "ostools.theory",
    ),
    *("ostools.sweep", "ostools.hooks", "ostools.mitigations"),
)
PAGES = sorted(path for path in DOCS.rglob("*.md"))
RUN = [
    page for page in PAGES if page.stem not in ("recipes", "gallery")
]  # these have tests of their own
CHROMIUM = (
    os.environ.get("OSTOOLS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    said = f"{done.stdout}{done.stderr}"
    warned = re.findall(r"^(?:WARNING|ERROR).*", said, re.MULTILINE)
    assert (done.returncode, warned) == (0, []), said[-4000:]
    return target


def _built(site: Path) -> dict[Path, str]:
    return {
        path: path.read_text("utf-8")
        for path in sorted(site.rglob("*.html"))
        if path.name != "404.html"
    }


_LOADS = r'<(?:script|img|iframe|source|video|object|link(?! rel="(?:canonical|prev|next|alt)))[^>]*?(?:src|href|data)="([^"]+)'
_BY_CODE = r"<(?:script|style)[^>]*>[^<]*(?:cdn\.|unpkg|googleapis|mathjax)"
_BY_SHEET = r"(?:@import\s*|url\()\s*['\"]?((?:https?:)?//[^'\")]+)"


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere_formulas_are_typeset_and_pictures_described(
    site: Path,
) -> None:
    """That every link and anchor leads somewhere mkdocs says itself (`validation`, --strict)."""
    for page, text in _built(site).items():
        assert [
            link for link in re.findall(_LOADS, text) if urlsplit(link).scheme not in ("", "data")
        ] == [], page
        assert re.search(_BY_CODE, text) is None, page
        assert 'class="arithmatex"' not in text, page
        assert re.search(r"<p>[^<]*\$\$", text) is None, page
        for picture in re.findall(r"<img [^>]*>", text):
            assert re.search(r'alt="(?!No description)[^"]{5,}"', picture), (page, picture[:80])
    assert (site / "theory.html").read_text("utf-8").count("<math ") > 100
    for sheet in site.rglob("*.css"):
        assert re.findall(_BY_SHEET, sheet.read_text("utf-8")) == [], sheet


@pytest.mark.slow
def test_a_browser_asks_for_nothing_and_complains_of_nothing(site: Path, tmp_path: Path) -> None:
    """Every page at the width of a telephone: in a process of its own."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here, and OSTOOLS_CHROMIUM is not set")
    script = tmp_path / "visit.py"
    script.write_text(_VISIT, encoding="utf-8")
    command = [sys.executable, str(script), CHROMIUM, *map(str, _built(site))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {"complaints": [], "visits": len(_built(site))}


_VISIT = """
import json, sys
from pathlib import Path
from playwright.sync_api import sync_playwright

complaints, visits = [], 0
with sync_playwright() as started:
    browser = started.chromium.launch(executable_path=sys.argv[1], args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 400, "height": 900})
    at_home = ("file:", "data:", "blob:")
    page.on("request", lambda asked: asked.url.startswith(at_home) or complaints.append(asked.url))
    page.on("console", lambda said: said.type in ("error", "warning") and complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for path in sys.argv[2:]:
        page.goto(Path(path).as_uri())
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        complaints += [f"{path} is {wide} px wider than the window"] if wide > 0 else []
        visits += 1
    browser.close()
print(json.dumps({"complaints": complaints, "visits": visits}))
"""


def _resolved(path: str) -> object:
    """What stands at a dotted path, through modules that are imported, and attributes."""
    parts = path.split(".")
    for at in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            found: Any = importlib.import_module(".".join(parts[:at]))
            for name in parts[at:]:
                found = getattr(found, name)
            return found
    raise AssertionError(f"{path} is not there")


def _written(name: str) -> object:
    """What a user gets who writes that name: attributes first, for functions are called as their
    modules are.
    """
    first, *rest = re.sub(r"^ost\b", "ostools", name).split(".")
    found, path = importlib.import_module(first), first
    for part in rest:
        path = f"{path}.{part}"
        found = getattr(found, part) if hasattr(found, part) else importlib.import_module(path)
    return found


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    pages = "\n".join(page.read_text("utf-8") for page in (site / "reference").glob("*.html"))
    described = {place.rpartition(".")[2] for place in re.findall(r'\bid="([^"]+)"', pages)}
    for module in map(importlib.import_module, ROOMS):
        public = {name for name in module.__all__ if not inspect.ismodule(getattr(module, name))}
        assert public - described == set(), f"of {module.__name__}: add '::: ...' to docs/reference"


def test_the_theory_leads_from_every_equation_to_a_function() -> None:
    """That a link leads to what the reference describes mkdocs says itself."""
    page = (DOCS / "theory.md").read_text("utf-8")
    rows = [line for line in page.partition("{ #map }")[2].splitlines() if line.startswith("| ")]
    assert len(rows) > 30
    for row in rows[1:]:
        named = re.findall(r"\[`([\w.]+)`\]\[([\w.]+)\]", row)
        assert named, row
        assert all(_written(shown) is _resolved(path) for shown, path in named), row


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_names_of_the_package_on_a_page_are_there(page: Path) -> None:
    if page.stem != "architecture":  # which adds a name to show how
        for name in set(re.findall(NAMES, page.read_text("utf-8"))):
            assert _written(name) is not None, name


NAMES = r"`((?:ost|hooks|mitigations)\.[a-z]\w*(?:\.\w+)*)\b(?!\.\w)"


def _command_lines(page: Path) -> list[str]:
    """Command lines of code blocks, and those in the running text that have an option with its
    value.
    """
    text = page.read_text("utf-8").replace("\\\n", " ")
    code = (
        "\n".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL))
        if page.suffix == ".md"
        else text
    )
    blocks = re.findall(
        r"^(?:# |\$ |\t)?(?:\.venv/bin/|\$\(BIN\)/)?ostools ([^\n]*)", code, re.MULTILINE
    )
    spans = re.findall(r"`ostools ([^`\n]* --[\w-]+ [^`\n]*)`", text)
    return [re.split(r"\s+#\s|\s+\||\s+&&\s", line)[0].strip() for line in (*blocks, *spans)]


WITH_COMMANDS = [
    *PAGES,
    *(ROOT / name for name in ("README.md", "SECURITY.md", "Makefile")),
    *sorted((ROOT / "tutorials").glob("*.py")),
    *sorted(
        path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".md", ".yaml")
    ),
]
NOT_LINES = ("VERB", "--", "...", "installed")
"""How a line begins that stands for any command."""


@pytest.mark.parametrize(
    "page", [page for page in WITH_COMMANDS if _command_lines(page)], ids=lambda page: page.stem
)
def test_every_command_line_on_a_page_can_be_typed(page: Path) -> None:
    from tests.cli.asking import accepted

    for line in _command_lines(page):
        if not line.startswith(NOT_LINES) and not re.search(r"\.\.\.|<", line):
            accepted(shlex.split(line))


REAL = {"getting-started": "gemma-3-270m"}
"""Pages whose Python runs on a real model: their numbers are held within 3%, since another CPU adds
otherwise.
"""
NUMBER = r"\d+\.\d+|\d+"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in RUN if printed.blocks(page.read_text("utf-8"))],
    ids=lambda page: page.stem,
)
def test_the_python_on_a_page_runs_and_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    if page.stem in REAL and not is_installed(REAL[page.stem]):
        pytest.skip(f"needs {REAL[page.stem]}: make real")
    for model in ("my-model", "gemma-2b"):
        (tmp_path / model).symlink_to(EMBEDDED_DIRECTORIES["embedded"])
    blocks = printed.blocks(page.read_text("utf-8"))
    for block, output in zip(blocks, printed.run(page, tmp_path), strict=True):
        expected = block["printed"]
        if expected is not None and page.stem in REAL:
            values = [
                [float(value) for value in re.findall(NUMBER, text)] for text in (output, expected)
            ]
            assert re.sub(NUMBER, "#", output) == re.sub(NUMBER, "#", expected)
            assert values[0] == pytest.approx(values[1], rel=0.03, abs=0.01)
        elif expected is not None:
            assert output == expected
    for picture in printed.pictures(page):
        assert (tmp_path / picture.name).stat().st_size > 0
        assert picture.is_file()


def test_the_pages_that_scripts_write_are_those_of_the_program() -> None:
    """`python -m scripts.glossary` and `python -m scripts.listings`."""
    assert glossary.PAGE.read_text("utf-8") == glossary.page()
    for page, listing in listings.PAGES.items():
        assert page.read_text("utf-8") == listings.page(page, listing())


def test_the_messages_on_the_page_of_errors_are_those_of_the_program() -> None:
    """The line below each heading quotes messages; their parts stand in the sources, where a string
    may go over lines.
    """
    sources = [
        path.read_text("utf-8")
        for room in ("ostools", "hooks", "mitigations")
        for path in (ROOT / room).rglob("*.py")
    ]
    from ostools.cli import _SECTIONS

    said = re.sub(r'"\s*f?"', "", " ".join("\n".join(sources).split()))
    sections = (DOCS / "errors.md").read_text("utf-8").split("\n## ")[1:]
    quoted = [
        span for section in sections for span in re.findall(r"`([^`]+)`", section.split("\n\n")[1])
    ]
    assert set(_SECTIONS.values()) <= {section.partition("\n")[0] for section in sections}
    assert len(quoted) > 12
    for span in quoted:
        for part in re.split(r"\s*\.\.\.\s*", span):
            assert part in said, (span, part)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.stem
)
def test_links_of_pages_outside_of_the_site_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
    broken = [
        link for link in links if not urlsplit(link).scheme and not (page.parent / link).exists()
    ]
    assert broken == []


def test_pages_name_no_file_that_is_not_there() -> None:
    for page in PAGES:
        for named in re.findall(
            r"`((?:tests|examples|benchmarks|docs|tutorials)/[\w./-]+)`", page.read_text("utf-8")
        ):
            assert (ROOT / named).exists(), (page.name, named)


def test_docstrings_are_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_site"))
    escaped = importlib.import_module("plain_docstrings").escaped
    assert escaped("||y - y*||_p, v* for j < i") == r"\|\|y - y\*\|\|\_p, v\* for j \< i"
    assert escaped("Args:\n    max_memory: n_b bytes") == "Args:\n    max_memory: " + r"n\_b bytes"
    assert escaped("see docs/theory.md 3.2.") == "see [Theory 3.2][section-3-2]."
