# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Explain errors of the operating system, and unknown names."""

from __future__ import annotations

import difflib
import errno
import itertools
import re
from typing import Iterable

# Reasons as errno(3) has them.
_WAYS_OUT = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file",
    errno.EEXIST: "name a new path",
    errno.EACCES: "change its permissions, or run as a user who has them",
    errno.EPERM: "change its permissions, or run as a user who has them",
    errno.ENOSPC: "free space, or name a path on another file system",
    errno.EDQUOT: "free space, or name a path on another file system",
    errno.EROFS: "name a path on another file system",
}
_BECOME = "let the user become root without a password, or pass --become-password-file FILE"
# Errors of Ansible, shells, su and sudo where nothing could be started on a node.
_START = (
    (r"[Mm]issing \S+ password|[Ii]ncorrect \S+ password|password is required|waiting for (become|privilege)", _BECOME),
    (r"sudo\S*( command)? not found|not in the sudoers|not allowed to (run|execute)", "install sudo; " + _BECOME),
    (r"No space left on device", "free space on the node"),
    (
        r"(sh: (line )?(\d+: )?\S+|python\S*): (not found|No such file)|interpreter \S+ was not found",
        "install Python 3.8 or later on the node, or set ansible_python_interpreter",
    ),
)


def error_text(error: BaseException) -> str:
    """Return ``PATH: reason; what to do``; the text of any error that is not an OSError."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    path = "" if error.filename is None else "%s: " % (error.filename,)
    way_out = _WAYS_OUT.get(error.errno or 0)
    return path + error.strerror + ("; " + way_out if way_out else "")


def start_way_out(text: str) -> str:
    """Return what to do if no program could be started on a node; "" if the text does not name the cause."""
    return next((way_out for pattern, way_out in _START if re.search(pattern, text)), "")


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "known: ") -> str:
    """Return ``; did you mean NAME?`` with the nearest known name; without one, all names after ``otherwise``."""
    names = sorted(set(known))
    likeness, near = max(((_likeness(name, each), each) for each in names), default=(0.0, ""))
    if likeness >= 0.6:
        return "; did you mean %s?" % near
    return "; " + otherwise + ", ".join(names) if otherwise else ""


def _likeness(name: str, known: str) -> float:
    """Return how alike two names are without the words that both begin with, 0 to 1."""
    both = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(name, known))
    start = max((at + 1 for at, (char, _same) in enumerate(both) if char in "_-"), default=0)
    return difflib.SequenceMatcher(None, known[start:], name[start:]).ratio()
