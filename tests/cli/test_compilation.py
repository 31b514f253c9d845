"""Compiled programs are kept where the user's caches are, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from kmifqe.cli.session import CACHE_VARIABLE, keep_compiled_programs


@pytest.fixture
def folder_before() -> Iterator[str | None]:
    before = jax.config.jax_compilation_cache_dir
    yield before
    jax.config.update("jax_compilation_cache_dir", before)


def test_the_users_cache_folder_is_used(
    folder_before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "kmifqe" / "compiled")


@pytest.mark.parametrize("choice", ["", "elsewhere"])
def test_a_users_own_choice_is_left_alone(
    folder_before: str | None, choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, choice)
    keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == folder_before
