import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import Actor
from kmifqe.io.policies.normalization import Normalization
from kmifqe.io.policies.objects import PROBE_ROWS, CheckedPolicy, check_policy_fits

STATES = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
GAIN = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])


def test_a_good_policy_passes_through_as_float32():
    actions = CheckedPolicy(lambda s: s @ GAIN, "p")(STATES)
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions, STATES @ GAIN, atol=1e-6)


def test_a_column_of_single_actions_is_one_dimension():
    policy = CheckedPolicy(lambda s: s[:, 0], "p")
    assert np.array_equal(policy(STATES), STATES[:, :1])
    assert policy.action_dim == 1


@pytest.mark.parametrize("rows", [1, 2, 10])
@pytest.mark.parametrize(
    "one_state",
    [
        lambda s: GAIN.T @ s,
        lambda s: s[:2],
        lambda s: [s[0], s[2]],
        lambda s: np.tanh(s.sum()),
        lambda s: np.array([s[1]]),
        lambda s: s[0],
    ],
)
def test_a_function_of_one_state_is_called_row_by_row(one_state, rows):
    actions = CheckedPolicy(one_state, "p")(STATES[:rows])
    np.testing.assert_allclose(
        actions, [np.atleast_1d(one_state(state)) for state in STATES[:rows]], atol=1e-6
    )


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda s: np.zeros((2, len(s), 1)), "returned shape"),
        (lambda s: np.zeros((len(s), 0)), "returned shape"),
        (lambda s: None, "returned type object"),
        (lambda s: np.full((len(s), 1), "left"), "expected numbers"),
        (lambda s: [[1.0], [2.0, 3.0]], "not an array"),
        (lambda s: s @ GAIN * np.nan, "row 0 holds NaN"),
        (lambda s: np.full((len(s), 2), 1e300), "NaN or infinity"),
        (lambda s: s @ np.zeros((4, 2)), r"failed on states of shape \(61, 3\) \(ValueError"),
        (lambda s: np.zeros((len(s), 3)), "returned 3 action dimensions; expected 2"),
        (lambda s: np.full((len(s), 2), 1.1), r"dimension 0 is 1.1 at row 0; expected within \[-1, 1\]"),
    ],
)
def test_a_wrong_answer_is_one_sentence(function, words):
    policy = CheckedPolicy(function, "p", low=-np.ones(2), high=np.ones(2))
    with pytest.raises(InputError, match=words) as caught:
        policy(STATES)
    assert str(caught.value).startswith("p: ")
    assert "\n" not in str(caught.value)


def test_rounding_past_a_bound_is_not_an_error():
    actions = CheckedPolicy(lambda s: np.full((len(s), 1), 1 + 1e-6), "p", low=-np.ones(1), high=np.ones(1))(
        STATES
    )
    assert (actions == 1.0).all()


def test_a_random_policy_is_caught():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="two different answers"):
        CheckedPolicy(lambda s: rng.standard_normal((len(s), 2)), "p")(STATES)


def test_a_policy_with_memory_is_caught():
    calls = []
    with pytest.raises(InputError, match="two different answers"):
        CheckedPolicy(lambda s: calls.append(1) or s[:, :1] + len(calls), "p")(STATES)


def standardized(states):
    return (states - states.mean(axis=0)) / (states.std(axis=0) + 1e-3)


def test_a_batch_dependent_policy_is_caught():
    with pytest.raises(InputError, match="depends on the other states"):
        CheckedPolicy(standardized, "p")(STATES)


def test_it_is_caught_even_where_the_first_call_has_one_row():
    policy = CheckedPolicy(standardized, "p")
    policy(STATES[:1])
    with pytest.raises(InputError, match="depends on the other states"):
        policy(STATES)


def test_the_checks_of_first_use_are_not_repeated():
    seen = []
    policy = CheckedPolicy(lambda s: seen.append(len(s)) or s, "p")
    policy(STATES)
    spent = len(seen)
    policy(STATES)
    assert seen[spent:] == [10]
    assert max(seen) == PROBE_ROWS


def test_every_batch_is_checked_for_what_one_look_shows():
    policy = CheckedPolicy(lambda s: s, "p", low=-np.full(3, 4.0), high=np.full(3, 4.0))
    policy(STATES)
    with pytest.raises(InputError, match="action dimension 1 is 9 at row 1"):
        policy(np.array([[0, 0, 0], [0, 9, 0]]))


def test_a_policy_that_writes_into_its_input_does_not_change_the_data():
    def careless(states):
        states *= 0
        return states

    before = STATES.copy()
    CheckedPolicy(careless, "p")(STATES)
    assert np.array_equal(before, STATES)


def test_states_are_normalised_before_the_policy_sees_them():
    policy = CheckedPolicy(
        lambda s: s, "p", normalization=Normalization(np.ones(3), np.full(3, 4.0), epsilon=0.0)
    )
    np.testing.assert_allclose(policy(STATES), (STATES - 1) / 2, atol=1e-6)


@pytest.mark.parametrize("states", [np.zeros((0, 3)), np.zeros(3), np.zeros((2, 4))])
def test_wrong_states_are_refused(states):
    with pytest.raises(InputError, match=r"^p: "):
        CheckedPolicy(lambda s: s, "p", state_dim=3)(states)


ACTOR = Actor(
    (np.zeros((3, 2), np.float32),),
    (np.zeros(2, np.float32),),
    "relu",
    "clip",
    -np.ones(2),
    np.ones(2),
    name="a",
)


def test_a_policy_that_fits_passes():
    check_policy_fits(ACTOR, 3, 2)
    check_policy_fits(CheckedPolicy(lambda s: s @ GAIN, "p"), 3, 2)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (ACTOR, "takes states of 3 numbers; the data has 5"),
        (CheckedPolicy(lambda s: s @ GAIN, "p"), r"failed on states of shape \(61, 5\)"),
        (CheckedPolicy(lambda s: s[:, :4], "p"), "gives actions of 4 numbers; the data has 2"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_with_both_sizes(policy, words):
    with pytest.raises(InputError, match=words):
        check_policy_fits(policy, 5, 2)
