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
    policy_answers,
)
from kmifqe.mdp.host_rows import HostRows
from kmifqe.mdp.problem import OF_POLICY, WIDE, Problem, row_order
from kmifqe.mdp.transitions import Transitions


@dataclass(frozen=True)
class Answers:
    """What one target policy says at the states of a log: the fields of `Problem` that depend on it, on the host."""

    target_actions: np.ndarray  # (n, d)
    log_mu_target: np.ndarray | None  # (n,); None where no density is known at the policy's actions
    first_actions: np.ndarray  # (m, d)
    # Of a policy that draws its actions; None for a deterministic one.
    target_samples: np.ndarray | None = None  # (n, draws, d)
    first_samples: np.ndarray | None = None  # (m, draws, d)
    log_pi: np.ndarray | None = None  # (n,)
    first_log_pi: np.ndarray | None = None  # (m,)


def ask_policy(t: Transitions, policy: Policy, behavior: Behavior | Logged | None, draws: int = 0) -> Answers:
    """Return what `policy` says at the states of the log `t`, and what the density `behavior` says of that.

    `draws` is the number of actions drawn at every state; 0, the default, for a deterministic policy.
    """
    order, _ = row_order(t)
    said = policy_answers(policy, t, order, draws)
    at_target = None
    if behavior is not None and not isinstance(behavior, Logged):
        at_target = density_at_target(behavior, t, order, said["target_actions"])
    return Answers(log_mu_target=at_target, **said)


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
        held = {name: fields[name] for name in OF_POLICY if name in WIDE and fields[name] is not None}
        placed |= {name: HostRows.hold(rows) for name, rows in held.items()}
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
