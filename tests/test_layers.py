"""The house's layering, read off the imports: which room may know which, and what no room does."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import kmifqe
from kmifqe.estimators import registry

SOURCE = Path(kmifqe.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

RUNNING = {"cluster", "errors", "mdp", "io", "behavior", "estimators", "trust", "store", "report"}
# What each room may import of ours, besides itself. Rooms not named here stand above all of these.
MAY_IMPORT = {
    "maths": set(),
    "errors": set(),
    "mdp": {"errors"},
    "io": {"errors", "mdp"},
    "behavior": {"errors", "mdp", "io", "maths"},
    "estimators": {"errors", "maths", "mdp", "io"},
    "trust": {"errors", "maths", "mdp", "io", "estimators"},
    "store": {"errors", "mdp", "io", "behavior", "estimators", "trust"},
    "report": {"errors", "mdp", "io", "behavior", "estimators", "trust"},
    "worlds": {"errors", "mdp", "io", "behavior", "maths"},
    "cluster": {"errors", "mdp", "io", "estimators", "store", "report"},
    "runner": {"cluster", "errors", "mdp", "io", "estimators", "trust", "store", "report"},
    "budget": {"errors", "mdp", "io", "estimators", "trust", "store", "report"},
    "api": {"budget", "runner", *RUNNING},
    "ranking": {"api", "budget", "runner", *RUNNING},
}
FITTING = ("fit", "estimators.fit", "kmifqe.fit", "fit_policies")
TOP = {"cli", "__main__"}  # the only rooms that may print, and that nobody below may know


def name_of(path: Path) -> str:
    """Return the file's name inside the package: data/npz.py."""
    return path.relative_to(SOURCE).as_posix()


def room_of(path: Path) -> str:
    """Return the first part of the path inside the package: data for data/npz.py, problem for problem.py."""
    first, *inside = path.relative_to(SOURCE).with_suffix("").parts
    return first if inside or first != "__init__" else "package"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported_modules(path: Path) -> Iterator[str]:
    """Yield every module that the file imports, at its top or inside a function, by its full name."""
    package = ("kmifqe", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*up, *([node.module] if node.module else [])))
            yield module
            if module == "kmifqe":  # `from kmifqe import problem` names a room, not a module path
                yield from (f"kmifqe.{alias.name}" for alias in node.names)


def rooms_imported(path: Path) -> set[str]:
    parts = (module.split(".") for module in imported_modules(path))
    return {part[1] if len(part) > 1 else "package" for part in parts if part[0] == "kmifqe"}


def calls(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (dotted name, line) of every call of a plain or dotted name."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def test_every_module_imports() -> None:
    found = [m.name for m in pkgutil.walk_packages(kmifqe.__path__, "kmifqe.") if m.name != "kmifqe.__main__"]
    assert {"kmifqe.maths.kernel", "kmifqe.mdp", "kmifqe.estimators.fit", "kmifqe.store.directory"} <= set(
        found
    )
    for name in found:
        importlib.import_module(name)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_rooms_import_only_what_lies_below_them(path: Path) -> None:
    room = room_of(path)
    imported = rooms_imported(path) - {room}
    if room in MAY_IMPORT:
        assert imported <= MAY_IMPORT[room], f"{name_of(path)} imports {sorted(imported - MAY_IMPORT[room])}"
    if room not in TOP:
        assert not imported & TOP, f"{name_of(path)} imports the command line"


def test_the_rules_name_rooms_that_exist() -> None:
    assert set(MAY_IMPORT) <= {room_of(path) for path in FILES}


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) not in TOP], ids=name_of)
def test_nothing_below_the_command_line_prints(path: Path) -> None:
    printing = {"print", "rich.print", "sys.stdout.write", "sys.stderr.write"}
    assert [line for name, line in calls(path) if name in printing] == []
    assert (
        "rich" not in {module.split(".")[0] for module in imported_modules(path)} or room_of(path) == "report"
    )


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_name_is_printed_as_an_emoji(path: Path) -> None:
    """A policy `module:a:` or a log called `:x:` is shown as it is written: rich's own words are left alone."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"Console", "Text.from_markup"}:
            given = {each.arg: ast.unparse(each.value) for each in node.keywords}
            assert given.get("emoji") == "False", f"{name_of(path)}:{node.lineno}"


@pytest.mark.parametrize("path", [p for p in FILES if name_of(p) != "runner.py"], ids=name_of)
def test_the_runner_alone_fits(path: Path) -> None:
    """What the runner can do (resume, fall back to host memory, report) is written once."""
    assert [line for name, line in calls(path) if name in FITTING] == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nobody_asks_for_an_estimator_by_its_name(path: Path) -> None:
    """Facts about an estimator stand in its registry entry; a comparison elsewhere would miss the next one."""
    names = {entry.name for entry in registry.entries()}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Compare):
            texts = {
                n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            }
            assert not texts & names, f"{name_of(path)}:{node.lineno}"
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".startswith"):
            texts = {n.value for n in node.args if isinstance(n, ast.Constant)}
            assert not texts & names, f"{name_of(path)}:{node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    roots = {module.split(".")[0] for module in imported_modules(path)}
    assert not roots & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml"}
    forbidden = {"eval", "exec", "torch.load", "yaml.load", "pickle.load", "pickle.loads", "pd.read_pickle"}
    assert [(name, line) for name, line in calls(path) if name in forbidden] == []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant), f"{name_of(path)}:{node.value.lineno}"
            assert node.value.value is False, f"{name_of(path)}:{node.value.lineno}"


def test_importing_the_package_imports_no_optional_or_slow_library_and_starts_no_device() -> None:
    heavy = ["torch", "matplotlib", "gymnasium", "pyarrow", "minari", "onnxruntime", "typer", "rich"]
    script = (
        "import sys, kmifqe, jax._src.xla_bridge as bridge\n"
        f"loaded = [name for name in {heavy!r} if name in sys.modules]\n"
        "started = bool(getattr(bridge, '_backends', None))\n"
        "sys.exit(f'imported {loaded}, started {started}' if loaded or started else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_leaves_jax_and_numpy_settings_alone() -> None:
    script = (
        "import jax, numpy, sys\n"
        "before = (jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision, numpy.geterr())\n"
        "import kmifqe\n"
        "after = (jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision, numpy.geterr())\n"
        "sys.exit(0 if before == after else f'{before} became {after}')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
