"""The arrays of a `Problem`, against logs small enough to write every value out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import jax
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.mdp import ask as chunks
from kmifqe.mdp import problem as problem_module
from kmifqe.mdp.ask import Logged, action_box
from kmifqe.mdp.problem import Problem, RowCounts
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.lqr import random_lqr

# Three episodes: rows 0-2 end in a terminal, rows 3-4 and row 5-6 are cut by a time limit.
STATES = np.array([[1, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 60], [7, 70]], np.float32)
ACTIONS = np.array([[0.1], [0.2], [0.3], [0.4], [0.5], [0.6], [0.7]], np.float32)
REWARDS = np.arange(7, dtype=np.float32)
TERMINALS = np.array([0, 0, 1, 0, 0, 0, 0], bool)
TIMEOUTS = np.array([0, 0, 0, 0, 1, 0, 1], bool)
NEXT_STATES = np.array([[2, 20], [3, 30], [9, 90], [5, 50], [8, 80], [7, 70], [11, 110]], np.float32)
LOG_MU = -np.arange(1.0, 8.0, dtype=np.float32)


def tiny_log(*, next_states: bool = False, log_mu: np.ndarray | None = None) -> Transitions:
    return Transitions.from_arrays(
        STATES,
        ACTIONS,
        REWARDS,
        TERMINALS,
        TIMEOUTS,
        NEXT_STATES if next_states else None,
        action_log_probs=log_mu,
        name="tiny",
    )


def half_of_first_column(states: np.ndarray) -> np.ndarray:
    return 0.5 * states[:, :1]


class Density:
    """log μ(a|s) = −s₁ − a₁, of a known value everywhere (and no density at all)."""

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return -states[:, 0] - actions[:, 0]


class FactorizedDensity(Density):
    """The same over one column per dimension."""

    def log_prob_per_dimension(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return -states[:, :1] - actions


def build(
    log: Transitions, policy: Callable[[np.ndarray], np.ndarray] = half_of_first_column, **options
) -> Problem:
    return Problem.build(log, policy, options.get("behavior"), options.get("gamma", 0.9))


def test_without_next_observations_the_last_row_of_a_cut_episode_is_dropped() -> None:
    p = build(tiny_log())
    np.testing.assert_array_equal(p.rewards, [0, 1, 3, 5, 2])  # rows 4 and 6 have no next state
    np.testing.assert_array_equal(p.states[:, 0], [1, 2, 4, 6, 3])
    np.testing.assert_array_equal(p.next_states, [[2, 20], [3, 30], [5, 50], [7, 70], [0, 0]])
    np.testing.assert_array_equal(p.has_next_state, [True, True, True, True, False])
    np.testing.assert_allclose(p.next_actions[:, 0], [0.2, 0.3, 0.5, 0.7, 0.0])
    np.testing.assert_array_equal(p.terminated, [False, False, False, False, True])
    np.testing.assert_array_equal(p.target_actions[:, 0], [1.0, 1.5, 2.5, 3.5, 0.0])
    np.testing.assert_array_equal(p.episode, [0, 0, 1, 2, 0])
    assert p.counts == RowCounts(
        logged=7, used=5, in_sample=5, without_next_state=2, without_next_action=0, terminated=1, episodes=3
    )


def test_with_next_observations_it_stays_for_fqe_behind_the_rows_for_in_sample_learning() -> None:
    p = build(tiny_log(next_states=True))
    np.testing.assert_array_equal(p.rewards, [0, 1, 3, 5, 2, 4, 6])  # rows 4 and 6 last
    np.testing.assert_array_equal(p.next_states[:, 0], [2, 3, 5, 7, 9, 8, 11])
    assert p.has_next_state.all()
    np.testing.assert_array_equal(p.target_actions[:, 0], [1.0, 1.5, 2.5, 3.5, 4.5, 4.0, 5.5])
    np.testing.assert_allclose(p.next_actions[:, 0], [0.2, 0.3, 0.5, 0.7, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(p.episode, [0, 0, 1, 2, 0, 1, 2])
    assert p.counts == RowCounts(
        logged=7, used=7, in_sample=5, without_next_state=0, without_next_action=2, terminated=1, episodes=3
    )


def test_first_states_are_those_of_episodes_and_the_target_acts_at_them() -> None:
    p = build(tiny_log())
    np.testing.assert_array_equal(p.first_states, [[1, 10], [4, 40], [6, 60]])
    np.testing.assert_array_equal(p.first_actions, [[0.5], [2.0], [3.0]])


def test_the_state_after_a_terminal_row_never_comes_from_the_next_episode() -> None:
    log = tiny_log(next_states=True)
    p = build(log)
    assert p.next_states[4, 0] == 9.0  # as logged, not 4, the next episode's first state
    assert not build(tiny_log()).next_states[4].any()


def test_in_sample_rows_that_go_on_come_first_then_the_terminal_ones_then_the_rest() -> None:
    p = build(tiny_log(next_states=True))
    nonterminal, in_sample = p.counts.nonterminal, p.counts.in_sample
    assert (nonterminal, in_sample, len(p)) == (4, 5, 7)
    assert not p.terminated[:nonterminal].any()
    assert p.terminated[nonterminal:in_sample].all()
    assert not p.terminated[in_sample:].any()
    for part in (slice(nonterminal), slice(nonterminal, in_sample), slice(in_sample, None)):
        assert (np.diff(p.rewards[part]) > 0).all()  # rewards number the rows of the log


@pytest.mark.parametrize("next_states", [False, True])
def test_logged_densities_are_those_of_the_next_row_of_the_same_episode(next_states: bool) -> None:
    p = build(tiny_log(next_states=next_states, log_mu=LOG_MU), behavior=Logged())
    assert p.log_mu is not None
    in_sample = [-2.0, -3.0, -5.0, -7.0, 0.0]  # row i carries row i+1's; 0 where a terminal row has no a'
    np.testing.assert_array_equal(p.log_mu[:, 0], in_sample + [0.0, 0.0] * next_states)
    assert p.log_mu_target is None


def test_logged_densities_may_be_per_dimension() -> None:
    both = np.stack([LOG_MU, 10 * LOG_MU], axis=1)
    log = Transitions.from_arrays(
        STATES, np.repeat(ACTIONS, 2, axis=1), REWARDS, TERMINALS, TIMEOUTS, action_log_probs=both
    )
    p = build(log, lambda s: np.zeros((len(s), 2), np.float32), behavior=Logged())
    assert p.log_mu is not None
    np.testing.assert_array_equal(p.log_mu, [[-2, -20], [-3, -30], [-5, -50], [-7, -70], [0, 0]])


def test_known_densities_are_asked_at_the_next_state() -> None:
    p = build(tiny_log(next_states=True), behavior=Density())
    assert p.log_mu is not None
    assert p.log_mu_target is not None
    # −s'₁ − a'; 0 where there is no a'
    np.testing.assert_allclose(p.log_mu[:, 0], [-2.2, -3.3, -5.5, -7.7, 0, 0, 0], rtol=1e-6)
    # −s'₁ − s'₁/2; 0 where the episode terminated
    np.testing.assert_allclose(p.log_mu_target, [-3, -4.5, -7.5, -10.5, 0, -12, -16.5], rtol=1e-6)


def test_a_factorised_density_gives_one_column_a_dimension_and_their_sum_is_the_total() -> None:
    world = random_lqr(0, 2, 3)
    log = world.collect(0, 5, 6)

    class Total:
        log_prob = staticmethod(world.behavior.log_prob)

    by_dimension, total = (build(log, world.policy, behavior=mu) for mu in (world.behavior, Total()))
    assert by_dimension.log_mu is not None
    assert total.log_mu is not None
    assert by_dimension.log_mu.shape == (30, 3)
    assert total.log_mu.shape == (30, 1)
    np.testing.assert_allclose(by_dimension.log_mu.sum(axis=1), total.log_mu[:, 0], rtol=1e-5)
    np.testing.assert_array_equal(by_dimension.log_mu_target, total.log_mu_target)


def test_a_known_density_and_the_log_agree_where_the_log_was_drawn_from_it() -> None:
    world = random_lqr(1, 2, 2)
    log = world.collect(0, 5, 6)
    known, logged = (build(log, world.policy, behavior=mu) for mu in (world.behavior, Logged()))
    np.testing.assert_allclose(known.log_mu, logged.log_mu, atol=1e-4)


def test_no_behaviour_leaves_the_densities_out() -> None:
    p = build(tiny_log(log_mu=LOG_MU))
    assert p.log_mu is None
    assert p.log_mu_target is None


@pytest.mark.parametrize("chunk", [1, 4, 29, 30, 31])
def test_chunks_change_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = random_lqr(0, 2, 3)
    log = world.collect(0, 5, 6)
    whole = build(log, world.policy, behavior=world.behavior)
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    rows_asked: list[int] = []

    def policy(states: np.ndarray) -> np.ndarray:
        rows_asked.append(len(states))
        return world.policy(states)

    pieces = build(log, policy, behavior=world.behavior)
    assert max(rows_asked) <= chunk
    # The bounds differ on purpose: this callable states none.
    pieces = replace(pieces, action_low=whole.action_low, action_high=whole.action_high)
    assert jax.tree.structure(pieces) == jax.tree.structure(whole)
    for one, other in zip(jax.tree.leaves(pieces), jax.tree.leaves(whole)):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_states_are_summarised_over_the_whole_log_and_a_constant_column_gets_std_1() -> None:
    states = STATES.copy()
    states[:, 1] = 1e4 / 3  # whose float32 mean is not exact
    log = Transitions.from_arrays(states, ACTIONS, REWARDS, TERMINALS, TIMEOUTS)
    p = build(log)
    np.testing.assert_allclose(p.state_mean, [4.0, 1e4 / 3], rtol=1e-6)
    np.testing.assert_allclose(p.state_std, [2.0, 1.0], rtol=1e-6)


class Bounded:
    """A policy that states its action bounds."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = np.array([low], np.float32), np.array([high], np.float32)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        return half_of_first_column(states)


