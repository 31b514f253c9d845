"""The package as others get it: built the same twice, usable away from the checkout, silent when imported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from hashlib import sha256
from pathlib import Path

import jsonschema
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
    assert {"tests/test_package.py", "tools/check_versions.sh", "docker/cpu.Dockerfile"} <= names
    assert {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", ".github/workflows/ci.yml"} <= names
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
    installed = {"cwd": tmp_path, "PYTHONPATH": str(unpacked), "KMIFQE_CACHE_GIB": "0"}
    assert python("-m", "kmifqe", "--version", **installed).stdout == f"kmifqe {kmifqe.__version__}\n"
    python("-m", "kmifqe", "example", **installed)
    sizes = [
        "-e",
        "fqe",
        "--seeds",
        "2",
        "--steps",
        "20",
        "--set",
        "hidden=8",
        "--set",
        "batch=16",
        "--gamma",
        "0.5",
    ]
    asked = ("evaluate", "log.npz", "--policy", "policy.safetensors", "--out", "run", *sizes)
    assert "per step" in python("-m", "kmifqe", *asked, **installed).stdout
    schema = json.loads((unpacked / "kmifqe" / "report" / "result.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8")), schema)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "</html>" in page
    assert f"version = {{{kmifqe.__version__}}}" in page


def test_the_version_is_the_same_everywhere(unpacked: Path) -> None:
    (metadata,) = unpacked.glob("*.dist-info/METADATA")
    assert f"\nVersion: {kmifqe.__version__}\n" in metadata.read_text(encoding="utf-8")
    assert f"\nversion: {kmifqe.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {kmifqe.__version__} - 2" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_entry_point_is_the_command(unpacked: Path) -> None:
    (points,) = unpacked.glob("*.dist-info/entry_points.txt")
    assert "kmifqe = kmifqe.cli:main" in points.read_text(encoding="utf-8").splitlines()


def test_every_command_of_the_workflow_is_one_of_the_repositorys() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    targets = {command.split()[1] for command in commands if command.startswith("make ")}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets == {"check", "test", "docs"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    named = [word for command in commands for word in command.split() if "/" in word]
    assert {"tools/check_build.sh", "docker/cpu.Dockerfile"} <= set(named)
    assert all((ROOT / name).is_file() for name in named)
    supported = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    assert set(workflow["jobs"]["test"]["strategy"]["matrix"]["python"]) == supported


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_the_docker_files_are_linted_and_pull_no_torch(name: str) -> None:
    path = ROOT / "docker" / f"{name}.Dockerfile"
    extras = re.search(r"^ARG EXTRAS=(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert extras is not None
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = [each for extra in extras[1].split(",") for each in offered["optional-dependencies"][extra]]
    assert not [each for each in packages if each.startswith("torch")]
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if linter is None:
        pytest.skip("no hadolint; the extra dev installs it")
    done = subprocess.run([linter, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


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
