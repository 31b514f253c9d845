"""What makes two runs the same run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from estimators.small import lqr_problem
from kmifqe.errors import InputError
from kmifqe.estimators.fit import make_plan
from kmifqe.store.identity import column_print, differences, digests, exact_print, fingerprint, identity
from store.toy import toy, toy_problem

HERE = Path("checkpoint")


def of(problem, **options):
    return identity(make_plan(toy(), problem, **options), fingerprint(problem))


def test_the_same_run_has_no_differences():
    problem = lqr_problem()[0]
    assert differences(of(problem), of(problem), HERE) == []


def test_a_setting_that_only_one_of_two_versions_has_is_refused_as_such():
    present = of(lqr_problem()[0])
    config = present["plan"]["config"] | {"gone": 0}
    other = present | {"plan": present["plan"] | {"config": config}}
    for stored, now, word in ((other, present, "with"), (present, other, "without")):
        with pytest.raises(
            InputError, match=f"made by a version {word} the setting gone; go on with that version"
        ):
            differences(stored, now, HERE)


@pytest.mark.parametrize(
    "field", ["states", "actions", "rewards", "next_states", "terminated", "episode", "state_mean"]
)
def test_one_changed_number_of_the_log_is_refused_by_name(field):
    problem = lqr_problem()[0]
    array = np.array(getattr(problem, field))
    array.flat[-1] = not array.flat[-1] if array.dtype == bool else array.flat[-1] + 1
    with pytest.raises(InputError, match=f"{field} was .*another log"):
        differences(of(problem), of(replace(problem, **{field: jnp.asarray(array)})), HERE)


@pytest.mark.parametrize(
    "field, reason", [("target_actions", "policy"), ("log_mu", "density"), ("log_mu_target", "density")]
)
def test_what_a_policy_or_density_computed_may_differ_by_rounding_only(field, reason):
    problem = lqr_problem()[0]
    array = getattr(problem, field)
    rounded = of(replace(problem, **{field: array * (1 + 1e-7 * jnp.cos(1e6 * array))}))
    warnings = differences(of(problem), rounded, HERE)
    assert len(warnings) == 1
    assert field in warnings[0]
    with pytest.raises(InputError, match=f"{field} was .*another {reason}"):
        differences(of(problem), of(replace(problem, **{field: array + 0.01})), HERE)


@pytest.mark.parametrize("field", ["target_actions", "log_mu"])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[::-1],
        lambda x: x[jnp.asarray(np.random.default_rng(1).permutation(len(x)))],
        lambda x: x.at[jnp.asarray([3, 40])].set(x[jnp.asarray([40, 3])]),
        lambda x: jnp.roll(x, 1, axis=0),
        lambda x: x[:, ::-1],
        lambda x: -x,
        lambda x: x.at[7].add(0.3),
    ],
    ids=["reversed", "permuted", "two rows swapped", "shifted", "columns swapped", "negated", "one row"],
)
def test_other_answers_with_nearly_the_same_statistics_are_refused(field, change):
    problem = lqr_problem()[0]
    rng = np.random.default_rng(0)
    answers = jnp.asarray(rng.normal(size=(len(problem), 2)), jnp.float32)
    problem = replace(problem, **{field: answers})
    with pytest.raises(InputError, match=field):
        differences(of(problem), of(replace(problem, **{field: change(answers)})), HERE)


def test_a_policy_and_its_mirror_image_are_two():
    """Both answer the same everywhere, with the same mean and root mean square over all numbers."""
    problem = lqr_problem()[0]
    one, other = (jnp.tile(jnp.asarray(action), (len(problem), 1)) for action in ([1.0, -1.0], [-1.0, 1.0]))
    with pytest.raises(InputError, match="another policy"):
        differences(
            of(replace(problem, target_actions=one)), of(replace(problem, target_actions=other)), HERE
        )


def test_densities_of_zero_may_stay_and_may_not_move():
    problem = lqr_problem()[0]
    log_mu = problem.log_mu.at[3].set(-jnp.inf)
    there = of(replace(problem, log_mu=log_mu))
    assert len(differences(there, of(replace(problem, log_mu=log_mu * (1 + 1e-7))), HERE)) == 1
    for other in (problem.log_mu, problem.log_mu.at[4].set(-jnp.inf)):
        with pytest.raises(InputError, match="another density"):
            differences(there, of(replace(problem, log_mu=other)), HERE)


def test_digests_tell_log_policy_and_density_apart():
    problem = lqr_problem()[0]
    known = digests(fingerprint(problem))
    assert known.keys() == {"log", "policy", "density"}
    for part, field in (("log", "rewards"), ("policy", "target_actions"), ("density", "log_mu")):
        changed = digests(
            fingerprint(replace(problem, **{field: getattr(problem, field) * (1 + 1e-6) + 1e-6}))
        )
        assert {name for name in known if changed[name] != known[name]} == {part}
    without = replace(problem, log_mu=None, log_mu_target=None, first_log_mu=None)
    assert digests(fingerprint(without)).keys() == {"log", "policy"}


def test_a_density_where_there_was_none_is_refused():
    problem = lqr_problem()[0]
    with pytest.raises(InputError, match="log_mu was absent"):
        differences(of(replace(problem, log_mu=None)), of(problem), HERE)


def test_infinite_settings_are_equal_to_themselves():
    stored = of(toy_problem())
    assert stored["plan"]["config"]["clip"] == [0.0, None]
    assert differences(stored, of(toy_problem()), HERE) == []


def test_a_print_knows_shape_kind_and_scale():
    x = np.array([[3.0, -4.0]], np.float32)
    digests = {exact_print(y)["digest"] for y in (x, x.T, x.astype(np.float64), x + 1, x.view(np.int32))}
    assert len(digests) == 5
    assert exact_print(np.asfortranarray(np.eye(3) + 1))["digest"] == exact_print(np.eye(3) + 1)["digest"]
    columns = column_print(np.array([[3.0, 0.0], [-4.0, 0.0]]))
    assert columns["mean"] == [-0.5, 0.0]
    assert columns["rms"] == pytest.approx([np.sqrt(12.5), 0.0])
    assert column_print(np.zeros((0, 3)))["rms"] == [0.0] * 3


def test_a_plain_fit_is_not_taken_up_by_a_bootstrapped_one_nor_the_other_way_round():
    problem = lqr_problem()[0]
    with pytest.raises(InputError, match="made with bootstrap = False, this command has bootstrap = True"):
        differences(of(problem), of(problem, bootstrap=True), HERE)
    with pytest.raises(InputError, match="made with bootstrap = True, this command has bootstrap = False"):
        differences(of(problem, bootstrap=True), of(problem), HERE)


def test_a_run_of_a_version_without_bootstrap_goes_on_without():
    problem = lqr_problem()[0]
    earlier = of(problem)
    del earlier["plan"]["bootstrap"]
    assert differences(earlier, of(problem), HERE) == []
