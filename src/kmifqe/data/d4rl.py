"""D4RL's HDF5: flat arrays in time order, read slice by slice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from kmifqe.data.fields import ALIASES, Header, Piece, require_fields, resolve_names
from kmifqe.data.fill import row_slices
from kmifqe.data.hdf5_chunks import check_chunks
from kmifqe.data.hdf5_heaps import check_free_lengths
from kmifqe.data.limits import check_declared_bytes, sentence_for, shown
from kmifqe.errors import InputError

HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError)


class D4rlFile:
    """A D4RL file (a FlatFile). Only the schema's fields are opened; links to other files are refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        with sentence_for(path, "an HDF5 file", HDF5_ERRORS), h5py.File(path, "r") as file:
            if "episode_0" in set(file):
                raise InputError(
                    f"{path}: is the inside of a Minari dataset; give the directory that holds it"
                )
            for alias in sorted({alias for names in ALIASES.values() for alias in names}):
                # First of all: even asking whether `infos/x` exists would open the file that a link names.
                refuse_links(file, alias, self.name)
            available = set(file) | {alias for names in ALIASES.values() for alias in names if alias in file}
            self._stored_names = resolve_names(available, self.name)
            require_fields(self._stored_names, set(file), self.name)
            self.headers = {
                field: self._header(file, stored, field) for field, stored in self._stored_names.items()
            }
        declared = sum(header.declared_bytes for header in self.headers.values())
        check_declared_bytes(declared, path.stat().st_size, self.name, "the header")

    def pieces(self, field: str) -> Iterator[Piece]:
        """Yield a field's rows, whole HDF5 chunks at a time (a chunk is decompressed once)."""
        with (
            sentence_for(self.path, f"an HDF5 file at {field}", HDF5_ERRORS),
            h5py.File(self.path, "r") as file,
        ):
            dataset = file[self._stored_names[field]]
            row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:]))
            for rows in row_slices(
                len(dataset), row_bytes, multiple=dataset.chunks[0] if dataset.chunks else 1
            ):
                yield rows, dataset[rows]

    def _header(self, file: h5py.File, stored: str, field: str) -> Header:
        dataset = file[stored]
        if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
            raise InputError(
                f"{self.name}: {field} is not an array; expected (steps, dimensions) or (steps,)"
            )
        check_dataset(dataset, self.path.stat().st_size, self.name)
        return Header(dataset.shape, dataset.dtype)


def refuse_links(group: h5py.Group, path: str, name: str) -> None:
    """Refuse a path any part of which is a link: it may lead, by others, into another file."""
    for key in path.split("/"):
        link = group.get(key, getlink=True)
        if link is None:
            return
        if not isinstance(link, h5py.HardLink):
            where = shown(f"{group.name}/{key}".lstrip("/"))
            raise InputError(
                f"{name}: {where} is a link to another file or field; expected an array in its place"
            )
        member = group[key]
        if not isinstance(member, h5py.Group):
            return
        group = member


def check_dataset(dataset: h5py.Dataset, file_bytes: int, name: str) -> None:
    """Refuse an HDF5 array kept in other files, or one that claims far more than the file holds."""
    if dataset.is_virtual or dataset.external:
        raise InputError(
            f"{name}: {shown(dataset.name)} is stored in other files; expected an array in this one"
        )
    for shape in (dataset.shape or (), dataset.chunks or ()):
        declared = Header(shape, dataset.dtype).declared_bytes
        check_declared_bytes(declared, file_bytes, name, shown(str(dataset.name).lstrip("/")))
    check_chunks(dataset, file_bytes, name)
    check_free_lengths(dataset, file_bytes, name)
