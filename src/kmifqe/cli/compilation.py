"""Keep compiled programs between runs: compiling takes longer than a short run does."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "JAX_COMPILATION_CACHE_DIR"  # JAX's own: a user's choice of folder, or "" for none


def keep_compiled_programs() -> None:
    """Tell JAX to keep compiled programs in the user's cache folder, unless the user has said where or not to.

    Called by commands, never on import: a library does not write files on its own.
    """
    import jax

    if VARIABLE in os.environ:
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kmifqe" / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(cache))
