"""The linear-quadratic world: its closed forms against the Bellman equation, rollouts and quadrature."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmifqe.errors import InputError
from kmifqe.maths.metric import optimal_metric
from kmifqe.mdp.ask import FactorizedBehavior, Policy
from kmifqe.worlds.lqr import LQR, QuadraticQ, matrix_root, random_lqr, random_spd

SIZES = [(1, 1), (2, 1), (2, 2), (3, 4)]
worlds = st.builds(
    random_lqr,
    seed=st.integers(0, 10_000),
    q=st.integers(1, 3),
    d=st.integers(1, 4),
    gamma=st.sampled_from([0.5, 0.9, 0.99]),
    indefinite=st.booleans(),
)


def random_metric(seed: int, d: int) -> np.ndarray:
    A = random_spd(np.random.default_rng(seed), d)
    return A / np.linalg.det(A) ** (1 / d)


jitted_metric = jax.jit(optimal_metric)


def float64_metric(H: np.ndarray, floor: float) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(jitted_metric(H, floor=floor), np.float64)


def some_rows(world: LQR, seed: int = 0, n: int = 7) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, world.state_dim)), rng.standard_normal((n, world.action_dim))


def gaussian_mean(f, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """E f(x), x ~ N(mean_i, covariance), for each row; three nodes a dimension are exact for quadratics."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    size = mean.shape[1]
    z = np.stack(np.meshgrid(*[nodes] * size, indexing="ij"), axis=-1).reshape(-1, size)
    w = np.stack(np.meshgrid(*[weights] * size, indexing="ij"), axis=-1).reshape(-1, size).prod(axis=1)
    offsets = z @ matrix_root(covariance)
    return sum(wi * f(mean + offset) for wi, offset in zip(w / w.sum(), offsets))


def backup_by_quadrature(
    world: LQR, q: QuadraticQ, s: np.ndarray, a: np.ndarray, action_cov: np.ndarray
) -> np.ndarray:
    """(1−γ) r + γ E Q(s', a') with a' ~ N(π̃(s'), action_cov), knowing only the world's definition."""

    def relaxed_value(next_states: np.ndarray) -> np.ndarray:
        return gaussian_mean(lambda b: q(next_states, b), -next_states @ world.gain.T, action_cov)

    future = gaussian_mean(relaxed_value, s @ world.F.T + a @ world.B.T, world.noise_cov)
    x = np.concatenate([s, a], axis=1)
    return -(1 - world.gamma) * np.sum((x @ world.cost) * x, axis=1) + world.gamma * future


def discounted_return(
    world: LQR, rng: np.random.Generator, states: np.ndarray, actions: np.ndarray, steps: int
) -> np.ndarray:
    """(1−γ) Σ γᵗ r of rollouts that take `actions` first and then follow the target."""
    total = np.zeros(len(states))
    for t in range(steps):
        total += (1 - world.gamma) * world.gamma**t * world.reward(states, actions)
        states = world.step(rng, states, actions)
        actions = -states @ world.gain.T
    return total


@pytest.mark.parametrize("q, d", SIZES)
@pytest.mark.parametrize("indefinite", [False, True])
def test_q_satisfies_the_bellman_equation(q: int, d: int, indefinite: bool) -> None:
    world = random_lqr(1, q, d, indefinite=indefinite)
    s, a = some_rows(world)
    backup = backup_by_quadrature(world, world.q_function, s, a, np.zeros((d, d)))
    np.testing.assert_allclose(world.q_function(s, a), backup, rtol=1e-10, atol=1e-10)


