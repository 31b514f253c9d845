"""One damaged input for a target: a file, or a folder with one damaged file."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

from fuzz.mutate_bytes import mutate_bytes
from fuzz.mutate_containers import mutate_json, mutate_safetensors, mutate_zip
from fuzz.mutate_structure import STRUCTURES

STRUCTURE_SHARE = 0.25  # of the inputs: built wrong with the format's own library instead of damaged


def mutate_input(rng: random.Random, target: str, seeds: list[Path], sandbox: Path) -> Path:
    """Write a damaged copy of one of `seeds` into `sandbox` and return its path."""
    seed = rng.choice(seeds)
    path = sandbox / f"input{seed.suffix}"
    if seed.is_dir():
        return _mutate_folder(rng, seed, sandbox / seed.name)
    if seed.suffix in STRUCTURES and rng.random() < STRUCTURE_SHARE:
        shutil.copyfile(seed, path)
        path.chmod(0o600)
        _change_structure(rng, path)
        return path
    path.write_bytes(damaged(rng, seed.suffix, seed.read_bytes(), rng.choice(seeds).read_bytes()))
    return path


def damaged(rng: random.Random, suffix: str, data: bytes, other: bytes = b"") -> bytes:
    """Return a file's bytes damaged, with what its suffix says about its structure."""
    if suffix in (".npz", ".zip", ".pt"):
        return mutate_zip(rng, data)
    if suffix == ".json":
        return mutate_json(rng, data)
    if suffix == ".safetensors":
        return mutate_safetensors(rng, data)
    return mutate_bytes(rng, data, other)


def _mutate_folder(rng: random.Random, seed: Path, path: Path) -> Path:
    shutil.copytree(seed, path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    metadata = [file for file in files if file.name == "metadata.json"]
    file = rng.choice(metadata[-1:] if rng.random() < 0.4 else files)
    action = rng.randrange(24)
    if action == 0:
        file.unlink()
    elif action == 1:
        file.unlink()
        file.symlink_to(
            rng.choice(("/etc/passwd", "/dev/zero", str(file), "..", "/nonexistent", "/proc/self/mem"))
        )
    elif action == 2:
        file.rename(file.with_name(rng.choice(("x", "²1.parquet", "\x1b[2J.arrow", "-", "99999"))))
    elif file.suffix in STRUCTURES and rng.random() < STRUCTURE_SHARE:
        _change_structure(rng, file)
    else:
        file.write_bytes(damaged(rng, file.suffix, file.read_bytes(), rng.choice(files).read_bytes()))
    return path


def _change_structure(rng: random.Random, path: Path) -> None:
    # A library may refuse to write its own format wrongly: then what it wrote so far is the input.
    with suppress(
        ValueError, TypeError, OSError, RuntimeError, KeyError, ArithmeticError, NotImplementedError
    ):
        STRUCTURES[path.suffix](rng, path)
