from __future__ import annotations

import os

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.read import mark_new_episodes
from kmifqe.io.logs.save import save_dataset
from kmifqe.mdp import columns
from kmifqe.mdp.transitions import Transitions


def part(log: Transitions, episodes: range) -> Transitions:
    rows = np.isin(log.episode, episodes)
    fields = (
        log.states,
        log.actions,
        log.rewards,
        log.terminated,
        log.truncated,
        log.next_states,
        log.log_mu,
    )
    return Transitions.from_arrays(*(array[rows] for array in fields))


@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".parquet"])
def test_a_directory_of_files_is_one_dataset_in_natural_order(tmp_path, log, same_log, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    for name, episodes in {"part-2": range(2), "part-10": range(2, 5), "part-11": range(5, 6)}.items():
        save_dataset(part(log, episodes), tmp_path / f"{name}{suffix}")
    (tmp_path / "README.md").write_text("about")
    (tmp_path / ".part-0.npz").write_text("hidden")
    same_log(load_dataset(tmp_path), log)


def test_a_files_last_row_ends_an_episode(tmp_path, encoded):
    for number, rows in enumerate((slice(0, 7), slice(7, 16))):
        fields = {field: array[rows] for field, array in encoded.items() if field != "next_observations"}
        np.savez(tmp_path / f"{number}.npz", **fields)
    log = load_dataset(tmp_path)
    assert log.truncated[6]
    assert not log.has_next_action[6]
    assert log.n_episodes == 7


@pytest.mark.parametrize("evidence", ["next_observations", "episode"])
def test_an_episode_that_goes_on_in_the_next_file_is_refused(tmp_path, evidence):
    n = 12
    fields = {
        "observations": np.arange(n, dtype=np.float32)[:, None],
        "actions": np.zeros((n, 1), np.float32),
        "rewards": np.zeros(n),
        "terminals": np.zeros(n, bool),
        "timeouts": np.arange(n) % 6 == 5,
    }
    told = {"next_observations": fields["observations"] + 1, "episode": np.arange(n) // 6}
    fields[evidence] = told[evidence]

    def load(cut: int) -> Transitions:
        for number, rows in enumerate((slice(0, cut), slice(cut, n))):
            np.savez(tmp_path / f"{number}.npz", **{name: array[rows] for name, array in fields.items()})
        return load_dataset(tmp_path, cache=False)

    assert load(6).n_episodes == 2
    with pytest.raises(InputError, match=r"1\.npz: goes on with the episode at the end of .*0\.npz"):
        load(8)


def test_files_of_different_layouts_are_refused(tmp_path, log, encoded):
    save_dataset(log, tmp_path / "a.npz")
    fields = {field: array for field, array in encoded.items() if field != "action_log_probs"}
    np.savez(tmp_path / "b.npz", **fields)
    with pytest.raises(InputError, match=r"b\.npz: action_log_probs' columns: None, but .*a\.npz has 0"):
        load_dataset(tmp_path)
    np.savez(tmp_path / "b.npz", **{**encoded, "actions": encoded["rewards"]})
    with pytest.raises(
        InputError, match=r"b\.npz: actions' columns: 1, but .*a\.npz has 3; expected one layout"
    ):
        load_dataset(tmp_path)


def test_a_directory_of_several_formats_is_refused(tmp_path, log):
    save_dataset(log, tmp_path / "a.npz")
    save_dataset(log, tmp_path / "b.hdf5")
    with pytest.raises(
        InputError, match=r"holds files of several formats, hdf5 \(b.hdf5\) and npz \(a.npz\)"
    ):
        load_dataset(tmp_path)


def test_content_decides_over_the_suffix(tmp_path, log, same_log):
    save_dataset(log, tmp_path / "log.npz")
    os.rename(tmp_path / "log.npz", tmp_path / "log.hdf5")
    same_log(load_dataset(tmp_path / "log.hdf5"), log)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("log.csv", b"observation_0,reward\n1,2\n", r"\.csv is text.* write the table as Parquet"),
        ("log.npz", b"", r"the file is empty \(0 bytes\)"),
        ("log.hdf5", b"not hdf5 at all", r"does not begin like \.hdf5 data"),
        ("log.npy", b"\x93NUMPY\x01\x00", r"is a single array \(\.npy\)"),
        ("log.pkl", b"\x80\x04\x95", "is of no format known here; expected D4RL"),
        ("log.zip", b"PK\x03\x04 and nothing", r"cannot be read as a zip archive"),
    ],
)
def test_files_of_other_formats_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}: {message}"):
        load_dataset(tmp_path / name)


def test_missing_empty_and_special_paths_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.npz: no such file or directory; expected D4RL"):
        load_dataset(tmp_path / "nowhere.npz")
    with pytest.raises(InputError, match="holds no data file; expected D4RL"):
        load_dataset(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train-00000.parquet").touch()  # as the hub's datasets lie
    with pytest.raises(InputError, match=r"holds no data file .*data/\*\.parquet"):
        load_dataset(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: is a directory, a pipe or a device"):
        load_dataset(tmp_path / "pipe")


def test_unchecked_loading_lets_nan_through_without_moving_episodes(tmp_path, encoded, log):
    encoded["observations"][5] = np.nan
    encoded["next_observations"][8, 0] = np.nan
    encoded["rewards"][3] = np.inf
    np.savez(tmp_path / "log.npz", **encoded)
    with pytest.raises(InputError, match="observations holds NaN"):
        load_dataset(tmp_path / "log.npz")
    read = load_dataset(tmp_path / "log.npz", check_finite=False)
    assert np.isnan(read.states[5]).all()
    assert np.array_equal(read.episode, log.episode)


@pytest.mark.parametrize("name", ["a" * 5000, "~nobody-of-this-name/log.npz"])
def test_what_cannot_be_a_file_name_is_refused(name):
    with pytest.raises(InputError, match="cannot be read as the name of a file"):
        load_dataset(name)


@pytest.mark.parametrize("chunk_bytes", [8, 24, 1 << 20])
def test_episode_ids_mark_the_last_row_of_each_run(monkeypatch, chunk_bytes):
    monkeypatch.setattr(columns, "CHUNK_BYTES", chunk_bytes)
    ends = np.zeros(7, bool)
    mark_new_episodes(ends, columns.pieces_of(np.array([7, 7, 7, 2, 5, 5, 9])), "x")
    assert ends.tolist() == [False, False, True, True, False, True, False]


def test_an_episode_id_that_returns_is_refused():
    with pytest.raises(InputError, match="x: episode 1 appears in 2 separate runs of rows"):
        mark_new_episodes(np.zeros(4, bool), columns.pieces_of(np.array([1, 2, 2, 1])), "x")