def test_value_and_q_match_rollouts() -> None:
    world = random_lqr(3, 2, 2, gamma=0.9)
    rng = np.random.default_rng(0)
    n, steps = 20_000, 200  # 0.9²⁰⁰ < 1e-9: the cut tail is far below the standard error
    first = world.first_states(rng, n)
    returns = discounted_return(world, rng, first, -first @ world.gain.T, steps)
    assert abs(returns.mean() - world.value) < 4 * returns.std() / np.sqrt(n)
    # Against the value of these very first states only the noise of the dynamics is left.
    residual = returns - world.q_function(first, -first @ world.gain.T)
    assert residual.std() < returns.std()
    assert abs(returns.mean() - world.value_from(first)) < 4 * residual.std() / np.sqrt(n)

    s, a = np.array([0.7, -1.1]), np.array([0.5, 1.5])
    returns = discounted_return(world, rng, np.tile(s, (n, 1)), np.tile(a, (n, 1)), steps)
    expected = world.q_function(s[None], a[None])[0]
    assert abs(expected - world.value) > 20 * returns.std() / np.sqrt(n), (
        "the point should be told from the mean"
    )
    assert abs(returns.mean() - expected) < 4 * returns.std() / np.sqrt(n)


@pytest.mark.parametrize("q, d", SIZES)
def test_action_hessian_is_the_second_difference_of_q(q: int, d: int) -> None:
    world = random_lqr(4, q, d)
    Q, H = world.q_function, world.q_function.action_hessian
    s, a = some_rows(world, n=1)
    numeric = np.empty((d, d))
    for i, ei in enumerate(np.eye(d)):
        for j, ej in enumerate(np.eye(d)):
            corners = Q(s, a + ei + ej) - Q(s, a + ei - ej) - Q(s, a - ei + ej) + Q(s, a - ei - ej)
            numeric[i, j] = corners[0] / 4
    np.testing.assert_allclose(H, numeric, atol=1e-12)
    assert (np.linalg.eigvalsh(H) < 0).all(), "a positive definite cost makes Q concave in the action"


@pytest.mark.parametrize("q, d", SIZES[:3])
def test_relaxed_operator_is_what_quadrature_says(q: int, d: int) -> None:
    world = random_lqr(5, q, d, indefinite=True)
    start = random_lqr(6, q, d).q_function  # any quadratic
    s, a = some_rows(world)
    action_cov = 0.7**2 * np.linalg.inv(random_metric(0, d))
    expected = backup_by_quadrature(world, start, s, a, action_cov)
    np.testing.assert_allclose(world.bellman(start, action_cov)(s, a), expected, rtol=1e-10, atol=1e-10)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(worlds, st.floats(0.01, 2.0), st.integers(0, 1000))
def test_relaxed_fixed_point_is_the_limit_of_iterates_and_differs_by_the_closed_form(
    world: LQR, h: float, metric_seed: int
) -> None:
    A = random_metric(metric_seed, world.action_dim)
    action_cov = h**2 * np.linalg.inv(A)
    Q = QuadraticQ(np.zeros_like(world.cost), 0.0, world.state_dim)
    for _ in range(int(np.ceil(np.log(1e-14) / np.log(world.gamma)))):
        Q = world.bellman(Q, action_cov)
    fixed_point = world.relaxed_q_function(h, A)
    np.testing.assert_allclose(Q.matrix, fixed_point.matrix, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(Q.constant, fixed_point.constant, rtol=1e-9, atol=1e-10)

    H = world.q_function.action_hessian
    shift = world.gamma / (1 - world.gamma) * h**2 / 2 * np.trace(np.linalg.inv(A) @ H)
    s, a = some_rows(world)
    np.testing.assert_allclose(Q(s, a) - world.q_function(s, a), shift, rtol=1e-7, atol=1e-9)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(worlds)
def test_optimal_metric_never_widens_the_gap(world: LQR) -> None:
    plain = abs(world.relaxation_shift(0.5, np.eye(world.action_dim)))
    learned = abs(world.relaxation_shift(0.5, float64_metric(world.q_function.action_hessian, floor=0.0)))
    assert learned <= plain * (1 + 1e-9) + 1e-9


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4), st.sampled_from([0.01, 0.1, 1.0]))
def test_floored_metric_never_widens_the_gap_where_q_is_concave(
    seed: int, q: int, d: int, floor: float
) -> None:
    # With λ > 0 and m = λ + ε: the claim is ε (1 − GM/HM) ≤ AM − GM of m, whose left side is never positive.
    world = random_lqr(seed, q, d)
    plain = abs(world.relaxation_shift(0.5, np.eye(d)))
    learned = abs(world.relaxation_shift(0.5, float64_metric(world.q_function.action_hessian, floor=floor)))
    assert learned <= plain * (1 + 1e-9)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(0, 10_000), st.integers(2, 4))
