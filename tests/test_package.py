"""The package as others get it: built the same twice, usable away from the checkout, silent when imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

import kmifqe

ROOT = Path(__file__).parents[1]
BUILD = """
import sys
from hatchling.build import build_sdist, build_wheel
print(build_wheel(sys.argv[1]), build_sdist(sys.argv[1]))
"""


def python(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in another folder, with variables added to the environment; refuse a failure."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two folders, each with a wheel and an sdist built at the same SOURCE_DATE_EPOCH."""
    pytest.importorskip("hatchling")
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    for folder in folders:
        python("-c", BUILD, folder, cwd=ROOT, SOURCE_DATE_EPOCH="1700000000")
    return folders


@pytest.fixture(scope="module")
def unpacked(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel's contents: what an installation puts into site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    (wheel,) = built[0].glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_two_builds_are_the_same_bytes(built: list[Path]) -> None:
    digests = [
        {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()} for folder in built
    ]
    assert sorted(Path(name).suffix for name in digests[0]) == [".gz", ".whl"]
    assert digests[0] == digests[1]


def test_the_wheel_holds_the_package_and_nothing_else(unpacked: Path) -> None:
    tops = {path.name for path in unpacked.iterdir()}
    assert tops == {"kmifqe", f"kmifqe-{kmifqe.__version__}.dist-info"}
    assert (unpacked / "kmifqe" / "py.typed").exists()
    strange = [path for path in unpacked.rglob("*") if path.suffix in {".pyc", ".pkl", ".pth", ".so"}]
    assert strange == []


def test_the_sdist_holds_what_building_and_testing_need(built: list[Path]) -> None:
    (sdist,) = built[0].glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "requirements-test.txt"} <= names
    assert {"tests/test_package.py", "tools/check_versions.sh"} <= names
    assert not any(".venv" in name or "__pycache__" in name for name in names)


def test_the_wheel_works_away_from_the_checkout(unpacked: Path, tmp_path: Path) -> None:
    script = (
        "import kmifqe, numpy as np, pathlib\n"
        "folder = pathlib.Path(kmifqe.__file__).parent\n"
        "actors = sorted((folder / 'worlds' / 'actors').glob('*.safetensors'))\n"
        "actions = [kmifqe.load_policy(str(a))(np.zeros((1, 3), np.float32)) for a in actors]\n"
        "assert len(actions) >= 2 and all(np.isfinite(a).all() for a in actions)\n"
        "print(folder)"
    )
    told = python("-c", script, cwd=tmp_path, PYTHONPATH=str(unpacked)).stdout
    assert Path(told.strip()) == unpacked / "kmifqe"
    help_text = python("-m", "kmifqe", "--help", cwd=tmp_path, PYTHONPATH=str(unpacked)).stdout
    assert "evaluate" in help_text


def test_the_version_is_stated_once(unpacked: Path) -> None:
    (metadata,) = unpacked.glob("*.dist-info/METADATA")
    assert f"\nVersion: {kmifqe.__version__}\n" in metadata.read_text(encoding="utf-8")


IMPORT = """
import os, sys, threading, warnings
before = (dict(os.environ), os.getcwd(), list(sys.path), list(warnings.filters), threading.active_count())
import {module}
after = (dict(os.environ), os.getcwd(), list(sys.path), list(warnings.filters), threading.active_count())
assert before == after, [(a, b) for a, b in zip(before, after) if a != b]
loaded = [name for name in {absent!r} if name in sys.modules]
assert not loaded, loaded
"""


def test_importing_the_package_loads_nothing_and_changes_nothing(tmp_path: Path) -> None:
    script = IMPORT.format(module="kmifqe", absent=["jax", "numpy", "torch", "matplotlib", "gymnasium"])
    done = python("-W", "error", "-c", script, cwd=tmp_path, HOME=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_using_every_public_name_starts_no_device_and_writes_nothing(tmp_path: Path) -> None:
    script = (
        "import kmifqe, sys\n"
        "for name in kmifqe.__all__: getattr(kmifqe, name)\n"
        "import jax._src.xla_bridge as bridge\n"
        "assert not bridge._backends\n"
        "assert not {'torch', 'matplotlib', 'gymnasium', 'typer', 'rich'} & set(sys.modules)"
    )
    done = python("-c", script, cwd=tmp_path, HOME=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_every_public_name_is_there_and_no_other() -> None:
    named = [name for names in kmifqe._NAMES_OF.values() for name in names]
    assert sorted(named) == sorted(kmifqe.__all__)
    assert set(kmifqe.__all__) <= set(dir(kmifqe))
    with pytest.raises(AttributeError, match="module 'kmifqe' has no attribute 'nothing'"):
        _ = kmifqe.nothing


def test_no_file_names_a_package_index() -> None:
    """A lock file with addresses would pin where packages come from, not only which."""
    texts = [ROOT / name for name in ("pyproject.toml", "requirements-test.txt", "Makefile")]
    texts += [*(ROOT / "tools").iterdir()]
    for path in texts:
        words = path.read_text(encoding="utf-8")
        assert not any(word in words for word in ("index-url", "find-links", "://")), path
