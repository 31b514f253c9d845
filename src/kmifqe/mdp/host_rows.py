"""How much memory the device has, and rows that stay in host memory and reach the device by minibatch."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def free_device_bytes() -> int | None:
    """Return the default device's memory that is not in use; None where host and device are one (a CPU)."""
    stats = jax.devices()[0].memory_stats()
    if not stats or "bytes_limit" not in stats:
        return None
    return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))


_HELD: dict[int, np.ndarray] = {}
_NUMBERS = itertools.count()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HostRows:
    """Stands in for an (n, width) array of a problem: `rows[indices]` fetches from the host, also under jit.

    A compiled program sees only a ticket, a number by which the host finds the array. So the program serves
    any array of the same shape, and keeps none alive: the array lives as long as its ticket.
    """

    ticket: Int[Array, ""]
    shape: tuple[int, ...] = field(metadata={"static": True})
    dtype: np.dtype = field(metadata={"static": True})

    @classmethod
    def hold(cls, array: np.ndarray) -> HostRows:
        """Return a stand-in for an array, which is not copied and must not change any more."""
        number = next(_NUMBERS)
        ticket = jax.device_put(np.int32(number))
        _HELD[number] = array
        weakref.finalize(ticket, _HELD.pop, number)
        return cls(ticket, array.shape, array.dtype)

    def __getitem__(self, rows: Int[Array, " batch"]) -> Float[Array, "batch width"]:
        if isinstance(rows, slice) or not jnp.issubdtype(jnp.result_type(rows), jnp.integer):
            raise TypeError("rows in host memory are fetched by an array of row numbers, some at a time")
        rows = jnp.asarray(rows)
        fetched = jax.ShapeDtypeStruct((*rows.shape, *self.shape[1:]), self.dtype)
        # expand_dims: under vmap the rows of all seeds come in one call.
        return jax.pure_callback(_fetch, fetched, self.ticket, rows, vmap_method="expand_dims")

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(_held(self.ticket), dtype=dtype, copy=copy)

    @property
    def ndim(self) -> int:
        """How many axes the array has."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return int(np.prod(self.shape)) * self.dtype.itemsize


def _held(ticket: Any) -> np.ndarray:
    number = int(np.asarray(ticket).item())
    if number not in _HELD:
        raise RuntimeError("the rows in host memory were given up: keep their problem while it is in use")
    return _HELD[number]


def _fetch(ticket: Any, rows: Any) -> np.ndarray:
    """Return the rows; NumPy only, since a callback that waits for JAX can wait for itself.

    Like an array on the device: negative numbers count from the end, others are kept within the array.
    """
    array, rows = _held(ticket), np.asarray(rows)
    return np.take(array, np.where(rows < 0, rows + len(array), rows), axis=0, mode="clip")


def largest_magnitudes(rows: Float[Array, "n width"] | HostRows) -> Float[Array, " width"]:
    """Return max |x| of every column, wherever the rows are."""
    if not isinstance(rows, HostRows):
        return jnp.max(jnp.abs(rows), axis=0)
    found = jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype)
    return jax.pure_callback(_largest, found, rows.ticket, vmap_method="expand_dims")


def _largest(ticket: Any) -> np.ndarray:
    array = _held(ticket)
    return np.maximum(array.max(axis=0), -array.min(axis=0))
