# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prove that the installed library reads a candidate nccl.conf as intended.

The library's reader judges, with no GPU and no driver: a separate Python with an empty environment (parser_probe) shows
the candidate as /etc/nccl.conf in its own mount namespace, calls ncclGetUniqueId, and reports which variables the
library has set. It is written into memory that only this process sees: no file of the host is, not even for a while.

A library that others than root may change is not loaded by root, but without privileges, and its result, which it may
forge, is typed and bounded. Such a proof is only as good as the users who may write the library, and reports it.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from ..core import bundle, trusted
from ..core.error_text import error_text
from ..core.finding import printable
from . import parser_probe as nccl_reader

# Bytes of a result, which an untrusted library may forge. A real environment is a hundredth of this.
_RESULT_LIMIT = 256 * 1024
_MESSAGE_LIMIT = 2000

# What these two do at the first call (truncate a log file, load a library) must not happen in a proof. The candidate
# names them by a stand-in of equal length, which NCCL's reader treats alike and which has no effect.
_STAND_INS = (("NCCL_DEBUG_FILE", "NCCL_DEBUG_FIL_"), ("NCCL_ENV_PLUGIN", "NCCL_ENV_PLUGI_"))


@dataclass(frozen=True)
class Proof:
    """outcome: "proven", "mismatch" or "not_provable".

    values: the environment that the library set.   rc: of ncclGetUniqueId (3 or 5: no network interface to use, which
    does not affect what was read), None if it was not called.   message: what differs, or why no proof.
    doubt: why the library was loaded without privileges: users who may write it may have forged this.
    """

    outcome: str
    values: Dict[str, str] = field(default_factory=dict)
    rc: Optional[int] = None
    message: str = ""
    doubt: str = ""


def prove(library_path: str, text: str, meant: Mapping[str, str], timeout: float = 30.0, base: str = "/") -> Proof:
    """Let the library at ``library_path`` read ``text`` and compare with ``meant``, the variables it should set.

    Takes well under a second. Needs root or user namespaces; the child is killed after ``timeout`` seconds.
    base: directory that stands for "/", as Host's system_root.
    """
    if not os.path.isfile(library_path):
        return _not_provable("", "%s: there is no such library; name a libnccl.so.2" % library_path)
    library_path = os.path.abspath(library_path)
    doubt = trusted.doubt(library_path, base)
    if doubt and os.geteuid() != 0:
        return _not_provable(doubt, "only root can load it as another user")
    try:
        result = _run_probe(library_path, _candidate(text), timeout, not doubt)
        answer = _typed(json.loads(result.decode("ascii")))
    except _NoResultError as error:
        return _not_provable(doubt, "%s: %s" % (library_path, error))
    except (OSError, UnicodeEncodeError) as error:
        return _not_provable(doubt, "the proof could not be set up: %s" % error_text(error))
    except (ValueError, RecursionError):
        return _not_provable(doubt, "%s: the library ended the process without a result" % library_path)
    if answer is None:
        return _not_provable(doubt, "%s: the library's result is invalid" % library_path)
    if "refused" in answer:
        return _not_provable(doubt, answer["refused"])
    values = {_restore(name): _restore(value) for name, value in answer["values"].items()}
    differences = _differences(meant, values)
    if differences:
        return Proof("mismatch", values, answer["rc"], "; ".join(differences)[:_MESSAGE_LIMIT], doubt)
    message = "" if answer["rc"] == 0 else "ncclGetUniqueId returned %d" % answer["rc"]
    return Proof("proven", values, answer["rc"], message, doubt)


class _NoResultError(Exception):
    """The library's process gave no result; the message has the reason."""


def _not_provable(doubt: str, message: str) -> Proof:
    if doubt:
        message = "not proven, because %s, and as UID %d: %s" % (doubt, nccl_reader.OVERFLOW_UID, message)
    return Proof("not_provable", message=message[:_MESSAGE_LIMIT], doubt=doubt)


def _typed(answer: object) -> Optional[Dict[str, Any]]:
    """Return the result, which an untrusted library may forge, its types checked; None if it has another form."""
    if not isinstance(answer, dict):
        return None
    if isinstance(answer.get("refused"), str):
        return {"refused": printable(answer["refused"])}
    values, rc = answer.get("values"), answer.get("rc")
    if type(rc) is not int or abs(rc) > 1 << 31 or not isinstance(values, dict):
        return None
    return {"values": values, "rc": rc} if all(isinstance(value, str) for value in values.values()) else None


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
        want, have = (repr(found[name]) if name in found else "nothing" for found in (meant, values))
        texts += ["%r: meant %s, the library has %s" % (name, want, have)] if want != have else []
    return texts


# -- parent ------------------------------------------------------------------------------------------------------


def _run_probe(library_path: str, candidate: bytes, timeout: float, trusted_library: bool) -> bytes:
    """Return the report of the probe, which ends when its stdin closes. Raises _NoResultError, OSError."""
    source = bundle.source_of(nccl_reader.__name__)
    request = {"path": library_path, "candidate": base64.b64encode(candidate).decode("ascii"), "timeout": timeout}
    read_end, write_end = os.pipe()
    process = None
    with os.fdopen(read_end, "rb") as results:
        try:
            with os.fdopen(write_end, "wb"):
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", "%s\nmain(%d)\n" % (source, write_end)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(write_end,),
                    env={},
                    cwd="/",
                    # A signal to our group leaves it the time to end its child.
                    start_new_session=True,
                )
            if process.stdin is None:
                raise AssertionError("Popen was asked for a pipe")
            process.stdin.write(json.dumps({**request, "trusted": trusted_library}).encode("ascii") + b"\n")
            process.stdin.flush()
            result = _collect(results.fileno(), time.monotonic() + timeout)
        finally:
            if process is not None and process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()
                _end(process)
    if result is None:
        raise _NoResultError("the library did not respond within %g s" % timeout)
    if not result and process.returncode > 128:
        raise _NoResultError("the library ended the process with signal %d" % (process.returncode - 128))
    return result


def _collect(stream: int, deadline: float) -> Optional[bytes]:
    """Return what comes until the end of a pipe; None where that is too late, or too much."""
    result = b""
    while len(result) <= _RESULT_LIMIT:
        if not select.select([stream], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            return None
        data = os.read(stream, 65536)
        if not data:
            return result
        result += data
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close its stdin, upon which it ends; a process in uninterruptible sleep is abandoned."""
    for patience in (2.0, 0.5):
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return
        process.kill()
    # It is not reaped after this, and Popen would warn.
    process.returncode = -signal.SIGKILL
