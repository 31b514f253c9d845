"""Free memory, as the system tells it and within a container's limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kmifqe.mdp import memory


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
