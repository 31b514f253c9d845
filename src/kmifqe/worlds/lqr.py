"""A linear-quadratic world in which every number an estimator should find is known in closed form.

    s' = F s + B a + noise,  noise ~ N(0, noise_cov)    r = reward_offset − [s; a]ᵀ cost [s; a]
    target π̃(s) = −gain s                               behaviour a ~ N(−behavior_gain s, diag(behavior_std²))

After every step the episode ends with probability p = `end_rate` (0 by default), whatever its state; after an end
every reward is 0. `collect` also cuts episodes at a time limit, which is no end: the value goes on past it.

All values are in the normalised scale (1−γ) Σ γᵗ r_t, so that without ends a value is a reward per step. An episode
outlives t steps with probability (1−p)ᵗ, independently of its states, so that E[γᵗ r_t] = (γ(1−p))ᵗ E[r_t | no end].
Q is therefore that of an endless world with the discount κ = γ(1−p), while the normalisation stays (1−γ):

    Q(s, a) = (1−γ) r(s, a) + κ E Q(s', π̃(s')).

Quadratics [s; a]ᵀ G [s; a] + c are closed under this Bellman operator T of the target and under its kernel
relaxation T_K, in which a' ~ N(π̃(s'), h² A⁻¹). Write P = [I; −gain]ᵀ G [I; −gain], the quadratic part of
Q(s, π̃(s)), and H = 2 G_aa, the action Hessian. One application gives

    G ← −(1−γ) cost + κ [F B]ᵀ P [F B]
    c ← (1−γ) reward_offset + κ (c + tr(P noise_cov) + ½ h² tr(A⁻¹ H))

(h = 0 for T). The offset therefore adds reward_offset · (1−γ)/(1−κ) to every value: all of it without ends, less
with them. G does not feel h or A. So the fixed points share G and H, and differ by the constant

    Q_K − Q^π = κ/(1−κ) · ½ h² tr(A⁻¹ H),

the bound of the paper's Theorem 2 met with equality, since a quadratic has no O(h⁴) term.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kmifqe.errors import InputError
from kmifqe.mdp.transitions import Transitions

SYMMETRY_TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class QuadraticQ:
    """Q(s, a) = [s; a]ᵀ matrix [s; a] + constant."""

    matrix: np.ndarray  # (q+d, q+d) symmetric
    constant: float
    state_dim: int

    def __call__(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return Q at each row, shape (n,)."""
        x = np.concatenate([states, actions], axis=-1)
        return np.einsum("...i,ij,...j->...", x, self.matrix, x) + self.constant

    @property
    def action_hessian(self) -> np.ndarray:
        """∂²Q/∂a², shape (d, d): the same at every state and action."""
        return 2.0 * self.matrix[self.state_dim :, self.state_dim :]