@pytest.mark.parametrize(
    "policy, box",
    [
        (Bounded(-2.0, 3.0), (-2.0, 3.0)),
        (half_of_first_column, (0.1, 0.7)),
        (Bounded(-np.inf, np.inf), (0.1, 0.7)),
        (Bounded(-2.0, np.inf), (-2.0, 0.7)),
    ],
)
def test_the_action_box_is_the_policys_where_it_states_one_else_the_logs(
    policy, box: tuple[float, float]
) -> None:
    p = build(tiny_log(), policy)
    np.testing.assert_allclose([p.action_low[0], p.action_high[0]], box)


def test_an_action_that_never_varies_gets_a_box_of_width_1() -> None:
    log = Transitions.from_arrays(STATES, np.full((7, 1), 2.0), REWARDS, TERMINALS, TIMEOUTS)
    p = build(log)
    np.testing.assert_allclose([p.action_low[0], p.action_high[0]], [1.5, 2.5])


def test_the_log_is_not_changed_by_a_policy_with_bounds() -> None:
    log = tiny_log()
    build(log, Bounded(-2.0, 3.0))
    np.testing.assert_array_equal(log.actions, ACTIONS)


def test_a_one_dimensional_action_may_come_without_its_axis() -> None:
    p = build(tiny_log(), lambda states: 0.5 * states[:, 0])
    np.testing.assert_array_equal(p.target_actions, build(tiny_log()).target_actions)


