"""Compiled programs that no row needs again, dropped before they fill the process."""

from __future__ import annotations

from pathlib import Path

import jax

# On a CPU the programs of one fit take a thousand or two memory maps, and Linux gives a process 65,530 unless told
# otherwise: the 72 fits of the small table are too many, and the compiler ends the process when it gets no more.
MAPS = Path("/proc/self/maps")
LIMIT = Path("/proc/sys/vm/max_map_count")
SHARE = 1 / 3  # a row of six methods takes about a tenth of the limit


def drop_programs_if_many() -> None:
    """Forget all compiled programs if their memory maps are a third of what the system allows."""
    if not (MAPS.is_file() and LIMIT.is_file()):
        return  # another system, without this limit
    with MAPS.open("rb") as maps:
        used = sum(1 for _ in maps)
    if used > SHARE * int(LIMIT.read_text(encoding="ascii")):
        jax.clear_caches()