@dataclass(frozen=True, eq=False)
class LinearPolicy:
    """a = −gain s, never clipped; `low` and `high` are only what is reported as the range of actions."""

    gain: np.ndarray  # (d, q)
    bound: float
    name: str = "linear"

    @property
    def state_dim(self) -> int:
        """q, the width of a state."""
        return self.gain.shape[1]

    @property
    def action_dim(self) -> int:
        """d, the width of an action."""
        return self.gain.shape[0]

    @property
    def low(self) -> np.ndarray:
        """Lower end of the reported action range, shape (d,)."""
        return np.full(self.action_dim, -self.bound, np.float32)

    @property
    def high(self) -> np.ndarray:
        """Upper end of the reported action range, shape (d,)."""
        return np.full(self.action_dim, self.bound, np.float32)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the action for each row of `states`."""
        return (-np.asarray(states, np.float64) @ self.gain.T).astype(np.float32)


@dataclass(frozen=True, eq=False)
class LinearGaussian:
    """The density of a ~ N(−gain s, diag(std²)); a product over action dimensions."""

    gain: np.ndarray  # (d, q)
    std: np.ndarray  # (d,)

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ(a|s), shape (n,)."""
        return self.log_prob_per_dimension(states, actions).sum(axis=-1)

    def log_prob_per_dimension(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ_j(a_j|s) for each dimension j, shape (n, d)."""
        z = (actions + np.asarray(states, np.float64) @ self.gain.T) / self.std
        return -0.5 * z**2 - np.log(self.std) - 0.5 * np.log(2.0 * np.pi)

    def sample(self, rng: np.random.Generator, states: np.ndarray) -> np.ndarray:
        """Return one action drawn for each row of `states`, shape (n, d)."""
        noise = rng.standard_normal((len(states), len(self.std)))
        return -states @ self.gain.T + self.std * noise


@dataclass(frozen=True, eq=False, repr=False)
class LQR:
    """A linear-quadratic world with a linear target policy and a Gaussian behaviour (see the module)."""

    F: np.ndarray  # (q, q)
    B: np.ndarray  # (q, d)
    noise_cov: np.ndarray  # (q, q)
    cost: np.ndarray  # (q+d, q+d) symmetric, of any sign: an indefinite one gives Hessians of mixed sign
    gain: np.ndarray  # (d, q), the target's
    behavior_gain: np.ndarray  # (d, q)
    behavior_std: np.ndarray  # (d,)
    initial_mean: np.ndarray  # (q,)
    initial_cov: np.ndarray  # (q, q)
    gamma: float
    action_bound: float = np.inf  # what the policy reports as low and high; nothing is clipped to it
    end_rate: float = 0.0  # the probability that an episode ends after a step, 0 <= end_rate < 1
    reward_offset: float = 0.0  # added to every reward up to an episode's end

    def __post_init__(self) -> None:
        q, d = self.B.shape
        expected = {
            "F": (q, q),
            "noise_cov": (q, q),
            "cost": (q + d, q + d),
            "gain": (d, q),
            "behavior_gain": (d, q),
            "behavior_std": (d,),
            "initial_mean": (q,),
            "initial_cov": (q, q),
        }
        for field, shape in expected.items():
            if getattr(self, field).shape != shape:
                raise InputError(f"LQR: {field} has shape {getattr(self, field).shape}; expected {shape}")
        for field in ("noise_cov", "cost", "initial_cov"):
            matrix = getattr(self, field)
            if not np.allclose(matrix, matrix.T, atol=SYMMETRY_TOLERANCE):
                raise InputError(f"LQR: {field} is not symmetric")
        for field in ("noise_cov", "initial_cov"):
            smallest = np.linalg.eigvalsh(getattr(self, field)).min()
            if smallest < -SYMMETRY_TOLERANCE:
                raise InputError(f"LQR: {field} has eigenvalue {smallest:g}; expected a covariance")
        if not (self.behavior_std > 0).all():
            raise InputError(f"LQR: behavior_std is {self.behavior_std}; expected positive numbers")
        if not 0.0 <= self.gamma < 1.0:
            raise InputError(f"LQR: gamma is {self.gamma}; expected a number in [0, 1)")
        if not 0.0 <= self.end_rate < 1.0:
            raise InputError(f"LQR: end_rate is {self.end_rate}; expected a number in [0, 1)")
        radius = spectral_radius(self.closed_loop)
        if self.discount * radius**2 >= 1.0:
            raise InputError(
                f"LQR: the closed loop F − B gain has spectral radius {radius:.3g}; "
                f"the target's value is finite only below {self.discount**-0.5:.3g}"
            )

    @property
    def state_dim(self) -> int:
        """q, the width of a state."""
        return self.B.shape[0]

    @property
    def action_dim(self) -> int:
        """d, the width of an action."""
        return self.B.shape[1]

    @property
    def discount(self) -> float:
        """κ = γ(1−p): what the value of the next state counts for, the chance of an end included."""
        return self.gamma * (1.0 - self.end_rate)

    @property
    def reward_std(self) -> float:
        """The standard deviation of an episode's first reward under the behaviour.

        [s₀; a₀] is Gaussian with some mean m and covariance S, and the variance of a quadratic xᵀCx of it is
        2 tr(CSCS) + 4 mᵀCSCm.
        """
        pair = np.concatenate([np.eye(self.state_dim), -self.behavior_gain])  # maps s to [s; mean action]
        m, S = pair @ self.initial_mean, pair @ self.initial_cov @ pair.T
        S[self.state_dim :, self.state_dim :] += np.diag(self.behavior_std**2)
        weighted = self.cost @ S
        variance = 2.0 * np.trace(weighted @ weighted) + 4.0 * m @ weighted @ self.cost @ m
        return float(np.sqrt(variance))

    @property
    def closed_loop(self) -> np.ndarray:
        """F − B gain: the dynamics under the target policy, (q, q)."""
        return self.F - self.B @ self.gain

    @property
    def policy(self) -> LinearPolicy:
        """The target policy π̃."""
        return LinearPolicy(self.gain, self.action_bound)

    @property
    def behavior(self) -> LinearGaussian:
        """The behaviour density μ."""
        return LinearGaussian(self.behavior_gain, self.behavior_std)

    def __repr__(self) -> str:
        return (
            f"LQR(states {self.state_dim}, actions {self.action_dim}, γ {self.gamma:g}, "
            f"{f'end rate {self.end_rate:g}, ' if self.end_rate else ''}"
            f"closed loop radius {spectral_radius(self.closed_loop):.3g}, "
            f"behaviour std {self.behavior_std.round(3).tolist()}, V {self.value:.4g})"
        )

    @cached_property
    def q_function(self) -> QuadraticQ:
        """Q^π of the target policy: the fixed point of `bellman`."""
        cost = self._at_target(self.cost)
        step = np.kron(self.closed_loop.T, self.closed_loop.T)  # vec(Mᵀ P M) = (Mᵀ ⊗ Mᵀ) vec(P)
        p = np.linalg.solve(np.eye(len(step)) - self.discount * step, -(1.0 - self.gamma) * cost.ravel())
        P = symmetrise(p.reshape(cost.shape))
        per_step = (1.0 - self.gamma) * self.reward_offset + self.discount * float(
            np.trace(P @ self.noise_cov)
        )
        return QuadraticQ(self._backed_up(P), per_step / (1.0 - self.discount), self.state_dim)

    @property
    def value(self) -> float:
        """V(π̃): the mean of Q^π(s₀, π̃(s₀)) over the initial distribution."""
        P = self._at_target(self.q_function.matrix)
        second_moment = self.initial_cov + np.outer(self.initial_mean, self.initial_mean)
        return float(np.trace(P @ second_moment)) + self.q_function.constant

    def value_from(self, states: np.ndarray) -> float:
        """V(π̃) from these first states: the mean of Q^π(s, π̃(s)) over the rows of `states`."""
        states = np.asarray(states, np.float64)
        return float(np.mean(self.q_function(states, -states @ self.gain.T)))

    def relaxation_shift(self, h: float, A: np.ndarray) -> float:
        """Q_K − Q^π = κ/(1−κ) · ½ h² tr(A⁻¹ H), the same at every state and action (Theorem 2)."""
        curvature = np.trace(np.linalg.solve(A, self.q_function.action_hessian))
        return float(self.discount / (1.0 - self.discount) * 0.5 * h**2 * curvature)

    def relaxed_q_function(self, h: float, A: np.ndarray) -> QuadraticQ:
        """Q_K: the fixed point of the kernel-relaxed Bellman operator with bandwidth h and metric A."""
        q = self.q_function
        return replace(q, constant=q.constant + self.relaxation_shift(h, A))

    def bellman(self, q: QuadraticQ, action_cov: np.ndarray | None = None) -> QuadraticQ:
        """T q, or T_K q where `action_cov` = h² A⁻¹ is the covariance of a' around π̃(s')."""
        P = self._at_target(q.matrix)
        constant = q.constant + float(np.trace(P @ self.noise_cov))
        if action_cov is not None:
            constant += 0.5 * float(np.trace(action_cov @ q.action_hessian))
        constant = (1.0 - self.gamma) * self.reward_offset + self.discount * constant
        return QuadraticQ(self._backed_up(P), constant, self.state_dim)

    def with_dummies(self, count: int, std: float = 1.0) -> LQR:
        """This world with `count` more actions, drawn from N(0, std²), that do nothing and cost nothing."""
        no_gain = np.zeros((count, self.state_dim))
        return replace(
            self,
            B=np.pad(self.B, ((0, 0), (0, count))),
            cost=np.pad(self.cost, (0, count)),
            gain=np.concatenate([self.gain, no_gain]),
            behavior_gain=np.concatenate([self.behavior_gain, no_gain]),
            behavior_std=np.concatenate([self.behavior_std, np.full(count, float(std))]),
        )

    def reward(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return r at each row, shape (n,)."""
        return QuadraticQ(-self.cost, self.reward_offset, self.state_dim)(states, actions)

    def first_states(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return `count` draws of s₀, shape (count, q)."""
        return self.initial_mean + rng.standard_normal((count, self.state_dim)) @ matrix_root(
            self.initial_cov
        )

    def step(self, rng: np.random.Generator, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return one draw of s' for each row, shape (n, q)."""
        noise = rng.standard_normal(states.shape) @ matrix_root(self.noise_cov)
        return states @ self.F.T + actions @ self.B.T + noise

    def collect(self, seed: int, episodes: int, length: int, end_seed: int | None = None) -> Transitions:
        """Return `episodes` × `length` logged transitions of the behaviour, in episodes of at most `length` steps.

        Without ends that is `episodes` episodes, each cut at the time limit `length`. With an `end_rate` episodes
        are shorter and there are more of them: they follow one another until so many rows are logged, and the last
        one is cut there. The log carries the log density of its actions per dimension, and s' on every row.

        `seed` draws states and actions. `end_seed` draws where episodes end; by default `seed` does that too. Ends do
        not depend on states or actions, so two logs with the same `end_seed` have episodes of the same lengths and
        are otherwise independent: a program that was compiled for one log's shape then serves the other.
        """
        if episodes < 1 or length < 1:
            raise InputError(f"LQR: episodes is {episodes} and length {length}; expected at least 1 of each")
        n = episodes * length
        terminals, timeouts = _ends(n, length, self.end_rate, seed if end_seed is None else end_seed)
        last_rows = np.flatnonzero(terminals | timeouts)
        lengths = np.diff(last_rows, prepend=-1)
        rng = np.random.default_rng(seed)
        states = np.empty((len(lengths), length + 1, self.state_dim))
        actions = np.empty((len(lengths), length, self.action_dim))
        states[:, 0] = self.first_states(rng, len(lengths))
        for t in range(length):
            actions[:, t] = self.behavior.sample(rng, states[:, t])
            states[:, t + 1] = self.step(rng, states[:, t], actions[:, t])
        logged = np.arange(length) < lengths[:, None]
        s, a, s_next = states[:, :-1][logged], actions[logged], states[:, 1:][logged]
        return Transitions.from_arrays(
            observations=s,
            actions=a,
            rewards=self.reward(s, a),
            terminals=terminals,
            timeouts=timeouts,
            next_observations=s_next,
            action_log_probs=self.behavior.log_prob_per_dimension(s, a),
            name=f"LQR seed {seed}",
        )

    def _at_target(self, matrix: np.ndarray) -> np.ndarray:
        """Return the quadratic in s that the quadratic in [s; a] is at a = π̃(s)."""
        pair = np.concatenate([np.eye(self.state_dim), -self.gain])  # maps s to [s; π̃(s)]
        return pair.T @ matrix @ pair

    def _backed_up(self, P: np.ndarray) -> np.ndarray:
        dynamics = np.concatenate([self.F, self.B], axis=1)
        return symmetrise(-(1.0 - self.gamma) * self.cost + self.discount * dynamics.T @ P @ dynamics)


def _ends(rows: int, length: int, rate: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which of the `rows` of a log end an episode and which cut one.

    An episode ends after each step with probability `rate`, is cut after `length` steps, and at the log's last row.
    """
    # A stream of its own, so that worlds without ends keep the states that their seeds have always given.
    terminals = np.random.default_rng([seed, 1]).random(rows) < rate
    timeouts = np.zeros(rows, bool)
    first = 0
    for end in [*np.flatnonzero(terminals).tolist(), rows]:
        timeouts[first + length - 1 : end : length] = True
        first = end + 1
    timeouts[-1] = not terminals[-1]
    return terminals, timeouts & ~terminals


def random_lqr(
    seed: int, q: int, d: int, *, gamma: float = 0.9, radius: float = 0.8, indefinite: bool = False
) -> LQR:
    """Return the random world number `seed`, with states of width `q` and actions of width `d`.

    gamma: the discount, in [0, 1); 0.9 by default.
    radius: the closed loop's spectral radius under π̃, 0.8 by default; under μ it is at most 0.95.
    indefinite: draw the action's cost with eigenvalues of either sign. By default the cost is positive
        definite, so that Q is concave in the action.
    """
    rng = np.random.default_rng(seed)
    loop = rng.standard_normal((q, q))
    loop *= radius / spectral_radius(loop)
    B = rng.standard_normal((q, d))
    gain = 0.5 * rng.standard_normal((d, q))
    departure = 0.3 * rng.standard_normal((d, q))
    while spectral_radius(loop - B @ departure) >= max(0.95, radius):
        departure *= 0.5
    cost = random_spd(rng, q + d)
    if indefinite:
        cost[q:, q:] = symmetrise(3.0 * rng.standard_normal((d, d)))
    return LQR(
        F=loop + B @ gain,
        B=B,
        noise_cov=0.1 * random_spd(rng, q),
        cost=cost,
        gain=gain,
        behavior_gain=gain + departure,
        behavior_std=rng.uniform(0.4, 0.8, d),
        initial_mean=0.5 * rng.standard_normal(q),
        initial_cov=random_spd(rng, q),
        gamma=gamma,
    )


def random_spd(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return a random symmetric positive definite matrix with mean eigenvalue near 1."""
    root = rng.standard_normal((size, size)) / np.sqrt(size)
    return root @ root.T + 0.1 * np.eye(size)


def matrix_root(covariance: np.ndarray) -> np.ndarray:
    """Return the symmetric square root of a covariance, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def spectral_radius(matrix: np.ndarray) -> float:
    """Return the largest modulus of an eigenvalue."""
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def symmetrise(matrix: np.ndarray) -> np.ndarray:
    """Return ½ (M + Mᵀ)."""
    return 0.5 * (matrix + matrix.T)


def cart(gamma: float = 0.99) -> LQR:
    """Return a cart on a rail that is pushed to the middle: the world of `kmifqe example`.

    The state is position and speed, the action a force, a step a fifth of a second. The reward is minus the squared
    distance from the middle, with a tenth of the squared speed and force. The logged controller pushes gently and
    adds noise of 0.6; the target pushes twice as hard. `gamma` is the discount, in [0, 1); 0.99 by default.
    """
    return LQR(
        F=np.array([[1.0, 0.2], [0.0, 0.9]]),
        B=np.array([[0.0], [0.2]]),
        noise_cov=np.diag([0.0, 0.0025]),
        cost=np.diag([1.0, 0.1, 0.1]),
        gain=np.array([[1.0, 1.2]]),
        behavior_gain=np.array([[0.5, 0.6]]),
        behavior_std=np.array([0.6]),
        initial_mean=np.zeros(2),
        initial_cov=np.diag([1.0, 0.25]),
        gamma=gamma,
        action_bound=6.0,
    )
