"""Rankings and evaluations on a real Ray cluster of several processes give the values of a local run."""

from __future__ import annotations

import os
import signal
import socket
from functools import partial

import numpy as np
import pytest

import kmifqe
from kmifqe.cli.app import with_ray_address
from kmifqe.cluster import Cluster, Job, connect
from kmifqe.errors import InputError
from kmifqe.experiments.drive import make_records
from kmifqe.experiments.records import Record, made_here, read_record
from kmifqe.report.watch import TaskProgress, Watch
from kmifqe.store import Interrupted

ray = pytest.importorskip("ray")
SMALL = {"estimators": ["fqe"], "settings": ["hidden=8", "batch=16"], "behavior": "logged", "gamma": 0.9}


def small_log():
    rng, n = np.random.default_rng(0), 300
    return kmifqe.Transitions.from_arrays(
        *(rng.normal(size=(n, 2)), rng.normal(size=(n, 1)), rng.normal(size=n), np.zeros(n)),
        np.arange(n) % 20 == 19,
        action_log_probs=rng.normal(size=n),
    )


def policies():
    return {f"p{k}": lambda states, k=k: np.tanh(k * states[:, :1]) for k in (1, 2)}


class Killer(Watch):
    """Kills the process of the first task that has come some way, once."""

    def __init__(self) -> None:
        self.killed: TaskProgress | None = None
        self.last: dict[str, TaskProgress] = {}
        self.warnings: list[str] = []

    def tasks(self, running, done, total):
        self.last |= {each.name: each for each in running}
        far = [each for each in running if each.step >= each.steps // 5]
        if self.killed is None and far:
            self.killed = far[0]
            os.kill(far[0].process, signal.SIGKILL)

    def warn(self, sentence):
        self.warnings.append(sentence)


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def test_a_ranking_with_a_killed_worker_has_the_values_of_a_local_one(cluster):
    options = SMALL | {"seeds": 2, "rough": 2, "steps": 8_000, "save_seconds": 0.0}
    watch, found = Killer(), {}
    ranked = kmifqe.rank(
        small_log(),
        policies(),
        **options,
        ray="auto",
        watch=watch,
        on_estimates=lambda e: found.update(far=e),
    )
    local = kmifqe.rank(small_log(), policies(), **options, on_estimates=lambda e: found.update(near=e))
    assert watch.killed is not None
    again = watch.last[watch.killed.name]
    assert again.attempt == 2
    assert again.begun >= watch.killed.step // 2 > 0, "it went on from a snapshot"
    assert any("worker was lost" in sentence for sentence in watch.warnings)
    for name in policies():
        np.testing.assert_array_equal(found["far"][name]["fqe"].values, found["near"][name]["fqe"].values)
    assert [each.policy for each in ranked.ranking] == [each.policy for each in local.ranking]


def test_an_evaluation_that_is_stopped_saves_all_tasks_and_goes_on(cluster, tmp_path):
    options = SMALL | {"seeds": 4, "steps": 4_000}
    given = small_log(), policies()["p1"]
    asked = Stopper()
    far = options | {"ray": "auto", "ray_blocks": 2, "out": tmp_path / "run"}
    with pytest.raises(Interrupted):
        kmifqe.evaluate(*given, **far, watch=asked, stop_asked=asked.is_told)
    assert len(list((tmp_path / "run" / "checkpoints").glob("*"))) == 2, "both tasks have saved"
    resumed = kmifqe.evaluate(*given, **far, resume=True)
    assert not list((tmp_path / "run").glob("checkpoints/*"))
    assert (tmp_path / "run" / "landscape.npz").exists()
    near = kmifqe.evaluate(*given, **options)
    # Products for two networks may be rounded in another way than for four.
    np.testing.assert_allclose(resumed.estimate.values, near.estimate.values, rtol=1e-4, atol=1e-6)


def test_an_evaluation_on_a_cluster_has_the_bits_of_a_local_one(cluster):
    options = SMALL | {"seeds": 2, "steps": 60}
    far, near = (kmifqe.evaluate(small_log(), policies()["p2"], **options, ray=ray) for ray in ("auto", None))
    np.testing.assert_array_equal(far.estimate.values, near.estimate.values)
    np.testing.assert_array_equal(far.estimate.trajectory, near.estimate.trajectory)
    assert far.estimate.measurements == near.estimate.measurements


class Stopper(Watch):
    """Asks for a stop as soon as a task is in training."""

    def __init__(self) -> None:
        self._told = False

    def tasks(self, running, done, total):
        self._told |= bool(running)

    def is_told(self):
        return self._told


@pytest.mark.parametrize("is_named_by", ["option", "RAY_ADDRESS"])
def test_an_address_where_nothing_listens_is_refused_at_once(monkeypatch, is_named_by):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray would try for minutes"))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match=address), connect(address if is_named_by == "option" else "auto"):
        pass


def test_a_task_that_no_node_has_room_for_is_refused(cluster):
    with pytest.raises(InputError, match="the largest node of the cluster"):
        Cluster().run([Job("large", print, memory=2**60)], Watch())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["log.npz", "--ray"], ["log.npz", "--ray", "auto"]),
        (["--ray", "log.npz"], ["--ray", "auto", "log.npz"]),
        (["--ray", "head:6379", "log.npz"], ["--ray", "head:6379", "log.npz"]),
        (["--ray", "--out", "x"], ["--ray", "auto", "--out", "x"]),
        (["--ray=ray://h:1"], ["--ray=ray://h:1"]),
    ],
)
def test_the_address_of_a_cluster_may_be_left_out(words, expected):
    assert with_ray_address(words) == expected


def test_studies_and_reproductions_run_their_problems_as_tasks(cluster, tmp_path):
    jobs = {tmp_path / f"{name}.json": (name, partial(tiny_record, name)) for name in ("a", "b")}
    said: list[str] = []
    make_records(jobs, said.append, Cluster(), Watch())
    assert {read_record(path, Record).preset for path in jobs} == {"a", "b"}
    assert sorted(line[0] for line in said) == ["a", "b"]


def tiny_record(name):
    return Record(preset=name, **made_here())
