"""D4RL's flat arrays in time order, in HDF5 or in `.npz`: checked first, then read slice by slice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Protocol

import h5py
import numpy as np

from kmifqe.errors import InputError, listed, sentence_for
from kmifqe.io.archives import (
    HDF5_ERRORS,
    ZIP_ERRORS,
    Archive,
    check_hdf5_array,
    hdf5_member,
    read_npy_header,
)
from kmifqe.mdp.columns import Header, Piece, row_slices

# The first name is the canonical one (D4RL's) and the one we write.
ALIASES: dict[str, tuple[str, ...]] = {
    "observations": ("observations", "observation", "obs", "states"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "terminals": ("terminals", "terminal", "terminated", "terminations", "termination"),
    "timeouts": ("timeouts", "timeout", "truncated", "truncations", "truncation"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "next_states"),
    "action_log_probs": ("action_log_probs", "infos/action_log_probs"),
    "episode": ("episode", "episode_id", "episode_ids"),
}
DONE = ("done", "dones")  # the old Gym's: an end of the task and a time limit in one
REQUIRED = ("observations", "actions", "rewards", "terminals")


class FlatFile(Protocol):
    """One file holding a flat log: its headers are known at once, its values come in pieces."""

    @property
    def name(self) -> str:
        """The file, as the user knows it."""
        ...

    @property
    def headers(self) -> Mapping[str, Header]:
        """What the file claims, by canonical field name."""
        ...

    def pieces(self, field: str) -> Iterator[Piece]:
        """Yield all values of a field, a few megabytes at a time."""
        ...


def resolve_names(
    available: Collection[str], name: str, aliases: Mapping[str, tuple[str, ...]] = ALIASES
) -> dict[str, str]:
    """Return canonical field name -> the name this file uses, for every field of the schema it holds.

    `available` is what the file `name` holds; `aliases` are the names a field may have, by default D4RL's.
    """
    found: dict[str, str] = {}
    for field, known in aliases.items():
        present = [alias for alias in known if alias in available]
        if len(present) > 1:
            raise InputError(
                f"{name}: holds both {present[0]} and {present[1]}, which mean the same field; keep one"
            )
        if present:
            found[field] = present[0]
    return found


def require_fields(
    found: Collection[str],
    available: Collection[str],
    name: str,
    aliases: Mapping[str, tuple[str, ...]] = ALIASES,
) -> None:
    """Refuse the file `name` unless the required fields are among those `found`; `available` is all it holds.

    `aliases` are the names that a field may have, by default D4RL's.
    """
    for field in REQUIRED:
        if field in found:
            continue
        names = ", ".join(aliases[field])
        done = [each for each in DONE if each in available]
        if field == "terminals" and done:
            raise InputError(
                f"{name}: {done[0]} says that an episode is over, not whether the task ended it or a time limit cut "
                f"it; expected one field for the first ({names}) and another for the second "
                f"({', '.join(ALIASES['timeouts'])})"
            )
        raise InputError(
            f"{name}: {field} is missing; expected one of the names {names}; the file holds {listed(available)}"
        )


class Hdf5File:
    """A D4RL file (a FlatFile). Only the schema's fields are opened; links to other files are refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        with sentence_for(path, "an HDF5 file", HDF5_ERRORS), h5py.File(path, "r") as file:
            if "episode_0" in set(file):
                raise InputError(f"{path}: is the inside of a Minari dataset; give the directory around it")
            aliases = {alias for names in ALIASES.values() for alias in names}
            found = {alias: hdf5_member(file, alias, self.name) for alias in sorted(aliases)}
            held = {alias: member for alias, member in found.items() if member is not None}
            self._stored_names = resolve_names({*file, *held}, self.name)
            require_fields(self._stored_names, set(file), self.name)
            self.headers = {
                field: self._header(held[stored], field) for field, stored in self._stored_names.items()
            }

    def pieces(self, field: str) -> Iterator[Piece]:
        """Yield a field's rows, whole HDF5 chunks at a time (a chunk is decompressed once)."""
        with (
            sentence_for(self.path, f"an HDF5 file at {field}", HDF5_ERRORS),
            h5py.File(self.path, "r") as file,
        ):
            dataset = file[self._stored_names[field]]
            row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:]))
            multiple = dataset.chunks[0] if dataset.chunks else 1
            for rows in row_slices(len(dataset), row_bytes, multiple):
                yield rows, dataset[rows]

    def _header(self, dataset: object, field: str) -> Header:
        if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
            raise InputError(f"{self.name}: {field} is not an array; expected (steps, width) or (steps,)")
        check_hdf5_array(dataset, self.name)
        return Header(dataset.shape, dataset.dtype)


class NpzFile:
    """A NumPy archive (a FlatFile): members are streamed, nothing is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        archive = Archive(path, self.name)
        available = {member.removesuffix(".npy") for member in archive.sizes}
        self._stored_names = resolve_names(available, self.name)
        require_fields(self._stored_names, available, self.name)
        with sentence_for(path, "an .npz archive", ZIP_ERRORS):
            self.headers = {
                field: self._header(archive, f"{stored}.npy", field)
                for field, stored in self._stored_names.items()
            }

    def pieces(self, field: str) -> Iterator[Piece]:
        """Yield a field's values in the file's order: by rows, or by columns (Fortran order)."""
        with (
            sentence_for(self.path, f"an .npz archive at {field}", ZIP_ERRORS),
            Archive(self.path, self.name).open(f"{self._stored_names[field]}.npy") as stream,
        ):
            shape, by_columns, dtype = read_npy_header(stream)
            columns = shape[1] if len(shape) == 2 else 1
            if not by_columns or columns == 1:
                for rows in row_slices(shape[0], dtype.itemsize * columns):
                    yield rows, _read(stream, dtype, (rows.stop - rows.start, *shape[1:]))
                return
            for column in range(columns):
                for rows in row_slices(shape[0], dtype.itemsize):
                    yield (rows, column), _read(stream, dtype, (rows.stop - rows.start,))

    def _header(self, archive: Archive, member: str, field: str) -> Header:
        with archive.open(member) as stream:
            shape, _, dtype = read_npy_header(stream)
            held = archive.sizes[member] - stream.tell()
        header = Header(shape, dtype)
        if not dtype.hasobject and header.declared_bytes != held:
            raise InputError(
                f"{self.name}: {field} declares shape {shape} ({header.declared_bytes:,} bytes), "
                f"but the archive holds {held:,} bytes of it"
            )
        return header


def _read(stream: IO[bytes], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    values = np.empty(shape, dtype)
    raw = values.reshape(-1).view(np.uint8)
    filled = 0
    while filled < len(raw):
        block = stream.read(len(raw) - filled)
        if not block:
            raise EOFError("the file ends too early")
        raw[filled : filled + len(block)] = np.frombuffer(block, np.uint8)
        filled += len(block)
    return values
