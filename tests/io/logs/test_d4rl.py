from __future__ import annotations

import h5py
import numpy as np
import pytest

from encoded_log import read_here
from kmifqe.errors import InputError
from kmifqe.io.logs.load import load_dataset
from kmifqe.mdp import columns as fill


@pytest.mark.parametrize("chunk_bytes", [16, 100, 1 << 22])
@pytest.mark.parametrize("options", [{}, {"chunks": True, "compression": "gzip"}])
def test_the_d4rl_layout_in_float64_gives_the_same_arrays(
    monkeypatch, encoded, log, same_log, write_hdf5, chunk_bytes, options
):
    """As in the locomotion files: densities under infos, a policy under metadata, extra fields ignored."""
    monkeypatch.setattr(fill, "CHUNK_BYTES", chunk_bytes)
    wide = {k: v.astype(np.float64) if v.dtype != bool else v.astype(np.uint8) for k, v in encoded.items()}
    wide["infos/action_log_probs"] = wide.pop("action_log_probs")
    wide["infos/qpos"] = np.full((3, 2), np.nan)
    wide["metadata/policy/fc0/weight"] = np.zeros((4, 2))
    same_log(read_here(write_hdf5(wide, **options)), log)


def test_terminal_rows_never_read_the_next_episode(encoded, write_hdf5):
    del encoded["next_observations"]
    log = load_dataset(write_hdf5(encoded))
    last = np.flatnonzero(encoded["terminals"] | encoded["timeouts"])
    assert (log.next_states[last] == 0).all()
    assert not log.has_next_state[last].any()


def test_without_timeouts_next_observations_delimit_episodes(encoded, log, same_log, write_hdf5):
    del encoded["timeouts"]
    read = load_dataset(write_hdf5(encoded))
    same_log(read, log)
    assert "timeouts is missing; 2 episode ends were found" in read.notes[0]


def test_without_both_a_time_limit_delimits_episodes_or_the_file_is_refused(write_hdf5):
    states = np.concatenate([np.arange(5), np.arange(2), np.arange(5), np.arange(1)])
    terminals = np.zeros(13, bool)
    terminals[6] = True
    path = write_hdf5(
        {"observations": states, "actions": states, "rewards": states, "terminals": terminals.astype(float)}
    )
    with pytest.raises(
        InputError, match=r"log\.hdf5: timeouts is missing, .* give the time limit with --max-episode-steps"
    ):
        load_dataset(path)
    log = load_dataset(path, max_episode_steps=5)
    assert np.flatnonzero(log.truncated).tolist() == [4, 11, 12]
    assert np.array_equal(log.states[log.first_rows], np.zeros((4, 1)))
    assert load_dataset(path, max_episode_steps=0).n_episodes == 2
    with pytest.raises(InputError, match="max_episode_steps is -1"):
        load_dataset(path, max_episode_steps=-1)


@pytest.mark.parametrize(
    "names",
    [
        {
            "observations": "obs",
            "next_observations": "next_obs",
            "terminals": "terminated",
            "timeouts": "truncated",
        },
        {"actions": "action", "rewards": "reward", "terminals": "termination", "timeouts": "truncation"},
        {"terminals": "terminations", "timeouts": "truncations"},
        {"terminals": "terminal", "timeouts": "timeout"},
    ],
)
def test_gymnasiums_and_minaris_names_are_understood(encoded, log, same_log, write_hdf5, names):
    for field, name in names.items():
        encoded[name] = encoded.pop(field)
    same_log(load_dataset(write_hdf5(encoded)), log)


def test_done_alone_is_refused_with_what_it_does_not_say(encoded, write_hdf5):
    encoded["dones"] = encoded.pop("terminals") | encoded.pop("timeouts")
    with pytest.raises(InputError, match=r"dones says .*, not whether .* \(terminals, .* \(timeouts, "):
        load_dataset(write_hdf5(encoded))


def test_a_truncated_file_is_refused(encoded, write_hdf5):
    path = write_hdf5(encoded)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(InputError, match=r"log\.hdf5: cannot be read as an HDF5 file .*truncated"):
        load_dataset(path)


def test_damage_inside_an_array_is_refused(encoded, write_hdf5):
    path = write_hdf5(encoded, compression="gzip")
    with h5py.File(path) as file:
        offset = file["rewards"].id.get_chunk_info(0).byte_offset
    data = bytearray(path.read_bytes())
    data[offset : offset + 8] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"log\.hdf5: rewards: a chunk is damaged"):
        load_dataset(path)


def test_missing_and_doubled_fields_are_refused(encoded, write_hdf5):
    terminals = encoded.pop("terminals")
    with pytest.raises(
        InputError,
        match=r"terminals is missing; expected .* terminals, .*terminated.*; the file holds action_log_probs",
    ):
        load_dataset(write_hdf5(encoded))
    with pytest.raises(InputError, match="holds both terminals and terminated, which mean the same field"):
        load_dataset(write_hdf5({**encoded, "terminals": terminals, "terminated": terminals}))


def test_groups_strings_and_scalars_in_place_of_arrays_are_refused(encoded, write_hdf5):
    for wrong, message in [
        ({"observations/camera": encoded["observations"]}, "observations is not an array"),
        ({"observations": np.array([b"a"] * 16)}, r"observations has type \|S1; expected numbers"),
        ({"observations": ["a"] * 16}, "observations has type object; expected numbers"),
        ({"observations": 3.0}, r"observations has shape \(\); expected"),
        ({"observations": h5py.Empty("f4")}, "observations is not an array"),
    ]:
        rest = {field: array for field, array in encoded.items() if field != "observations"}
        with pytest.raises(InputError, match=message):
            load_dataset(write_hdf5({**rest, **wrong}))


def test_absurd_declared_sizes_are_refused_before_any_memory_is_taken(encoded, write_hdf5):
    path = write_hdf5({k: v for k, v in encoded.items() if k != "rewards"})
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", (10**13,), "f8", chunks=(1024,))
    with pytest.raises(InputError, match=r"rewards declares 80,000,000,000,000 bytes, but the file has"):
        load_dataset(path)


def test_arrays_in_other_files_are_refused(tmp_path, encoded, write_hdf5):
    other = write_hdf5(encoded, "other.hdf5")
    rest = {field: array for field, array in encoded.items() if field != "rewards"}
    path = write_hdf5(rest)
    with h5py.File(path, "a") as file:
        file["rewards"] = h5py.ExternalLink(other, "rewards")
    with pytest.raises(InputError, match="rewards is a link to another file"):
        load_dataset(path)
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file["infos"] = h5py.ExternalLink(other, "/")
    with pytest.raises(InputError, match="infos is a link to another file"):
        load_dataset(path)
    path = write_hdf5(rest)
    with h5py.File(path, "a") as file:
        layout = h5py.VirtualLayout((16,), "f4")
        layout[:] = h5py.VirtualSource(other, "rewards", (16,))
        file.create_virtual_dataset("rewards", layout)
    with pytest.raises(InputError, match="rewards is stored in other files"):
        load_dataset(path)
