import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import load_safetensors_actor
from kmifqe.worlds import train_pendulum
from kmifqe.worlds.pendulum_policies import load_pendulum_actors
from kmifqe.worlds.train_pendulum import Snapshot, choose

TARGET, BEHAVIOR = load_pendulum_actors()


def test_the_behaviour_is_on_the_way_up_and_the_one_that_noise_hurts_least():
    # Noise hurts the target less than the partly trained policy, so here it stands for the sturdier one.
    met = [
        Snapshot(1, BEHAVIOR, -1_000.0),
        Snapshot(2, BEHAVIOR, -480.0),
        Snapshot(3, TARGET, -400.0),
        Snapshot(4, TARGET, -150.0),
        Snapshot(5, TARGET, -450.0),  # a dip after the climb
        Snapshot(6, TARGET, -140.0),
    ]
    target, behavior = choose(met)
    assert (target.steps, behavior.steps) == (6, 3)


def test_a_run_that_skips_the_behaviours_level_says_so():
    with pytest.raises(InputError, match="try another seed"):
        choose([Snapshot(1, BEHAVIOR, -1_000.0), Snapshot(2, TARGET, -150.0)])


def test_it_writes_both_actors_and_what_made_them(tmp_path, monkeypatch):
    met = [Snapshot(80, BEHAVIOR, -450.0), Snapshot(160, TARGET, -150.0)]
    monkeypatch.setattr(train_pendulum, "snapshots", lambda seed: met)
    monkeypatch.setattr(train_pendulum, "REPORT_EPISODES", 50)
    train_pendulum.main(["--out", str(tmp_path / "new"), "--seed", "7"])
    names = ["README.md", "pendulum-behavior.safetensors", "pendulum-target.safetensors"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == names
    for name, actor in (("behavior", BEHAVIOR), ("target", TARGET)):
        written = load_safetensors_actor(tmp_path / "new" / f"pendulum-{name}.safetensors")
        np.testing.assert_array_equal(written.weights[0], actor.weights[0])
    readme = (tmp_path / "new" / "README.md").read_text(encoding="utf-8")
    assert "--seed 7" in readme
    assert "| pendulum-target.safetensors | 160 | -1" in readme
