"""What the child process does with policy files: networks become plain arrays, programs are tried out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import load_d4rl_actor, load_npz_actor
from kmifqe.io.policies.graphs import load_program
from kmifqe.io.policies.objects import CheckedPolicy
from kmifqe.io.policies.sb3 import load_sb3_actor

REHEARSED_ROWS, MOST_COLUMNS = 2, 10_000


def write_actor(
    written: str,
    path: str,
    bounds: list[list[float]] | None,
    hidden: str | None,
    normalization_is_given: bool,
) -> None:
    """Write the network in the file `path` as an actor of ours to the file `written`.

    `bounds` are the lowest and the highest actions, None where the file has them. `hidden` is the activation between
    layers, None for the file's own. `normalization_is_given` says whether another file has the inputs' statistics.
    """
    box = None if bounds is None else (np.array(bounds[0], np.float32), np.array(bounds[1], np.float32))
    kind = Path(path).suffix.lower()
    if kind == ".zip":
        actor = load_sb3_actor(path, bounds=box, hidden=hidden, normalization_is_given=normalization_is_given)
    elif kind == ".npz":
        actor = load_npz_actor(path)
    else:
        actor = load_d4rl_actor(path, bounds=box)
    actor.save(written)


def rehearse_program(path: str) -> None:
    """Load a TorchScript or ONNX program and run it once on each width of states that it may take.

    The process that asked must run the program itself. It does so only after this one has survived it.
    """
    policy = load_program(path)
    for width in dict.fromkeys(_widths(policy)):
        try:
            policy(np.zeros((REHEARSED_ROWS, width), np.float32))
        except (
            InputError
        ):  # another width, or states that it does not like: said when it is asked about real ones
            continue


def _widths(policy: CheckedPolicy) -> Iterator[int]:
    """Yield the widths of states that the program may take: as it says, else as its matrices look."""
    if policy.state_dim is not None:
        yield policy.state_dim
        return
    yield from (shape[1] for shape in policy.shapes[:8] if len(shape) == 2 and shape[1] <= MOST_COLUMNS)
    yield 3
