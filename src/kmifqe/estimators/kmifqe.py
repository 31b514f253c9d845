"""KMIFQE: in-sample fitted Q evaluation with a learned kernel bandwidth and metric."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimator, Info, action_scale, check_config, network_input
from kmifqe.maths import mlp
from kmifqe.maths.bandwidth import optimal_bandwidth, variance_term
from kmifqe.maths.kernel import clipped_weight, effective_sample_size
from kmifqe.maths.metric import metric_root
from kmifqe.maths.resample import resample
from kmifqe.problem import Problem

REFRESH_CHUNK = {"cpu": 1_024}  # rows whose Hessians are in flight at once: what a core's cache holds
DEVICE_REFRESH_CHUNK = 16_384  # elsewhere: enough to fill the device


@dataclass(frozen=True)
class KMIFQEConfig:
    """Settings of KMIFQE; defaults are the paper's for Pendulum (appendix) unless said.

    Actions are measured in half action ranges, so that h and the metric mean the same for any units; on tasks
    whose dimensions share one range this only renames h.
    """

    hidden: int = 256  # units in each of two tanh layers
    batch: int = 1024  # rows a step (MuJoCo: 2,048)
    learning_rate: float = 3e-4  # Adam
    decay_steps: int = (
        0  # steps over which the learning rate falls to a hundredth along a cosine; 0: constant
    )
    target_period: int = 1000  # steps between hard copies of the target network
    metric: str = "learned"  # or "identity": the paper's ablation
    metric_floor: float = 0.1  # added to M, relative to max(M): condition number at most 1 + 1/floor
    bandwidth: float | None = None  # None: learned by Prop. 1; a number: fixed, in half action ranges
    bandwidth_bounds: tuple[float, float] = (0.01, 2.0)  # half action ranges; guards b -> 0
    clip: tuple[float, float] = (1e-3, 2.0)  # of the weight, or of each dimension's ratio
    clip_per_dimension: bool = False  # True for the paper's MuJoCo tasks; needs a density that factorises
    density_floor: float = 1e-5  # of μ(π̃(s')|s') inside v (fitted μ: 1e-3)

    def __post_init__(self) -> None:
        check_config(self)
        if self.metric not in ("learned", "identity"):
            raise InputError(f"metric is {self.metric!r}; expected 'learned' or 'identity'")
        if self.bandwidth is not None and not 0 < self.bandwidth < float("inf"):
            raise InputError(
                f"bandwidth is {self.bandwidth}; expected a positive number, in half action ranges"
            )
        low, high = self.clip
        if not 0 <= low < high:
            raise InputError(f"clip is [{low}, {high}]; expected 0 <= low < high")
        low, high = self.bandwidth_bounds
        if not 0 < low < high < float("inf"):
            raise InputError(f"bandwidth_bounds is [{low}, {high}]; expected 0 < low < high, finite")
        for name in ("metric_floor", "density_floor", "decay_steps"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected 0 or more")


class KMIFQEState(NamedTuple):
    """Network and optimiser, and what the frozen target network says about every row.

    Between two copies the target network does not change, so its values and Hessians are computed once per copy
    and a step touches only h. The target network itself need not be kept.
    """

    params: mlp.QParams
    opt_state: optax.OptState
    squared: Float[Array, "n k"]  # z² per dimension (k = d) or ‖z‖² (k = 1), z = Lᵀ(a' − π̃(s'))
    laplacian: Float[Array, " n"]  # tr ∇²ₐQ̄ at (s', π̃(s')); 0 on terminal rows
    next_value: Float[Array, " n"]  # Q̄(s', a'); 0 on terminal rows
    target_value: Float[Array, " n"]  # Q̄(s', π̃(s')); 0 on terminal rows
    h: Float[Array, ""]
    log_v: Float[Array, ""]  # running log of v, used where μ(π̃(s')|s') is unknown


PAPER = KMIFQEConfig()


@cache  # one set of functions per config, so that jit compiles it once
def kmifqe(config: KMIFQEConfig = PAPER) -> Estimator:
    """Return KMIFQE, Algorithm 1: per step h*, weights, resampling, TD update; per copy Hessians and metrics."""
    optimizer = optax.adam(
        optax.cosine_decay_schedule(config.learning_rate, config.decay_steps, alpha=0.01)
        if config.decay_steps
        else config.learning_rate
    )

    def inputs(problem: Problem, states: Array, actions: Array) -> Array:
        return network_input(problem, states, actions, "standardized")

    def log_mu(problem: Problem) -> Float[Array, "n k"]:
        """Return log μ(a'|s') in the units of the kernel, as many columns as the weight has factors."""
        if problem.log_mu is None:
            raise InputError("KMIFQE needs a behaviour density; the problem was built with behavior=None")
        n = problem.counts.in_sample
        _, half = action_scale(problem)
        columns = problem.log_mu[:n]
        if config.clip_per_dimension:
            if columns.shape[1] != problem.action_dim:
                raise InputError(
                    "clip_per_dimension needs a behaviour density that factorises over action dimensions"
                )
            return columns + jnp.log(half)
        return columns.sum(axis=1, keepdims=True) + jnp.sum(jnp.log(half))

    def look_ahead(
        params: mlp.QParams, problem: Problem, learn_metric: bool
    ) -> tuple[Array, Array, Array, Array]:
        """Return what a new target network says of every in-sample row: the four arrays of the state."""
        d, n = problem.action_dim, problem.counts.in_sample
        _, half = action_scale(problem)

        def one(row: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            next_state, next_action, target_action, terminated = row
            at_target = inputs(problem, next_state, target_action)
            H = mlp.action_hessian(params, at_target, d)
            z = (next_action - target_action) / half
            if learn_metric:
                z = metric_root(H, config.metric_floor) @ z
            squared = z**2 if config.clip_per_dimension else jnp.sum(z**2, keepdims=True)
            going_on = jnp.where(terminated, 0.0, 1.0)
            next_value = mlp.q_value(params, inputs(problem, next_state, next_action))
            return (
                squared,
                going_on * jnp.trace(H),
                going_on * next_value,
                going_on * mlp.q_value(params, at_target),
            )

        rows = (
            problem.next_states[:n],
            problem.next_actions[:n],
            problem.target_actions[:n],
            problem.terminated[:n],
        )
        chunk = REFRESH_CHUNK.get(jax.default_backend(), DEVICE_REFRESH_CHUNK)
        return jax.lax.map(one, rows, batch_size=chunk)

    def init(key: Array, problem: Problem) -> KMIFQEState:
        log_mu(problem)  # a missing or unfit density is refused before any work
        params = mlp.init_q(key, problem.state_dim + problem.action_dim, config.hidden)
        h = config.bandwidth if config.bandwidth is not None else config.bandwidth_bounds[1] / 4
        ahead = look_ahead(params, problem, learn_metric=False)
        return KMIFQEState(
            params, optimizer.init(params), *ahead, h=jnp.float32(h), log_v=jnp.float32(jnp.nan)
        )

    def refresh(t: Array, state: KMIFQEState, problem: Problem) -> KMIFQEState:
        ahead = look_ahead(state.params, problem, learn_metric=config.metric == "learned")
        return KMIFQEState(state.params, state.opt_state, *ahead, h=state.h, log_v=state.log_v)

    def weights(h: Array, state: KMIFQEState, problem: Problem) -> Float[Array, " n"]:
        """Return every row's clipped weight; a terminal row, whose update ignores a', gets the others' mean."""
        weigh = partial(clipped_weight, action_dim=problem.action_dim, clip=config.clip)
        w = jax.vmap(weigh, in_axes=(0, None, 0))(state.squared, h, log_mu(problem))
        going_on = ~problem.terminated[: problem.counts.in_sample]
        expected = jnp.sum(w * going_on) / jnp.maximum(jnp.sum(going_on), 1)
        return jnp.where(going_on, w, jnp.where(expected > 0, expected, 1.0))

    def bandwidth(key: Array, state: KMIFQEState, problem: Problem) -> tuple[Array, Array]:
        """Return h* of Prop. 1 from a uniform minibatch, and the running log v."""
        n, d, gamma = problem.counts.in_sample, problem.action_dim, problem.gamma
        rows = jax.random.randint(key, (config.batch,), 0, n)
        x = inputs(problem, problem.states[rows], problem.actions[rows])
        passes = jax.vmap(mlp.q_pass, in_axes=(None, 0))(state.params, x)
        norms = jax.vmap(mlp.gradient_norm_squared)(passes)
        going_on = ~problem.terminated[rows]
        b = mlp.weighted_gradient(passes, 0.5 * gamma * state.laplacian[rows] / config.batch)
        b_squared = optax.tree.norm(b, squared=True)
        reward = (1.0 - gamma) * problem.rewards[rows]
        if problem.log_mu_target is not None:
            _, half = action_scale(problem)
            mu_target = jnp.exp(problem.log_mu_target[rows] + jnp.sum(jnp.log(half)))
            mu_target = jnp.maximum(mu_target, config.density_floor)
            td_error = reward + gamma * state.target_value[rows] - passes.q
            v = jnp.mean(going_on * variance_term(td_error, norms, mu_target, d))
            log_v = jnp.log(v)
        else:
            v = _variance_from_weights(rows, going_on, reward, passes.q, norms, state, problem)
            # The mean of v, not of log v: a minibatch with no row near π̃ has v ≈ 0 and would drag h down.
            running = jnp.logaddexp(jnp.log(0.99) + state.log_v, jnp.log(0.01) + jnp.log(v))
            log_v = jnp.where(jnp.isnan(state.log_v), jnp.log(v), running)
        h = optimal_bandwidth(jnp.exp(log_v), b_squared, n, d)
        return jnp.clip(jnp.nan_to_num(h, nan=config.bandwidth_bounds[1]), *config.bandwidth_bounds), log_v

    def _variance_from_weights(
        rows: Array,
        going_on: Array,
        reward: Array,
        q: Array,
        norms: Array,
        state: KMIFQEState,
        problem: Problem,
    ) -> Array:
        """Return v where μ at the target action is unknown: at leading order E[w²‖Δ‖²] = v/hᵈ."""
        d, h = problem.action_dim, state.h
        log_mu_total = jnp.maximum(log_mu(problem)[rows].sum(axis=1), jnp.log(config.density_floor))
        total = state.squared[rows].sum(axis=1)
        w = jax.vmap(lambda s, m: clipped_weight(s[None], h, m[None], d, (0.0, float("inf"))))(
            total, log_mu_total
        )
        td_error = reward + problem.gamma * state.next_value[rows] - q
        return h**d * jnp.mean(going_on * w**2 * td_error**2 * norms) + 1e-30

    def step(key: Array, t: Array, state: KMIFQEState, problem: Problem) -> tuple[KMIFQEState, Info]:
        uniform_key, resample_key = jax.random.split(key)
        if config.bandwidth is None:
            h, log_v = bandwidth(uniform_key, state, problem)
        else:
            h, log_v = state.h, state.log_v
        w = weights(h, state, problem)
        w_bar = jnp.mean(w)
        rows = resample(resample_key, w, config.batch)
        x = inputs(problem, problem.states[rows], problem.actions[rows])
        passes = jax.vmap(mlp.q_pass, in_axes=(None, 0))(state.params, x)
        goal = (1.0 - problem.gamma) * problem.rewards[rows] + problem.gamma * state.next_value[rows]
        td_error = goal - passes.q
        gradient = mlp.weighted_gradient(passes, -2.0 * w_bar * td_error / config.batch)
        updates, opt_state = optimizer.update(gradient, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        info = {
            "loss": jnp.mean(td_error**2),
            "h": h,
            "mean_weight": w_bar,
            "ess": effective_sample_size(w),
        }
        return state._replace(params=params, opt_state=opt_state, h=h, log_v=log_v), info

    def value(state: KMIFQEState, problem: Problem) -> Float[Array, ""]:
        x = inputs(problem, problem.first_states, problem.first_actions)
        return jnp.mean(jax.vmap(mlp.q_value, in_axes=(None, 0))(state.params, x))

    name = "kmifqe" if config.metric == "learned" else "kmifqe-identity"
    return Estimator(
        name,
        config,
        init,
        step,
        value,
        default_steps=1_000_000,
        refresh=refresh,
        refresh_every=config.target_period,
        refreshed=("squared", "laplacian", "next_value", "target_value"),
        restart_every=config.target_period,
    )
