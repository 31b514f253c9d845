"""What loggers are told, and what TensorBoard's files then hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kmifqe.estimators.fit import Progress
from kmifqe.report.loggers import TensorBoardLogger, WandbLogger, scalars, together

PROGRESS = Progress("kmifqe", 200, 1000, 50.0, np.array([1.0, 3.0]), {"h": np.array([0.2, 0.4])})


def test_scalars_are_means_over_seeds_and_each_seed() -> None:
    told = dict(scalars(PROGRESS))
    assert told["kmifqe/value"] == 2.0
    assert told["kmifqe/spread"] == pytest.approx(np.sqrt(2.0))
    assert (told["kmifqe/seeds/0"], told["kmifqe/seeds/1"]) == (1.0, 3.0)
    assert told["kmifqe/h"] == pytest.approx(0.3)
    assert told["kmifqe/steps_per_second"] == 50.0


def test_one_seed_has_no_spread() -> None:
    assert "kmifqe/spread" not in dict(scalars(PROGRESS._replace(values=np.array([1.0]))))


def test_tensorboard_files_hold_every_scalar_at_its_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    logger = TensorBoardLogger(tmp_path)
    logger(PROGRESS)
    logger(PROGRESS._replace(step=400, values=np.array([2.0, 4.0])))
    logger.close()
    found = read_events(tmp_path)
    assert found["kmifqe/value", 200] == 2.0
    assert found["kmifqe/value", 400] == 3.0
    assert {name for name, _ in found} == {name for name, _ in scalars(PROGRESS)}


def test_wandb_gets_the_estimators_own_step_as_a_value() -> None:
    logged: list[dict[str, Any]] = []

    class Run:
        def log(self, data: dict[str, Any]) -> None:
            logged.append(data)

    together(WandbLogger(Run()), WandbLogger(Run()))(PROGRESS)
    assert len(logged) == 2
    assert logged[0] == logged[1] == {"kmifqe/step": 200, **dict(scalars(PROGRESS))}


def read_events(folder: Path) -> dict[tuple[str, int], float]:
    """Return every scalar of the folder's event file: records of length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.glob("events.*")
    data, at, found = file.read_bytes(), 0, {}
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        event = Event.FromString(data[at + 12 : at + 12 + length])
        found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        at += 16 + length
    return found
