"""Compiled programs are kept where the user's caches are, unless the user says otherwise."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
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


@pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
class TestTrust:
    """JAX runs what lies in its cache, so a folder that others may write to is not used."""

    @pytest.fixture(autouse=True)
    def _home(self, folder_before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(CACHE_VARIABLE, raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def test_the_folder_is_the_users_alone(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            keep_compiled_programs()
        finally:
            os.umask(before)
        for folder in (tmp_path / "kmifqe", tmp_path / "kmifqe" / "compiled"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    @pytest.mark.parametrize("folder", ["kmifqe", "kmifqe/compiled"])
    @pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
    def test_a_folder_that_others_may_write_to_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str, mode: int
    ) -> None:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder).chmod(mode)
        keep_compiled_programs()
        assert jax.config.jax_compilation_cache_dir is None
        said = " ".join(capsys.readouterr().err.split())
        assert "others may write to it" in said
        assert "compiled anew" in said
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == mode

    def test_a_folder_of_another_user_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "kmifqe" / "compiled").mkdir(parents=True, mode=0o700)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        keep_compiled_programs()
        assert jax.config.jax_compilation_cache_dir is None
        assert "belongs to another user" in " ".join(capsys.readouterr().err.split())

    def test_a_folder_that_others_may_replace_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        tmp_path.chmod(0o777)
        keep_compiled_programs()
        assert jax.config.jax_compilation_cache_dir is None
        assert "others may replace it" in " ".join(capsys.readouterr().err.split())

    @pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives folders away"
    )
    @pytest.mark.parametrize(
        ("owner", "group", "mode"), [(12345, 0, 0o755), (12345, 0, 0o1777), (0, 12345, 0o770)]
    )
    def test_a_folder_in_another_users_or_groups_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], owner: int, group: int, mode: int
    ) -> None:
        os.chown(tmp_path, owner, group)
        tmp_path.chmod(mode)
        keep_compiled_programs()
        assert jax.config.jax_compilation_cache_dir is None
        assert "others may replace it" in " ".join(capsys.readouterr().err.split())

    def test_a_shared_folder_of_the_users_own_choice_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared").chmod(0o777)
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "shared"))
        keep_compiled_programs()
        assert jax.config.jax_compilation_cache_dir is None
        assert "others may write to it" in " ".join(capsys.readouterr().err.split())


COMPILES = """
import jax, sys
from kmifqe.cli.session import keep_compiled_programs
keep_compiled_programs()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
print(float(jax.jit(lambda x: 2 * x)(21.0)))
"""


def test_a_damaged_program_is_replaced(tmp_path: Path) -> None:
    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-c", COMPILES],
            env={**os.environ, "JAX_PLATFORMS": "cpu", CACHE_VARIABLE: "x"},
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        assert done.stdout == "42.0\n"
        return done.stderr

    run()
    entries = list((tmp_path / "x").glob("*-cache"))
    assert entries
    for entry in entries:
        entry.write_bytes(b"damaged")
    assert run() == ""
    for entry in entries:
        assert entry.read_bytes() != b"damaged"
