from __future__ import annotations

import json
import shutil

import h5py
import numpy as np
import pytest

from encoded_log import read_here
from kmifqe.errors import InputError
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.save import save_dataset

pytest.importorskip("minari")
from gymnasium.spaces import Box, Dict, Discrete
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

LENGTHS, TERMINATED = (3, 1, 5), (True, False, True)


def write(folder, data_format="hdf5", observation_space=None, action_space=None, **changes):
    """A dataset as Minari's own collector lays it out: T + 1 observations (e, t), T of everything else."""
    folder.mkdir(parents=True)
    storage = MinariStorage.new(
        folder / "data",
        observation_space=observation_space or Box(-np.inf, np.inf, (2,), np.float64),
        action_space=action_space or Box(-1, 1, (1,), np.float32),
        data_format=data_format,
    )
    for e, length in enumerate(LENGTHS):
        last = np.arange(length) == length - 1
        episode = {
            "observations": np.array([(e, t) for t in range(length + 1)], np.float64),
            "actions": np.linspace(0, 1, length, dtype=np.float32)[:, None],
            "rewards": np.arange(length, dtype=np.float64),
            "terminations": last & TERMINATED[e],
            "truncations": last & (not TERMINATED[e]),
            "infos": {},
        }
        episode |= {field: change(episode[field], e) for field, change in changes.items()}
        storage.update_episodes([EpisodeBuffer(id=e, **episode)])
    return folder


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
def test_t_plus_one_observations_align_with_t_actions(tmp_path, data_format):
    log = load_dataset(write(tmp_path / "log-v0", data_format))
    e = np.repeat(np.arange(3), LENGTHS)
    t = np.concatenate([np.arange(length) for length in LENGTHS])
    assert np.array_equal(log.states, np.stack([e, t], axis=1))
    assert np.array_equal(log.next_states, np.stack([e, t + 1], axis=1))
    assert log.has_next_state.all()
    assert np.array_equal(log.rewards, t)
    assert np.flatnonzero(log.terminated).tolist() == [2, 8]
    assert np.flatnonzero(log.truncated).tolist() == [3]
    assert log.actions.shape == (9, 1)


def test_texts_among_the_infos_are_left_alone(tmp_path):
    texts = {"infos": lambda a, e: {"why": [f"step {t}" for t in range(LENGTHS[e] + 1)]}}
    assert len(load_dataset(write(tmp_path / "log-v0", **texts))) == sum(LENGTHS)


def test_a_dataset_is_found_by_directory_data_directory_and_id(tmp_path, monkeypatch, same_log):
    folder = write(tmp_path / "mujoco" / "hopper" / "expert-v0")
    log = load_dataset(folder)
    same_log(load_dataset(folder / "data"), log)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    same_log(load_dataset("mujoco/hopper/expert-v0"), log)
    with pytest.raises(
        InputError, match="hopper/expert-v1: no such file or directory, and no Minari dataset of that id"
    ):
        load_dataset("mujoco/hopper/expert-v1")


def test_an_episode_that_ends_without_a_flag_was_cut(tmp_path):
    log = load_dataset(write(tmp_path / "log-v0", terminations=lambda a, e: a & (e != 0)))
    assert np.flatnonzero(log.truncated).tolist() == [2, 3]
    assert log.n_episodes == 3


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"observations": lambda a, e: a[:-1] if e == 2 else a},
            "episode 2: observations has 5 rows; expected 6",
        ),
        ({"actions": lambda a, e: a[:-1] if e == 2 else a}, "episode 2: actions has 4 rows; expected 5"),
        (
            {"rewards": lambda a, e: a * np.nan if e == 1 else a},
            "episode 1: rewards holds NaN or infinity in 1 of 1",
        ),
        (
            {"observations": lambda a, e: a * 1e300},
            r"episode 0: observations holds 1e\+300 at row 1, beyond float32",
        ),
        ({"terminations": lambda a, e: ~a}, "episode 0: terminations is set before the last step"),
        (
            {"infos": lambda a, e: {"action_log_probs": np.zeros(LENGTHS[e] + 1)}},
            "action_log_probs has 4 rows; expected 3",
        ),
        (
            {"infos": lambda a, e: {} if e else {"action_log_probs": np.zeros(3)}},
            "episode 1: infos/action_log_probs is missing",
        ),
    ],
)
def test_broken_episodes_are_refused_with_a_sentence(tmp_path, change, message):
    folder = write(tmp_path / "log-v0", **change)
    with pytest.raises(InputError, match=message):
        load_dataset(folder)


