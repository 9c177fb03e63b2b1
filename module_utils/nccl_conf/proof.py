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
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..core import bundle, trusted
from ..core.error_text import error_text
from ..core.finding import printable
from . import parser_probe as nccl_reader

_OUTPUT_LIMIT = 65536  # bytes of the library's messages that are stored
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
        message = "%s: there is no such library; name a libnccl.so.2" % library_path
        return Proof("not_provable", message=message)
    library_path = os.path.abspath(library_path)
    doubt = trusted.doubt(library_path, base)
    try:
        answer, output, ending = _run_probe(library_path, _candidate(text), timeout, not doubt)
        if answer is not None and doubt:
            answer = _typed(answer)
            ending = "" if answer is not None else "the library's result is invalid"
    except (OSError, UnicodeEncodeError) as error:
        return _not_provable(doubt, "the proof could not be set up: %s" % error_text(error))
    if answer is None:
        return _not_provable(doubt, _with_output("%s: %s" % (library_path, ending), output))
    if "refused" in answer:
        return _not_provable(doubt, _with_output(answer["refused"], output))
    values = {_restore(name): _restore(value) for name, value in answer["values"].items()}
    differences = _differences(meant, values)
    if differences:
        return Proof("mismatch", values, answer["rc"], "; ".join(differences)[:_MESSAGE_LIMIT], doubt)
    message = "" if answer["rc"] == 0 else "ncclGetUniqueId returned %d" % answer["rc"]
    return Proof("proven", values, answer["rc"], _with_output(message, output) if message else "", doubt)


def _not_provable(doubt: str, message: str) -> Proof:
    if doubt:
        message = "not proven, because %s, and as UID %d: %s" % (doubt, nccl_reader.OVERFLOW_UID, message)
    return Proof("not_provable", message=message[:_MESSAGE_LIMIT], doubt=doubt)


def _typed(answer: object) -> Optional[Dict[str, Any]]:
    """Return the result of an untrusted library, its types checked; None if it has another form."""
    if not isinstance(answer, dict):
        return None
    if isinstance(answer.get("refused"), str):
        return {"refused": printable(answer["refused"])}
    values, rc = answer.get("values"), answer.get("rc")
    if not isinstance(rc, int) or isinstance(rc, bool) or abs(rc) > 1 << 31 or not isinstance(values, dict):
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


def _run_probe(
    library_path: str, candidate: bytes, timeout: float, trusted_library: bool
) -> Tuple[Optional[Dict[str, Any]], bytes, str]:
    """Return the probe's report (None: nothing), what the library printed, and how the library's process ended.

    The probe ends that process when its stdin closes.
    """
    if not trusted_library and os.geteuid() != 0:
        return {"refused": "only root can load it as another user"}, b"", ""
    source = bundle.source_of(nccl_reader.__name__)
    request = {"path": library_path, "candidate": base64.b64encode(candidate).decode("ascii"), "timeout": timeout}
    request["trusted"] = trusted_library
    result_read, result_write = os.pipe()
    output_read, output_write = os.pipe()
    complete, result, output = False, b"", b""
    process = None
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "%s\nmain(%d)\n" % (source, result_write)],
            stdin=subprocess.PIPE,
            stdout=output_write,
            stderr=output_write,
            pass_fds=(result_write,),
            env={},
            cwd="/",
            # A signal to our group leaves it the time to end its child.
            start_new_session=True,
        )
        os.close(result_write)
        os.close(output_write)
        result_write = output_write = -1
        if process.stdin is None:
            raise AssertionError("Popen was asked for a pipe")
        process.stdin.write(json.dumps(request).encode("ascii") + b"\n")
        process.stdin.flush()
        result, output, complete = _collect(result_read, output_read, time.monotonic() + timeout)
    finally:
        for descriptor in (result_read, output_read, result_write, output_write):
            if descriptor >= 0:
                os.close(descriptor)
        if process is not None and process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
            _end(process)
    killed = max((process.returncode or 0) - 128, 0)
    if not complete:
        return None, output, "the library did not respond within %g s" % timeout
    if not result and killed:
        return None, output, "the library ended the process with signal %d" % killed
    try:
        answer = json.loads(result.decode("ascii"))
    except (ValueError, RecursionError):
        return None, output, "the library ended the process without a result"
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


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close its stdin, upon which it ends; a process in uninterruptible sleep is abandoned."""
    for patience in (2.0, 0.5):
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return
        process.kill()
    # It is not reaped after this, and Popen would warn.
    process.returncode = -signal.SIGKILL
