"""What long-running commands share: Ctrl-C that saves first, compiled programs that are kept, what they print."""

from __future__ import annotations

import glob
import os
import re
import signal
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from kmifqe.errors import InputError, printable
from kmifqe.io.cache import COMPILED, cache_folder, make_private, refuse_shared
from kmifqe.io.format import size

if TYPE_CHECKING:
    from kmifqe.report.result import Result

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_SECONDS = 2.0  # for the main thread to end by itself; inside a compiler it cannot
# Bytes: with 1.7 GiB the compiler aborts the process without a word, with 2.1 GiB a lack is told.
LEAST_ADDRESS_SPACE = 2**31
THREAD_ADDRESS_SPACE = 2**26  # bytes for each core: the stacks and the arenas of its threads
DAMAGED_PROGRAM = re.compile(r"Error reading persistent compilation cache entry for '([^']+)'")  # JAX's words
CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"  # JAX's own: a user's choice of folder, or "" for none


def print_result(
    result: Result, output: Console, reasons: Console | None = None, *, truth: float | None = None
) -> None:
    """Print the headline and the table of a `result` to `output`, and why it was judged so to `reasons`.

    `reasons` is `output` by default; with a known `truth` the table has errors.
    """
    from kmifqe.report.terminal import estimates_table, headline, verdict_lines
    from kmifqe.trust.interval import LEVEL

    for sentence in headline(result):
        output.print(escape(printable(sentence)), highlight=False, soft_wrap=True)
    level = LEVEL if result.interval is None else result.interval.level
    output.print(estimates_table(result.estimates, truth, level=level, verdicts=result.verdicts))
    for line in verdict_lines(result.verdicts):
        (reasons or output).print(line, highlight=False, soft_wrap=True)


def written(out: Path) -> str:
    """Return the line that says which files a run has left in `out`."""
    from kmifqe.report.page import REPORT
    from kmifqe.report.result import RESULT

    files = " and ".join(str(out / name) for name in (RESULT, REPORT) if (out / name).exists())
    return f"written: {escape(printable(files))}"


def keep_compiled_programs() -> None:
    """Tell JAX to keep compiled programs in the user's cache folder, unless the user has said where or not to.

    Compiling takes longer than a short run does. Called by commands, never on import: a library does not write
    files on its own. A folder to which others may write is not used, also where the user has chosen it, and a warning
    says so: JAX runs what lies in it.
    """
    import jax

    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen == "":
        return
    try:
        cache = cache_folder() / COMPILED if chosen is None else Path(chosen)
        if chosen is None:
            make_private(cache.parent)
            make_private(cache)
        elif cache.is_dir():
            refuse_shared(cache)
    except (InputError, OSError) as error:
        jax.config.update("jax_compilation_cache_dir", None)
        sentence = f"{printable(str(error))}; programs are compiled anew and not kept"
        console = Console(stderr=True, emoji=False)
        console.print(f"[yellow]warning:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
        return
    if chosen is None:
        jax.config.update("jax_compilation_cache_dir", str(cache))
    _replace_damaged_programs(cache)


def _replace_damaged_programs(cache: Path) -> None:
    """Remove a kept program that JAX cannot read, when JAX says so: it compiles another, but never replaces one."""
    show = warnings.showwarning

    def remove_or_show(message: Warning | str, *more: Any, **named: Any) -> None:
        damaged = DAMAGED_PROGRAM.match(str(message))
        if damaged is None:
            show(message, *more, **named)
            return
        for entry in cache.glob(f"{glob.escape(damaged[1])}-*"):  # its name begins with the program's
            with suppress(OSError):
                entry.unlink()

    if show.__name__ != remove_or_show.__name__:  # once in a process
        warnings.showwarning = remove_or_show


def check_memory_limit() -> None:
    """Refuse a limit on the address space (`ulimit -v`) under which JAX would end the process without a word.

    Called before JAX is imported.
    """
    if resource is None:
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    least = LEAST_ADDRESS_SPACE + (os.cpu_count() or 1) * THREAD_ADDRESS_SPACE
    if limit != resource.RLIM_INFINITY and limit < least:
        raise InputError(
            f"this process may use {size(limit)} of address space (ulimit -v); expected at least {size(least)}, "
            "which JAX and its threads take before any data: raise the limit"
        )


class Interrupts:
    """While entered, a first Ctrl-C, or a scheduler's SIGTERM, stops the run as soon as nothing is lost by it.

    While networks are trained that is after the block of steps, which is saved: `asked` tells the run. At other
    times it is at once: KeyboardInterrupt is raised, and where the main thread does not get to raise it, because it
    compiles a program, the process is ended. A second signal ends the process at any time.

    Python runs signal handlers between two instructions of the main thread, which may be minutes inside one
    compiled block; a thread that the system's own handler wakes is not.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._signal = 0
        self._is_training = False
        self._has_left = threading.Event()
        self._armed = threading.current_thread() is threading.main_thread()

    def asked(self) -> bool:
        """Return whether a stop was asked for."""
        return bool(self._signal)

    def training(self, is_training: bool) -> None:
        """Hear whether networks are being trained, so that a stop waits for the end of a block."""
        self._is_training = is_training

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
            self._earlier = [signal.signal(number, self._handle) for number in SIGNALS]
            self._earlier_descriptor = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._has_left.set()
        if self._armed:
            signal.set_wakeup_fd(self._earlier_descriptor)
            for number, handler in zip(SIGNALS, self._earlier):
                signal.signal(number, handler)
            os.close(self._write)
            self._watcher.join()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """End what the main thread does, unless it trains: then it asks whether to stop by itself."""
        self._signal = number
        if not self._is_training:
            raise KeyboardInterrupt

    def _watch(self) -> None:
        received_before = False
        while received := os.read(self._read, 1):
            if received[0] not in SIGNALS:
                continue
            if received_before:
                self._stop_now(
                    received[0], "stopped; what was saved before is there: --resume goes on from it"
                )
            received_before = True
            self._signal = received[0]
            if self._is_training:
                self._console.print(
                    "stopping after this block of steps: what is there is saved first; once more to stop now",
                    highlight=False,
                )
            elif not self._has_left.wait(GRACE_SECONDS):
                self._stop_now(
                    received[0], "stopped; no step was taken since the last save: --resume goes on from there"
                )
        os.close(self._read)

    def _stop_now(self, number: int, sentence: str) -> None:
        """End the process: files are whole at every moment, so there is nothing to tidy but the terminal."""
        self._console.show_cursor(True)
        self._console.print(sentence, highlight=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        os._exit(128 + number)
