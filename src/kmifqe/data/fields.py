"""The schema of a flat log: D4RL's field names, other names accepted for them, and what a file must offer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kmifqe.data.limits import shown
from kmifqe.errors import InputError

# The first name is the canonical one (D4RL's) and the one we write.
ALIASES: dict[str, tuple[str, ...]] = {
    "observations": ("observations", "observation", "states"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "terminals": ("terminals", "terminated", "terminations"),
    "timeouts": ("timeouts", "truncated", "truncations"),
    "next_observations": ("next_observations", "next_observation", "next_states"),
    "action_log_probs": ("action_log_probs", "infos/action_log_probs"),
    "episode": ("episode",),
}
REQUIRED = ("observations", "actions", "rewards", "terminals")

Place = slice | tuple[slice, int]
Piece = tuple[Place, np.ndarray]  # where the values go (rows, or rows of one column), and the values


@dataclass(frozen=True)
class Header:
    """What a file claims about one field before any of it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def declared_bytes(self) -> int:
        """The memory the field would take as stored (Python integers: a hostile shape cannot overflow)."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= int(length)
        return size


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


def resolve_names(available: Collection[str], name: str) -> dict[str, str]:
    """Return canonical field name -> the name this file uses, for every field of the schema it holds."""
    found: dict[str, str] = {}
    for field, aliases in ALIASES.items():
        present = [alias for alias in aliases if alias in available]
        if len(present) > 1:
            raise InputError(
                f"{name}: holds both {present[0]} and {present[1]}, which mean the same field; keep one"
            )
        if present:
            found[field] = present[0]
    return found


def require_fields(found: Collection[str], available: Collection[str], name: str) -> None:
    """Refuse a file that lacks a required field, saying which fields it has."""
    for field in REQUIRED:
        if field not in found:
            held = ", ".join(shown(key, 40) for key in sorted(available)[:12]) or "nothing"
            raise InputError(f"{name}: {field} is missing; the file holds {held}")
