"""The kernel that KMIFQE ended with: its metric, how much of it lies where no action was logged, its bias."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kmifqe.estimators.base import action_scale, network_input
from kmifqe.estimators.kmifqe import KMIFQEConfig, KMIFQEState
from kmifqe.maths.metric import optimal_metric
from kmifqe.maths.mlp import QParams, action_hessian
from kmifqe.problem import Problem

LOOKED_AT = 1_000  # rows: the mean of a share is then known to 2 %
DRAWS = 16  # actions drawn from the kernel at each
QUANTILES = (0.1, 0.5, 0.9)


def kernel_facts(config: KMIFQEConfig, state: KMIFQEState, problem: Problem) -> dict[str, Any]:
    """Return metric condition numbers, the kernel's mass outside box and log, and its leading-order bias of V̂.

    The bias is that of Theorem 2, γ/(1−γ)·½h²·tr(A⁻¹H), averaged over logged next states: the fixed point's where
    Q is quadratic in the action, the first term of its expansion elsewhere.
    """
    n = problem.counts.going_on
    seeds = np.flatnonzero(np.isfinite(np.asarray(state.h)))
    if n == 0 or not len(seeds):
        return {}
    rows = np.unique(np.linspace(0, n - 1, min(n, LOOKED_AT)).astype(int))
    next_states, targets = jnp.asarray(problem.next_states[rows]), jnp.asarray(problem.target_actions[rows])
    params = jax.tree.map(lambda part: part[seeds], state.params)
    floor = config.metric_floor if config.metric == "learned" else None
    x = network_input(problem, next_states, targets, "standardized")
    H, A = (np.asarray(m, np.float64) for m in _hessians_and_metrics(params, x, problem.action_dim, floor))
    usable = np.isfinite(H).all(axis=(1, 2, 3)) & np.isfinite(A).all(axis=(1, 2, 3))
    if not usable.any():
        return {}
    H, A, h = H[usable], A[usable], np.asarray(state.h, np.float64)[seeds][usable]
    inverse = np.linalg.inv(A)
    curvature = np.einsum("snij,snji->sn", inverse, H).mean(axis=1)
    gamma, unit = float(problem.gamma), np.asarray(state.reward_scale, np.float64)[seeds][usable]
    bias = gamma / (1.0 - gamma) * 0.5 * h**2 * curvature * unit
    return {
        "metric_condition_quantiles": np.quantile(np.linalg.cond(A), QUANTILES).tolist(),
        "kernel_outside": _outside(problem, np.asarray(targets, np.float64), inverse, h),
        "kernel_bias": float(bias.mean()),
        "kernel_bias_spread": float(bias.std(ddof=1)) if len(bias) > 1 else None,
    }


@partial(jax.jit, static_argnums=(2, 3))
def _hessians_and_metrics(
    params: QParams, x: Array, action_dim: int, floor: float | None
) -> tuple[Array, Array]:
    """Return ∇²ₐQ and A of every seed (axis 0 of the parameters) and row."""

    def at(params: QParams, x: Array) -> tuple[Array, Array]:
        H = action_hessian(params, x, action_dim)
        H = 0.5 * (H + H.T)
        return H, jnp.eye(action_dim) if floor is None else optimal_metric(H, floor)

    return jax.vmap(jax.vmap(at, (None, 0)), (0, None))(params, x)


def _outside(problem: Problem, targets: np.ndarray, inverse: np.ndarray, h: np.ndarray) -> float:
    """Return the kernel's mass beyond both the action box and the range of logged actions.

    Where actions are logged as drawn they leave the box, and the kernel may follow them there.
    """
    actions = np.asarray(problem.actions)
    low = np.minimum(np.asarray(problem.action_low), actions.min(axis=0))
    high = np.maximum(np.asarray(problem.action_high), actions.max(axis=0))
    half = np.asarray(action_scale(problem)[1], np.float64)
    root = np.linalg.cholesky(inverse)  # h·root·z has the kernel's covariance h² A⁻¹
    z = np.random.default_rng(0).standard_normal((DRAWS, *inverse.shape[:-1], 1))
    drawn = targets + half * h[:, None, None] * (root @ z)[..., 0]
    return float(np.mean(((drawn < low) | (drawn > high)).any(axis=-1)))
