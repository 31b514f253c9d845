import json

import pytest

import kmifqe.experiments.demo as experiment
from kmifqe.experiments.demo import DemoConfig


def test_demo_compares_four_estimators_with_the_truth(kmifqe_command, tmp_path, monkeypatch):
    tiny = DemoConfig(
        dummies=1, rows=2_000, hidden=8, steps=20, target_period=10, fqe_steps=20, sr_dice_stages=(5, 5, 10)
    )
    monkeypatch.setattr(experiment, "DemoConfig", lambda: tiny)
    done = kmifqe_command("demo", "--out", tmp_path / "demo", "--seeds", 2)
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "demo" / "result.json").read_text())
    names = [estimate["estimator"] for estimate in result["estimates"]]
    assert names == ["kmifqe", "kmifqe-identity", "fqe", "sr-dice"]
    truth = result["truth"]
    assert truth["population"]["value"] == pytest.approx(
        -3.77, abs=5 * truth["population"]["standard_error"] + 0.01
    )
    assert truth["behavior"]["value"] < truth["population"]["value"] - 1
    assert f"{truth['logged_first_states']:.3f}" in done.out
    for name in names:
        assert name in done.out
    assert {p.name for p in (tmp_path / "demo").iterdir()} == {
        "result.json",
        "trajectories.png",
        "bandwidth.png",
        "report.html",
        "landscape.npz",
    }
    assert (tmp_path / "demo" / "report.html").stat().st_size < 3_000_000
