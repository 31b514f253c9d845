"""Logs that were read once: found by their content, whole or read again, in a folder of the user's alone."""

from __future__ import annotations

import os
import stat
import warnings

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.cache import CacheWarning
from kmifqe.io.logs import kept, load
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.save import save_dataset


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(kept.SIZE_VARIABLE, raising=False)
    return tmp_path / "home" / "kmifqe" / "logs"


@pytest.fixture
def reads(monkeypatch):
    """Count how often the child is asked."""
    asked = []
    run = load.run_in_child
    monkeypatch.setattr(
        load, "run_in_child", lambda *given, **more: asked.append(given) or run(*given, **more)
    )
    return asked


@pytest.mark.parametrize("name", ["log.hdf5", "log.npz", "log.parquet", "log.arrow", "log-v0"])
def test_a_second_reading_is_the_first_to_the_bit(tmp_path, cache, reads, log, same_log, name):
    pytest.importorskip("pyarrow")
    pytest.importorskip("minari")
    save_dataset(log, tmp_path / name)
    for _ in range(2):
        same_log(load_dataset(tmp_path / name), log)
    assert len(reads) == 1
    assert len(kept.entries(cache)) == 1


def test_a_log_is_found_by_its_content(tmp_path, cache, reads, log):
    save_dataset(log, tmp_path / "log.npz")
    load_dataset(tmp_path / "log.npz")
    (tmp_path / "log.npz").rename(tmp_path / "other.npz")
    assert load_dataset(tmp_path / "other.npz").name == str(tmp_path / "other.npz")
    assert len(reads) == 1
    save_dataset(log, tmp_path / "log.npz")
    with np.load(tmp_path / "log.npz") as held:
        fields = dict(held)
    before = (tmp_path / "log.npz").stat()
    fields["rewards"] = fields["rewards"] + 1
    np.savez(tmp_path / "log.npz", **fields)
    os.utime(tmp_path / "log.npz", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert np.array_equal(load_dataset(tmp_path / "log.npz").rewards, log.rewards + 1)
    assert len(reads) == 2


def test_changes_stay_in_the_process(tmp_path, cache, log, same_log):
    save_dataset(log, tmp_path / "log.npz")
    for array in vars(load_dataset(tmp_path / "log.npz")).values():
        if isinstance(array, np.ndarray):
            array[...] = 0
    same_log(load_dataset(tmp_path / "log.npz"), log)


def damage_number(entry):
    with open(entry / "rewards.npy", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")


def cut(entry):
    os.truncate(entry / "states.npy", 140)


def remove(entry):
    (entry / "cut.npy").unlink()


def other_header(entry):
    (entry / "header.json").write_text("{}")


def pipe(entry):
    (entry / "actions.npy").unlink()
    os.mkfifo(entry / "actions.npy")


def other_type(entry):
    np.save(entry / "terminated.npy", np.full(16, 2, np.uint8))


@pytest.mark.parametrize("damage", [damage_number, cut, remove, other_header, pipe, other_type])
def test_a_damaged_entry_is_replaced(tmp_path, cache, reads, log, same_log, damage):
    save_dataset(log, tmp_path / "log.npz")
    load_dataset(tmp_path / "log.npz")
    damage(kept.entries(cache)[0].folder)
    for _ in range(2):
        same_log(load_dataset(tmp_path / "log.npz"), log)
    assert len(reads) == 2


def test_what_was_found_finite_serves_an_inspection_and_not_the_other_way(tmp_path, cache, reads, encoded):
    np.savez(tmp_path / "log.npz", **encoded | {"rewards": np.full(16, np.nan)})
    for _ in range(2):
        load_dataset(tmp_path / "log.npz", check_finite=False)
    with pytest.raises(InputError, match="NaN"):
        load_dataset(tmp_path / "log.npz")
    assert len(reads) == 2
    np.savez(tmp_path / "log.npz", **encoded)
    load_dataset(tmp_path / "log.npz")
    load_dataset(tmp_path / "log.npz", check_finite=False)
    assert len(reads) == 3


def test_a_kept_log_without_marked_ends_still_asks_for_a_limit(tmp_path, cache, encoded):
    del encoded["timeouts"], encoded["next_observations"]
    np.savez(tmp_path / "log.npz", **encoded)
    load_dataset(tmp_path / "log.npz", max_episode_steps=0)
    with pytest.raises(InputError, match="timeouts is missing"):
        load_dataset(tmp_path / "log.npz")


def test_nothing_is_kept_where_it_is_not_wanted(tmp_path, cache, log, same_log, monkeypatch):
    save_dataset(log, tmp_path / "log.npz")
    same_log(load_dataset(tmp_path / "log.npz", cache=False), log)
    monkeypatch.setenv(kept.SIZE_VARIABLE, "0")
    same_log(load_dataset(tmp_path / "log.npz"), log)
    assert not cache.exists()
    monkeypatch.setenv(kept.SIZE_VARIABLE, "many")
    with pytest.warns(CacheWarning, match="KMIFQE_CACHE_GIB is 'many'"):
        load_dataset(tmp_path / "log.npz")


def test_the_entries_used_longest_ago_make_room(tmp_path, cache, reads, log, monkeypatch):
    from dataclasses import replace

    for number in range(3):
        save_dataset(replace(log, rewards=log.rewards + number), tmp_path / f"{number}.npz")
    load_dataset(tmp_path / "0.npz")
    size = kept.entries(cache)[0].size
    monkeypatch.setenv(kept.SIZE_VARIABLE, str(2.5 * size / 2**30))
    load_dataset(tmp_path / "1.npz")
    for entry in kept.entries(cache):
        header = entry.folder / "header.json"
        os.utime(header, (0, 0) if entry.about.name.endswith("1.npz") else (1, 1))
    load_dataset(tmp_path / "2.npz")
    assert {entry.about.name[-5:] for entry in kept.entries(cache)} == {"0.npz", "2.npz"}
    monkeypatch.setenv(kept.SIZE_VARIABLE, str(size / 2 / 2**30))
    save_dataset(log, tmp_path / "log.npz")
    load_dataset(tmp_path / "log.npz")
    assert len(kept.entries(cache)) == 2  # what is larger than the cache pushes nothing out


@pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
@pytest.mark.parametrize("place", ["", "logs"])
def test_a_cache_that_others_may_write_to_is_not_used(tmp_path, cache, log, same_log, place):
    save_dataset(log, tmp_path / "log.npz")
    load_dataset(tmp_path / "log.npz")
    assert stat.S_IMODE(cache.stat().st_mode) == stat.S_IMODE(cache.parent.stat().st_mode) == 0o700
    damage_number(kept.entries(cache)[0].folder)
    (cache.parent / place).chmod(0o777)
    with pytest.warns(CacheWarning, match="others may write to it.*read anew"):
        same_log(load_dataset(tmp_path / "log.npz"), log)


def test_a_stranger_in_the_cache_is_left_alone(tmp_path, cache, log, same_log):
    save_dataset(log, tmp_path / "log.npz")
    load_dataset(tmp_path / "log.npz")
    (entry,) = kept.entries(cache)
    (entry.folder / "mine.txt").write_text("x")
    kept.remove(entry)
    assert [file.name for file in entry.folder.iterdir()] == ["mine.txt"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same_log(load_dataset(tmp_path / "log.npz"), log)
    assert (entry.folder / "mine.txt").exists()


def test_a_log_that_changes_while_it_is_read_is_not_kept(tmp_path, cache, log, monkeypatch):
    save_dataset(log, tmp_path / "log.npz")
    run = load.run_in_child

    def run_and_change(*given, **more):
        answer = run(*given, **more)
        os.utime(tmp_path / "log.npz", (1, 1))
        return answer

    monkeypatch.setattr(load, "run_in_child", run_and_change)
    assert len(load_dataset(tmp_path / "log.npz")) == len(log)
    assert kept.entries(cache) == []
