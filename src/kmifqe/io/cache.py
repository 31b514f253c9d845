"""The user's own cache folder: where it is, and whether it can be trusted.

What lies there is believed: compiled programs are run, arrays are taken for the log they were made from. So it must
be a folder that nobody but the user may write to.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kmifqe.errors import InputError

COMPILED = "compiled"  # the folder of programs that JAX has compiled
OF_THE_SYSTEM = (0, 65534)  # user ids: root, and whom Linux shows for users that a container does not know
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class CacheWarning(UserWarning):
    """A cache is not used; the sentence says why."""


def cache_folder() -> Path:
    """Return where kmifqe keeps what can be made again: `$XDG_CACHE_HOME/kmifqe`, by default `~/.cache/kmifqe`."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if chosen.is_absolute():
        return chosen / "kmifqe"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise InputError(f"there is no home for a cache ({error})") from error
    if not home.is_dir():  # somebody else's business to make
        raise InputError(f"{home}: the home directory does not exist, so there is no cache")
    return home / ".cache" / "kmifqe"


def make_private(folder: Path) -> None:
    """Make `folder` for the user alone (mode 0700), or refuse one that somebody else may write to.

    A folder of the user's that others may only read is closed to them. One that others may write to is refused, not
    closed: what they have put there would be believed.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_shared(folder)
        if stat.S_IMODE(folder.stat().st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError as error:
        raise InputError(f"{folder}: cannot be used as a cache ({error.strerror or error})") from error


def refuse_shared(folder: Path) -> None:
    """Refuse a folder that anybody but the user may write to, or replace: by owners and modes, its parents' too."""
    if os.name != "posix":  # elsewhere a user's folders are closed by other means than owner and mode
        return
    place = folder.resolve()
    found = place.stat()
    if found.st_uid != os.geteuid():
        raise InputError(
            f"{folder}: belongs to another user and is not trusted as a cache; nothing was read from it"
        )
    if found.st_mode & OTHERS_MAY_WRITE:
        raise InputError(
            f"{folder}: others may write to it, so it is not trusted as a cache; nothing was read from it. Remove "
            f"it, or look at what is in it and close it with: chmod 700 {folder}"
        )
    for parent in place.parents:
        found = parent.stat()
        is_shared = found.st_mode & stat.S_IWOTH or (
            found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid())
        )
        is_anothers = found.st_uid not in (*OF_THE_SYSTEM, os.geteuid())
        if is_anothers or (is_shared and not found.st_mode & stat.S_ISVTX):
            raise InputError(
                f"{folder}: lies in {parent}, where others may replace it, so it is not trusted as a cache"
            )


def compiled_programs() -> list[Path]:
    """Return the files in which JAX keeps compiled programs in the user's cache folder."""
    folder = cache_folder() / COMPILED
    kept = (file for end in ("cache", "atime") for file in folder.glob(f"*-{end}"))
    return sorted(file for file in kept if file.is_file())
