"""A training run's whole state -> one safetensors file, and back. Nothing is pickled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from kmifqe.data.atomic import whole_file
from kmifqe.errors import InputError
from kmifqe.worlds.td3 import Batch, Buffer, Td3State, add


@dataclass
class TrainState:
    """What the next step needs, but for the environments, which cannot be saved. Keys follow `rounds`."""

    learner: Td3State
    buffer: Buffer
    steps: int  # environment steps taken
    rounds: int  # common steps of all environments taken


def save_state(state: TrainState, settings: dict[str, Any], path: Path) -> None:
    """Write the state; the filled rows of the buffer are stored from the oldest to the newest."""
    size, position = int(state.buffer.size), int(state.buffer.position)
    capacity = len(state.buffer.rows.rewards)
    order = (np.arange(size) + (position if size == capacity else 0)) % capacity
    tensors = {
        f"replay.{name}": np.asarray(rows)[order] for name, rows in state.buffer.rows._asdict().items()
    }
    tensors |= {f"learner{name}": np.asarray(leaf, order="C") for name, leaf in _named_leaves(state.learner)}
    progress = json.dumps({"steps": state.steps, "rounds": state.rounds})
    with whole_file(path) as partial:
        metadata = {"settings": json.dumps(settings), "progress": progress}
        save_file(tensors, partial, metadata=metadata)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings that a saved state was made with."""
    return _open(path)[0]["settings"]


def load_state(path: Path, fresh: TrainState) -> TrainState:
    """Return the saved state in the shapes of `fresh`, a state that has not begun."""
    described, tensors = _open(path)
    leaves = [_leaf(tensors, f"learner{name}", leaf, path) for name, leaf in _named_leaves(fresh.learner)]
    learner = jax.tree.unflatten(jax.tree.structure(fresh.learner), leaves)
    capacity = len(fresh.buffer.rows.rewards)
    columns = {}
    for name, column in fresh.buffer.rows._asdict().items():
        rows = tensors.get(f"replay.{name}")
        if rows is None or rows.shape[1:] != column.shape[1:] or rows.dtype != column.dtype:
            raise InputError(f"{path}: replay.{name} is missing or does not fit this task")
        columns[name] = jnp.asarray(rows[-capacity:])
    buffer = add(fresh.buffer, Batch(**columns)) if len(columns["rewards"]) else fresh.buffer
    return TrainState(
        learner, buffer, int(described["progress"]["steps"]), int(described["progress"]["rounds"])
    )


def _open(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with safe_open(path, framework="numpy") as file:
            described = {key: json.loads(text) for key, text in (file.metadata() or {}).items()}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not a readable training state ({error})") from error
    if not {"settings", "progress"} <= set(described):
        raise InputError(f"{path}: not a training state; expected settings and progress in its metadata")
    return described, tensors


def _leaf(tensors: dict[str, np.ndarray], name: str, like: jax.Array, path: Path) -> jax.Array:
    found = tensors.get(name)
    if found is None or found.shape != like.shape or found.dtype != like.dtype:
        shape = "nothing" if found is None else f"{found.dtype} {found.shape}"
        raise InputError(f"{path}: {name} holds {shape}; expected {like.dtype} {like.shape}")
    return jnp.asarray(found)


def _named_leaves(learner: Td3State) -> list[tuple[str, jax.Array]]:
    return [
        (jax.tree_util.keystr(where), leaf) for where, leaf in jax.tree_util.tree_leaves_with_path(learner)
    ]