def test_the_policy_is_asked_only_at_logged_states() -> None:
    def unit_length(states: np.ndarray) -> np.ndarray:
        assert states.any(axis=1).all(), "asked at a state of zeros, which is not in the log"
        return states[:, :1] / np.linalg.norm(states, axis=1, keepdims=True)

    class Asked(Density):
        def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
            unit_length(states)
            return super().log_prob(states, actions)

    p = build(tiny_log(), unit_length, behavior=Asked())
    assert np.isfinite(p.target_actions).all()
    assert p.target_actions[4, 0] == 0.0


def test_wrong_policy_width_is_named() -> None:
    def two_columns(states: np.ndarray) -> np.ndarray:
        return states

    message = r"two_columns.*shape \(.*, 2\).*expected \(.*, 1\).*actions in tiny"
    with pytest.raises(InputError, match=message):
        build(tiny_log(), two_columns)


def test_a_policy_of_other_states_is_named_before_it_is_asked() -> None:
    class Narrow:
        state_dim, name = 3, "narrow.npz"

        def __call__(self, states: np.ndarray) -> np.ndarray:
            raise AssertionError("asked")

    with pytest.raises(InputError, match=r"narrow\.npz.*takes 3 inputs.*states of tiny have 2"):
        build(tiny_log(), Narrow())


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_policy_that_returns_no_number_is_refused(broken: float) -> None:
    with pytest.raises(InputError, match="returned NaN or infinity at states of tiny"):
        build(tiny_log(), lambda s: np.where(s[:, :1] == 5, broken, 0.0))


