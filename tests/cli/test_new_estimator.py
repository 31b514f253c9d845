"""An estimator that nobody here has heard of: one registry entry, and everything knows it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kmifqe
from kmifqe.estimators import Estimator, registry
from kmifqe.estimators.registry import EstimatorEntry


@dataclass(frozen=True)
class MeanRewardConfig:
    shrink: float = 1.0  # of the mean


@cache
def mean_reward(config: MeanRewardConfig) -> Estimator:
    """Return an estimator that says the log's mean reward: right if the target did what the log did."""

    def init(key: jax.Array, problem: kmifqe.Problem) -> jax.Array:
        return jnp.float32(0)

    def step(key: jax.Array, t: jax.Array, state: jax.Array, problem: kmifqe.Problem) -> tuple:
        return state + (jnp.mean(problem.rewards) - state) * config.shrink, {"loss": jnp.float32(0)}

    def value(state: jax.Array, problem: kmifqe.Problem) -> jax.Array:
        return state

    return Estimator("mean-reward", config, init, step, value, default_steps=10)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> EstimatorEntry:
    entry = EstimatorEntry(
        name="mean-reward",
        label="Mean reward",
        color="#123456",
        dark_color="#abcdef",
        config=MeanRewardConfig(),
        make=mean_reward,
        needs_density=False,
        summary="The mean reward of the log.",
        page="estimators/mean_reward.md",
    )
    known = dict(registry._entries())
    monkeypatch.setattr(registry, "_entries", lambda: known)  # so that this process forgets it again
    registry.register(entry)
    return entry


def test_help_names_it(registered, kmifqe_command):
    assert "mean-reward" in kmifqe_command("evaluate", "--help").out


def test_it_is_evaluated_reported_and_recorded(registered, kmifqe_command, tmp_path, log, actor_path):
    np.savez(tmp_path / "log.npz", **log)
    out = tmp_path / "run"
    options = ("--gamma", 0.5, "--seeds", 2, "--out", out, "-e", "mean-reward", "--set", "shrink=0.5")
    done = kmifqe_command("evaluate", tmp_path / "log.npz", "--policy", actor_path, *options)
    assert done.code == 0, done.err
    record = json.loads((out / "result.json").read_text())
    assert record["estimates"][0]["estimator"] == "mean-reward"
    assert record["estimates"][0]["config"] == {"shrink": 0.5}
    page = (out / "report.html").read_text()
    assert "Mean reward" in page
    assert "#123456" in page
    assert "#abcdef" in page
    assert kmifqe.Result.load(out).estimate.steps == 10


def test_it_inherits_no_other_estimators_settings(registered):
    assert registry.make_estimator("mean-reward", "fast").config == MeanRewardConfig()
