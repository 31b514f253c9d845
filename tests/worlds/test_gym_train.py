from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.load import load_policy
from kmifqe.worlds.gym_train import Choice, TrainConfig, TrainProgress, train
from kmifqe.worlds.td3 import Td3Config
from worlds.gym_test_envs import env_id

# One shape for all runs of this file, so that they share what jax compiled.
CONFIG = TrainConfig(
    env_id("Reach"),
    steps=1_200,
    envs=4,
    warmup=160,
    eval_every=160,
    eval_episodes=4,
    choice_episodes=8,
    replay=400,
    td3=Td3Config(actor_hidden=(32,), critic_hidden=(32,), learning_rate=3e-3, gamma=0.5, batch=64),
)
STEPS = [0, 160, 320, 480, 640, 800, 960, 1_120, 1_200]


class Run(NamedTuple):
    folder: Path
    choice: Choice
    told: list[TrainProgress]


def curve(folder) -> list[dict]:
    return json.loads((folder / "training.json").read_text())["curve"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder, told = tmp_path_factory.mktemp("run"), []
    return Run(folder, train(CONFIG, folder, progress=told.append), told)


def test_a_run_leaves_checkpoints_a_curve_and_the_chosen_two(run):
    files = {path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*.*")}
    assert [point["steps"] for point in curve(run.folder)] == STEPS
    assert {f"checkpoints/step-{s:09d}.safetensors" for s in STEPS} < files
    assert {"state.safetensors", "target.safetensors", "training.json"} < files
    assert (run.choice.behavior is not None) == ("behavior.safetensors" in files)
    assert run.told[-1].choosing
    assert run.told[-1].steps == 1_200


def test_it_learns(run):
    """The best action is 0.6 · state, at no cost; the untrained actor's, near 0, costs 0.36 a step of ten."""
    assert curve(run.folder)[0]["episode_return"] < -2.0
    assert run.choice.target.episode_return > -0.3


def test_the_target_is_the_chosen_checkpoint(run):
    target = load_policy(run.folder / "target.safetensors")
    chosen = load_policy(run.folder / "checkpoints" / f"step-{run.choice.target.steps:09d}.safetensors")
    states = np.random.default_rng(0).standard_normal((5, 1)).astype(np.float32)
    np.testing.assert_array_equal(target(states), chosen(states))


def test_the_same_seed_gives_the_same_run_in_one_process_or_two(run, tmp_path):
    assert train(replace(CONFIG, workers=2), tmp_path) == run.choice
    assert curve(tmp_path) == curve(run.folder)


def interrupt_at(steps: int):
    def tell(now: TrainProgress) -> None:
        if now.steps >= steps and not now.choosing:
            raise KeyboardInterrupt

    return tell


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, progress=interrupt_at(200))
    before = curve(tmp_path)
    assert [point["steps"] for point in before] == [0, 160]
    with pytest.raises(InputError, match="holds a training run; give --resume"):
        train(CONFIG, tmp_path)
    with pytest.raises(InputError, match="started with eval_episodes = 4; found 3"):
        train(replace(CONFIG, eval_episodes=3), tmp_path, resume=True)
    seen: list[TrainProgress] = []
    train(replace(CONFIG, steps=480), tmp_path, resume=True, progress=seen.append)
    assert seen[0].steps == 204  # the step after the saved one
    assert curve(tmp_path)[:2] == before
    assert [point["steps"] for point in curve(tmp_path)] == [0, 160, 320, 480]


def test_a_folder_that_cannot_be_one_and_a_task_that_is_none_leave_nothing(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is not a folder"):
        train(CONFIG, tmp_path / "file")
    with pytest.raises(InputError, match=r"the action space is Discrete\(2\)"):
        train(replace(CONFIG, env_id="CartPole-v1"), tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    "name", ["target.safetensors", "checkpoints/step-000000000.safetensors", "training.json"]
)
def test_a_folder_with_somebodys_files_is_refused_and_left(tmp_path, name, resume):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=str(tmp_path)):
        train(CONFIG, tmp_path, resume=resume)
    assert (tmp_path / name).read_text() == "mine"
    assert sorted(tmp_path.rglob("*")) == before
