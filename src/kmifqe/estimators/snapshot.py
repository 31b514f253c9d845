"""What a stopped fit needs to go on as if it had not stopped, and who keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimator, State
from kmifqe.problem import Problem


class Plan(NamedTuple):
    """What a fit was asked to do: two fits with one plan, problem and machine give the same bits."""

    estimator: str
    config: dict[str, Any]
    seeds: tuple[int, ...]
    steps: int
    record_every: int
    gamma: float
    stop: str  # the rule that may end the fit early, in words; "" for none
    bootstrap: bool = False  # every seed has its own episode weights


class Snapshot(NamedTuple):
    """A fit after a record, on the host.

    `state` is the state before the refresh at `step`, by path, without the fields that refresh recomputes:
    those are arrays over all n rows, hundreds of times larger than the networks.
    """

    step: int
    state: dict[str, np.ndarray]
    recorded_steps: np.ndarray  # (records,)
    trajectory: np.ndarray  # (records, seeds)
    infos: dict[str, np.ndarray]  # each (records, seeds)
    seconds: float  # spent so far


class Checkpoints(Protocol):
    """Keeps a fit's snapshots; `fit` asks it at records that a restart can begin from."""

    def restore(self, plan: Plan, problem: Problem) -> Snapshot | None:
        """Return where to go on from; None to begin at the beginning."""

    def due(self, step: int) -> bool:
        """Return whether a snapshot is wanted now."""

    def save(self, snapshot: Snapshot) -> None:
        """Keep the snapshot; an exception raised here ends the fit."""


def restartable(estimator: Estimator, step: int) -> bool:
    """Return whether a fit can begin again at `step` from the state without its refreshed fields."""
    return not estimator.restart_every or step % estimator.restart_every == 0


def kept_state(estimator: Estimator, state: State) -> dict[str, np.ndarray]:
    """Return, on the host and by path, the leaves of `state` that a refresh does not recompute."""
    kept = {name: leaf for name, leaf in _named_leaves(state).items() if not _is_refreshed(estimator, name)}
    return {name: np.asarray(leaf) for name, leaf in jax.device_get(kept).items()}


def rebuilt_state(estimator: Estimator, kept: dict[str, np.ndarray], like: State) -> State:
    """Return a state of the shapes of `like` from `kept`, with zeros where a refresh will write."""
    wanted = _named_leaves(like)
    unknown = sorted(set(kept) - set(wanted))
    if unknown:
        raise InputError(f"the saved state has {unknown[0]}, which {estimator.name} of this version does not")
    leaves = [
        jnp.zeros(leaf.shape, leaf.dtype)
        if _is_refreshed(estimator, name)
        else _fitting(kept.get(name), name, leaf)
        for name, leaf in wanted.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def rule_name(stop: Callable[..., bool] | None) -> str:
    """Return words that tell one stopping rule from another, the same in every process."""
    if stop is None:
        return ""
    if hasattr(stop, "__qualname__"):  # a function: its repr holds an address
        return f"{stop.__module__}.{stop.__qualname__}"
    return repr(stop)


def _fitting(found: np.ndarray | None, name: str, like: jax.ShapeDtypeStruct) -> jax.Array:
    if found is None or found.shape != like.shape or found.dtype != like.dtype:
        holds = "nothing" if found is None else f"{found.dtype} {found.shape}"
        raise InputError(f"the saved state holds {holds} as {name}; expected {like.dtype} {like.shape}")
    return jnp.array(found)  # a copy: the steps donate their state


def _is_refreshed(estimator: Estimator, name: str) -> bool:
    return name.lstrip(".").partition(".")[0].partition("[")[0] in estimator.refreshed


def _named_leaves(state: State) -> dict[str, Any]:
    return {jax.tree_util.keystr(where): leaf for where, leaf in jax.tree_util.tree_leaves_with_path(state)}
