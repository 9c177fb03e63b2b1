# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Proof that a candidate nccl.conf means to the installed library what it was meant to say.

The library's own reader judges, with no GPU and no driver: a child process with an empty environment shows the
candidate as /etc/nccl.conf in a mount namespace of its own, calls ncclGetUniqueId, and reports which variables the
library has set. It is written into memory that only this child sees: no file of the host is, not even for a while.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import pwd
import resource
import select
import signal
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_UNIQUE_ID_BYTES = 128
_OUTPUT_LIMIT = 65536  # bytes of the library's own messages that are kept
_RESULT_LIMIT = 16 * 1024 * 1024

# What these two do at the first call (truncate a log file, load a library) must not happen in a proof. The candidate
# names them by a stand-in of equal length, which NCCL's reader treats alike and which nobody reads.
_STAND_INS = (("NCCL_DEBUG_FILE", "NCCL_DEBUG_FIL_"), ("NCCL_ENV_PLUGIN", "NCCL_ENV_PLUGI_"))


@dataclass(frozen=True)
class Proof:
    """outcome: "proven", "mismatch" or "not_provable".

    values: the environment that the library set.   rc: of ncclGetUniqueId (3 or 5: no network interface to use, which
    does not touch what was read), None where it did not come to that.   message: what differs, or why no proof.
    """

    outcome: str
    values: Dict[str, str] = field(default_factory=dict)
    rc: Optional[int] = None
    message: str = ""


class _Refused(Exception):
    """The child cannot go on; the message says why and what would help."""


def prove(library_path: str, text: str, meant: Mapping[str, str], timeout: float = 30.0) -> Proof:
    """Let the library at ``library_path`` read ``text`` and compare with ``meant``, the variables it should set.

    Takes well under a second. Needs root or user namespaces; the child is killed after ``timeout`` seconds.
    """
    if not os.path.isfile(library_path):
        message = "%s: there is no such library; name a libnccl.so.2" % library_path
        return Proof("not_provable", message=message)
    try:
        answer, output, ending = _in_child(os.path.abspath(library_path), _candidate(text), timeout)
    except (OSError, UnicodeEncodeError) as error:
        return Proof("not_provable", message="the proof could not be set up: %s" % error)
    if answer is None:
        return Proof("not_provable", message=_with_output("%s: %s" % (library_path, ending), output))
    if "refused" in answer:
        return Proof("not_provable", message=_with_output(answer["refused"], output))
    values = {_restore(name): _restore(value) for name, value in answer["values"].items()}
    differences = _differences(meant, values)
    if differences:
        return Proof("mismatch", values, answer["rc"], "; ".join(differences))
    message = "" if answer["rc"] == 0 else "ncclGetUniqueId returned %d" % answer["rc"]
    return Proof("proven", values, answer["rc"], _with_output(message, output) if message else "")


def _candidate(text: str) -> bytes:
    for name, stand_in in _STAND_INS:
        text = text.replace(name, stand_in)
    return text.encode("utf-8", "surrogateescape")


def _restore(text: str) -> str:
    for name, stand_in in _STAND_INS:
        text = text.replace(stand_in, name)
    return text


def _differences(meant: Mapping[str, str], values: Mapping[str, str]) -> List[str]:
    texts = []
    for name in sorted(set(meant) | set(values)):
        if name not in values:
            texts.append("%r: meant %r, not set by the library" % (name, meant[name]))
        elif name not in meant:
            texts.append("%r: set to %r by the library, not meant" % (name, values[name]))
        elif meant[name] != values[name]:
            texts.append("%r: meant %r, the library has %r" % (name, meant[name], values[name]))
    return texts


def _with_output(message: str, output: bytes) -> str:
    """The message with the last lines that the library printed."""
    lines = output.decode("ascii", "replace").strip().splitlines()[-3:]
    printed = " | ".join("".join(c if c.isprintable() else "?" for c in line) for line in lines)
    return "%s (it printed: %s)" % (message, printed) if printed else message


