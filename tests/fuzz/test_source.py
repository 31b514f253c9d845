"""What must not occur in the package's source: ways to run what a file holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kmifqe

FILES = sorted(Path(kmifqe.__file__).parent.rglob("*.py"))
MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "yaml",
    "code",
}
CALLS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {
    *(
        "os.system",
        "os.popen",
        "os.execv",
        "os.execve",
        "os.execvp",
        "os.spawnv",
        "os.posix_spawn",
        "pty.spawn",
    ),
    *(
        "torch.load",
        "yaml.load",
        "numpy.load",
        "np.load",
        "pandas.read_pickle",
        "pd.read_pickle",
        "np.fromregex",
    ),
    *("zipfile.ZipFile.extractall", "tarfile.open", "shutil.unpack_archive"),
}
METHODS = {
    "extractall",
    "extract",
    "unpack_archive",
}  # of an archive, whatever its name: members become paths


def dotted(node: ast.expr) -> str:
    """Return a name such as np.load as text, or what of it is names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def sins(tree: ast.AST) -> Iterator[str]:
    """Yield what a source does that could run, or unpack to the disk, what a file holds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"imports {a.name}" for a in node.names if a.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield f"imports from {node.module}"
        elif isinstance(node, ast.Call):
            called = dotted(node.func)
            keywords = {k.arg: k.value for k in node.keywords}
            if called in CALLS or called.rpartition(".")[2] in METHODS:
                yield f"calls {called}"
            if called.startswith("subprocess.") and not (node.args and _is_fixed(node.args[0])):
                yield f"calls {called} with words that are not fixed"
            if called in ATTRIBUTES and not _is(keywords.get("weights_only"), True):
                yield f"calls {called}"
            if "allow_pickle" in keywords and not _is(keywords["allow_pickle"], False):
                yield f"calls {called} with allow_pickle"
            if "shell" in keywords and not _is(keywords["shell"], False):
                yield f"calls {called} with shell"


def _is_fixed(node: ast.expr) -> bool:
    """Return whether a command is written out in the source."""
    words = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    return all(isinstance(word, ast.Constant) or dotted(word) == "sys.executable" for word in words)


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_source_can_run_what_a_file_holds(path: Path) -> None:
    assert list(sins(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import numpy as np; np.load('a.npy')",
        "np.load(f, allow_pickle=True)",
        "read(f, allow_pickle=flag)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "eval(text)",
        "exec(text)",
        "import yaml",
        "subprocess.run(['ls', name])",
        "os.system(name)",
        "zipfile.ZipFile(path).extractall()",
        "run(name, shell=True)",
    ],
)
def test_the_search_finds_each_of_them(source: str) -> None:
    assert list(sins(ast.parse(source)))


def test_what_is_safe_is_not_found() -> None:
    honest = "subprocess.run(['nvidia-smi', '-L'])\ntorch.load(p, weights_only=True)\nre.compile(x)\n"
    honest += "json.loads(x)\nmodel.eval()\n"
    assert list(sins(ast.parse(honest))) == []
