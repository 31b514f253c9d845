"""The command line: wires the library together, one file per group of commands; no logic of its own."""

import os
import sys

# Bytes of address space that Python's numerical libraries map when they are imported, and what each core adds.
LEAST_ADDRESS_SPACE, THREAD_ADDRESS_SPACE = 384 * 2**20, 64 * 2**20


def main() -> None:
    """Run the command line, or say in one sentence that there is too little memory to load it.

    Everything else is imported here and not above. Under a low limit (`ulimit -v`) an import of NumPy fails, or its
    linear algebra ends the process.
    """
    least = LEAST_ADDRESS_SPACE + (os.cpu_count() or 1) * THREAD_ADDRESS_SPACE
    limit = _address_space()
    if limit is not None and limit < least:
        _refuse(
            f"this process may use {limit // 2**20} MiB of address space (ulimit -v); expected at least "
            f"{least // 2**20} MiB, which Python's numerical libraries take: raise the limit"
        )
    try:
        from kmifqe.cli import app
    except (MemoryError, ImportError) as error:
        if not isinstance(error, MemoryError) and not any(
            word in str(error) for word in ("failed to map segment", "Cannot allocate memory")
        ):
            raise
        _refuse("there is too little memory to load Python's numerical libraries: give the process more")
    app.main()


def _address_space() -> int | None:
    """Return the limit on this process's address space in bytes, None where there is none."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def _refuse(sentence: str) -> None:
    if sys.stderr is not None:
        print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)
