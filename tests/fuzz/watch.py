"""Notices what loading a file must never do: run code, write, or look outside its folder; and counts memory."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from types import CodeType

import kmifqe

READABLE = tuple(str(Path(p).resolve()) for p in {sys.prefix, sys.base_prefix, Path(kmifqe.__file__).parent})
READABLE += ("/proc/", "/sys/", "/usr/lib", "/usr/share")
FORBIDDEN = (
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn"),
    *("pickle.find_class", "socket.connect", "socket.bind", "urllib.Request", "ctypes.dlopen"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.truncate"),
    *("shutil.", "tempfile.", "webbrowser.open", "code.__new__"),
)
OPTIONAL = {"torch", "pandas"}  # where missing: a loader asks for the one by name, pyarrow for the other
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """A context: what happened inside it is in `seen`, and the growth of resident memory in `grown` (bytes)."""

    def __init__(self, sandbox: Path) -> None:
        self.sandbox = str(sandbox.resolve())
        self.temporary = tempfile.gettempdir()  # where the child hands over what it has read
        self.active = False
        self.seen: list[str] = []
        self.grown = 0
        self._modules: set[str] = set()
        self._files: set[str] = set()
        sys.addaudithook(self._hear)

    def __enter__(self) -> Watch:
        self._modules = OPTIONAL | {name.partition(".")[0] for name in sys.modules}
        self._files = self._listing()
        self.seen = []
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        self._resident = _status("VmRSS")
        self.active = True
        return self

    def __exit__(self, *_: object) -> None:
        self.active = False
        self.grown = max(0, _status("VmHWM") - self._resident)
        # Native libraries open files unheard: what they leave behind is seen.
        self.seen += [f"left {name}" for name in sorted(self._listing() - self._files)]

    def _listing(self) -> set[str]:
        folders = (os.path.dirname(self.sandbox), self.sandbox, ".", self.temporary)
        return {name for folder in folders for name in os.listdir(folder)}

    def _hear(self, event: str, args: tuple[object, ...]) -> None:
        if not self.active:
            return
        if event.startswith(FORBIDDEN):
            # shutil.rmtree names what it removes from its own folder, which it has opened.
            is_inside = isinstance(args[-1], int) and args[-1] >= 0 and "/" not in str(args[0])
            if not is_inside and not str(args[0]).startswith(self.temporary):
                self.seen.append(f"{event} {str(args)[:200]}")
        elif event == "open":
            self._hear_open(*args[:3])
        elif event == "import" and str(args[0]).partition(".")[0] not in self._modules:
            self.seen.append(f"import {args[0]}")
        elif event == "exec" and isinstance(args[0], CodeType) and not self._ours(args[0].co_filename):
            self.seen.append(f"exec {args[0].co_filename}")

    def _hear_open(self, path: object, mode: object = None, flags: object = 0) -> None:
        if isinstance(path, int) or path is None:
            return
        writes = bool(isinstance(mode, str) and set(mode) & set("wax+")) or (
            isinstance(flags, int) and bool(flags & WRITES)
        )
        place = os.path.realpath(os.fsdecode(path))  # type: ignore[arg-type]
        if place.startswith(self.temporary) or not (writes or os.path.exists(place)):
            return
        if writes or not (place.startswith(self.sandbox) or self._ours(place)):
            self.seen.append(f"open {place} mode {mode}")

    def _ours(self, place: str) -> bool:
        return os.path.realpath(place).startswith(READABLE) or place.startswith("<frozen")


def _status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0
