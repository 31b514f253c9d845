"""What the command-line tests share: a small log, a small policy, and the command run in-process."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest

from kmifqe.cli import main
from kmifqe.io.policies.actor import Actor


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def kmifqe_command(monkeypatch, capsys):
    """Return a function that runs `kmifqe ARGS` as the script does, and says how it ended."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kmifqe", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setenv("TERM", "dumb")
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


def small_log(rows=120, state_dim=3, action_dim=2, length=10, seed=0):
    """Return D4RL fields: noise around the zero action with its log-density, episodes of `length` steps."""
    rng = np.random.default_rng(seed)
    actions = 0.5 * rng.standard_normal((rows, action_dim))
    log_prob = -0.5 * (actions / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
    return {
        "observations": rng.standard_normal((rows, state_dim)).astype(np.float32),
        "actions": actions.astype(np.float32),
        "rewards": rng.standard_normal(rows).astype(np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) % length == length - 1,
        "action_log_probs": log_prob.sum(axis=1).astype(np.float32),
    }


def small_actor(state_dim=3, action_dim=2, seed=0):
    rng = np.random.default_rng(seed)
    return Actor(
        weights=(rng.standard_normal((state_dim, action_dim)).astype(np.float32) * 0.1,),
        biases=(np.zeros(action_dim, np.float32),),
        hidden="tanh",
        output="tanh",
        low=-np.ones(action_dim, np.float32),
        high=np.ones(action_dim, np.float32),
    )


@pytest.fixture
def log():
    return small_log()


@pytest.fixture
def actor_path(tmp_path):
    path = tmp_path / "actor.safetensors"
    small_actor().save(path)
    return path
