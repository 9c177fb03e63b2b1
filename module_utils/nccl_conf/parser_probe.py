# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run in one process with a NCCL library: show it a candidate as /etc/nccl.conf and report what it has read.

Started by proof as a separate Python, which has no data of ours in memory; so this file imports no other module of the
suite. An untrusted library is loaded without privileges, in namespaces without other processes, network or writable
files.
Sources: unshare(2), mount(2), capabilities(7), pid_namespaces(7), prctl(2).
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import pwd
import resource
import select
import signal
import stat
import sys
import time
from typing import Any, Callable, Dict, NoReturn, Optional, Tuple

# The user and group that an untrusted library is loaded as: the overflow UID, which owns no files, has this number on
# Linux and in every container.
OVERFLOW_UID = 65534
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 32, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CAPABILITY_VERSION_3 = 0x20080522
_UNIQUE_ID_BYTES = 128
# Where the library would find other processes, sockets, files of its owner, or a place to write.
_HIDDEN = ("/home", "/root", "/run", "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/sys", "/proc")
_LIBRARY = "/etc/libnccl.so.2"
_LOADER_CACHE = "/etc/ld.so.cache"
# A library maps 400 MB, and its Python as much again.
_LIMITS = (
    (resource.RLIMIT_AS, 8 << 30),
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_NOFILE, 256),
    (resource.RLIMIT_NPROC, 256),
)


class _Refused(Exception):
    """The child cannot continue; the message has the reason and the fix."""


def main(result_fd: int) -> NoReturn:
    """Load the library. stdin: one line of JSON; it is closed to end the process.

    Exits with the status of the library's process, as a shell does. The process of an untrusted library is the first of
    its namespace: its end ends all that it has started.
    """
    request = json.loads(sys.stdin.buffer.readline().decode("ascii"))
    path, candidate = request["path"], base64.b64decode(request["candidate"])
    end = time.monotonic() + request["timeout"]
    try:
        if not request["trusted"]:
            _hide(ctypes.CDLL(None, use_errno=True), path, candidate)
        pid = os.fork()
    except (OSError, _Refused) as error:
        _send({"refused": str(error)}, result_fd)
        os._exit(0)
    if not pid:
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            # A crash is a result.
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            ask = _read_candidate if request["trusted"] else _ask_as_nobody
            _send(_answer(lambda libc: ask(libc, path, candidate, result_fd)), result_fd)
        finally:
            os._exit(0)
    os.close(result_fd)
    done, status = 0, 0
    while not done:
        ours = bool(select.select([0], [], [], 0.01)[0]) or time.monotonic() > end
        if ours:
            os.kill(pid, signal.SIGKILL)
        done, status = os.waitpid(pid, 0 if ours else os.WNOHANG)
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    os._exit(128 + killed if killed not in (0, signal.SIGKILL) else 0)


# -- a library that is trusted ---------------------------------------------------------------------------------------


def _answer(ask: Callable[[ctypes.CDLL], Tuple[Dict[str, str], int]]) -> Dict[str, object]:
    try:
        values, rc = ask(ctypes.CDLL(None, use_errno=True))
    except _Refused as error:
        return {"refused": str(error)}
    except OSError as error:
        return {"refused": "the proof could not be set up: %s" % (error.strerror or error)}
    return {"values": values, "rc": rc}


def _send(answer: Dict[str, object], result_fd: int) -> None:
    with os.fdopen(result_fd, "wb") as stream:
        stream.write(json.dumps(answer).encode("ascii"))


def _read_candidate(libc: ctypes.CDLL, library_path: str, candidate: bytes, _fd: int) -> Tuple[Dict[str, str], int]:
    try:  # the home directory that releases before 2.30 use; with HOME unset later ones read no user file at all
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = ""
    # Loaded before /etc disappears: the loader needs its cache there.
    get_unique_id = _load(libc, library_path, library_path)
    _enter_namespace(libc)
    _mount(libc, b"none", b"/", _MS_REC | _MS_PRIVATE)
    user_file = os.path.join(home, ".nccl.conf") if home else ""
    if os.path.lexists(user_file):
        _mount(libc, b"/dev/null", os.fsencode(user_file), _MS_BIND)
    _mount(libc, b"none", b"/etc", 0, b"tmpfs")
    with open("/etc/nccl.conf", "wb") as stream:
        stream.write(candidate)
    return _call(libc, get_unique_id)


