"""Theorem 1, Corollary 1 and Propositions 1–3 of the paper, stated as rates on the linear-quadratic world.

Theorem 2 is in tests/worlds/test_lqr.py, where the fixed points are known in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.maths.kernel import kernel_roughness, optimal_bandwidth
from kmifqe.maths.metric import metric_root
from kmifqe.worlds.lqr import LQR
from maths.formulas import leading_order_mse, resample
from theory_setting import (
    BLOCK,
    BLOCKS,
    GRID,
    SIZES,
    Critic,
    best_bandwidth,
    bias,
    bootstrap,
    draw,
    exact_mse,
    exact_setting,
    fitted_slope,
    h_star,
    kernel_mean,
    lowest_point,
    mean_update,
    network_critic,
    of_size,
    quadratic_critic,
    saddle_critic,
    simulated_updates,
    slopes,
    variance,
    weigh,
)

DIMENSIONS = [1, 2]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


# --- Theorem 1: bias


@pytest.mark.parametrize("d", DIMENSIONS)
def test_mean_weight_is_one(d: int) -> None:
    x = exact_setting(d, quadratic_critic)
    for h in (0.05, 0.5):
        np.testing.assert_allclose(kernel_mean(x, h, 1, 0), 1.0, rtol=1e-9)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_bias_of_a_quadratic_is_h_squared_b_at_every_h(d: int) -> None:
    x = exact_setting(d, quadratic_critic)
    for h in (0.05, 0.3, 1.0):
        np.testing.assert_allclose(bias(x, h), h**2 * x.b, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_bias_of_a_network_tends_to_slope_2_and_its_remainder_to_slope_4(d: int) -> None:
    x = exact_setting(d, network_critic)
    h = 0.1 / 2.0 ** np.arange(4)
    biases = np.array([bias(x, hi) for hi in h])
    off_two = np.abs(slopes(h, np.linalg.norm(biases, axis=1)) - 2)
    assert off_two[-1] < 0.003
    assert (off_two[1:] < off_two[:-1] / 3).all(), "the distance to 2 is O(h²): it falls fourfold a halving"
    remainder = np.linalg.norm(biases - h[:, None] ** 2 * x.b, axis=1)
    assert slopes(h, remainder)[-1] == pytest.approx(4, abs=0.02)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_simulated_bias_has_slope_2(d: int) -> None:
    x, updates = exact_setting(d, quadratic_critic), simulated_updates(d)
    wide = GRID >= 0.3  # below, the bias drowns in the variance
    along_b = (updates[wide] - x.update) @ x.b / (x.b @ x.b)  # (h, blocks), of mean h²

    def slope(weights: np.ndarray) -> float:
        return fitted_slope(GRID[wide], along_b @ weights)

    measured = slope(np.full(BLOCKS, 1 / BLOCKS))
    error = bootstrap(slope, BLOCKS)
    assert error < 0.1
    assert abs(measured - 2) < 4 * error


@pytest.mark.parametrize("d", DIMENSIONS)
def test_b_is_its_closed_form_and_what_logged_rows_average_to(d: int) -> None:
    x = exact_setting(d, quadratic_critic)
    world = x.world
    follow = np.concatenate(
        [np.zeros((1, 1)), np.eye(1), -world.behavior_gain]
    )  # s -> [1; s; a] without noise
    mean = follow @ world.initial_mean + np.eye(2 + d)[0]
    covariance = follow @ world.initial_cov @ follow.T + np.diag([0, 0, *world.behavior_std**2])
    features = (covariance + np.outer(mean, mean))[np.triu_indices(2 + d)]  # E ∇θQ
    curvature = 3.0 * np.trace(world.q_function.action_hessian)
    np.testing.assert_allclose(x.b, 0.5 * world.gamma * curvature * features, rtol=1e-9)

    rows = draw(d, seed=10, count=50_000).setting
    error = 0.5 * world.gamma * abs(curvature) * rows.gradients.std(axis=0) / np.sqrt(50_000)
    assert (np.abs(rows.b - x.b) <= 4 * error + 1e-6).all()


# --- Theorem 1: variance


@pytest.mark.parametrize("critic", [quadratic_critic, network_critic])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_variance_tends_to_slope_minus_d_with_constant_v(d: int, critic: Callable[[LQR], Critic]) -> None:
    x = exact_setting(d, critic)
    h = 0.2 / 2.0 ** np.arange(6)
    variances = np.array([variance(x, hi) for hi in h])
    assert slopes(h, variances)[-1] == pytest.approx(-d, abs=0.003)
    assert variances[-1] * h[-1] ** d == pytest.approx(x.v, rel=0.003)
    # The proof's X = E[w²‖Δ‖²] is v/hᵈ up to O(h²) of itself. Var subtracts ‖E wΔ‖², O(1): for d = 1 that is
    # the next order, not the O(h) that the theorem prints. Being flat in h, it does not move the optimum.
    second_moments = variances + np.array([np.sum(mean_update(x, hi) ** 2) for hi in h])
    remainder = np.abs(second_moments * h**d / x.v - 1)
    assert slopes(h, remainder)[-1] == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_simulated_variance_has_slope_minus_d(d: int) -> None:
    x, updates = exact_setting(d, quadratic_critic), simulated_updates(d)
    narrow = GRID <= 0.24
    deviations = np.sum((updates[narrow] - updates[narrow].mean(axis=1, keepdims=True)) ** 2, axis=2)

    def slope(weights: np.ndarray) -> float:
        return fitted_slope(GRID[narrow], deviations @ weights)

    measured = slope(np.full(BLOCKS, 1 / BLOCKS))
    error = bootstrap(slope, BLOCKS)
    exact = fitted_slope(GRID[narrow], np.array([variance(x, h) for h in GRID[narrow]]))
    assert error < 0.1
    assert abs(measured - exact) < 4 * error
    assert abs(exact + d) < 0.1, "at these h the limit is not reached, but near"


@pytest.mark.parametrize("d", DIMENSIONS)
def test_v_is_its_closed_form_where_delta_is_one(d: int) -> None:
    x = exact_setting(d, quadratic_critic)
    x = replace(x, known=np.ones_like(x.known), gradients=np.ones((len(x.known), 1)))
    x = replace(x, critic=replace(x.critic, target=lambda s, a: np.zeros(s.shape[:-1])))
    world = x.world
    under_mu = world.F - world.B @ world.behavior_gain
    mean = (under_mu @ world.initial_mean).item()
    spread = (
        under_mu @ world.initial_cov @ under_mu.T
        + (world.B * world.behavior_std**2) @ world.B.T
        + world.noise_cov
    ).item()
    # 1/μ(π̃(s')|s') = (2π)^(d/2) Πσ exp(κ s'²/2), and s' ~ N(mean, spread).
    kappa = np.sum(((world.behavior_gain - world.gain)[:, 0] / world.behavior_std) ** 2)
    left = 1 - kappa * spread
    inverse_mu = (
        (2 * np.pi) ** (d / 2)
        * world.behavior_std.prod()
        * np.exp(0.5 * kappa * mean**2 / left)
        / np.sqrt(left)
    )
    assert x.v == pytest.approx(kernel_roughness(d) * inverse_mu, rel=1e-6)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_v_is_what_logged_rows_average_to(d: int) -> None:
    x = exact_setting(d, quadratic_critic)
    averages = np.array([draw(d, seed=100 + k, count=20_000).setting.v for k in range(16)])
    assert abs(averages.mean() - x.v) < 4 * averages.std(ddof=1) / 4


def test_importance_resampling_keeps_the_mean_and_adds_the_variance_of_the_draw() -> None:
    n, logs, h = 250, 1600, 0.4
    x, rows = exact_setting(1, quadratic_critic), draw(1, seed=7, count=250 * 1600)
    w = np.asarray(weigh(rows.z, h, rows.log_mu)).reshape(logs, n)
    draws = jax.jit(
        lambda keys: jax.lax.map(lambda kw: resample(kw[0], kw[1], n), (keys, jnp.asarray(w)), batch_size=64)
    )
    taken = np.asarray(draws(jax.random.split(jax.random.key(0), logs)))
    updates = (rows.td_errors[:, None] * rows.setting.gradients).reshape(logs, n, -1)
    resampled = w.mean(axis=1)[:, None] * np.take_along_axis(updates, taken[:, :, None], axis=1).mean(axis=1)

    error = resampled.std(axis=0) / np.sqrt(logs)
    assert (np.abs(resampled.mean(axis=0) - mean_update(x, h)) < 4 * error).all()
    mean = np.sum(mean_update(x, h) ** 2)
    under_kernel = (x.probability * kernel_mean(x, h, 1, 2)) @ np.sum(x.gradients**2, axis=1) - mean
    expected = variance(x, h) / n + (n - 1) / n * under_kernel / n  # the appendix's B + A with k = n
    squares = np.sum((resampled - mean_update(x, h)) ** 2, axis=1)
    assert abs(squares.mean() - expected) < 4 * squares.std() / np.sqrt(logs)
    assert abs(squares.mean() - variance(x, h) / n) > 4 * squares.std() / np.sqrt(logs), "the draw is felt"


# --- Corollary 1 and Proposition 1: the optimal bandwidth


@pytest.mark.parametrize("d", [1, 2, 3, 6, 17])
def test_h_star_falls_as_n_to_the_minus_one_over_d_plus_4_and_minimises_the_leading_order(d: int) -> None:
    v, b_squared = jnp.float64(2.5), jnp.float64(0.3)
    h = np.array([float(optimal_bandwidth(v, b_squared, n, d)) for n in (10**3, 10**5, 10**7)])
    assert fitted_slope(np.array([1e3, 1e5, 1e7]), h) == pytest.approx(-1 / (d + 4), rel=1e-5)
    around = h[1] * np.geomspace(0.8, 1.25, 401)
    lowest = around[np.argmin(leading_order_mse(around, v, b_squared, 10**5, d))]
    assert lowest == pytest.approx(h[1], rel=2e-3)


@pytest.mark.parametrize("critic", [quadratic_critic, network_critic])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_optimum_of_the_exact_mse_tends_to_h_star(d: int, critic: Callable[[LQR], Critic]) -> None:
    x, mse = exact_setting(d, critic), exact_mse(d, critic)
    n = 10.0 ** np.array([4, 6, 8, 9])
    best = np.array([best_bandwidth(mse, ni) for ni in n])
    ratio = np.abs(np.log(best / [h_star(x, ni) for ni in n]))
    assert fitted_slope(n[2:], best[2:]) == pytest.approx(-1 / (d + 4), rel=0.01)
    assert ratio[0] < 0.1
    assert ratio[-1] < 0.005


@pytest.mark.parametrize("d", DIMENSIONS)
def test_simulated_mse_is_the_exact_one_and_lowest_at_h_star(d: int) -> None:
    x, mse = exact_setting(d, quadratic_critic), exact_mse(d, quadratic_critic)
    for n in SIZES:
        squares = np.sum((of_size(simulated_updates(d), n) - x.update) ** 2, axis=2)  # (h, logs)
        error = squares.std(axis=1) / np.sqrt(squares.shape[1])
        assert (np.abs(squares.mean(axis=1) - mse(GRID, n)) < 4 * error).all()

        def log_best(weights: np.ndarray, squares: np.ndarray = squares) -> float:
            return lowest_point(squares @ weights)

        count = squares.shape[1]
        measured, error = log_best(np.full(count, 1 / count)), bootstrap(log_best, count)
        assert error < 0.1
        assert abs(measured - np.log(best_bandwidth(mse, n))) < 4 * error
        leading_order = 0.03 if n < 1000 else 0.012  # how far h* may lie from the exact optimum at this n
        assert abs(measured - np.log(h_star(x, n))) < 4 * error + leading_order
        assert mse(h_star(x, n), n) < 1.01 * mse(best_bandwidth(mse, n), n)

        near, half, double = (np.argmin(np.abs(np.log(GRID / (h_star(x, n) * k)))) for k in (1, 0.5, 2))
        for far in (half, double):
            worse = squares[far] - squares[near]
            assert worse.mean() > 4 * worse.std() / np.sqrt(count)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_simulated_optimum_falls_with_n_at_the_stated_rate(d: int) -> None:
    x = exact_setting(d, quadratic_critic)
    units = BLOCK * BLOCKS // SIZES[-1]  # the largest logs, each cut into the smaller ones
    squares = [np.sum((of_size(simulated_updates(d), n) - x.update) ** 2, axis=2) for n in SIZES]
    per_unit = [s.reshape(len(GRID), units, -1).mean(axis=2) for s in squares]

    def slope(weights: np.ndarray) -> float:
        return float(np.polyfit(np.log(SIZES), [lowest_point(p @ weights) for p in per_unit], 1)[0])

    measured, error = slope(np.full(units, 1 / units)), bootstrap(slope, units)
    best = [best_bandwidth(exact_mse(d, quadratic_critic), n) for n in SIZES]
    exact = fitted_slope(np.array(SIZES), np.array(best))
    assert error < 0.1 / (d + 4)
    assert abs(measured - exact) < 4 * error
    assert exact == pytest.approx(-1 / (d + 4), rel=0.05), "at these n the limit is not reached, but near"


# --- Propositions 2 and 3: high dimensions and the metric


def test_bias_dominates_in_high_dimension() -> None:
    v, b_squared, n = jnp.float64(2.5), jnp.float64(0.3), 10**5
    shares = []
    for d in (2, 40, 10_000, 1_000_000):
        h = optimal_bandwidth(v, b_squared, n, d)
        assert float(h**4 * b_squared / (v / (n * h**d))) == pytest.approx(d / 4, rel=1e-3)
        shares.append(float(leading_order_mse(h, v, b_squared, n, d) / b_squared))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1, abs=1e-3)


def test_metric_changes_b_as_stated_and_leaves_the_leading_variance() -> None:
    x = exact_setting(2, network_critic)
    L = np.asarray(jax.jit(jax.vmap(metric_root))(x.hessians))
    b_metric = x.b_with_metric(L @ np.swapaxes(L, 1, 2))
    np.testing.assert_allclose(bias(x, 0.01, L), 0.01**2 * b_metric, rtol=0.01, atol=1e-3 * 0.01**2)
    assert np.linalg.norm(b_metric) < np.linalg.norm(x.b)
    assert variance(x, 0.01, L) == pytest.approx(variance(x, 0.01), rel=1e-3)


def test_metric_on_a_saddle_removes_the_h_squared_bias() -> None:
    x = exact_setting(2, saddle_critic)
    L = np.asarray(jax.jit(jax.vmap(lambda H: metric_root(H, floor=0.0)))(x.hessians))
    h = 0.2 / 2.0 ** np.arange(4)
    plain = np.array([np.linalg.norm(bias(x, hi)) for hi in h])
    learned = np.array([np.linalg.norm(bias(x, hi, L)) for hi in h])
    assert slopes(h, plain)[-1] == pytest.approx(2, abs=0.01)
    assert slopes(h, learned)[-1] == pytest.approx(4, abs=0.01)
    assert (learned < 0.1 * plain).all()
