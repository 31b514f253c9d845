"""Presets hold the paper's columns; settings given as text change one field each."""

from __future__ import annotations

from typing import Any

import pytest

from kmifqe.errors import InputError
from kmifqe.estimators.registry import check_settings, entries, make_estimator, parse_setting


@pytest.mark.parametrize(
    "name, preset, expected",
    [
        ("kmifqe-paper", "pendulum", {"batch": 1024, "clip_per_dimension": False, "density_floor": 1e-5}),
        ("kmifqe-paper", "mujoco", {"batch": 2048, "clip_per_dimension": True, "density_floor": 1e-5}),
        ("kmifqe-paper", "d4rl", {"batch": 2048, "clip_per_dimension": False, "density_floor": 1e-3}),
        ("fqe-paper", "mujoco", {"batch": 256, "hidden": 256, "learning_rate": 3e-4, "tau": 0.005}),
        ("sr-dice", "pendulum", {"batch": 256, "ratio_batch": 1024}),
        ("sr-dice", "mujoco", {"batch": 256, "ratio_batch": 2048}),
    ],
)
def test_presets_are_the_columns_of_the_papers_appendix(
    name: str, preset: str, expected: dict[str, Any]
) -> None:
    config = make_estimator(name, preset).config
    assert {field: getattr(config, field) for field in expected} == expected


@pytest.mark.parametrize(
    "preset, column", [("pendulum-fast", "pendulum"), ("mujoco-fast", "mujoco"), ("d4rl-fast", "d4rl")]
)
def test_a_fast_preset_changes_the_schedule_and_not_the_problem(preset: str, column: str) -> None:
    paper, fast = make_estimator("kmifqe-paper", column), make_estimator("kmifqe-paper", preset)
    changed = {f for f, value in vars(paper.config).items() if getattr(fast.config, f) != value}
    schedule = {"learning_rate", "target_period", "bandwidth_period", "metric_period"}
    assert changed == schedule | {"decay_steps"}
    assert paper.default_steps >= 10 * fast.default_steps
    assert fast.config.decay_steps == fast.default_steps


def test_a_fast_presets_learning_rate_falls_over_the_steps_that_are_asked_for() -> None:
    for name in ("kmifqe", "kmifqe-paper"):
        assert make_estimator(name, "fast", steps=500).config.decay_steps == 500
    assert make_estimator("kmifqe-paper", "mujoco", steps=500).config.decay_steps == 0


@pytest.mark.parametrize("name", ["fqe", "fqe-paper", "sr-dice"])
def test_a_fast_preset_leaves_the_baselines_settings_alone(name: str) -> None:
    assert make_estimator(name, "mujoco-fast").config == make_estimator(name, "mujoco").config


def test_the_papers_name_stays_whatever_is_set() -> None:
    for name in ("fqe-paper", "kmifqe-paper", "fqe", "kmifqe"):
        for units in ("returns", "rewards"):
            made = make_estimator(name, settings=[f"units={units}"])
            assert (made.name, made.config.units) == (name, units)


def test_settings_are_read_as_the_type_of_their_field() -> None:
    settings = ["hidden=64", "learning_rate=1e-3", "clip=0,inf", "clip_per_dimension=TRUE", "metric=identity"]
    config = make_estimator("kmifqe", settings=[*settings, "bandwidth=0.5"]).config
    assert (config.hidden, config.learning_rate, config.clip) == (64, 1e-3, (0.0, float("inf")))
    assert (config.clip_per_dimension, config.metric, config.bandwidth) == (True, "identity", 0.5)
    assert make_estimator("kmifqe", settings=["bandwidth=none"]).config.bandwidth is None


def test_a_setting_with_a_name_is_for_that_estimator_only() -> None:
    names = [entry.name for entry in entries() if hasattr(entry.config, "hidden")]
    plain = {name: make_estimator(name, "fast").config.hidden for name in names}
    hidden = {name: make_estimator(name, "fast", ["fqe.hidden=8"]).config.hidden for name in names}
    assert hidden == plain | {"fqe": 8}
    assert make_estimator("fqe", settings=["fqe.hidden=8"]).config.hidden == 8


def test_a_later_setting_wins_over_an_earlier_one_and_over_the_preset() -> None:
    assert make_estimator("kmifqe", "mujoco", ["batch=8", "batch=16"]).config.batch == 16


def test_parse_setting() -> None:
    assert parse_setting("hidden=8") == (None, "hidden", "8")
    assert parse_setting("sr-dice.stages=1,2,3") == ("sr-dice", "stages", "1,2,3")


@pytest.mark.parametrize("setting", ["hidden", "=8", "hidden=", ""])
def test_a_malformed_setting_is_refused(setting: str) -> None:
    with pytest.raises(InputError, match=r"malformed; expected FIELD=VALUE or ESTIMATOR\.FIELD=VALUE"):
        parse_setting(setting)


@pytest.mark.parametrize("setting", ["hidden=many", "clip=1", "clip_per_dimension=maybe", "bandwidth=wide"])
def test_a_value_of_the_wrong_kind_is_refused(setting: str) -> None:
    with pytest.raises(InputError, match=f"setting '{setting}' has the value"):
        make_estimator("kmifqe", settings=[setting])


def test_unknown_names_are_refused_with_those_known() -> None:
    with pytest.raises(
        InputError, match=r"estimator 'dice' is unknown; expected one of auto, kmifqe, .*sr-dice"
    ):
        make_estimator("dice")
    with pytest.raises(
        InputError, match=r"preset 'atari' is unknown; expected one of default, pendulum, mujoco, d4rl"
    ):
        make_estimator("fqe", "atari")
    with pytest.raises(InputError, match=r"'stages=1,1,1' names no field; expected one of .*bandwidth"):
        check_settings(["kmifqe"], ["stages=1,1,1"])
    with pytest.raises(InputError, match=r"'fqe\.tau=1' is for 'fqe', which is not among kmifqe"):
        check_settings(["kmifqe"], ["fqe.tau=1"])
    check_settings(["kmifqe", "fqe"], ["tau=1", "fqe.tau=1", "clip=0,2"])


@pytest.mark.parametrize(
    "name, setting",
    [
        ("kmifqe", "target_period=0"),
        ("kmifqe", "batch=0"),
        ("kmifqe", "learning_rate=-1"),
        ("kmifqe", "bandwidth=inf"),
        ("kmifqe", "bandwidth_bounds=2,1"),
        ("kmifqe", "metric_floor=-0.1"),
        ("fqe", "inputs=nonsense"),
        ("fqe", "tau=0"),
        ("kmifqe", "tau=1.5"),
        ("kmifqe", "metric_period=2"),
        ("kmifqe", "units=dollars"),
        ("fqe", "units=dollars"),
        ("sr-dice", "stages=0,1,1"),
        ("sr-dice", "features=0"),
    ],
)
def test_a_senseless_value_is_refused_by_name(name: str, setting: str) -> None:
    with pytest.raises(InputError, match=setting.partition("=")[0]):
        make_estimator(name, settings=[setting])
