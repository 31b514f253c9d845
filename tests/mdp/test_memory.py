"""Free memory, as the system tells it and within a container's limit."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import jax
import numpy as np
import pytest

import kmifqe
from kmifqe.errors import InputError
from kmifqe.estimators import fit, make_estimator
from kmifqe.mdp import memory
from kmifqe.mdp.ask import Logged


def limit_to(limit: str, usage: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = folder / "memory.max", folder / "memory.current"
    for file, text in zip(files, (limit, usage)):
        file.write_text(text + "\n")
    monkeypatch.setattr(memory, "_CGROUP_FILES", (tuple(map(str, files)),))


def test_free_memory_is_part_of_the_machines() -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < memory.free_host_bytes() <= machine


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_to("3000000", "1000000", tmp_path, monkeypatch)
    assert memory.free_host_bytes() == 2_000_000


def test_a_container_over_its_limit_has_nothing_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_to("1000", "2000", tmp_path, monkeypatch)
    assert memory.free_host_bytes() == 0


def test_no_limit_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_to("max", "2000", tmp_path, monkeypatch)
    assert memory.free_host_bytes() > 2_000_000


def test_a_problem_in_mapped_files_has_the_bits_of_one_in_memory() -> None:
    rng, n = np.random.default_rng(0), 300
    log = kmifqe.Transitions.from_arrays(
        *(rng.normal(size=(n, 3)), rng.normal(size=(n, 1)), rng.normal(size=n), np.zeros(n)),
        np.arange(n) % 30 == 29,
        action_log_probs=rng.normal(size=n),
    )
    estimator = make_estimator("kmifqe", "fast", ["hidden=8", "batch=16"], 20)
    values = {}
    for place in ("device", "disk"):
        problem = kmifqe.Problem.build(log, lambda states: np.tanh(states[:, :1]), Logged(), 0.9, place=place)
        values[place] = fit(estimator, problem, seeds=2, steps=20).values
    np.testing.assert_array_equal(values["disk"], values["device"])
    assert problem.mapped_bytes == 4 * len(problem) * (2 * 3 + 3 * 1)


def test_the_device_uses_a_mapped_file_in_place() -> None:
    array = memory.mapped_empty((100_000, 3))
    array[:] = 1.0
    if jax.devices()[0].platform == "cpu":
        assert jax.device_put(array).unsafe_buffer_pointer() == array.ctypes.data


def test_large_arrays_that_follow_from_the_log_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_host_bytes", lambda: 1_000)
    log = kmifqe.Transitions.from_arrays(
        np.ones((50, 3)), np.ones((50, 1)), np.ones(50), np.arange(50) % 10 == 9
    )
    assert isinstance(log.next_states.base, mmap.mmap | np.memmap)
    np.testing.assert_array_equal(log.next_states[:, 0], log.has_next_state)


def test_no_room_on_the_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(InputError, match="set TMPDIR to a folder"):
        memory.mapped_empty((2**60,))