def test_a_density_of_zero_at_a_logged_action_is_refused_and_the_row_named() -> None:
    class NoneAbove(Density):
        def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
            return np.where(actions[:, 0] > 0.45, -np.inf, 0.0)

    with pytest.raises(InputError, match=r"tiny.*log μ = -inf at the logged action of row 4;"):
        build(tiny_log(), behavior=NoneAbove())  # a = 0.5 was logged in row 4, and is a' of row 3


def test_a_density_of_zero_at_a_target_action_is_no_mistake() -> None:
    class NoneAbove(Density):
        def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
            return np.where(actions[:, 0] > 0.75, -np.inf, 0.0)

    p = build(tiny_log(), behavior=NoneAbove())
    assert p.log_mu_target is not None
    np.testing.assert_array_equal(p.log_mu_target, [-np.inf, -np.inf, -np.inf, -np.inf, 0.0])


@pytest.mark.parametrize("gamma", [1.0, -0.1, 1.5, float("nan")])
def test_gamma_out_of_range_is_refused(gamma: float) -> None:
    with pytest.raises(InputError, match=r"gamma is .*; expected 0 <= gamma < 1"):
        build(tiny_log(), gamma=gamma)


def test_logged_densities_that_are_missing_are_named() -> None:
    with pytest.raises(
        InputError, match=r"tiny: behavior is 'logged', but the field action_log_probs is missing"
    ):
        build(tiny_log(), behavior=Logged())


def test_a_log_of_cut_episodes_of_length_one_has_no_next_action_anywhere() -> None:
    short = (STATES, ACTIONS, REWARDS, np.zeros(7), np.ones(7))
    problem = build(Transitions.from_arrays(*short, NEXT_STATES))
    assert (problem.counts.used, problem.counts.in_sample, problem.counts.without_next_action) == (7, 0, 7)
    with pytest.raises(InputError, match=r"short: no row has a next state; .* next_observations is missing"):
        build(Transitions.from_arrays(*short, name="short"))


def test_a_problem_says_what_it_holds_in_one_line() -> None:
    assert repr(build(tiny_log(next_states=True))) == (
        "Problem(7 of 7 rows, 5 for in-sample learning, 3 episodes, states 2, actions 1, gamma 0.9)"
    )


def same_leaves(one: Problem, other: Problem) -> None:
    for field in fields(one):
        if field.name != "counts" and getattr(one, field.name) is not None:
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), field.name)
    assert one.counts == other.counts


