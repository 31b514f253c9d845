"""Files and folders appear whole, flushed before they are named, or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.files import (
    PARTIAL,
    make_directory,
    read_file,
    remove_leftovers,
    whole_file,
    whole_folder,
    write_file,
)


def fill_file(path: Path, text: str) -> None:
    with whole_file(path) as partial:
        partial.write_text(text)


def fill_folder(path: Path, text: str) -> None:
    with whole_folder(path) as partial:
        (partial / "inside").mkdir()
        (partial / "inside" / "file").write_text(text)


def write_bytes(path: Path, text: str) -> None:
    write_file(path, text.encode())


def content(path: Path) -> str:
    return (path if path.is_file() else path / "inside" / "file").read_text()


ALL = pytest.mark.parametrize("write", [fill_file, fill_folder, write_bytes])


@ALL
def test_what_is_there_is_replaced_and_nothing_else_is_left(tmp_path, write):
    for text in ("first", "", "second"):
        write(tmp_path / "it", text)
        assert content(tmp_path / "it") == text
    assert [p.name for p in tmp_path.iterdir()] == ["it"]


@ALL
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_refusal_of_the_system_is_a_sentence_and_leaves_the_old_content(
    tmp_path, monkeypatch, write, call, code
):
    write(tmp_path / "it", "old")

    def refuse(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(InputError, match=f"{tmp_path / 'it'}: cannot be written .{os.strerror(code)}"):
        write(tmp_path / "it", "new")
    assert content(tmp_path / "it") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["it"]


@ALL
def test_a_missing_directory_is_named(tmp_path, write):
    with pytest.raises(InputError, match=f"the directory {tmp_path / 'none'} does not exist"):
        write(tmp_path / "none" / "it", "text")


@pytest.mark.parametrize(
    "write, before",
    [(fill_file, ["file"]), (fill_folder, ["directory", "file", "directory"]), (write_bytes, ["file"])],
)
def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_return(
    tmp_path, monkeypatch, write, before
):
    """What survives lost power is what was flushed: the file before the rename, the directory after it."""
    calls = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        calls.append("directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def note_replace(*args):
        calls.append("rename")
        replace(*args)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write(tmp_path / "it", "content")
    assert calls == [*before, "rename", "directory"]


@ALL
def test_what_a_writer_that_fails_had_written_is_gone(tmp_path, write, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *args: 1 / 0)  # not an error of the disk: it is not translated
    with pytest.raises(ZeroDivisionError):
        write(tmp_path / "it", "text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(tmp_path, whole):
    killed = whole(tmp_path / "it")
    partial = killed.__enter__()
    (partial if whole is whole_file else partial / "inside").write_text("half")
    for name in (".c", "d", f"e{PARTIAL}"):
        (tmp_path / name).write_text("")
    assert len(list(tmp_path.iterdir())) == 4
    remove_leftovers(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".c", "d", f"e{PARTIAL}"]


def test_a_directory_is_made_once_and_kept(tmp_path):
    make_directory(tmp_path / "new")
    (tmp_path / "new" / "file").write_text("kept")
    make_directory(tmp_path / "new")
    assert (tmp_path / "new" / "file").read_text() == "kept"
    with pytest.raises(InputError, match="none/new: cannot be written"):
        make_directory(tmp_path / "none" / "new")


WRITE = """
import sys, time
from pathlib import Path
from kmifqe.io.files import whole_file
with whole_file(Path(sys.argv[1])) as partial:
    partial.write_text("half")
    print("writing", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_was_writing_goes_with_the_next_write(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE, tmp_path / "file"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout.readline() == "writing\n"
        (partial,) = tmp_path.iterdir()
        os.utime(partial, (0, 0))
        write_file(tmp_path / "other", b"1")
        assert partial.exists()  # its process lives
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    mine = tmp_path / f"{PARTIAL}mine"
    mine.symlink_to(tmp_path / "other")
    write_file(tmp_path / "other", b"2")
    assert sorted(path.name for path in tmp_path.iterdir()) == [mine.name, "other"]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_a_file_has_the_mode_that_the_user_wants_for_new_files(tmp_path, umask, mode):
    """Also a fitted density, which a library would write for its owner alone."""
    from kmifqe.io.policies.actor import Actor

    one = np.ones((1,), np.float32)
    actor = Actor((np.ones((1, 1), np.float32),), (one,), "tanh", "tanh", -one, one)
    before = os.umask(umask)
    try:
        write_file(tmp_path / "a", b"x")
        actor.save(tmp_path / "b")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [mode, mode]


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="no file hides its size here")
def test_a_file_that_hides_its_size_is_not_read_beyond_the_limit():
    with pytest.raises(InputError, match="expected at most 10 bytes"):
        read_file(Path("/proc/self/maps"), 10)
