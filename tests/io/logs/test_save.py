from __future__ import annotations

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.save import save_dataset
from kmifqe.mdp.transitions import Transitions

FORMATS = ["log.hdf5", "log.h5", "log.npz", "log.parquet", "log.arrow", "log-v0"]


def write(log: Transitions, path) -> None:
    if path.name == "log-v0":
        pytest.importorskip("minari")
    if path.suffix in (".parquet", ".arrow"):
        pytest.importorskip("pyarrow")
    save_dataset(log, path)


@pytest.mark.parametrize("name", FORMATS)
def test_round_trip_is_exact_and_aligned(tmp_path, log, same_log, name):
    write(log, tmp_path / name)
    read = load_dataset(tmp_path / name)
    same_log(read, log)
    e, t = read.states.T
    assert np.array_equal(read.next_states, np.stack([e, t + 1], axis=1))
    assert np.array_equal(read.episode, e)
    assert [file.name for file in tmp_path.iterdir()] == [name], "a temporary file was left"


@pytest.mark.parametrize("name", FORMATS)
def test_round_trip_of_a_log_whose_last_states_are_unknown(tmp_path, encoded, same_log, name):
    """None logged, and some logged: neither may come back as a state of zeros that was logged."""
    ends = np.flatnonzero(encoded["terminals"] | encoded["timeouts"])
    none = Transitions.from_arrays(**{**encoded, "next_observations": None, "action_log_probs": None})
    encoded["next_observations"][ends[::2]] = np.nan
    some = Transitions.from_arrays(**encoded)
    for number, log in enumerate((none, some)):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(log, folder / name)
        read = load_dataset(folder / name)
        same_log(read, log)
        assert not read.has_next_state[ends[0]]


@pytest.mark.parametrize("name", FORMATS)
def test_round_trip_of_densities_per_dimension_and_of_one_row(tmp_path, encoded, same_log, name):
    encoded["action_log_probs"] = -encoded["actions"]
    log = Transitions.from_arrays(**{field: array[3:4] for field, array in encoded.items()})
    write(log, tmp_path / name)
    same_log(load_dataset(tmp_path / name), log)


def test_random_floats_keep_their_bits(tmp_path, same_log):
    rng = np.random.default_rng(1)
    n = 5_000
    bits = rng.integers(0, 2**32, (n, 4), dtype=np.uint32).view(np.float32)
    states = np.where(np.isfinite(bits), bits, np.float32(-0.0))
    log = Transitions.from_arrays(
        states, states[:, :2], states[:, 0], rng.random(n) < 0.01, rng.random(n) < 0.01
    )
    for name in FORMATS:
        write(log, tmp_path / name)
        same_log(load_dataset(tmp_path / name), log)


@pytest.mark.parametrize("name", ["log.npz", "log-v0"])
def test_existing_data_is_replaced_only_when_asked(tmp_path, log, same_log, name):
    path = tmp_path / name
    other = Transitions.from_arrays(log.states * 2, log.actions, log.rewards, log.terminated, log.truncated)
    write(other, path)
    with pytest.raises(InputError, match="exists already; give --force"):
        save_dataset(log, path)
    same_log(load_dataset(path), other)
    save_dataset(log, path, overwrite=True)
    same_log(load_dataset(path), log)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_folder_that_is_not_a_dataset_is_never_replaced(tmp_path, log):
    precious = tmp_path / "thesis-v2"
    precious.mkdir()
    (precious / "chapter1.tex").write_text("years of work")
    with pytest.raises(InputError, match="exists and is not a Minari dataset; it is not replaced"):
        save_dataset(log, precious, overwrite=True)
    (tmp_path / "log.npz").mkdir()
    with pytest.raises(InputError, match="exists and is not a file"):
        save_dataset(log, tmp_path / "log.npz", overwrite=True)
    assert (precious / "chapter1.tex").read_text() == "years of work"


@pytest.mark.parametrize("name", ["notes.txt", "data/notes.txt"])
def test_a_dataset_with_somebodys_files_in_it_is_not_replaced(tmp_path, log, name):
    path = tmp_path / "log-v0"
    write(log, path)
    (path / name).write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        save_dataset(log, path, overwrite=True)
    assert (path / name).read_text() == "mine"


def test_a_link_that_leads_nowhere_is_in_the_way_too(tmp_path, log):
    (tmp_path / "log.npz").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"log\.npz: exists already"):
        save_dataset(log, tmp_path / "log.npz")
    assert (tmp_path / "log.npz").is_symlink()


def test_unknown_suffix_and_missing_directory_are_refused(tmp_path, log):
    with pytest.raises(
        InputError, match=r"log\.csv: the suffix \.csv names no format to write; expected \.hdf5"
    ):
        save_dataset(log, tmp_path / "log.csv")
    with pytest.raises(InputError, match=r"the directory .*nowhere does not exist"):
        save_dataset(log, tmp_path / "nowhere" / "log.npz")


def test_a_failed_write_leaves_nothing(tmp_path, log, monkeypatch):
    monkeypatch.setattr("kmifqe.io.logs.save._rows_of", lambda *_: 1 / 0)
    for name in ("log.hdf5", "log.npz"):
        with pytest.raises(ZeroDivisionError):
            save_dataset(log, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_minari_itself_reads_what_we_write(tmp_path, log, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    save_dataset(log, tmp_path / "log-v0")
    dataset = minari.load_dataset("log-v0")
    assert dataset.total_episodes == log.n_episodes
    assert dataset.total_steps == len(log)
    episode = dataset[2]
    assert np.array_equal(episode.observations[:, 1], np.arange(6))
    assert episode.truncations.tolist() == [False] * 4 + [True]
