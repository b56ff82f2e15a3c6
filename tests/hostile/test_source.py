"""What our own code never does: unpickle, run text as code, start a shell, read YAML that makes
objects.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
_CALLS |= {"torch.hub.load", "yaml.unsafe_load", "yaml.full_load"}
_PICKLING = {"np.load", "numpy.load", "pd.read_pickle", "pandas.read_pickle"}


_WORDS = re.compile(
    rf"\b({'|'.join(_MODULES)}|eval|exec|compile|__import__|system|popen|load|full_load|trust_remote_code)\b"
    r"|unsafe_load|read_pickle|subprocess|asyncio"
)
"""Only a file with one of these words is parsed."""


def found_in(source: str) -> list[str]:
    """Every forbidden import and call, as line and words."""
    if _WORDS.search(source) is None:
        return []
    return [
        f"{node.lineno}: {said}"  # pyright: ignore[reportAttributeAccessIssue]
        for node in ast.walk(ast.parse(source))
        if (said := _forbidden(node))
    ]


def _forbidden(node: ast.AST) -> str | None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
        return next(
            (f"imports {name}" for name in names if name.partition(".")[0] in _MODULES), None
        )
    if not isinstance(node, ast.Call):
        return None
    called = ast.unparse(node.func)
    given = {word.arg: ast.unparse(word.value) for word in node.keywords}
    if called in _CALLS | _PICKLING:
        return called
    if called == "torch.load" and given.get("weights_only") != "True":
        return "torch.load without weights_only=True"
    if called == "yaml.load" and given.get("Loader") != "_Plain":
        return "yaml.load with another loader than ours"
    if (
        called.startswith(("subprocess.", "asyncio.create_subprocess_shell"))
        and given.get("shell", "False") != "False"
    ):
        return "subprocess with a shell"
    if given.get("trust_remote_code", "False") != "False":
        return "remote code"
    return None


def test_no_module_of_ours_runs_what_it_reads() -> None:
    files = [
        path
        for package in ("hooks", "mitigations", "ostools")
        for path in (ROOT / package).rglob("*.py")
    ]
    sources = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    assert len(sources) > 100
    assert not {name: bad for name, source in sources.items() if (bad := found_in(source))}


BAD = """
import pickle
from shelve import open
torch.load('x', weights_only=False)
yaml.load(text, Loader=yaml.Loader)
eval('1')
subprocess.run('x', shell=True)
AutoModel.from_pretrained(x, trust_remote_code=True)
"""


@pytest.mark.parametrize("source", BAD.strip().splitlines())
def test_the_search_finds(source: str) -> None:
    assert found_in(source)