def test_mixed_signs_leave_no_gap_without_a_floor(seed: int, d: int) -> None:
    world = mixed_sign_world(seed, d)
    eigenvalues = np.linalg.eigvalsh(world.q_function.action_hessian)
    np.testing.assert_allclose(eigenvalues, np.linspace(-0.9, 1.1, d), atol=1e-12)
    A = float64_metric(world.q_function.action_hessian, floor=0.0)
    scale = world.gamma / (1 - world.gamma) * 0.5**2 * np.abs(eigenvalues).sum() * np.linalg.cond(A)
    assert abs(world.relaxation_shift(0.5, A)) < 1e-10 * scale


def mixed_sign_world(seed: int, d: int) -> LQR:
    """A world whose action Hessian has eigenvalues from 1.1 down to −0.9."""
    drawn = random_lqr(seed, 2, d)
    # Under a target that rests, the action's own cost enters Q once, at the first step: H is linear in it.
    resting = replace(drawn, F=drawn.closed_loop, gain=np.zeros_like(drawn.gain))
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))
    wanted = rotation @ np.diag(np.linspace(1.0, -1.0, d) + 0.1) @ rotation.T
    bonus = np.zeros_like(resting.cost)
    bonus[2:, 2:] = (resting.q_function.action_hessian - wanted) / (2 * (1 - resting.gamma))
    return replace(resting, cost=resting.cost + bonus)


def test_floor_can_widen_the_gap_when_signs_are_mixed_and_cancel() -> None:
    # Why the claim above stops at floor 0: tr H = 0 leaves the identity no gap, but the floored metric one.
    A = float64_metric(np.diag([3.0, 1.0, -4.0]), floor=0.1)
    leftover = np.trace(np.linalg.solve(A, np.diag([3.0, 1.0, -4.0])))
    assert 0.01 < abs(leftover) < 0.5


def test_dummies_change_nothing_but_the_width() -> None:
    world = random_lqr(7, 2, 2)
    wide = world.with_dummies(3, std=0.6)
    s, a = some_rows(world)
    dummies = np.random.default_rng(1).standard_normal((len(s), 3))
    np.testing.assert_allclose(
        wide.q_function(s, np.hstack([a, dummies])), world.q_function(s, a), rtol=1e-12
    )
    assert wide.value == pytest.approx(world.value, rel=1e-12)
    assert not wide.q_function.action_hessian[2:].any()
    assert wide.behavior_std.tolist()[2:] == [0.6] * 3
    identity = wide.relaxation_shift(0.5, np.eye(5))
    assert identity == pytest.approx(world.relaxation_shift(0.5, np.eye(2)), rel=1e-12)
    assert abs(wide.relaxation_shift(0.5, float64_metric(wide.q_function.action_hessian, floor=0.1))) < abs(
        0.7 * identity
    )


