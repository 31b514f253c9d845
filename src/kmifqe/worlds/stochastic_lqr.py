"""Stochastic targets in the linear-quadratic world: a ~ N(−gain s, diag(std²)), whose value is known in closed form.

A target that draws its actions is the kernel relaxation of its own mean with h² A⁻¹ = diag(std²) (`worlds.lqr`), and
its first action is drawn too, which adds ½ tr(diag(std²) H) once more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kmifqe.worlds.lqr import LQR, LinearGaussian, LinearPolicy


@dataclass(frozen=True, eq=False)
class GaussianLinearPolicy:
    """The stochastic policy a ~ N(−gain s, diag(std²)); called, it returns its mean."""

    mean: LinearPolicy
    density: LinearGaussian
    name: str = "gaussian linear"

    @property
    def low(self) -> np.ndarray:
        """Lower end of the reported action range, shape (d,)."""
        return self.mean.low

    @property
    def high(self) -> np.ndarray:
        """Upper end of the reported action range, shape (d,)."""
        return self.mean.high

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the mean action for each row of `states`."""
        return self.mean(states)

    def sample(self, states: np.ndarray, rng: np.random.Generator, n: int) -> np.ndarray:
        """Return `n` actions drawn by `rng` for each row of `states`, shape (rows, n, d)."""
        drawn = self.density.sample(rng, np.repeat(states, n, axis=0))
        return drawn.reshape(len(states), n, -1).astype(np.float32)

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log π(a|s) of `actions` at `states`, shape (rows,)."""
        return self.density.log_prob(states, actions)


def stochastic_target(world: LQR, std: np.ndarray | float) -> tuple[GaussianLinearPolicy, float]:
    """Return the target of `world` with normal noise of the standard deviation `std` (d,), and its exact value."""
    std = np.broadcast_to(np.asarray(std, np.float64), (world.action_dim,))
    metric = np.diag(1.0 / std**2)  # with h = 1 the kernel's covariance is diag(std²)
    first = 0.5 * float(np.sum(std**2 * np.diag(world.q_function.action_hessian)))
    policy = GaussianLinearPolicy(world.policy, LinearGaussian(world.gain, std))
    return policy, world.value + world.relaxation_shift(1.0, metric) + first
