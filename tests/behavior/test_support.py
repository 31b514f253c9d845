import numpy as np
import pytest

from kmifqe.behavior.support import given_box, make_support, share_on_bound, support_box
from kmifqe.errors import InputError

RNG = np.random.default_rng(0)
BOX = (np.array([-2.0, 0.0]), np.array([2.0, 1.0]))
INSIDE = RNG.uniform(*BOX, (5000, 2))


def test_actions_survive_the_round_trip_between_the_layers():
    support = make_support(INSIDE, *BOX, 1e-3)
    latent = support.to_latent(INSIDE)
    back = support.to_actions(latent.z, np.zeros_like(INSIDE))
    between = latent.side == 0
    np.testing.assert_allclose(back[between], INSIDE[between], atol=1e-5)


def test_latent_actions_are_standardised():
    z = make_support(INSIDE, *BOX, 1e-3).to_latent(INSIDE).z
    np.testing.assert_allclose(z.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(z.std(axis=0), 1.0, atol=1e-4)


def test_log_jacobian_is_the_slope_of_the_latent_action():
    support = make_support(INSIDE, *BOX, 1e-3)
    actions, step = np.array([[-1.3, 0.2], [0.4, 0.9]]), 1e-3
    slope = (support.to_latent(actions + step).z - support.to_latent(actions - step).z) / (2 * step)
    np.testing.assert_allclose(np.exp(support.to_latent(actions).log_jacobian), slope, rtol=1e-3)


def test_bound_and_beyond_are_in_the_layer_and_finite():
    support = make_support(INSIDE, *BOX, 1e-3)
    latent = support.to_latent(np.array([[-2.0, 1.0], [-1e9, 1e9], [-1.999, 0.9996]]))
    np.testing.assert_array_equal(latent.side, [[-1, 1]] * 3)
    assert np.isfinite(latent.z).all()
    np.testing.assert_allclose(latent.log_jacobian, -np.log(1e-3 * np.array([[2.0, 0.5]] * 3)))


def test_a_draw_in_a_layer_is_uniform_over_it():
    support = make_support(INSIDE, *BOX, 1e-2)
    actions = support.to_actions(np.full((2, 2), 100.0), np.array([[0.0, 0.5], [0.25, 1.0]]))
    np.testing.assert_allclose(actions, [[1.98, 0.9975], [1.985, 1.0]])


def test_the_box_widens_only_on_the_side_that_is_crossed():
    actions = INSIDE.copy()
    actions[0, 0] = 3.0
    low, high = support_box(actions, BOX)
    np.testing.assert_array_equal(low, BOX[0])
    assert 3.0 < high[0] < 3.5
    assert high[1] == BOX[1][1]


def test_float32_rounding_of_a_bound_does_not_widen_the_box():
    actions = np.array([[np.float32(0.1)]] * 20 + [[np.float32(-0.1)]])  # float32(0.1) > 0.1
    low, high = support_box(actions, (np.array([-0.1]), np.array([0.1])))
    np.testing.assert_array_equal([low, high], [[-0.1], [0.1]])


def test_without_a_box_atoms_are_bounds_and_the_rest_gets_room():
    actions = np.clip(RNG.normal(size=(2000, 1)), None, 1.0)
    low, high = support_box(actions)
    assert high[0] == 1.0
    assert low[0] < actions.min()


def test_a_constant_action_gets_a_box_and_a_finite_density():
    actions = np.full((100, 1), 0.7)
    low, high = support_box(actions)
    assert low[0] < 0.7 < high[0]
    assert np.isfinite(make_support(actions, low, high, 1e-3).to_latent(actions).log_jacobian).all()


def test_share_on_bound_counts_both_ends():
    actions = np.array([[-2.0, 0.5], [2.0, 0.5], [1.9999, 0.0], [0.0, 0.5]], np.float32)
    np.testing.assert_allclose(share_on_bound(actions, *BOX), [0.5, 0.25])


@pytest.mark.parametrize(
    ("low", "high", "named"),
    [
        ([0.0], None, "one of low and high is missing"),
        ([0.0, 0.0], [1.0, 0.0], "low below high"),
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], "each of 2 dimensions"),
        ([-np.inf, 0.0], [1.0, 1.0], "each of 2 dimensions"),
    ],
)
def test_a_wrong_box_is_named(low, high, named):
    with pytest.raises(InputError, match=named):
        given_box(low, high, 2)
