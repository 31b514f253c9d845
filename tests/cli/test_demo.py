import json

import pytest

import kmifqe.experiments.pendulum as experiment
from kmifqe.experiments.pendulum import MixtureLog


def test_demo_judges_with_the_defaults_and_compares_with_the_truth(kmifqe_command, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "DEMO", MixtureLog(dummies=1, rows=1_000, uniform_share=1.0))
    done = kmifqe_command("demo", "--out", tmp_path / "demo", "--seeds", 2, "--minutes", 0.01)
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "demo" / "result.json").read_text())
    names = [estimate["estimator"] for estimate in result["estimates"]]
    assert names == ["auto", "kmifqe", "fqe"]
    truth, behavior = result["references"]["truth"], result["references"]["behaviour"]
    assert truth == pytest.approx(-3.77, abs=1.0)  # of the logged first states, which are few
    assert behavior < truth - 0.5
    assert f"{truth:.3f}" in done.out
    assert "error" in done.out
    assert result["comparison"]["logged"]["value"] == pytest.approx(behavior, abs=1.0)
    assert result["question"]["behavior"] == "uniform over all torques and dummies"  # who collected the log
    assert result["question"]["policy"] == "pendulum-target.safetensors, zeros for the dummies"
    for name in names:
        assert name in done.out
    assert (tmp_path / "demo" / "report.html").stat().st_size < 3_000_000