def test_other_spaces_are_refused(tmp_path):
    with pytest.raises(InputError, match="actions come from a Discrete space; expected a Box"):
        load_dataset(
            write(tmp_path / "a-v0", action_space=Discrete(3), actions=lambda a, e: np.zeros(len(a), int))
        )
    space = Dict({"x": Box(-1, 1, (2,), np.float64)})
    with pytest.raises(InputError, match="observations come from a Dict space; expected a Box"):
        load_dataset(write(tmp_path / "b-v0", observation_space=space, observations=lambda a, e: {"x": a}))


def test_an_empty_episode_is_refused(tmp_path):
    folder = write(tmp_path / "log-v0")
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        for field in ("actions", "rewards", "terminations", "truncations"):
            del file[f"episode_1/{field}"]
            file[f"episode_1/{field}"] = np.zeros((0, 1) if field == "actions" else 0, np.float32)
    with pytest.raises(InputError, match="episode 1: has no step; expected at least one"):
        load_dataset(folder)


def edit_metadata(folder, **changes) -> None:
    path = folder / "data" / "metadata.json"
    metadata = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in metadata.items() if value is not None}))


def test_an_environment_named_in_the_metadata_is_never_built(tmp_path):
    folder = write(tmp_path / "log-v0")
    spec = {"id": "Evil-v0", "entry_point": "antigravity:fly", "kwargs": {}}
    edit_metadata(folder, observation_space=None, env_spec=json.dumps(spec))
    with pytest.raises(InputError, match=r"metadata\.json has no observation_space"):
        load_dataset(folder)


@pytest.mark.parametrize(
    "steps, message", [(8, "hold more"), (10, "the episodes hold 9"), (10**12, "declares"), (0, "empty")]
)
def test_wrong_step_counts_are_refused(tmp_path, steps, message):
    folder = write(tmp_path / "log-v0")
    edit_metadata(folder, total_steps=steps)
    with pytest.raises(InputError, match=message):
        load_dataset(folder)


def test_broken_storage_is_refused(tmp_path):
    folder = write(tmp_path / "log-v0")
    main_file = folder / "data" / "main_data.hdf5"
    with pytest.raises(InputError, match="is the inside of a Minari dataset; give the directory around it"):
        load_dataset(main_file)
    whole = main_file.read_bytes()
    main_file.write_bytes(whole[:3000])
    with pytest.raises(InputError, match="log-v0: cannot be read as a Minari dataset"):
        load_dataset(folder)
    main_file.unlink()
    with pytest.raises(InputError, match="log-v0: cannot be read as a Minari dataset"):
        load_dataset(folder)
    (folder / "data" / "metadata.json").write_text("{")
    with pytest.raises(InputError, match=r"metadata\.json: cannot be read as JSON"):
        load_dataset(folder)


def test_absurd_arrays_and_links_are_refused(tmp_path):
    folder = write(tmp_path / "log-v0")
    shutil.copytree(folder, tmp_path / "other-v0")
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file.create_dataset("episode_1/infos/huge", (10**12,), "f8", chunks=(1024,))
    with pytest.raises(InputError, match="episode_1/infos/huge declares 8,000,000,000,000 bytes"):
        load_dataset(folder)
    other = tmp_path / "other-v0" / "data" / "main_data.hdf5"
    with h5py.File(other, "a") as file:
        del file["episode_2"]
        file["episode_2"] = h5py.ExternalLink(folder / "data" / "main_data.hdf5", "episode_0")
    with pytest.raises(InputError, match="episode_2 is a link to another file"):
        load_dataset(tmp_path / "other-v0")


def test_a_missing_minari_names_the_extra(monkeypatch, tmp_path, log):
    folder = write(tmp_path / "log-v0")
    monkeypatch.setitem(__import__("sys").modules, "minari.dataset.minari_storage", None)
    for attempt in (lambda: read_here(folder), lambda: save_dataset(log, tmp_path / "new-v0")):
        with pytest.raises(InputError, match=r"need the minari package; .* pip install 'kmifqe\[minari\]'"):
            attempt()
