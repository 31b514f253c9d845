"""What long-running commands share: Ctrl-C that saves first, and compiled programs that are kept between runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from rich.console import Console

SIGNALS = (signal.SIGINT, signal.SIGTERM)
CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"  # JAX's own: a user's choice of folder, or "" for none


def keep_compiled_programs() -> None:
    """Tell JAX to keep compiled programs in the user's cache folder, unless the user has said where or not to.

    Compiling takes longer than a short run does. Called by commands, never on import: a library does not write
    files on its own.
    """
    import jax

    if CACHE_VARIABLE in os.environ:
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kmifqe" / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(cache))


class Interrupts:
    """While entered, remembers that a stop was asked for (Ctrl-C, or a scheduler's SIGTERM) instead of raising.

    A second one ends the process at once. Python runs signal handlers between two instructions of the main
    thread, which may be minutes inside one compiled block; a thread that the system's own handler wakes is not.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._signal = 0
        self._armed = threading.current_thread() is threading.main_thread()

    def asked(self) -> bool:
        """Return whether a stop was asked for."""
        return bool(self._signal)

    @property
    def exit_code(self) -> int:
        """The shell's code for a process that a signal ended: 130 for Ctrl-C."""
        return 128 + self._signal

    def __enter__(self) -> Interrupts:
        if self._armed:
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
            self._earlier = [signal.signal(number, _leave_it_to_the_watcher) for number in SIGNALS]
            self._earlier_descriptor = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._armed:
            signal.set_wakeup_fd(self._earlier_descriptor)
            for number, handler in zip(SIGNALS, self._earlier):
                signal.signal(number, handler)
            os.close(self._write)
            self._watcher.join()

    def _watch(self) -> None:
        while received := os.read(self._read, 1):
            if received[0] not in SIGNALS:
                continue
            if self._signal:
                self._stop_now(received[0])
            self._signal = received[0]
            self._console.print(
                "stopping: this block of steps is finished and saved first; once more to stop now",
                highlight=False,
            )
        os.close(self._read)

    def _stop_now(self, number: int) -> None:
        """End the process: files are whole at every moment, so there is nothing to tidy but the terminal."""
        self._console.show_cursor(True)
        self._console.print(
            "stopped; what was saved before is there: --resume goes on from it", highlight=False
        )
        sys.stdout.flush()
        os._exit(128 + number)


def _leave_it_to_the_watcher(number: int, frame: FrameType | None) -> None:
    """Do nothing: a handler must exist, or Python would raise KeyboardInterrupt."""
