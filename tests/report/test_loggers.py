"""What loggers are told, and what TensorBoard's files then hold."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.estimators.fit import Progress
from kmifqe.report.loggers import (
    TRACKERS,
    TensorBoardLogger,
    Tracking,
    WandbLogger,
    final_numbers,
    final_words,
    scalars,
    together,
)
from report.small import small_result

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


def all_of(result: Any) -> dict[str, Any]:
    return {**final_numbers(result), **final_words(result)}


def test_a_result_is_told_by_its_headline_and_by_every_estimator() -> None:
    result = small_result()
    told = all_of(result)
    assert (told["value"], told["low"], told["high"]) == (result.value, -3.95, -3.62)
    assert told["verdict"] == told["final/fqe/verdict"] == "do not use"
    assert told["final/fqe/value"] == result["fqe"].value
    assert "final/sr-dice/low" not in told  # a seed of it diverged: there is no interval


def test_tensorboard_holds_the_result_and_the_curves_of_fits_that_were_not_heard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    tracking = Tracking(["tensorboard"], tmp_path, {}, warn=pytest.fail)
    assert list(tmp_path.iterdir()) == []  # the run directory is the run's until it begins
    tracking(PROGRESS)
    tracking(PROGRESS._replace(step=400))
    tracking(PROGRESS)  # fitted again
    result = small_result()
    tracking.finish(result)
    (folder,) = (tmp_path / "tensorboard").iterdir()
    found = read_events(folder)
    assert {step for name, step in found if name == "kmifqe/value"} == {200, 400}
    assert found["kmifqe-2/value", 200] == 2.0
    steps = result.estimate.steps
    for name, value in final_numbers(result).items():
        assert found[name, steps] == pytest.approx(value, nan_ok=True)
    assert found["final/fqe/verdict/text_summary", steps] == "do not use"
    curve = [found["fqe/value", int(step)] for step in result["fqe"].recorded_steps]
    assert curve == pytest.approx(result["fqe"].trajectory.mean(axis=1))


def test_a_tracker_that_fails_is_dropped_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    class Broken:
        def __call__(self, progress: Progress) -> None:
            raise ConnectionError("the server is gone")

    class Works:
        def __call__(self, progress: Progress) -> None:
            heard.append("progress")

        def finish(self, result: Any) -> None:
            heard.append("end")

    monkeypatch.setitem(TRACKERS, "mlflow", lambda folder, options: Broken())
    monkeypatch.setitem(TRACKERS, "wandb", lambda folder, options: Works())
    warnings: list[str] = []
    tracking = Tracking(["mlflow", "wandb"], tmp_path, {}, warnings.append)
    tracking(PROGRESS)
    tracking(PROGRESS._replace(step=400))
    tracking.finish(None)
    assert heard == ["progress", "progress", "end"]
    assert len(warnings) == 1
    assert "the server is gone" in warnings[0]


@pytest.mark.parametrize(
    "name, package", [("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_missing_package_is_refused_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"{package}.*kmifqe\[{name}\]"):
        Tracking([name], tmp_path, {}, warn=pytest.fail)


def test_wandb_keeps_an_offline_run_with_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    tracking = Tracking(["wandb"], tmp_path / "first", {"gamma": 0.9}, warn=pytest.fail)
    tracking(PROGRESS)
    tracking.finish(small_result())
    wandb.teardown()  # ends the process that writes the file, as W&B does when Python ends: on a busy machine it lags
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = kept.read_bytes()
    for word in (b"kmifqe/seeds/1", b"final/fqe/verdict", b"do not use", b"first"):
        assert word in content


def test_mlflow_keeps_curves_result_and_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes seconds to be made
    mlflow.set_tracking_uri(tmp_path.as_uri())
    try:
        tracking = Tracking(["mlflow"], tmp_path / "first", {"gamma": 0.9}, warn=pytest.fail)
        tracking(PROGRESS)
        tracking(PROGRESS._replace(step=400))
        result = small_result()
        tracking.finish(result)
        client = mlflow.MlflowClient()
        (run,) = client.search_runs([client.get_experiment_by_name("kmifqe").experiment_id])
        curve = client.get_metric_history(run.info.run_id, "kmifqe/value")
    finally:
        mlflow.set_tracking_uri(None)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params == {"gamma": "0.9"}
    assert run.data.metrics["final/fqe/low"] == result.intervals["fqe"].low
    assert run.data.tags["verdict"] == "do not use"
    assert [(point.step, point.value) for point in curve] == [(200, 2.0), (400, 2.0)]


def read_events(folder: Path) -> dict[tuple[str, int], float | str]:
    """Return every scalar and text of the folder's event file: records of length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.glob("events.*")
    data, at, found = file.read_bytes(), 0, {}
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        event = Event.FromString(data[at + 12 : at + 12 + length])
        for value in event.summary.value:
            texts = value.tensor.string_val
            found[value.tag, event.step] = texts[0].decode() if texts else value.simple_value
        at += 16 + length
    return found
