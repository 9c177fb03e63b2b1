# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prove that the installed library reads a candidate nccl.conf as intended.

The library's reader judges, with no GPU and no driver: a separate Python with an empty environment (parser_probe) shows
the candidate as /etc/nccl.conf in its own mount namespace, calls ncclGetUniqueId, and reports which variables the
library has set. It is written into memory that only this process sees: no file of the host is, not even for a while.

A library that others than root may change is not loaded.
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
from typing import Dict, List, Mapping, Optional

from ..core import bundle, trusted
from ..core.error_text import error_text
from ..core.finding import printable
from . import parser_probe as nccl_reader

# Bytes of a result. A real environment is a hundredth of this.
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
    doubt: why the library is not loaded: users who may write it.
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
        return Proof("not_provable", message="%s: there is no such library; name a libnccl.so.2" % library_path)
    library_path = os.path.abspath(library_path)
    doubt = trusted.doubt(library_path, base)
    if doubt:
        return Proof("not_provable", message="not loaded, because %s" % doubt, doubt=doubt)
    try:
        answer = json.loads(_run_probe(library_path, _candidate(text), timeout).decode("ascii"))
    except _NoResultError as error:
        answer = {"refused": "%s: %s" % (library_path, error)}
    except (OSError, UnicodeEncodeError) as error:
        answer = {"refused": "the proof could not be set up: %s" % error_text(error)}
    except (ValueError, RecursionError):
        answer = {"refused": "%s: the library ended the process without a result" % library_path}
    if "refused" in answer:
        return Proof("not_provable", message=printable(answer["refused"])[:_MESSAGE_LIMIT])
    values = {_restore(name): _restore(value) for name, value in answer["values"].items()}
    differences = _differences(meant, values)
    if differences:
        return Proof("mismatch", values, answer["rc"], "; ".join(differences)[:_MESSAGE_LIMIT])
    message = "" if answer["rc"] == 0 else "ncclGetUniqueId returned %d" % answer["rc"]
    return Proof("proven", values, answer["rc"], message)


class _NoResultError(Exception):
    """The library's process gave no result; the message has the reason."""


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


def _run_probe(library_path: str, candidate: bytes, timeout: float) -> bytes:
    """Return the report of the probe. Raises _NoResultError, OSError."""
    source = bundle.source_of(nccl_reader.__name__)
    request = {"path": library_path, "candidate": base64.b64encode(candidate).decode("ascii")}
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as results:
        with os.fdopen(write_end, "wb"):
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", "%s\nmain(%d)\n" % (source, write_end)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(write_end,),
                env={},
                cwd="/",
                # A signal to our group is ours alone.
                start_new_session=True,
            )
        result: Optional[bytes] = None
        try:
            if process.stdin is None:
                raise AssertionError("Popen was asked for a pipe")
            with suppress(BrokenPipeError), process.stdin as stream:
                stream.write(json.dumps(request).encode("ascii") + b"\n")
            result = _collect(results.fileno(), time.monotonic() + timeout)
        finally:
            _end(process, 2.0 if result is not None else 0.0)
    if result is None:
        raise _NoResultError("the library did not respond within %g s" % timeout)
    if not result and process.returncode < 0:
        raise _NoResultError("the library ended the process with signal %d" % -process.returncode)
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


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Wait for its end, and kill it; a process in uninterruptible sleep is abandoned."""
    for seconds in (patience, 0.5):
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return
        process.kill()
    # It is not reaped after this, and Popen would warn.
    process.returncode = -signal.SIGKILL
