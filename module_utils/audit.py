# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the audit on a node: the work of every module of the suite in check mode, one after another, in one process.

They are the modules that site.yml runs, so the audit finds what ``site.yml --check`` finds. A child does the work and
the parent waits with a time limit for each step: a read that never returns costs that step, not the node's result.

Nothing is written but the suite's state: node_health's record of counters for the next run.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

from .change import module
from .core import redaction
from .core.bundle import LIBRARY
from .core.host import ParseError, Session
from .watch import history

# Bulk data of a step's result stays on the node: site.yml --check --diff --limit shows it.
_BULK = ("diff", "build", "variables", "share", "backup_files")
_TYPES: Mapping[object, Callable[[str], object]] = {"str": str, "path": str, "int": int, "float": float}


def main(steps: Sequence[Mapping[str, object]], limit: float, patience: float = math.inf) -> NoReturn:
    """Print a JSON list: the result of each step, in their order. Never waits for a child that does not end.

    steps: ``module`` and ``arguments`` of each.   limit: seconds for each.   patience: seconds for each call of a tool.
    """
    sys.stdout.buffer.write(b"[%s]\n" % b",".join(_lines(steps, limit, patience=patience)))
    sys.stdout.flush()
    # A thread or child in uninterruptible sleep would hold an orderly end up.
    os._exit(0)


def run(
    steps: Sequence[Mapping[str, object]], limit: float, total: float = math.inf, patience: float = math.inf
) -> List[Dict[str, object]]:
    """Return the results. total: seconds for all steps and their tools.   limit, patience: as in main."""
    return [json.loads(line) for line in _lines(steps, limit, total, patience)]


def _lines(
    steps: Sequence[Mapping[str, object]], limit: float, total: float = math.inf, patience: float = math.inf
) -> List[bytes]:
    end = time.monotonic() + total

    def child(some: Sequence[Mapping[str, object]]) -> Child:
        return Child(lambda stream: work(some, stream, Session(patience, end)), len(some), limit, end)

    results: List[bytes] = []
    while len(results) < len(steps):
        given, hung = child(steps[len(results) :]).lines()
        results += given
        if hung:
            # The others may meet the same device. All at once they take one limit, and not one each.
            rest = [child([step]) for step in steps[len(results) :]]
            results += [one.lines()[0][0] for one in rest]
    return results


class Child:
    """A process that does ``work`` and writes so many lines of JSON into the descriptor that ``work`` gets.

    limit: seconds for each line.   last: deadline for all of them, of time.monotonic.
    The process holds no file of ours: if it does not even die of SIGKILL, it would keep the connection open.
    """

    def __init__(self, work: Callable[[int], object], expected: int, limit: float, last: float = math.inf) -> None:
        self._expected = expected
        self._limit = limit
        self._last = last
        self._end = min(time.monotonic() + limit, last)
        self._errors = os.memfd_create("stderr")
        self._stream, theirs = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if not self._pid:
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_RDWR)
            for number, target in enumerate((null, null, self._errors)):
                os.dup2(target, number)
            work(theirs)
            os._exit(0)
        os.close(theirs)

    def lines(self) -> Tuple[List[bytes], bool]:
        """Return (the lines, with a last one that has the reason if one is missing; whether it hangs)."""
        try:
            results, hung = self._collect()
        finally:
            os.close(self._stream)
            _abandon(self._pid)
            said = self._last_message()
        if len(results) < self._expected:
            why = "did not respond within %g s and was abandoned" % self._limit
            results.append(_line({"failed": True, "msg": why if hung else "ended without a result: %s" % said}))
        return results, hung

    def _collect(self) -> Tuple[List[bytes], bool]:
        results: List[bytes] = []
        data = b""
        while len(results) < self._expected:
            # What is there already is taken, however late it is.
            left = max(self._end - time.monotonic(), 0.1)
            if not select.select([self._stream], [], [], left)[0]:
                return results, True
            chunk = os.read(self._stream, 65536)
            if not chunk:
                break
            data += chunk
            *lines, data = data.split(b"\n")
            results += lines
            if lines:
                self._end = min(time.monotonic() + self._limit, self._last)
        return results, False

    def _last_message(self) -> str:
        """Return the last line of its stderr; all of it goes to ours, where -vvv shows it."""
        os.lseek(self._errors, 0, os.SEEK_SET)
        text = os.read(self._errors, 65536).decode("utf-8", "replace").strip()
        os.close(self._errors)
        sys.stderr.write(text and text + "\n")
        return (text.splitlines() or ["it printed nothing"])[-1]


def work(steps: Sequence[Mapping[str, object]], stream: int, session: Session) -> None:
    """Write a line with the result of each step."""
    for step in steps:
        result = _step(step, session)
        send_result(stream, {name: value for name, value in result.items() if name not in _BULK})


def _line(result: Mapping[str, object]) -> bytes:
    return json.dumps(result, separators=(",", ":")).encode()


def send_result(stream: int, result: Mapping[str, object]) -> None:
    """Write a line for the parent."""
    data = _line(result) + b"\n"
    while data:
        data = data[os.write(stream, data) :]


def _step(step: Mapping[str, Any], session: Session) -> Mapping[str, object]:
    declared = importlib.import_module("%s.%s" % (LIBRARY, step["module"]))
    try:
        given = options(declared.SPEC, step["arguments"])
    except ParseError as error:
        return {"failed": True, "msg": str(error)}
    hidden = [given[name] for name, option in declared.SPEC.items() if option.get("no_log")]
    result = module.execute(declared.work, given, True, session)
    if result.get("findings"):
        result["findings"] = history.annotate(module.host_of(given, session), result["findings"])
    secrets = redaction.secret_texts(filter(module.is_secret, redaction.find_secrets(hidden, secret=True)))
    return redaction.scrub_all(result, secrets) if secrets else result


def options(spec: Mapping[str, Mapping[str, object]], arguments: Mapping[str, object]) -> Dict[str, Any]:
    """Return the options of a module; the roles' own tasks have checked them with the intent. Raises ParseError."""
    unknown = sorted(set(arguments) - set(spec))
    if unknown:
        raise ParseError("there is no option %s" % ", ".join(unknown))
    return {name: _value(option, arguments.get(name)) for name, option in spec.items()}


def _value(option: Mapping[str, object], given: object) -> object:
    """Convert to the option's type: a template may return another number type, or a number for a text."""
    if given is None:
        given = option.get("default")
    if given is None or option.get("type") not in _TYPES:
        return given
    return _TYPES[option["type"]](given)  # type: ignore[arg-type]


def _abandon(pid: int, patience: float = 0.5) -> Optional[int]:
    """Return the child's exit status; None where it does not even take a SIGKILL (uninterruptible sleep)."""
    end = time.monotonic() + patience
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done or time.monotonic() > end:
            return status if done else None
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.005)