def _load(libc: ctypes.CDLL, path: str, name: str) -> Any:
    libc.clearenv()
    # Stops the search for a libnccl-env.so that could replace the environment (2.28.7 and later).
    libc.setenv(b"NCCL_ENV_PLUGIN", b"none", 1)
    try:
        return ctypes.CDLL(path).ncclGetUniqueId
    except (OSError, AttributeError) as error:
        raise _Refused("%s cannot be loaded as a NCCL library: %s" % (name, error)) from error


def _call(libc: ctypes.CDLL, get_unique_id: Any) -> Tuple[Dict[str, str], int]:
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


def _mount(
    libc: ctypes.CDLL,
    source: bytes,
    target: bytes,
    flags: int,
    kind: Optional[bytes] = None,
    data: Optional[bytes] = None,
) -> None:
    if libc.mount(source, target, kind, ctypes.c_ulong(flags), data) != 0:
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


# -- a library that is not -------------------------------------------------------------------------------------------


def _hide(libc: ctypes.CDLL, path: str, candidate: bytes) -> None:
    """Namespaces in which /etc holds the candidate, the library and what the loader needs. Only root can."""
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS) != 0:
        raise _Refused(_namespace_message("no namespaces", ctypes.get_errno()))
    _mount(libc, b"none", b"/", _MS_REC | _MS_PRIVATE)
    # Not opened for reading: a pipe would hold us, and a device may do anything.
    library = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(library).st_mode):
        raise _Refused("%s is not a regular file" % path)
    files = {"/etc/nccl.conf": candidate, _LIBRARY: b""}
    if os.path.isfile(_LOADER_CACHE):
        with open(_LOADER_CACHE, "rb") as stream:
            files[_LOADER_CACHE] = stream.read()
    _mount(libc, b"none", b"/etc", 0, b"tmpfs", b"mode=0755")
    for name, data in files.items():
        with open(name, "wb") as stream:
            stream.write(data)
        os.chmod(name, 0o644)
    _mount(libc, b"/proc/self/fd/%d" % library, _LIBRARY.encode(), _MS_BIND)
    os.close(library)
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    _mount(libc, b"none", b"/etc", _MS_REMOUNT | flags, b"tmpfs", b"mode=0755")
    for folder in _HIDDEN:
        if os.path.isdir(folder):
            _mount(libc, b"none", folder.encode(), flags | _MS_NOEXEC, b"tmpfs", b"mode=0755")


def _ask_as_nobody(libc: ctypes.CDLL, path: str, _candidate: bytes, result_fd: int) -> Tuple[Dict[str, str], int]:
    os.closerange(3, result_fd)
    os.closerange(result_fd + 1, 1 << 16)
    os.chdir("/")
    for limit, most in _LIMITS:
        resource.setrlimit(limit, (most, most))
    _drop(libc)
    return _call(libc, _load(libc, _LIBRARY, path))


def _drop(libc: ctypes.CDLL) -> None:
    """Drop root's privileges for good. Raises OSError, _Refused."""
    word = ctypes.c_ulong
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, word(1), word(0), word(0), word(0)) != 0:
        raise _Refused("no_new_privs: %s" % os.strerror(ctypes.get_errno()))
    os.setgroups([])
    os.setresgid(OVERFLOW_UID, OVERFLOW_UID, OVERFLOW_UID)
    os.setresuid(OVERFLOW_UID, OVERFLOW_UID, OVERFLOW_UID)
    # Also if the securebits would retain them.
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, none) != 0:
        raise _Refused("no giving up of capabilities: %s" % os.strerror(ctypes.get_errno()))
    # A change of user forgets it, so after that.
    libc.prctl(_PR_SET_PDEATHSIG, word(signal.SIGKILL), word(0), word(0), word(0))
    if os.getresuid() != (OVERFLOW_UID,) * 3 or os.getresgid() != (OVERFLOW_UID,) * 3 or os.getgroups():
        raise _Refused("is still UID %d" % os.getuid())
