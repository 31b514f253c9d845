from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kmifqe.errors import InputError
from kmifqe.io.serialize import from_json, to_json
from kmifqe.worlds.gym_train import TrainConfig
from kmifqe.worlds.td3 import Td3Config

CONFIG = TrainConfig("Pendulum-v1", steps=20_000)


def test_warmup_and_checkpoints_follow_the_number_of_steps():
    assert (CONFIG.warmup_steps, CONFIG.steps_between_checkpoints) == (1_000, 200)
    long = replace(CONFIG, steps=1_000_000)
    assert (long.warmup_steps, long.steps_between_checkpoints) == (25_000, 10_000)
    assert replace(CONFIG, warmup=7).warmup_steps == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"envs": 0},
        {"workers": 0},
        {"eval_every": 0},
        {"warmup": 0},
        {"replay": 7},
        {"seed": -1},
    ],
)
def test_settings_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(InputError, match=f"{next(iter(wrong))} is "):
        replace(CONFIG, **wrong)


def test_a_run_may_be_resumed_for_longer_but_not_as_another_run():
    begun, folder = from_json(to_json(CONFIG), TrainConfig), Path("runs/x")
    assert begun == CONFIG
    replace(CONFIG, steps=30_000, workers=4).refuse_other_run(begun, folder)
    with pytest.raises(InputError, match=r"runs/x: the run was started with seed = 0; found 1"):
        replace(CONFIG, seed=1).refuse_other_run(begun, folder)
    with pytest.raises(InputError, match=r"started with td3 = "):
        replace(CONFIG, td3=Td3Config(batch=7)).refuse_other_run(begun, folder)
