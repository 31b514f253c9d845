from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.worlds import gym_envs
from kmifqe.worlds.gym_envs import EnvPool, describe_task
from worlds.gym_test_envs import env_id


def take_steps(pool: EnvPool, steps: int) -> None:
    for _ in range(steps):
        pool.step(np.zeros((pool.n_envs, pool.task.action_dim)))


def walk(workers: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    with EnvPool(describe_task("Pendulum-v1"), 5, seed=3, workers=workers, max_episode_steps=4) as pool:
        seen = [pool.reset()]
        for step in range(9):
            active = np.arange(5) != step % 5
            stepped = pool.step(rng.uniform(-2, 2, (5, 1)), active)
            seen += [
                stepped.reached[active],
                stepped.rewards[active],
                stepped.truncated[active],
                stepped.states,
            ]
    return seen


def test_the_number_of_workers_changes_nothing():
    for alone, shared in zip(walk(1), walk(2), strict=True):
        np.testing.assert_array_equal(alone, shared)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("trouble", "message"),
    [("Raise", "ValueError: the motor is on fire"), ("Nan", "an observation holds NaN")],
)
def test_an_environment_that_fails_is_reported_in_its_own_words(workers, trouble, message):
    with EnvPool(describe_task(env_id(f"Trouble{trouble}")), 2, workers=workers) as pool:
        pool.reset()
        with pytest.raises(InputError, match=f"the environment failed .*{message}"):
            take_steps(pool, 3)
    assert multiprocessing.active_children() == []


def test_a_worker_that_dies_is_reported_and_does_not_hang():
    with EnvPool(describe_task(env_id("TroubleDie")), 2, workers=2) as pool:
        pool.reset()
        with pytest.raises(InputError, match=r"a worker process ended by itself \(exit code 3\)"):
            take_steps(pool, 3)
    assert multiprocessing.active_children() == []


def leave_busy(workers: int) -> None:
    """Press Ctrl-C while every worker is in a step that does not come back."""
    with EnvPool(describe_task(env_id("TroubleHang")), 2, workers=workers) as pool:
        pool.reset()
        take_steps(pool, 2)
        for worker in pool._workers:
            worker.send(("step", (np.zeros((1, 1)), np.ones(1, bool))))
        raise KeyboardInterrupt


def test_an_interrupt_ends_workers_that_are_busy(monkeypatch):
    monkeypatch.setattr(gym_envs, "PATIENCE", 0.2)
    with pytest.raises(KeyboardInterrupt):
        leave_busy(workers=2)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_no_environment_or_no_worker_is_refused(sizes):
    with pytest.raises(InputError, match="expected 1 or more of each"):
        EnvPool(describe_task("Pendulum-v1"), sizes[0], workers=sizes[1])
