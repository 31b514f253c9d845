"""A file is whole or not there, whatever fails while it is written."""

from __future__ import annotations

import errno
import os

import pytest

from kmifqe.errors import InputError
from kmifqe.io import files as durable


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "file"
    for content in (b"first", b"", b"second"):
        durable.write_durably(path, content)
        assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_refusal_of_the_system_is_a_sentence_and_leaves_the_old_content(tmp_path, monkeypatch, call, code):
    path = tmp_path / "file"
    durable.write_durably(path, b"old")

    def refuse(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(durable.os, call, refuse)
    with pytest.raises(InputError, match=f"{path}: cannot be written .{os.strerror(code)}"):
        durable.write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    """What survives lost power is what was flushed: the file before the rename, the directory after it."""
    calls = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        calls.append("directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def note_replace(*args):
        calls.append("rename")
        replace(*args)

    monkeypatch.setattr(durable.os, "fsync", note_fsync)
    monkeypatch.setattr(durable.os, "replace", note_replace)
    durable.write_durably(tmp_path / "file", b"content")
    assert calls == ["file", "rename", "directory"]


def test_leftovers_of_a_killed_process_are_removed_and_nothing_else(tmp_path):
    for name in (".a.part", "b.part", ".c", "d"):
        (tmp_path / name).write_text("")
    durable.remove_leftovers(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".c", "b.part", "d"]
