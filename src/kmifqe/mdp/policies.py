"""Many policies judged on one log: what depends on the policy is asked for each, the rest of a Problem is shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from kmifqe.mdp.ask import (
    Behavior,
    Logged,
    Policy,
    action_box,
    density_at_target,
    first_actions,
    target_actions,
)
from kmifqe.mdp.host_rows import HostRows
from kmifqe.mdp.problem import OF_POLICY, Problem, row_order
from kmifqe.mdp.transitions import Transitions


@dataclass(frozen=True)
class Answers:
    """What one target policy says at the states of a log: the fields of `Problem` that depend on it, on the host."""

    target_actions: np.ndarray  # (n, d)
    log_mu_target: np.ndarray | None  # (n,); None where no density is known at the policy's actions
    first_actions: np.ndarray  # (m, d)


def ask_policy(t: Transitions, policy: Policy, behavior: Behavior | Logged | None) -> Answers:
    """Return what `policy` says at the states of the log `t`, and what the density `behavior` says of that."""
    order, _ = row_order(t)
    target = target_actions(policy, t, order)
    known = behavior is not None and not isinstance(behavior, Logged)
    at_target = density_at_target(behavior, t, order, target) if known else None  # type: ignore[arg-type]
    return Answers(target, at_target, first_actions(policy, t))


def common_box(t: Transitions, policies: Sequence[Policy]) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return action bounds that hold those of every one of `policies`, and whether the policies differ in theirs.

    All policies are judged in one box: actions are measured in its half range, and a box of its own for each would
    make two policies differ by their units.
    """
    boxes = [action_box(t, policy)[:2] for policy in policies]
    lows, highs = np.stack([low for low, _ in boxes]), np.stack([high for _, high in boxes])
    differ = bool((lows != lows[0]).any() or (highs != highs[0]).any())
    return lows.min(axis=0), highs.max(axis=0), differ


def judged(problem: Problem, answers: Answers) -> Problem:
    """Return `problem` with the policy that gave `answers` in place of its own."""
    fields: dict[str, Any] = {name: getattr(answers, name) for name in OF_POLICY}
    placed: dict[str, Any] = {n: None if x is None else jax.device_put(x) for n, x in fields.items()}
    if problem.is_on_host:
        placed["target_actions"] = HostRows.hold(answers.target_actions)
    return replace(problem, **placed)


def judged_together(problem: Problem, answers: Sequence[Answers]) -> Problem:
    """Return `problem` with several policies: the fields that depend on the policy have a leading axis over them.

    The other fields are shared. Its data must be on the device.
    """
    assert not problem.is_on_host, "rows in host memory have no axis over policies"
    stacked: dict[str, Any] = {}
    for name in OF_POLICY:
        arrays = [getattr(each, name) for each in answers]
        stacked[name] = None if arrays[0] is None else jax.device_put(np.stack(arrays))
    return replace(problem, **stacked)


def policy_fields(problem: Problem) -> dict[str, Array | None]:
    """Return the fields of a problem of several policies that have an axis over them."""
    return {name: getattr(problem, name) for name in OF_POLICY}
