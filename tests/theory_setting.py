"""The setting of the paper's theorems on the linear-quadratic world: exact by quadrature, and simulated.

By quadrature (s, a, s') and a' are integrated on Gauss–Hermite nodes: no noise, so a rate shows as a limit.
By simulation the world collects logs, as a user would have them. Both weigh rows with the estimator's own
weight function, unclipped. All in float64: the bias at small h is a difference of nearly equal numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property

import jax
import jax.numpy as jnp
import numpy as np
from scipy.interpolate import CubicSpline

from kmifqe.maths.kernel import clipped_weight, optimal_bandwidth, variance_term
from kmifqe.maths.mlp import action_hessian, init_q, q_value
from kmifqe.worlds.lqr import LQR, matrix_root

# --- p_μ, a critic Q_θ with its gradient, a target critic Q̄


def make_world(d: int) -> LQR:
    gain = np.array([[0.5], [-0.3], [0.2]])[:d]
    return LQR(
        F=np.array([[0.9]]),
        B=np.array([[0.5, -0.4, 0.3]])[:, :d],
        noise_cov=np.array([[0.2]]),
        cost=np.diag([1.0, 0.5, 0.8, 0.6][: 1 + d]),
        gain=gain,
        behavior_gain=gain + 0.15,
        behavior_std=np.array([0.9, 1.0, 1.1])[:d],
        initial_mean=np.array([0.5]),
        initial_cov=np.array([[0.6]]),
        gamma=0.9,
    )


@dataclass(frozen=True)
class Critic:
    """Q_θ by its values and gradients at given (s, a), and Q̄ by its values and action Hessians."""

    value: Callable[[np.ndarray, np.ndarray], np.ndarray]
    gradient: Callable[[np.ndarray, np.ndarray], np.ndarray]
    target: Callable[[np.ndarray, np.ndarray], np.ndarray]
    target_hessian: Callable[[np.ndarray, np.ndarray], np.ndarray]


def quadratic_critic(world: LQR) -> Critic:
    """Linear in its parameters, on the monomials of (1, s, a) up to degree two; both Qs wrong on purpose."""
    size = 1 + world.state_dim + world.action_dim
    upper = np.triu_indices(size)
    Q = world.q_function
    guess, target = replace(Q, matrix=1.5 * Q.matrix, constant=-0.2), replace(Q, matrix=3.0 * Q.matrix)

    def features(s: np.ndarray, a: np.ndarray) -> np.ndarray:
        x = np.concatenate([np.ones((*s.shape[:-1], 1)), s, a], axis=-1)
        return x[..., upper[0]] * x[..., upper[1]]

    return Critic(guess, features, target, lambda s, a: np.tile(target.action_hessian, (len(s), 1, 1)))


def network_critic(world: LQR) -> Critic:
    """A small tanh network as Q_θ and another as Q̄, as in the estimator."""
    size = world.state_dim + world.action_dim
    theta, bar = (
        jax.tree.map(lambda p: 2.0 * p.astype(jnp.float64), init_q(jax.random.key(k), size, 8))
        for k in (0, 1)
    )

    def joined(s: np.ndarray, a: np.ndarray) -> np.ndarray:
        return np.concatenate([s, a], axis=-1)

    def gradient(s: np.ndarray, a: np.ndarray) -> np.ndarray:
        leaves = jax.tree.leaves(jax.vmap(jax.grad(q_value), (None, 0))(theta, joined(s, a)))
        return np.concatenate([np.asarray(g).reshape(len(s), -1) for g in leaves], axis=1)

    values = jax.jit(q_value)
    hessians = jax.vmap(lambda x: action_hessian(bar, x, world.action_dim))
    return Critic(
        lambda s, a: np.asarray(values(theta, joined(s, a))),
        gradient,
        lambda s, a: np.asarray(values(bar, joined(s, a))),
        lambda s, a: np.asarray(hessians(joined(s, a))),
    )


def saddle_critic(world: LQR) -> Critic:
    """As the quadratic one, but Q̄ is no polynomial, and curves up along a₁ and down along a₂ everywhere."""

    def target(s: np.ndarray, a: np.ndarray) -> np.ndarray:
        return np.exp(0.8 * a[..., 0] + 0.3 * s[..., 0]) - 1.5 * np.exp(-0.7 * a[..., 1])

    def hessian(s: np.ndarray, a: np.ndarray) -> np.ndarray:
        curvature = [0.64 * np.exp(0.8 * a[:, 0] + 0.3 * s[:, 0]), -0.735 * np.exp(-0.7 * a[:, 1])]
        return np.stack(curvature, axis=1)[:, :, None] * np.eye(2)

    return replace(quadratic_critic(world), target=target, target_hessian=hessian)


@dataclass(frozen=True)
class Setting:
    """Everything of Theorem 1 that does not depend on h, at rows (s, a, s') with probabilities."""

    world: LQR
    critic: Critic
    probability: np.ndarray  # (N,)
    next_states: np.ndarray  # (N, q)
    target_actions: np.ndarray  # (N, d)
    known: np.ndarray  # (N,) (1−γ) r − Q_θ(s, a), the part of the TD error that is known before a'
    gradients: np.ndarray  # (N, p)

    @classmethod
    def at(
        cls, world: LQR, critic: Critic, s: np.ndarray, a: np.ndarray, after: np.ndarray, p: np.ndarray
    ) -> Setting:
        known = (1 - world.gamma) * world.reward(s, a) - critic.value(s, a)
        return cls(world, critic, p, after, -after @ world.gain.T, known, critic.gradient(s, a))

    def td_errors(self, next_actions: np.ndarray) -> np.ndarray:
        """δ at M actions a' a row, (N, M, d) -> (N, M)."""
        n, m, _ = next_actions.shape
        next_states = np.broadcast_to(self.next_states[:, None], (n, m, self.world.state_dim))
        return self.known[:, None] + self.world.gamma * self.critic.target(next_states, next_actions)

    @cached_property
    def target_td_errors(self) -> np.ndarray:
        """δ at the target action, (N,)."""
        return self.td_errors(self.target_actions[:, None])[:, 0]

    @cached_property
    def update(self) -> np.ndarray:
        """Δ_TD, the update vector of the deterministic target."""
        return (self.probability * self.target_td_errors) @ self.gradients

    @cached_property
    def b(self) -> np.ndarray:
        """The bias constant of Theorem 1, for the isotropic kernel."""
        return self.b_with_metric(np.broadcast_to(np.eye(self.world.action_dim), self.hessians.shape))

    def b_with_metric(self, A: np.ndarray) -> np.ndarray:
        curvature = np.trace(np.linalg.solve(A, self.hessians), axis1=1, axis2=2)
        return 0.5 * self.world.gamma * (self.probability * curvature) @ self.gradients

    @cached_property
    def v(self) -> float:
        """The variance constant of Theorem 1."""
        mu = np.exp(self.world.behavior.log_prob(self.next_states, self.target_actions))
        norms = np.sum(self.gradients**2, axis=1)
        terms = variance_term(self.target_td_errors, norms, mu, self.world.action_dim)
        return float(self.probability @ np.asarray(terms))

    @cached_property
    def hessians(self) -> np.ndarray:
        return self.critic.target_hessian(self.next_states, self.target_actions)


def gauss_hermite(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (M, size) and probabilities (M,) of a standard normal vector."""
    x, w = np.polynomial.hermite_e.hermegauss(count)
    nodes = np.stack(np.meshgrid(*[x] * size, indexing="ij"), axis=-1).reshape(-1, size)
    weights = (
        np.stack(np.meshgrid(*[w / w.sum()] * size, indexing="ij"), axis=-1).reshape(-1, size).prod(axis=1)
    )
    return nodes, weights


@cache
def exact_setting(d: int, make_critic: Callable[[LQR], Critic]) -> Setting:
    """p_μ(s, a, s') on quadrature nodes, with d^μ the distribution of first states.

    For the quadratic critic the nodes give p_μ's own moments (to 1e-4 at h = 0.8, far better below). For the
    others they are a distribution of their own, for which the theorems hold just the same.
    """
    world = make_world(d)
    z, probability = gauss_hermite(10 if d == 1 else 6, 2 + d)
    s = world.initial_mean + z[:, :1] @ matrix_root(world.initial_cov)
    a = -s @ world.behavior_gain.T + z[:, 1:-1] * world.behavior_std
    after = s @ world.F.T + a @ world.B.T + z[:, -1:] @ matrix_root(world.noise_cov)
    return Setting.at(world, make_critic(world), s, a, after, probability)


@jax.jit
def weigh(z: jax.Array, h: float, log_mu: jax.Array) -> jax.Array:
    """The estimator's weight, total and unclipped, for z = Lᵀ(a' − π̃(s')) of shape (..., d)."""
    d = z.shape[-1]
    squared = jnp.sum(z**2, axis=-1).reshape(-1, 1)
    unclipped = (0.0, float("inf"))
    w = jax.vmap(lambda sq, mu: clipped_weight(sq, h, mu, d, unclipped))(squared, log_mu.reshape(-1, 1))
    return w.reshape(log_mu.shape)


def kernel_mean(
    x: Setting, h: float, weight_power: int, error_power: int, L: np.ndarray | None = None
) -> np.ndarray:
    """E_{a' ~ μ}[w^i δ^j] for each row, by quadrature over a' centred where w^i μ is large."""
    d = x.world.action_dim
    nodes, probability = gauss_hermite(10, d)
    scale = h / np.sqrt(weight_power)  # K^i is a Gaussian narrower by √i
    steps = (
        scale * nodes[None]
        if L is None
        else scale * np.linalg.solve(np.swapaxes(L, 1, 2), nodes.T).swapaxes(1, 2)
    )
    next_actions = x.target_actions[:, None] + steps
    log_mu = x.world.behavior.log_prob(x.next_states[:, None], next_actions)
    z = np.broadcast_to(scale * nodes, next_actions.shape)  # Lᵀ(a' − π̃(s'))
    w = np.asarray(weigh(z, h, log_mu))
    volume = scale**d * (2 * np.pi) ** (d / 2) * np.exp(0.5 * np.sum(nodes**2, axis=1)) * probability
    return np.sum(
        volume * np.exp(log_mu) * w**weight_power * x.td_errors(next_actions) ** error_power, axis=1
    )


def mean_update(x: Setting, h: float, L: np.ndarray | None = None) -> np.ndarray:
    """E Δ̂ᴷ = E[w Δ]."""
    return (x.probability * kernel_mean(x, h, 1, 1, L)) @ x.gradients


def bias(x: Setting, h: float, L: np.ndarray | None = None) -> np.ndarray:
    return mean_update(x, h, L) - x.update


def variance(x: Setting, h: float, L: np.ndarray | None = None) -> float:
    """n Var Δ̂ᴷ = E[w²‖Δ‖²] − ‖E[w Δ]‖², the part that comes from the data."""
    second = (x.probability * kernel_mean(x, h, 2, 2, L)) @ np.sum(x.gradients**2, axis=1)
    return float(second - np.sum(mean_update(x, h, L) ** 2))


def slopes(h: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Local slopes of log y against log h."""
    return np.diff(np.log(y)) / np.diff(np.log(h))


@cache
def exact_mse(d: int, make_critic: Callable[[LQR], Critic]) -> Callable[[np.ndarray, float], np.ndarray]:
    """MSE(h, n) of Δ̂ᴷ, interpolated between quadratures on a grid of h."""
    x = exact_setting(d, make_critic)
    grid = np.geomspace(0.008, 0.8, 17)
    log_bias = CubicSpline(np.log(grid), [np.log(np.sum(bias(x, h) ** 2)) for h in grid])
    log_variance = CubicSpline(np.log(grid), [np.log(variance(x, h)) for h in grid])
    return lambda h, n: np.exp(log_bias(np.log(h))) + np.exp(log_variance(np.log(h))) / n


def best_bandwidth(mse: Callable[[np.ndarray, float], np.ndarray], n: float) -> float:
    h = np.geomspace(0.008, 0.8, 20_001)
    return float(h[np.argmin(mse(h, n))])


def h_star(x: Setting, n: float) -> float:
    return float(optimal_bandwidth(jnp.float64(x.v), jnp.float64(x.b @ x.b), n, x.world.action_dim))


# --- by simulation

BLOCK, BLOCKS = 250, 3200
SIZES = (250, 1000, 4000)  # rows of a log
GRID = np.geomspace(0.1, 0.8, 13)


@dataclass(frozen=True)
class Drawn:
    """Independent rows as logged, with what the estimator knows about a'."""

    setting: Setting
    td_errors: np.ndarray  # (N,) at the logged a'
    z: np.ndarray  # (N, d) a' − π̃(s')
    log_mu: np.ndarray  # (N,) of the logged a'


def draw(d: int, seed: int, count: int) -> Drawn:
    """The first rows of two-step episodes: independent draws of (s, a, r, s', a')."""
    world = make_world(d)
    log = world.collect(seed, episodes=count, length=2)
    i = np.flatnonzero(log.has_next_action)
    logged = (log.states, log.actions, log.next_states, log.next_actions)
    s, a, after, next_actions = (array[i].astype(np.float64) for array in logged)
    x = Setting.at(world, quadratic_critic(world), s, a, after, np.full(count, 1 / count))
    assert log.log_mu is not None
    log_mu = log.log_mu[i + 1].astype(np.float64).reshape(count, d).sum(axis=1)
    return Drawn(x, x.td_errors(next_actions[:, None])[:, 0], next_actions - x.target_actions, log_mu)


@cache
def simulated_updates(d: int) -> np.ndarray:
    """Δ̂ᴷ of each of BLOCKS logs of BLOCK rows at each h of GRID, (grid, blocks, p)."""
    rows = draw(d, seed=d, count=BLOCK * BLOCKS)
    gradients = rows.setting.gradients.reshape(BLOCKS, BLOCK, -1)
    terms = [np.asarray(weigh(rows.z, h, rows.log_mu)) * rows.td_errors for h in GRID]
    return np.stack([(t.reshape(BLOCKS, 1, BLOCK) @ gradients)[:, 0] / BLOCK for t in terms])


def of_size(updates: np.ndarray, n: int) -> np.ndarray:
    """Δ̂ᴷ of logs of n rows, from those of BLOCK rows."""
    g, blocks, p = updates.shape
    return updates.reshape(g, blocks * BLOCK // n, n // BLOCK, p).mean(axis=2)


def bootstrap(statistic: Callable[[np.ndarray], np.ndarray], count: int, draws: int = 200) -> np.ndarray:
    """Standard error of `statistic`, a function of how often each of `count` independent units is taken."""
    rng = np.random.default_rng(0)
    taken = rng.multinomial(count, np.full(count, 1 / count), draws) / count
    return np.std([statistic(t) for t in taken], axis=0)


def fitted_slope(h: np.ndarray, y: np.ndarray) -> float:
    return float(np.polyfit(np.log(h), np.log(y), 1)[0])


def lowest_point(mse: np.ndarray) -> float:
    """log h at the minimum of a curve over GRID: the same rows serve every h, so its noise is smooth in h."""
    fine = np.linspace(np.log(GRID[0]), np.log(GRID[-1]), 2001)
    return float(fine[np.argmin(CubicSpline(np.log(GRID), np.log(mse))(fine))])