# -- parent ------------------------------------------------------------------------------------------------------


def _in_child(library_path: str, candidate: bytes, timeout: float) -> Tuple[Optional[Dict[str, Any]], bytes, str]:
    """What the child reported (None: nothing), what the library printed, and how the child ended."""
    result_read, result_write = os.pipe()
    output_read, output_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(library_path, candidate, result_write, output_write)
    os.close(result_write)
    os.close(output_write)
    deadline = time.monotonic() + timeout
    complete = False
    try:
        result, output, complete = _collect(result_read, output_read, deadline)
    finally:
        os.close(result_read)
        os.close(output_read)
        os.kill(pid, signal.SIGKILL)
        status = _reap(pid)
    if not complete:
        return None, output, "the library gave no answer within %g s" % timeout
    if not result and status is not None and os.WIFSIGNALED(status):
        return None, output, "the library ended the process with signal %d" % os.WTERMSIG(status)
    try:
        answer = json.loads(result.decode("ascii"))
    except ValueError:
        return None, output, "the library ended the process without an answer"
    return answer, output, ""


def _collect(result_fd: int, output_fd: int, deadline: float) -> Tuple[bytes, bytes, bool]:
    """Both pipes until the result is closed. The output is drained to keep the library going, and its end is kept."""
    result = b""
    output = b""
    waiting = [result_fd, output_fd]
    while waiting:
        # Once the result is there, take what is left of the output without waiting for more.
        left = max(deadline - time.monotonic(), 0.0)
        ready = select.select(waiting, [], [], left if result_fd in waiting else 0.0)[0]
        if not ready or not left or len(result) > _RESULT_LIMIT:
            break
        for stream in ready:
            data = os.read(stream, 65536)
            if not data:
                waiting.remove(stream)
            elif stream == result_fd:
                result += data
            else:
                output = (output + data)[-_OUTPUT_LIMIT:]
    return result, output, result_fd not in waiting


def _reap(pid: int) -> Optional[int]:
    """How the child ended. One in uninterruptible sleep is abandoned after half a second (None)."""
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.005)
    return None


# -- child -------------------------------------------------------------------------------------------------------


def _child(library_path: str, candidate: bytes, result_fd: int, output_fd: int) -> None:
    """Never returns, and runs nothing of the parent's: no exit handlers, no buffers."""
    try:
        # A crash is an answer, not an event: no traceback of ours, no core file.
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        answer = json.dumps(_answer(library_path, candidate))
        # What the library has printed is still in C's own buffer, and _exit drops it.
        ctypes.CDLL(None).fflush(None)
        os.write(result_fd, b"")
        with os.fdopen(result_fd, "wb") as stream:
            stream.write(answer.encode("ascii"))
    finally:
        os._exit(0)


def _answer(library_path: str, candidate: bytes) -> Dict[str, Any]:
    try:
        values, rc = _ask(library_path, candidate)
    except _Refused as error:
        return {"refused": str(error)}
    except OSError as error:
        return {"refused": "the proof could not be set up: %s" % error}
    return {"values": values, "rc": rc}


def _ask(library_path: str, candidate: bytes) -> Tuple[Dict[str, str], int]:
    libc = ctypes.CDLL(None, use_errno=True)
    home = _home()
    libc.clearenv()
    # Stops the search for a libnccl-env.so that could answer in place of the environment (2.28.7 and later).
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


def _home() -> str:
    """The home directory that releases before 2.30 ask for; with HOME unset later ones read no user file at all."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


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
    """The C library's environment; Python's own copy knows nothing of what NCCL has set."""
    environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
    values: Dict[str, str] = {}
    index = 0
    while environ and environ[index] is not None:
        name, _equals, value = environ[index].decode("utf-8", "surrogateescape").partition("=")
        values.setdefault(name, value)
        index += 1
    return values
