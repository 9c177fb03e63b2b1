# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run in one process with a NCCL library: show it a candidate as /etc/nccl.conf and report what it has read.

Started by proof as a separate Python, which has no data of ours in memory; so this file imports no other module of the
suite.
Sources: unshare(2), mount(2), prctl(2).
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import pwd
import resource
import signal
import sys
from typing import Dict, NoReturn, Optional, Tuple

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1
_UNIQUE_ID_BYTES = 128


class _Refused(Exception):
    """The proof cannot be made; the message has the reason and the fix."""


def main(result_fd: int) -> NoReturn:
    """Load the library, and write the result to a descriptor. stdin: one line of JSON."""
    request = json.loads(sys.stdin.buffer.readline().decode("ascii"))
    answer: Dict[str, object]
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # A library that hangs does not outlive us.
        libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # A crash is a result.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        values, rc = _read_candidate(libc, request["path"], base64.b64decode(request["candidate"]))
        answer = {"values": values, "rc": rc}
    except _Refused as error:
        answer = {"refused": str(error)}
    except OSError as error:
        answer = {"refused": "the proof could not be set up: %s" % (error.strerror or error)}
    with os.fdopen(result_fd, "wb") as stream:
        stream.write(json.dumps(answer).encode("ascii"))
    os._exit(0)


def _read_candidate(libc: ctypes.CDLL, library_path: str, candidate: bytes) -> Tuple[Dict[str, str], int]:
    try:  # the home directory that releases before 2.30 use; with HOME unset later ones read no user file at all
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = ""
    libc.clearenv()
    # Stops the search for a libnccl-env.so that could replace the environment (2.28.7 and later).
    libc.setenv(b"NCCL_ENV_PLUGIN", b"none", 1)
    # Loaded before /etc disappears: the loader needs its cache there.
    try:
        get_unique_id = ctypes.CDLL(library_path).ncclGetUniqueId
    except (OSError, AttributeError) as error:
        raise _Refused("%s cannot be loaded as a NCCL library: %s" % (library_path, error)) from error
    _enter_namespace(libc)
    _mount(libc, b"none", b"/", _MS_REC | _MS_PRIVATE)
    user_file = os.path.join(home, ".nccl.conf") if home else ""
    if os.path.lexists(user_file):
        _mount(libc, b"/dev/null", os.fsencode(user_file), _MS_BIND)
    _mount(libc, b"none", b"/etc", 0, b"tmpfs")
    with open("/etc/nccl.conf", "wb") as stream:
        stream.write(candidate)
    rc = get_unique_id(ctypes.create_string_buffer(_UNIQUE_ID_BYTES))
    values = _environment(libc)
    values.pop("NCCL_ENV_PLUGIN", None)
    return values, rc


def _enter_namespace(libc: ctypes.CDLL) -> None:
    if libc.unshare(_CLONE_NEWNS) == 0:
        return
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) != 0:
        raise _Refused(_namespace_message("no mount namespace", ctypes.get_errno()))
    try:
        for path, text in (
            ("/proc/self/setgroups", b"deny"),
            ("/proc/self/uid_map", b"%d %d 1" % (uid, uid)),
            ("/proc/self/gid_map", b"%d %d 1" % (gid, gid)),
        ):
            stream = os.open(path, os.O_WRONLY)
            os.write(stream, text)
            os.close(stream)
    except OSError as error:
        raise _Refused(_namespace_message("no identity in the user namespace", error.errno or 0)) from error


def _mount(libc: ctypes.CDLL, source: bytes, target: bytes, flags: int, kind: Optional[bytes] = None) -> None:
    if libc.mount(source, target, kind, ctypes.c_ulong(flags), None) != 0:
        what = "no mount over %s" % target.decode("utf-8", "replace")
        raise _Refused(_namespace_message(what, ctypes.get_errno()))


def _namespace_message(what: str, error: int) -> str:
    return "%s: %s; run as root, or allow user namespaces (in a container: CAP_SYS_ADMIN)" % (what, os.strerror(error))


def _environment(libc: ctypes.CDLL) -> Dict[str, str]:
    """Return the C library's environment; Python's copy lacks what NCCL has set."""
    environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
    values: Dict[str, str] = {}
    index = 0
    while environ and environ[index] is not None:
        name, _equals, value = environ[index].decode("utf-8", "surrogateescape").partition("=")
        values.setdefault(name, value)
        index += 1
    return values
