# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make a directory for the results of one run, and the link ``latest`` that leads to the last of them.

Files there are read with a limit: another machine may have written them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core import temp_files
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

# Name of a new file beside the one that it replaces.
_NEW = ".busbar-"
# Pattern of tempfile's random names.
RANDOM = "[a-z0-9_]{8}"
_UNFINISHED = re.compile(re.escape(_NEW) + RANDOM)
# Seconds. Files of a live run are younger; its directory is locked, too.
STALE = 24 * 3600.0


@contextlib.contextmanager
def new(parent: Path, now: float) -> Iterator[Path]:
    """Yield a new directory below parent, for its owner only; ``latest`` is moved to it when the body has ended well.

    now: seconds since 1970, from which it is named. Raises OSError.
    """
    parent.mkdir(parents=True, exist_ok=True)
    refuse_planted(parent)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    folder = Path(tempfile.mkdtemp(prefix=f"{stamp}-", dir=parent))
    with removed_unless_written(folder):
        yield folder
        link = folder / ".latest"
        link.symlink_to(folder.name)
        os.replace(link, parent / "latest")


def sweep(folder: str, names: re.Pattern[str]) -> None:
    """Remove what a killed run left under such names, if it is ours and old; failures are ignored."""
    with contextlib.suppress(OSError):
        for name in filter(names.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):
                temp_files.remove(os.path.join(folder, name), STALE)


def file_name(host: str, plain: str) -> str:
    """Return a name for a file that is the host's alone. plain: pattern of the hosts that name it as they are."""
    if re.fullmatch(plain, host):
        return host
    readable = re.sub("[^A-Za-z0-9_-]", "_", host)[:60].lstrip("_-") or "host"
    return f"{readable}-{hashlib.sha256(host.encode()).hexdigest()[:12]}"


def refuse_planted(path: Path) -> None:
    """Raise OSError for a link of another user: it would lead a written file elsewhere."""
    if path.is_symlink() and path.lstat().st_uid not in (0, os.geteuid()):
        raise OSError(errno.ELOOP, "it is a link that another user has made: remove it, or use another path", str(path))


def put(path: Path, text: str) -> None:
    """Write a new file, so that no link is followed. Raises OSError."""
    with open(path, "x", encoding="utf-8") as stream:
        stream.write(text + "\n")


@contextlib.contextmanager
def removed_unless_written(path: str | Path) -> Iterator[None]:
    """Remove the new file or folder where the body cannot write it: no part of it stays on a full disk."""
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)
        raise


def replace_file(path: str | Path, lines: Iterable[str], mode: int = 0o600) -> None:
    """Write a file whole and to the disk, or not at all: a failed write leaves what was there. Raises OSError."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EEXIST, "it is not a regular file", str(path))
    folder = os.path.dirname(path) or "."
    sweep(folder, _UNFINISHED)
    descriptor, new = tempfile.mkstemp(dir=folder, prefix=_NEW)
    with removed_unless_written(new):
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.writelines(lines)
            stream.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(new, path)


def latest(path: Path, kind: str, name: str) -> Path:
    """Return the file ``name`` of a run's directory, of ``kind`` below it, or the latest one below all results.

    It need not exist.
    """
    for inner in ("", name, f"latest/{name}", f"{kind}/latest/{name}"):
        file = path / inner if inner else path
        if not file.is_dir() and file.exists():
            return file
    return path / kind / "latest" / name if path.is_dir() else path


def content(file: Path, limit: int) -> bytes:
    """Return a file of at most so many bytes. Raises OSError; ParseError for more, and for what is not a file."""
    # A pipe, which any writer of the directory can make, would block for ever.
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise ParseError("it is not a regular file")
        found = stream.read(limit + 1)
    if len(found) > limit:
        raise ParseError("it is larger than %d MiB, which no result is" % (limit >> 20))
    return found
