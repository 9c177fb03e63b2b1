# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide whether a file may be executed or loaded: a user who may change or replace it becomes root.

The file and every directory on the way to it, and to the target of every link, must belong to root (or to the user who
runs us) and be writable by no other. A sticky directory like /tmp is not trusted: any user may create a name there.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from typing import List

WAY_OUT = "give it to root alone (chown root, chmod go-w), or name another"
_LINKS = 40  # as many as the kernel follows
_ACCESS_LIST = "system.posix_acl_access"


def doubt(path: str, base: str = "/") -> str:
    """Return why the absolute ``path`` is not trusted, such as ``/home/u belongs to u``; "" if it is.

    base: a directory that stands for "/" (Host's system_root) and is trusted; a link that leaves it is followed from
    the machine's root.
    """
    top, prefix = os.path.realpath(base), os.path.abspath(base).rstrip("/") + "/"
    inside = (path + "/").startswith(prefix)
    current, waiting = (top, _parts(path[len(prefix) :])) if inside else ("/", _parts(path))
    reason, links = _wrong(current, top), 0
    while waiting and not reason:
        name = waiting.pop()
        if name == "..":
            parent = os.path.dirname(current)
            if current == top != "/":
                waiting, parent = waiting + _parts(parent), "/"
            current, reason = parent, _wrong(parent, top)
            continue
        full = os.path.join(current, name)
        try:
            target = os.readlink(full) if stat.S_ISLNK(os.lstat(full).st_mode) else None
        except OSError as error:
            return "%s cannot be looked at: %s" % (_node_path(full, top), error.strerror)
        if target is None:
            current, reason = full, _wrong(full, top)
            continue
        links += 1
        if links > _LINKS:
            return "%s leads to too many links" % _node_path(full, top)
        if top != "/" and target.startswith(top + "/"):
            current, target = top, target[len(top) :]
        elif target.startswith("/"):
            current, reason = "/", _wrong("/", top)
        waiting += _parts(target)
    return reason


def _parts(path: str) -> List[str]:
    """Return the names in a path, the last first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _wrong(full: str, top: str) -> str:
    if full == top != "/":
        return ""
    path = _node_path(full, top)
    try:
        found = os.lstat(full)
    except OSError as error:
        return "%s cannot be looked at: %s" % (path, error.strerror)
    if found.st_uid not in (0, os.geteuid()):
        return "%s belongs to %s" % (path, user_name(found.st_uid))
    if found.st_mode & stat.S_IWOTH:
        return "%s is writable by everybody" % path
    if found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid()):
        return "%s is writable by group %s" % (path, _group(found.st_gid))
    # The group's bits are then the mask of the list, which may hold other users.
    if found.st_mode & stat.S_IWGRP and _has_access_list(full):
        return "%s has an access list that may let others write (getfacl shows it)" % path
    return ""


def _has_access_list(full: str) -> bool:
    try:
        os.getxattr(full, _ACCESS_LIST)
    except OSError:
        return False
    return True


def _node_path(full: str, top: str) -> str:
    """Return the path as the node sees it."""
    return full[len(top) :] or "/" if top != "/" and (full + "/").startswith(top + "/") else full


def user_name(number: int) -> str:
    """Return the name of a user, else its number."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return "UID %d" % number


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return "GID %d" % number
