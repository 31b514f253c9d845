"""Files and folders appear whole, flushed before they are named, or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kmifqe.errors import InputError
from kmifqe.io.files import whole_file, whole_folder


def write_file(path: Path, text: str) -> None:
    with whole_file(path) as partial:
        partial.write_text(text)


def write_folder(path: Path, text: str) -> None:
    with whole_folder(path) as partial:
        (partial / "inside").mkdir()
        (partial / "inside" / "file").write_text(text)


def content(path: Path) -> str:
    return (path if path.is_file() else path / "inside" / "file").read_text()


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_what_is_there_is_replaced_and_nothing_else_is_left(tmp_path, write):
    for text in ("first", "second"):
        write(tmp_path / "it", text)
        assert content(tmp_path / "it") == text
    assert [p.name for p in tmp_path.iterdir()] == ["it"]


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_a_full_disk_is_a_sentence_and_leaves_the_old_content(tmp_path, monkeypatch, write):
    write(tmp_path / "it", "old")

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=f"{tmp_path / 'it'}: cannot be written .No space left on device"):
        write(tmp_path / "it", "new")
    assert content(tmp_path / "it") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["it"]


@pytest.mark.parametrize(
    "write, before", [(write_file, ["file"]), (write_folder, ["directory", "file", "directory"])]
)
def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_return(
    tmp_path, monkeypatch, write, before
):
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