def test_collected_log_follows_the_world() -> None:
    world = random_lqr(8, 2, 2)
    log = world.collect(seed=5, episodes=1000, length=100)
    n = len(log)
    assert n == 100_000
    assert log.n_episodes == 1000
    assert not log.terminated.any()
    assert (np.flatnonzero(log.truncated) % 100 == 99).all()
    assert log.has_next_state.all()
    assert log.has_next_action.sum() == n - 1000

    s, a, after = (x.astype(np.float64) for x in (log.states, log.actions, log.next_states))
    np.testing.assert_allclose(log.rewards, world.reward(s, a), rtol=1e-4, atol=1e-4)
    assert_gaussian_rows(after - s @ world.F.T - a @ world.B.T, world.noise_cov)
    assert_gaussian_rows(a + s @ world.behavior_gain.T, np.diag(world.behavior_std**2))
    assert_gaussian_rows(s[log.first_rows] - world.initial_mean, world.initial_cov)
    assert log.log_mu is not None
    np.testing.assert_allclose(log.log_mu, world.behavior.log_prob_per_dimension(s, a), atol=1e-4)


def assert_gaussian_rows(x: np.ndarray, covariance: np.ndarray) -> None:
    """Mean 0 and this covariance, each entry within 4.5 of its standard errors."""
    assert (np.abs(x.mean(axis=0)) < 4.5 * np.sqrt(np.diag(covariance) / len(x))).all()
    variances = np.diag(covariance)
    error = np.sqrt((np.outer(variances, variances) + covariance**2) / len(x))
    assert (np.abs(x.T @ x / len(x) - covariance) < 4.5 * error).all()


def test_same_seed_gives_the_same_log() -> None:
    world = random_lqr(9, 3, 1)
    one, again, other = (world.collect(seed, 5, 7) for seed in (1, 1, 2))
    assert np.array_equal(one.states, again.states)
    assert np.array_equal(one.actions, again.actions)
    assert not np.array_equal(one.states, other.states)


def test_behaviour_density_integrates_to_one_and_factorises() -> None:
    behavior = random_lqr(10, 2, 2).behavior
    assert isinstance(behavior, FactorizedBehavior)
    axis = np.linspace(-8, 8, 401)
    a = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    s = np.tile([0.3, -0.4], (len(a), 1))
    log_mu = behavior.log_prob(s, a)
    assert np.exp(log_mu).sum() * (axis[1] - axis[0]) ** 2 == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(log_mu, behavior.log_prob_per_dimension(s, a).sum(axis=1), rtol=1e-12)


def test_policy_speaks_the_protocol() -> None:
    world = random_lqr(11, 3, 2)
    policy = world.policy
    assert isinstance(policy, Policy)
    s = np.ones((4, 3), np.float32)
    assert policy(s).dtype == np.float32
    np.testing.assert_allclose(policy(s), -s @ world.gain.T, rtol=1e-5)
    assert (policy.state_dim, policy.action_dim) == (3, 2)
    assert policy.low.tolist() == [-np.inf, -np.inf]
    assert replace(world, action_bound=4.0).policy.high.tolist() == [4.0, 4.0]


