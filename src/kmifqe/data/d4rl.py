"""D4RL's HDF5: flat arrays in time order, read slice by slice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from kmifqe.data.fields import ALIASES, Header, Piece, require_fields, resolve_names
from kmifqe.data.fill import row_slices
from kmifqe.data.limits import check_declared_bytes, sentence_for
from kmifqe.errors import InputError

HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)


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
            _refuse_linked_roots(file, self.name)
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
        refuse_external_link(file[stored.rpartition("/")[0] or "/"], stored.rpartition("/")[2], self.name)
        dataset = file[stored]
        if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
            raise InputError(
                f"{self.name}: {field} is not an array; expected (steps, dimensions) or (steps,)"
            )
        check_dataset(dataset, self.path.stat().st_size, self.name)
        return Header(dataset.shape, dataset.dtype)


def _refuse_linked_roots(file: h5py.File, name: str) -> None:
    # First of all: even asking whether `infos/x` exists would open the file that a linked `infos` names.
    for root in {alias.partition("/")[0] for names in ALIASES.values() for alias in names}:
        refuse_external_link(file, root, name)


def refuse_external_link(group: h5py.Group, key: str, name: str) -> None:
    """Refuse a field that lives in another file: a data file has no business opening others."""
    if isinstance(group.get(key, getlink=True), h5py.ExternalLink):
        path = f"{group.name}/{key}".lstrip("/")
        raise InputError(f"{name}: {path} is a link to another file; expected an array in this one")


def check_dataset(dataset: h5py.Dataset, file_bytes: int, name: str) -> None:
    """Refuse an HDF5 array kept in other files, or one that claims far more than the file holds."""
    if dataset.is_virtual or dataset.external:
        raise InputError(f"{name}: {dataset.name} is stored in other files; expected an array in this one")
    for shape in (dataset.shape or (), dataset.chunks or ()):
        declared = Header(shape, dataset.dtype).declared_bytes
        check_declared_bytes(declared, file_bytes, name, str(dataset.name).lstrip("/"))