def test_a_problem_in_host_memory_holds_the_same_numbers_and_comes_back() -> None:
    p = build(tiny_log(), behavior=Density())
    built = Problem.build(tiny_log(), half_of_first_column, Density(), 0.9, place="host")
    for host in (p.on_host(), built, built.on_host()):
        assert host.is_on_host
        assert (host.state_dim, host.action_dim, len(host)) == (2, 1, 5)
        same_leaves(p, host)
        assert repr(host).endswith("gamma 0.9, in host memory)")
        same_leaves(p, host.on_device())
    assert not p.is_on_host


def test_the_wide_fields_move_and_the_bytes_with_them() -> None:
    p = build(tiny_log(), behavior=Density())
    host = p.on_host()
    wide = 4 * 5 * (2 * 2 + 3 * 1)  # s and s', a, a' and π̃(s')
    assert (p.host_bytes, host.host_bytes) == (0, wide)
    tickets = 5 * 4
    assert host.device_bytes == p.device_bytes - wide + tickets


def test_a_released_problem_gives_its_wide_fields_up() -> None:
    p = build(tiny_log())
    expected = np.array(p.next_states)
    host = p.on_host(release=True)
    np.testing.assert_array_equal(host.next_states, expected)
    assert p.next_states.is_deleted()


@pytest.mark.parametrize("free, on_host", [(100, True), (10_000, False), (None, False)])
def test_data_too_large_for_the_device_stays_in_host_memory(
    free: int | None, on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem_module, "free_device_bytes", lambda: free)
    assert build(tiny_log()).is_on_host == on_host


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(InputError, match="place is 'moon'; expected 'auto', 'device', 'host' or 'disk'"):
        Problem.build(tiny_log(), half_of_first_column, None, 0.9, place="moon")  # type: ignore[arg-type]


@pytest.mark.parametrize("host", [False, True])
def test_the_head_of_a_problem_is_its_first_rows(host: bool) -> None:
    p = build(tiny_log(next_states=True), behavior=Density())
    p = p.on_host() if host else p
    head = p.head(3)
    np.testing.assert_array_equal(head.states, np.asarray(p.states)[:3])
    np.testing.assert_array_equal(head.log_mu, p.log_mu[:3])
    assert (len(head), head.counts.in_sample, head.counts.nonterminal) == (3, 3, 3)
    whole = p.head(100)  # in-sample rows only
    assert (len(whole), whole.counts.in_sample, whole.counts.nonterminal) == (5, 5, 4)
    assert whole.is_on_host == host


def test_one_outlying_action_does_not_set_the_box():
    rng = np.random.default_rng(0)
    n = 2_000
    actions = rng.uniform(-1.0, 1.0, size=(n, 2)).astype(np.float32)
    fields = (rng.normal(size=(n, 2)), actions, np.zeros(n), np.zeros(n), np.arange(1, n + 1) % 20 == 0)

    def box(policy=lambda s: np.zeros((len(s), 2))):
        problem = Problem.build(Transitions.from_arrays(*fields), policy, None, 0.9)
        return np.asarray(problem.action_low), np.asarray(problem.action_high)

    whole = box()
    actions[7, 1] = 1e6
    low, high, notes = action_box(Transitions.from_arrays(*fields), lambda s: s)
    np.testing.assert_allclose(box(), whole, atol=1e-2)
    np.testing.assert_array_equal(box(), (low, high))
    assert len(notes) == 1
    assert "1 logged action lies far outside all others in dimension 1" in notes[0]
    # A policy that names its bounds is believed, and rare actions that are no accident count.
    bounded = WithBounds(np.array([-3.0, -3.0]), np.array([3.0, 3.0]))
    np.testing.assert_array_equal(box(bounded), ([-3.0, -3.0], [3.0, 3.0]))
    actions[:, 1] = 0.0
    actions[::50, 1] = 1.0  # on for one step in fifty
    assert box()[1][1] == 1.0


class WithBounds:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def __call__(self, states):
        return np.zeros((len(states), len(self.low)))
