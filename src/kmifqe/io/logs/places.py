"""Where a log lies: a file, a folder, a pattern of files, a Minari id, or a dataset of the Hugging Face hub."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kmifqe.errors import InputError, shown
from kmifqe.io.logs.minari import minari_root
from kmifqe.io.logs.read import READABLE, natural_order

HUB, MINARI = "hf://", "minari:"
_HUB_PATH = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+?)(?:@([\w./-]+?))?(?:/(.+))?")
_MINARI_ID = re.compile(r"[\w-]+(/[\w-]+)*-v\d+")
_PICTURES = ["videos/*", "images/*", "*.mp4", "*.png"]  # of a robot's dataset: nothing here reads them


def find_log(name: str) -> list[Path]:
    """Return the files or the one folder that the user calls `name`, downloaded first where it asks for that."""
    if name.startswith(HUB):
        return _from_hub(name)
    if name.startswith(MINARI):
        return [_minari_dataset(name.removeprefix(MINARI))]
    path = Path(name).expanduser()
    if name and path.exists():
        return [path]
    if name and glob.has_magic(name):
        return several(glob.glob(str(path), recursive=True), name)
    root = minari_root()
    is_id = _MINARI_ID.fullmatch(name) is not None
    if is_id and (root / name).is_dir():
        return [root / name]
    hint = f", and no Minari dataset of that id under {root} (minari:{name} downloads it)" if is_id else ""
    raise InputError(f"{name or 'an empty name'}: no such file or directory{hint}; expected {READABLE}")


def several(names: Sequence[str | Path], what: str) -> list[Path]:
    """Return several files in the natural order of their names; refuse none, a folder among them, and one twice.

    names: the files.
    what: what the user wrote, for messages.
    """
    files = sorted((Path(name).expanduser() for name in names), key=natural_order)
    if not files:
        raise InputError(f"{shown(what)}: no file has such a name; expected {READABLE}")
    for file in files:
        if not file.exists():
            raise InputError(f"{shown(file)}: no such file; expected {READABLE}")
        if len(files) > 1 and file.is_dir():
            raise InputError(f"{shown(file)}: is a folder among several files; expected files, or one folder")
    real = [file.resolve() for file in files]
    twice = next((file for file in files if real.count(file.resolve()) > 1), None)
    if twice is not None:
        raise InputError(f"{shown(twice)}: is given twice; expected every file once")
    return files


def _from_hub(name: str) -> list[Path]:
    """Return the files of `hf://datasets/OWNER/NAME[@REVISION][/FILE or pattern]` in the hub's own cache."""
    match = _HUB_PATH.fullmatch(name)
    if match is None:
        raise InputError(
            f"{shown(name)}: is no dataset of the hub; expected hf://datasets/OWNER/NAME, with @REVISION and a path "
            "or pattern inside it if wanted"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise InputError(f"{name}: hf:// needs huggingface_hub; pip install 'kmifqe[hub]'") from error
    repository, revision, inside = match.groups()
    wanted: dict[str, Any] = (
        {"ignore_patterns": _PICTURES} if inside is None else {"allow_patterns": [inside]}
    )
    try:
        folder = Path(snapshot_download(repo_id=repository, repo_type="dataset", revision=revision, **wanted))
    except Exception as error:  # no network, no such dataset, no right to read it: the library has a dozen
        raise _not_downloaded(name, error) from error
    if inside is None:
        return [folder]
    return several(
        [str(folder / found) for found in glob.glob(inside, root_dir=folder, recursive=True)], name
    )


def _minari_dataset(identity: str) -> Path:
    """Return the folder of a Minari dataset, downloaded to Minari's own folder if it is not there yet."""
    if _MINARI_ID.fullmatch(identity) is None:
        raise InputError(
            f"minari:{shown(identity)}: is no Minari id; expected one such as mujoco/hopper/expert-v0"
        )
    folder = minari_root() / identity
    if not folder.is_dir():
        try:
            from minari import download_dataset
        except ImportError as error:
            raise InputError(f"minari:{identity}: needs minari; pip install 'kmifqe[minari,hub]'") from error
        try:
            download_dataset(identity)
        except Exception as error:  # as above: whatever a network library raises
            raise _not_downloaded(f"minari:{identity}", error) from error
        if not folder.is_dir():
            raise InputError(f"minari:{identity}: was not found where datasets are downloaded from")
    return folder


def _not_downloaded(name: str, error: Exception) -> InputError:
    return InputError(
        f"{shown(name)}: cannot be downloaded ({shown(error) or type(error).__name__}); check the name and the "
        "network, or download it elsewhere and give its folder"
    )
