"""LeRobot and RLDS tables, several files, and logs that are downloaded: the same transitions as the plain arrays."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.logs.load import load_dataset
from kmifqe.mdp.transitions import Transitions

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
LENGTHS = (3, 5, 4)


def arrays() -> dict[str, np.ndarray]:
    rng, n = np.random.default_rng(0), sum(LENGTHS)
    return {
        "observation.state": rng.normal(size=(n, 2)).astype(np.float32),
        "action": rng.normal(size=(n, 1)).astype(np.float32),
        "next.reward": rng.normal(size=n).astype(np.float32),
        "next.done": np.isin(np.arange(n), np.cumsum(LENGTHS) - 1),
        "episode_index": np.repeat(np.arange(3), LENGTHS),
        "frame_index": np.concatenate([np.arange(length) for length in LENGTHS]),
        "timestamp": np.arange(n) / 10,
    }


def write(path: Path, fields: dict[str, np.ndarray]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: list(array) for name, array in fields.items()}), path)
    return path


def expected(terminated: np.ndarray) -> Transitions:
    f = arrays()
    ends = f["next.done"]
    return Transitions.from_arrays(
        f["observation.state"], f["action"], f["next.reward"], terminated, ends & ~terminated
    )


def assert_same(found: Transitions, wanted: Transitions) -> None:
    for field in ("states", "actions", "rewards", "next_states", "next_actions", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(found, field), getattr(wanted, field), err_msg=field)
    np.testing.assert_array_equal(found.episode, wanted.episode)


def lerobot(folder: Path, fields: dict[str, np.ndarray]) -> Path:
    """Write a dataset as LeRobot 2 does: one file an episode, in chunks, beside meta/info.json."""
    for episode in range(3):
        rows = fields["episode_index"] == episode
        path = folder / "data" / "chunk-000" / f"episode_{episode:06d}.parquet"
        write(path, {name: array[rows] for name, array in fields.items()})
    (folder / "meta").mkdir()
    (folder / "meta" / "info.json").write_text("{}", encoding="utf-8")
    return folder


def test_done_on_every_last_row_is_asked_about(tmp_path):
    path = write(tmp_path / "episodes.parquet", arrays())
    with pytest.raises(InputError, match=r"next\.done.*max_episode_steps"):
        load_dataset(path, cache=False)
    f = arrays()
    assert_same(load_dataset(path, max_episode_steps=0, cache=False), expected(f["next.done"]))
    only_shorter = f["next.done"] & (np.arange(len(f["action"])) != 7)  # the episode of 5 steps was cut
    found = load_dataset(path, max_episode_steps=5, cache=False)
    assert_same(found, expected(only_shorter))
    assert "1 of 3 episodes" in found.notes[0]


def test_the_answer_is_not_kept_with_the_log(tmp_path):
    path = write(tmp_path / "episodes.parquet", arrays())
    assert int(load_dataset(path, max_episode_steps=0).terminated.sum()) == 3
    assert int(load_dataset(path, max_episode_steps=5).terminated.sum()) == 2
    with pytest.raises(InputError, match=r"next\.done"):
        load_dataset(path)


def test_done_that_some_episodes_lack_is_believed(tmp_path):
    f = arrays()
    f["next.done"][7] = False
    folder = lerobot(tmp_path / "robot", f)
    assert_same(load_dataset(folder, cache=False), expected(f["next.done"]))


def test_a_lost_frame_is_refused(tmp_path):
    f = {name: np.delete(array, 4, axis=0) for name, array in arrays().items()}
    with pytest.raises(InputError, match="frame_index is 2 at row 4, of episode 1"):
        load_dataset(write(tmp_path / "episodes.parquet", f), max_episode_steps=0, cache=False)


@pytest.mark.parametrize("rows", [slice(1, None), slice(5, None)], ids=["log", "second file of an episode"])
def test_an_episode_that_begins_in_its_middle_is_refused(tmp_path, rows):
    f = {name: array[rows] for name, array in arrays().items()}
    with pytest.raises(InputError, match="frame_index"):
        load_dataset(write(tmp_path / "file-001.parquet", f), max_episode_steps=0, cache=False)


def rlds(steps: int, state: str) -> dict[str, np.ndarray]:
    """Return two episodes of `steps` transitions each as RLDS steps; only the first ended."""
    rng, n = np.random.default_rng(1), 2 * (steps + 1)
    last = np.arange(n) % (steps + 1) == steps
    return {
        state: rng.normal(size=(n, 2)).astype(np.float32),
        "action": rng.normal(size=(n, 1)).astype(np.float32),
        "reward": rng.normal(size=n).astype(np.float32),
        "is_first": np.arange(n) % (steps + 1) == 0,
        "is_last": last,
        "is_terminal": last & (np.arange(n) < steps + 1),
    }


@pytest.mark.parametrize("state", ["observation", "observation.state"])
def test_rlds_steps_become_transitions(tmp_path, state):
    f = rlds(4, state)
    found = load_dataset(write(tmp_path / "steps.parquet", f), cache=False)
    kept = ~f["is_last"]
    np.testing.assert_array_equal(found.states, f[state][kept])
    np.testing.assert_array_equal(found.next_states, f[state][np.flatnonzero(kept) + 1])
    np.testing.assert_array_equal(found.actions, f["action"][kept])
    np.testing.assert_array_equal(found.terminated, np.arange(8) == 3)
    np.testing.assert_array_equal(found.truncated, np.arange(8) == 7)
    assert found.has_next_state.all()


def test_the_action_of_an_rlds_last_step_may_be_null_and_no_other(tmp_path):
    f = rlds(4, "observation")
    actions = [None if last else action for last, action in zip(f["is_last"], f["action"].tolist())]
    found = load_dataset(write(tmp_path / "steps.parquet", f | {"action": actions}), cache=False)
    np.testing.assert_array_equal(found.actions, f["action"][~f["is_last"]])
    actions[2] = None
    with pytest.raises(InputError, match=r"actions .* row 2"):
        load_dataset(write(tmp_path / "steps.parquet", f | {"action": actions}), cache=False)


def test_rlds_with_half_an_episode_is_refused(tmp_path):
    f = {name: array[:-1] for name, array in rlds(4, "observation").items()}
    with pytest.raises(InputError, match="is_last is not set on the last row"):
        load_dataset(write(tmp_path / "steps.parquet", f), cache=False)


def test_patterns_and_lists_are_one_log_in_natural_order(tmp_path):
    f = arrays()
    for episode, number in ((0, 1), (1, 2), (2, 10)):
        rows = f["episode_index"] == episode
        write(tmp_path / f"part-{number}.parquet", {name: array[rows] for name, array in f.items()})
    wanted = expected(f["next.done"])
    assert_same(load_dataset(str(tmp_path / "part-*.parquet"), max_episode_steps=0, cache=False), wanted)
    files = [tmp_path / f"part-{number}.parquet" for number in (10, 1, 2)]
    assert_same(load_dataset(files, max_episode_steps=0), wanted)
    with pytest.raises(InputError, match="given twice"):
        load_dataset([files[0], files[0]])
    with pytest.raises(InputError, match="no file has such a name"):
        load_dataset(str(tmp_path / "other-*.parquet"))


def test_the_hub_is_asked_for_the_files_that_are_read(tmp_path, monkeypatch):
    source = lerobot(tmp_path / "source", arrays())
    asked = []

    def snapshot_download(**wanted):
        asked.append(wanted)
        return str(shutil.copytree(source, tmp_path / "hub" / str(len(asked))))

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    wanted = expected(arrays()["next.done"])
    assert_same(load_dataset("hf://datasets/some/robot", max_episode_steps=0), wanted)
    inside = "hf://datasets/some/robot@v2.0/data/*/episode_000001.parquet"
    assert len(load_dataset(inside, max_episode_steps=0)) == 5
    assert asked[0]["repo_id"] == "some/robot"
    assert "videos/*" in asked[0]["ignore_patterns"]
    assert (asked[1]["revision"], asked[1]["allow_patterns"]) == ("v2.0", ["data/*/episode_000001.parquet"])
    with pytest.raises(InputError, match="is no dataset of the hub"):
        load_dataset("hf://robot")


def test_a_download_that_fails_is_one_sentence(monkeypatch, tmp_path):
    def fail(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=fail))
    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(download_dataset=fail))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    for name in ("hf://datasets/some/robot", "minari:mujoco/hopper/expert-v0"):
        with pytest.raises(InputError, match=r"cannot be downloaded \(no route\)"):
            load_dataset(name)