def test_repr_tells_sizes_and_value() -> None:
    world = random_lqr(12, 3, 2, gamma=0.95)
    assert "states 3, actions 2, γ 0.95" in repr(world)
    assert f"V {world.value:.4g}" in repr(world)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"gain": np.zeros((2, 3))}, r"gain has shape \(2, 3\); expected \(2, 2\)"),
        ({"cost": np.triu(np.ones((4, 4)))}, "cost is not symmetric"),
        ({"noise_cov": -np.eye(2)}, "noise_cov has eigenvalue -1"),
        ({"behavior_std": np.array([1.0, 0.0])}, "behavior_std"),
        ({"gamma": 1.0}, "gamma is 1.0"),
        ({"end_rate": 1.0}, "end_rate is 1.0"),
        ({"F": 5 * np.eye(2)}, "spectral radius"),
    ],
)
def test_impossible_worlds_are_refused(change: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        replace(random_lqr(0, 2, 2), **change)


def test_empty_collection_is_refused() -> None:
    with pytest.raises(InputError, match="episodes is 0"):
        random_lqr(0, 1, 1).collect(0, 0, 10)


def ending_world() -> LQR:
    return replace(random_lqr(3, 2, 2, gamma=0.9), end_rate=0.1, reward_offset=5.0)


def test_with_ends_and_an_offset_the_value_matches_rollouts() -> None:
    world = ending_world()
    rng = np.random.default_rng(0)
    n = 20_000
    states = world.first_states(rng, n)
    alive, returns = np.ones(n), np.zeros(n)
    for t in range(200):
        actions = -states @ world.gain.T
        returns += (1 - world.gamma) * world.gamma**t * alive * world.reward(states, actions)
        alive *= rng.random(n) >= world.end_rate
        states = world.step(rng, states, actions)
    error = returns.std() / np.sqrt(n)
    assert abs(returns.mean() - world.value) < 4 * error
    endless = replace(world, end_rate=0.0)
    assert abs(returns.mean() - endless.value) > 20 * error, "the ends should matter"


def test_an_offset_and_a_scale_of_the_rewards_move_the_value_in_closed_form() -> None:
    world = ending_world()
    plain = replace(world, reward_offset=0.0)
    lasting = (1 - world.gamma) / (1 - world.gamma * (1 - world.end_rate))
    assert world.value == pytest.approx(plain.value + 5.0 * lasting)
    assert replace(plain, cost=7.0 * plain.cost).value == pytest.approx(7.0 * plain.value)
    assert replace(plain, end_rate=0.0, reward_offset=5.0).value == pytest.approx(
        replace(plain, end_rate=0.0).value + 5.0
    )


def test_with_ends_the_fixed_points_are_those_of_the_operators() -> None:
    world, A = ending_world(), random_metric(0, 2)
    for q, action_cov in (
        (world.q_function, None),
        (world.relaxed_q_function(0.3, A), 0.09 * np.linalg.inv(A)),
    ):
        again = world.bellman(q, action_cov)
        np.testing.assert_allclose(again.matrix, q.matrix, rtol=1e-10)
        assert again.constant == pytest.approx(q.constant)


def test_a_log_with_ends_has_as_many_rows_and_ends_at_the_rate() -> None:
    world = replace(random_lqr(8, 2, 2), end_rate=0.05)
    log = world.collect(seed=5, episodes=1000, length=20)
    n, p = len(log), world.end_rate
    assert n == 20_000
    assert abs(log.terminated.mean() - p) < 4.5 * np.sqrt(p * (1 - p) / n)
    lengths = np.bincount(log.episode)
    assert lengths.max() == 20
    cut = log.truncated[np.flatnonzero(log.ends)]
    assert (lengths[cut][:-1] == 20).all(), "only the log's last episode may be cut before the time limit"
    outlive = (1 - p) ** 19  # the share of episodes that reach their twentieth step
    assert abs((lengths == 20).mean() - outlive) < 4.5 * np.sqrt(outlive * (1 - outlive) / len(lengths))
    s, a, after = (x.astype(np.float64) for x in (log.states, log.actions, log.next_states))
    assert_gaussian_rows(after - s @ world.F.T - a @ world.B.T, world.noise_cov)
    assert_gaussian_rows(s[log.first_rows] - world.initial_mean, world.initial_cov)


def test_logs_of_one_end_seed_share_their_ends_and_nothing_else() -> None:
    world = replace(random_lqr(9, 3, 1), end_rate=0.1)
    one, other = (world.collect(seed, 20, 7, end_seed=3) for seed in (1, 2))
    assert np.array_equal(one.terminated, other.terminated)
    assert np.array_equal(one.truncated, other.truncated)
    assert not np.isin(one.states, other.states).any()


def test_the_spread_of_first_rewards_is_that_of_the_log() -> None:
    world = random_lqr(13, 3, 2)
    log = world.collect(seed=0, episodes=40_000, length=1)
    assert log.rewards.std() == pytest.approx(world.reward_std, rel=0.03)
