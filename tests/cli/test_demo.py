import json

import pytest

import kmifqe.experiments.pendulum as experiment
from kmifqe.experiments.pendulum import DemoConfig


def test_the_demo_has_the_four_estimators():
    names = [estimator.name for estimator, _ in experiment.demo_estimators(DemoConfig())]
    assert names == ["kmifqe", "kmifqe-identity", "fqe", "sr-dice"]


def test_demo_compares_estimators_with_the_truth(kmifqe_command, tmp_path, monkeypatch):
    tiny = DemoConfig(
        dummies=1, rows=2_000, hidden=8, steps=20, target_period=10, fqe_steps=20, sr_dice_stages=(5, 5, 10)
    )
    monkeypatch.setattr(experiment, "DemoConfig", lambda: tiny)
    all_four = experiment.demo_estimators  # compiling two is enough here
    monkeypatch.setattr(experiment, "demo_estimators", lambda config: all_four(config)[::2])
    done = kmifqe_command("demo", "--out", tmp_path / "demo", "--seeds", 2)
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "demo" / "result.json").read_text())
    names = [estimate["estimator"] for estimate in result["estimates"]]
    assert names == ["kmifqe", "fqe"]
    truth, behavior = result["extra"]["truth"], result["extra"]["behavior"]
    assert truth["value"] == pytest.approx(-3.77, abs=5 * truth["standard_error"] + 0.01)
    assert behavior["value"] < truth["value"] - 1
    assert result["references"]["behaviour"] == behavior["value"]
    assert f"{result['references']['truth']:.3f}" in done.out
    assert (
        result["question"]["behavior"] == "uniform over all torques and dummies"
    )  # who really collected the log
    for name in names:
        assert name in done.out
    assert {p.name for p in (tmp_path / "demo").iterdir()} == {
        "finished",
        "run.json",
        "result.json",
        "trajectories.png",
        "bandwidth.png",
        "report.html",
        "landscape.npz",
    }
    assert (tmp_path / "demo" / "report.html").stat().st_size < 3_000_000
