"""What KMIFQE asks of a problem."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from estimators.small import chain_problem, lqr_problem, quick
from kmifqe.errors import InputError
from kmifqe.estimators import Estimator
from kmifqe.mdp.problem import Problem


def trace_one_step(estimator: Estimator, problem: Problem) -> None:
    """Go through init and step as `jit` would, without compiling them."""
    key = jax.random.key(0)
    jax.eval_shape(lambda p: estimator.step(key, jnp.int32(0), estimator.init(key, p), p), problem)


def test_no_density_is_refused() -> None:
    problem = replace(chain_problem(terminated=True), log_mu=None, log_mu_target=None)
    with pytest.raises(InputError, match="needs a behaviour density"):
        trace_one_step(quick("kmifqe-paper"), problem)


def test_a_clip_per_dimension_needs_a_density_that_factorises() -> None:
    problem, _, _ = lqr_problem(dummies=1)
    assert problem.log_mu is not None
    total = replace(problem, log_mu=problem.log_mu.sum(axis=1, keepdims=True))
    estimator = quick("kmifqe-paper", clip_per_dimension=True)
    with pytest.raises(InputError, match="clip_per_dimension needs a behaviour density that factorises"):
        trace_one_step(estimator, total)
