# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the workers of one run need alike: the first that needs it makes it, the others read it from a file.

Ansible forks a worker for each task of each host, and what a worker knows ends with it. One that asks for many hosts
reads the file once.

What all runs need alike is kept between them, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.plugin_utils import results_folder

# Path -> what this process has read there. So many at most: hosts of which each is given something else fill no memory.
_READ: dict[str, Any] = {}
# What was made of an object that many hosts share, by what for and the object's id; with the object, so that it lives.
_MADE: dict[tuple[str, int], tuple[object, Any]] = {}
_MOST = 50
# Of what is kept between runs, for as many checkouts and releases that one user goes back and forth between.
_TEXTS = 8


def kept(folder: str, basis: object, make: Callable[[], Any]) -> Any:
    """What JSON makes of make() for this basis; in this folder it is made once, and who asks meanwhile waits.

    basis: all that make() goes by, as JSON or as text. Who asks changes nothing in what is given, which others have,
    too. What JSON cannot hold is made each time.
    """
    text = json.dumps(basis, sort_keys=True, default=str)
    path = os.path.join(folder, f"busbar-{hashlib.sha256(text.encode()).hexdigest()}.json")
    value = _READ.get(path)
    if value is not None:
        return value
    with open(path + ".lock", "a") as lock:
        # Ends with the file, so also with a worker that is killed. Where a home directory knows no locks, all make it.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with open(path, encoding="utf-8") as stream:
                return _remember(path, json.load(stream))
        except FileNotFoundError:
            pass
        made = make()
        try:
            text = json.dumps(made)
        except TypeError:
            return made
        results_folder.replace_file(path, [text])
        return _remember(path, json.loads(text))


def made_of(shared: object, what: str, make: Callable[[], Any]) -> Any:
    """make(), what is made of this very object: once, where hosts share it as they do what kept() gives.

    what: a name for it. Nobody changes the object, or what is made.
    """
    known = _MADE.get((what, id(shared)))
    if known is None:
        if len(_MADE) >= _MOST:
            _MADE.clear()
        known = _MADE[what, id(shared)] = (shared, make())
    return known[1]


def _remember(path: str, value: object) -> Any:
    if len(_READ) >= _MOST:
        _READ.clear()
    _READ[path] = value
    return value


def kept_between_runs(folder: Path, basis: str, make: Callable[[], str]) -> str:
    """make() for this basis, which is all that it goes by; in this folder it is made once.

    The folder is made. One that is not ours alone to write, or a file that is not or is not whole, is not believed:
    then it is made each time.
    """
    path = folder / f"{hashlib.sha256(basis.encode()).hexdigest()}.txt"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _ours(os.lstat(folder), stat.S_ISDIR):
            return make()
        text = _whole(path)
        if text is None:
            text = make()
            results_folder.replace_file(path, [f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}"])
            by_age = sorted(folder.glob("*.txt"), key=lambda one: one.stat().st_mtime)
            for old in by_age[:-_TEXTS]:
                old.unlink(missing_ok=True)
        return text
    except OSError:
        # A home directory that is full, or that nobody may write.
        return make()


def _whole(path: Path) -> str | None:
    """None of what is not there, not ours alone to write, or was cut off or changed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as stream:
        if not _ours(os.fstat(descriptor), stat.S_ISREG):
            return None
        said, _line, content = stream.read().partition(b"\n")
    return content.decode() if hashlib.sha256(content).hexdigest().encode() == said else None


def _ours(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    return is_kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
