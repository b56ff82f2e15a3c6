"""The documentation site: it builds without a warning, says nothing that is not so, and asks no
network for anything.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from filelock import FileLock

from ostools.models.files.gguf_cache import is_installed
from ostools.models.files.sources import EMBEDDED_DIRECTORY
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


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all workers of this run; the first to come builds it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    target, log = shared / "site", shared / "site.log"
    with FileLock(shared / "site.lock"):
        if not log.is_file():
            command = [
                sys.executable,
                "-m",
                "mkdocs",
                "build",
                "--strict",
                "--site-dir",
                str(target),
            ]
            quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            done = subprocess.run(
                command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False
            )
            log.write_text(f"{done.returncode}\n{done.stdout}{done.stderr}", encoding="utf-8")
    code, _, said = log.read_text(encoding="utf-8").partition("\n")
    assert (code, re.findall(r"^(?:WARNING|ERROR).*", said, re.MULTILINE)) == ("0", []), said[
        -4000:
    ]
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
    """Every page at the widths of a telephone and of a desk: in a process of its own."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here, and OSTOOLS_CHROMIUM is not set")
    script = tmp_path / "visit.py"
    script.write_text(_VISIT, encoding="utf-8")
    command = [sys.executable, str(script), CHROMIUM, *map(str, _built(site))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {"complaints": [], "visits": 2 * len(_built(site))}


_VISIT = """
import json, sys
from pathlib import Path
from playwright.sync_api import sync_playwright

complaints, visits = [], 0
with sync_playwright() as started:
    browser = started.chromium.launch(executable_path=sys.argv[1], args=["--no-sandbox"])
    for width in (400, 1400):
        page = browser.new_page(viewport={"width": width, "height": 900})
        at_home = ("file:", "data:", "blob:")
        page.on("request", lambda asked: asked.url.startswith(at_home) or complaints.append(asked.url))
        page.on("console", lambda said: said.type in ("error", "warning") and complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        for path in sys.argv[2:]:
            page.goto(Path(path).as_uri())
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            complaints += [f"{path} is {wide} px wider than {width}"] if wide > 0 else []
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


@cache
def _site() -> Any:
    """`docs/_site/measurements.py`, which writes the reference of the measurements while the site
    is built.
    """
    spec = importlib.util.spec_from_file_location(
        "measurements", DOCS / "_site" / "measurements.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _documented() -> dict[str, object]:
    """What the pages of the reference describe, by its path."""
    pages = (DOCS / "reference").glob("*.md")
    text = "\n".join(f"{page.read_text('utf-8')}\n{_site().reference(page.stem)}" for page in pages)
    return {path: _resolved(path) for path in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}


def test_the_glossary_is_the_words_of_every_report() -> None:
    assert glossary.PAGE.read_text("utf-8") == glossary.page()


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    pages = [page.read_text("utf-8") for page in (site / "reference").glob("*.html")]
    ids, documented, missing = (
        set(re.findall(r'\bid="([^"]+)"', "\n".join(pages))),
        _documented(),
        [],
    )
    for module in map(importlib.import_module, ROOMS):
        public = {name: getattr(module, name) for name in module.__all__}
        for name, value in public.items():
            path = value.__name__ if isinstance(value, types.ModuleType) else None
            own = {
                at
                for at, described in documented.items()
                if described is value or f"{at}.".startswith(f"{path}.")
            }
            if path not in ROOMS and not own & ids:
                missing.append(
                    f"{module.__name__}.{name}: add '::: {name}', by its whole path, to docs/reference/"
                )
    assert missing == []


def test_the_theory_leads_from_every_equation_to_a_function_and_names_what_is_there() -> None:
    page = (DOCS / "theory.md").read_text("utf-8")
    rows = [line for line in page.partition("{ #map }")[2].splitlines() if line.startswith("| ")][
        1:
    ]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"\[`([\w.]+)`\]\[([\w.]+)\]", row)
        assert named, row
        for shown, path in named:
            assert _written(shown) is _resolved(path), row
    names = set(re.findall(r"`((?:ost|hooks|mitigations)\.[\w.]+)`", page))
    assert len(names) > 50
    assert all(_written(name) is not None for name in names)


NAMING = [
    page for page in (*PAGES, ROOT / "README.md") if page.stem != "architecture"
]  # which adds a name to show how


@pytest.mark.parametrize("page", NAMING, ids=lambda page: page.stem)
def test_names_of_the_package_on_a_page_are_there(page: Path) -> None:
    for name in set(re.findall(r"`(ost\.[a-z]\w*(?:\.\w+)*)\b(?!\.\w)", page.read_text("utf-8"))):
        assert _written(name) is not None, name


def test_what_answers_a_question_is_there() -> None:
    """The names of the last column of the table of all questions."""
    import ostools

    rooms = [ostools, *(getattr(ostools, room) for room in ("measure", "paper", "models"))]
    table = (DOCS / "index.md").read_text("utf-8").partition("{ #questions }")[2]
    rows = [line for line in table.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    options = {"figure", "local", "windowed", "proof", "theorem", "full", "frozen", "letters"}
    options |= {"words", "text", "make"}
    assert len(rows) > 20
    for row in rows:
        for name in re.findall(r"`([a-z_]\w*)", row.rpartition(" | ")[2]):
            assert name in options or any(hasattr(room, name) for room in rooms), name


def test_docstrings_cite_sections_that_the_page_has() -> None:
    sections = set(re.findall(r"\{ #section-([\d-]+) \}", (DOCS / "theory.md").read_text("utf-8")))
    sources = [
        path for room in ("ostools", "hooks", "mitigations") for path in (ROOT / room).rglob("*.py")
    ]
    cited = {
        number.replace(".", "-")
        for path in sources
        for number in re.findall(r"docs/theory\.md (\d(?:\.\d)?)", path.read_text("utf-8"))
    }
    assert cited
    assert cited <= sections


@pytest.mark.slow
def test_every_command_and_option_is_on_the_page_of_the_command_line(site: Path) -> None:
    from ostools.cli.commands import COMMANDS
    from ostools.cli.options import declared

    text = (site / "command-line.html").read_text("utf-8")
    sections = dict(
        re.findall(
            r'<h3 id="[^"]*">ostools ([\w -]+?)<.*?</h3>(.*?)(?=<h3|</article>)', text, re.DOTALL
        )
    )
    assert set(sections) == {command.name for command in COMMANDS.values()}
    for command in COMMANDS.values():
        shown = html.unescape(re.sub(r"<[^>]+>", "", sections[command.name]))
        for parameter in declared(command):
            for option in (
                (*parameter.opts, *parameter.secondary_opts)
                if parameter.opts[0].startswith("-")
                else ()
            ):
                assert option in shown, (command.name, option)


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
        (tmp_path / model).symlink_to(EMBEDDED_DIRECTORY)
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


def test_outputs_are_written_below_their_blocks() -> None:
    first, skipped = (
        "```python\nprint(1)\n```\n\n```text\nold\n```\n\n",
        "<!-- not run: why -->\n```python\nb\n```\n\n",
    )
    page = f"a\n\n{first}{skipped}```python\nc = 2\n```\n"
    written = printed.with_outputs(page, ["1\n", ""])
    assert written == page.replace("old", "1")
    assert printed.with_outputs(written, ["", "2\n"]) == page.replace(
        "\n\n```text\nold\n```", ""
    ).replace("c = 2\n```", "c = 2\n```\n\n```text\n2\n```")


@pytest.mark.parametrize("page", listings.PAGES, ids=lambda page: page.stem)
def test_the_lists_of_commands_and_tutorials_are_those_of_the_program(page: Path) -> None:
    """`python -m scripts.listings` writes them."""
    assert page.read_text("utf-8") == listings.page(page, listings.PAGES[page]())


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
    assert escaped("`a*b_c` and [x]") == r"`a*b_c` and \[x\]"
    assert escaped("As:\n\n    a*b\n    c_d\n\nx*") == "As:\n\n    a*b\n    c_d\n\n" + r"x\*"
    assert escaped("Args:\n    max_memory: n_b bytes") == "Args:\n    max_memory: " + r"n\_b bytes"
    assert escaped("see docs/theory.md 3.2.") == "see [Theory 3.2][section-3-2]."
