# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Name the path, the reason and the way out of an error of the operating system."""

from __future__ import annotations

import errno

# Reasons as errno(3) has them.
_WAYS_OUT = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file",
    errno.EACCES: "change its permissions, or run as a user who has them",
    errno.EPERM: "change its permissions, or run as a user who has them",
    errno.ENOSPC: "free space, or name a path on another file system",
    errno.EDQUOT: "free space, or name a path on another file system",
    errno.EROFS: "name a path on another file system",
}


def error_text(error: BaseException) -> str:
    """Return ``PATH: reason; way out``; of any error but OSError its text."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    path = "" if error.filename is None else "%s: " % (error.filename,)
    way_out = _WAYS_OUT.get(error.errno or 0)
    return path + error.strerror + ("; " + way_out if way_out else "")
