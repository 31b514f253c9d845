"""KMIFQE at many fixed bandwidths in one program: compiled once, trained side by side."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kmifqe.estimators import Estimator, KMIFQEConfig, kmifqe
from kmifqe.estimators.base import Info, State
from kmifqe.problem import Problem


@cache  # one set of functions per sweep, so that jit compiles it once
def swept(config: KMIFQEConfig, bandwidths: tuple[float, ...]) -> Estimator:
    """Return KMIFQE with one network per bandwidth, all from the same random numbers; V̂ has shape (bandwidths,).

    Only the initial state knows a fixed h, so the estimator of one bandwidth serves them all. It is for `fit`
    without checkpoints; of the estimate only `values`, `trajectory` and `infos` make sense.
    """
    one = kmifqe(replace(config, bandwidth=bandwidths[0]))

    def init(key: Array, problem: Problem) -> State:
        def at(log_h: Array) -> State:
            state = one.init(key, problem)._replace(h=jnp.exp(log_h), log_h=log_h)
            # Brings what depends on h along; the networks have not changed, so the bootstrap values stay.
            assert one.refresh is not None
            return one.refresh("values", state, problem)

        return jax.vmap(at)(jnp.log(jnp.array(bandwidths)))

    def step(key: Array, t: Array, state: State, problem: Problem) -> tuple[State, Info]:
        return jax.vmap(lambda state: one.step(key, t, state, problem))(state)

    def refresh(kind: str, state: State, problem: Problem) -> State:
        assert one.refresh is not None
        return jax.vmap(partial(one.refresh, kind), in_axes=(0, None))(state, problem)

    def value(state: State, problem: Problem) -> Float[Array, " bandwidths"]:
        return jax.vmap(one.value, in_axes=(0, None))(state, problem)

    return one._replace(init=init, step=step, refresh=refresh, value=value)
