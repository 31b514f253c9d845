"""In-sample fitted Q evaluation by importance resampling, for targets that draw their actions.

Q(s, a) ← r + γ Q̄(s', a') with the logged a', on rows that are drawn in proportion to ρ = π(a'|s')/μ(a'|s')
(Schlegel et al., 2019; Zhang et al., 2023). Q is never asked for an action that the log does not hold. KMIFQE is
the same for a deterministic target, whose density a kernel stands in for; with π = μ every ρ is 1, and this is SARSA.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimator, Info, learning_rates, require, row_weights
from kmifqe.estimators.fqe import FQEConfig, FQEState, fqe_within, make_fqe
from kmifqe.estimators.registry import PRESETS, EstimatorEntry
from kmifqe.estimators.sizing import FitSize
from kmifqe.maths.kernel import effective_sample_size
from kmifqe.maths.mlp import Layers
from kmifqe.maths.sampling import PartialSums, draw, partial_sums
from kmifqe.mdp.problem import Problem


@dataclass(frozen=True)
class InSampleConfig(FQEConfig):
    """Settings of in-sample learning: those of FQE, and the largest ratio."""

    largest_ratio: float = 100.0  # ρ is cut to it; larger values trade bias for variance

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.largest_ratio > 0, "largest_ratio", self.largest_ratio, "a positive number")


class InSampleState(NamedTuple):
    """FQE's networks, and what rows are drawn by."""

    fqe: FQEState
    sums: PartialSums
    mean_ratio: Float[Array, ""]
    effective_rows: Float[Array, ""]


def check_problem(name: str, problem: Problem) -> None:
    """Refuse, for the estimator `name`, a deterministic target, and a log without next actions or density."""
    if problem.log_pi is None:
        raise InputError(
            f"{name} weights rows by the target's density, and this target is deterministic; kmifqe relaxes it by a "
            "kernel, or ask for the target's own distribution with --stochastic (stochastic=True)"
        )
    if problem.log_mu is None:
        raise InputError(f"{name} needs a behaviour density; give one with --behavior (behavior=)")
    if problem.counts.in_sample == 0:
        raise InputError(f"{name} learns from logged next actions, and no row has one")


def ratios(problem: Problem, largest: float) -> Float[Array, " in_sample"]:
    """Return ρ = π(a'|s')/μ(a'|s') of the in-sample rows of `problem`, at most `largest`.

    A terminal row has no a', and its update does not depend on one: it counts as the others do on average.
    """
    assert problem.log_pi is not None
    assert problem.log_mu is not None
    n = problem.counts.nonterminal
    log_ratio = problem.log_pi[:n] - problem.log_mu[:n].sum(axis=1)
    rho = jnp.exp(jnp.minimum(log_ratio, jnp.log(largest)))
    mean = jnp.mean(rho) if n else jnp.float32(1.0)
    return jnp.concatenate([rho, jnp.full(problem.counts.terminated, mean)])


@cache  # one set of functions per config, so that jit compiles it once
def make_in_sample(config: InSampleConfig) -> Estimator:
    """Return in-sample learning with the settings `config`."""
    name = "in-sample"
    fqe, offered = fqe_within(config)
    unbounded = make_fqe(replace(fqe.config, bounded=False)).q  # the loss must see what lies beyond
    optimizer = optax.adam(learning_rates(config))
    assert fqe.q is not None
    assert unbounded is not None
    asked, free = fqe.q, unbounded

    def init(key: Array, problem: Problem) -> InSampleState:
        check_problem(name, problem)
        rho = ratios(problem, config.largest_ratio)
        weights = row_weights(problem, slice(problem.counts.in_sample))
        weighted = rho if weights is None else rho * weights
        mean = jnp.mean(weighted)
        return InSampleState(
            fqe.init(key, problem),
            partial_sums(weighted / jnp.maximum(mean, 1e-30)),
            mean,
            effective_sample_size(weighted[: max(problem.counts.nonterminal, 1)]),
        )

    def step(key: Array, t: Array, state: InSampleState, problem: Problem) -> tuple[InSampleState, Info]:
        numbers = jax.random.uniform(key, (len(state.sums), config.batch))
        rows = draw(numbers, state.sums)
        inner, units = state.fqe, state.fqe.units
        target = inner._replace(params=inner.target)
        later = asked(target, problem, problem.next_states[rows], problem.next_actions[rows])
        later = jnp.where(problem.terminated[rows], 0.0, later)
        goal = (1.0 - problem.gamma) * problem.rewards[rows] + problem.gamma * later

        def loss(params: Layers) -> Float[Array, ""]:
            now = free(inner._replace(params=params), problem, problem.states[rows], problem.actions[rows])
            return jnp.mean(((now - goal) / units.scale) ** 2)

        error, gradient = jax.value_and_grad(loss)(inner.params)
        updates, opt_state = optimizer.update(gradient, inner.opt_state)
        params = optax.apply_updates(inner.params, updates)
        soft = optax.incremental_update(params, inner.target, config.tau)
        inner = inner._replace(params=params, target=soft, opt_state=opt_state)
        info = {"loss": error, "mean_ratio": state.mean_ratio, "effective_rows": state.effective_rows}
        return state._replace(fqe=inner), info

    return Estimator(name, config, init, step, default_steps=fqe.default_steps, uses_density=True, **offered)


ENTRIES = (
    EstimatorEntry(
        name="in-sample",
        label="In-sample",
        color="#c51b7d",
        dark_color="#f1a7d0",
        config=InSampleConfig(),
        make=make_in_sample,
        needs_density=True,
        targets="stochastic",
        summary="fitted Q evaluation on rows drawn by the target's own ratio, for targets that draw their actions",
        page="docs/estimators/in_sample.md",
        steps_at=PRESETS.__getitem__,
        sized=FitSize.settings,
        use_when="the target draws its actions, and Q must not be asked for actions that the log does not hold",
        avoid_when="the target's actions are rare in the log: few rows then hold all the weight",
    ),
)
