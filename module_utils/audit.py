# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the audit on a node: every module of the suite in check mode, one after another, in one process.

They are the modules that site.yml runs, so the audit finds what ``site.yml --check`` finds; only AnsibleModule is
replaced, since importing it takes longer than reading the whole machine. A child does the work and the parent waits
with a time limit for each step: a read that never returns costs that step, not the node's result.

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
import types
from contextlib import suppress
from typing import Any, Callable, Collection, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

from .core.bundle import LIBRARY
from .core.host import Host, Output, ToolHung
from .machine import netdev, netdev_address, pci, rdma, topology
from .nccl_perf import fingerprint as perf_depends

# Bulk data of a step's result stays on the node: site.yml --check --diff --limit shows it.
# Modules whose ``read`` several steps call.
READERS = (pci, rdma, netdev, netdev_address, topology, perf_depends)
_BULK = ("diff", "topology", "build", "variables", "share", "backup_files")


class ModuleExit(SystemExit):
    """End a module's main(), as AnsibleModule's exit_json and fail_json do."""

    def __init__(self, result: Dict[str, Any]) -> None:
        super().__init__(1 if result.get("failed") else 0)
        self.result = result


class CheckMode:
    """Stands for AnsibleModule. The arguments come from the roles' own tasks, and were checked with the intent.

    no_log_values: as AnsibleModule's, masked in every result.
    """

    def __init__(self, argument_spec: Mapping[str, Mapping[str, object]], **_more: Any) -> None:
        self.params = {name: _value(spec, _ARGUMENTS.get(name)) for name, spec in argument_spec.items()}
        hidden = [self.params[name] for name, spec in argument_spec.items() if spec.get("no_log")]
        self.no_log_values = {text for value in hidden for text in _texts(value)}
        self.check_mode = True
        unknown = sorted(set(_ARGUMENTS) - set(argument_spec))
        if unknown:
            self.fail_json("there is no option %s" % ", ".join(unknown))

    def exit_json(self, **result: Any) -> NoReturn:
        raise ModuleExit(_masked(result, self.no_log_values))

    def fail_json(self, msg: str, **result: Any) -> NoReturn:
        self.exit_json(**dict(result, msg=msg, failed=True))


def _value(spec: Mapping[str, object], given: object) -> Any:
    """Convert to the option's type: a template may return another number type, or a number for a text."""
    if given is None:
        given = spec.get("default")
    if given is None or spec.get("type") not in _TYPES:
        return given
    return _TYPES[spec["type"]](given)


def _texts(value: object) -> List[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _texts(item)]
    return [] if value in (None, "") else [str(value)]


def _masked(value: object, hidden: Collection[str]) -> Any:
    if isinstance(value, dict):
        return {name: _masked(item, hidden) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(item, hidden) for item in value]
    if isinstance(value, str):
        for text in sorted(hidden, key=len, reverse=True):
            value = value.replace(text, "*" * 8)
    return value


_TYPES: Mapping[str, Callable[[Any], Any]] = {"str": str, "path": str, "int": int, "float": float}
_ARGUMENTS: Dict[str, Any] = {}


def main(steps: Sequence[Mapping[str, object]], limit: float, patience: float = math.inf) -> NoReturn:
    """Prints a JSON list: the result of each step, in their order. Never waits for a child that does not end.

    steps: ``module`` and ``arguments`` of each.   limit: seconds for each.   patience: seconds for each call of a tool.
    """
    results = run(steps, limit, patience=patience)
    sys.stdout.write(json.dumps(results, separators=(",", ":")) + "\n")
    sys.stdout.flush()
    # A thread or child in uninterruptible sleep would hold an orderly end up.
    os._exit(0)


def run(
    steps: Sequence[Mapping[str, object]], limit: float, total: float = math.inf, patience: float = math.inf
) -> List[Dict[str, Any]]:
    """total: seconds for all of them together.   patience: as in main."""
    end = time.monotonic() + total

    def child(some: Sequence[Mapping[str, object]]) -> Child:
        return Child(lambda stream: _work(some, stream, patience), len(some), limit, end)

    results: List[Dict[str, Any]] = []
    while len(results) < len(steps):
        given, hung = child(steps[len(results) :]).answers()
        results += given
        if hung:
            # The others may meet the same device. All at once they take one limit, and not one each.
            rest = [child([step]) for step in steps[len(results) :]]
            results += [one.answers()[0][0] for one in rest]
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

    def answers(self) -> Tuple[List[Dict[str, Any]], bool]:
        """Return (results, with a last one that has the reason if one is missing; whether it hangs)."""
        try:
            results, hung = self._collect()
        finally:
            os.close(self._stream)
            _abandon(self._pid)
            said = self._last_message()
        if len(results) < self._expected:
            why = "did not respond within %g s and was abandoned" % self._limit
            results.append({"failed": True, "msg": why if hung else "ended without a result: %s" % said})
        return results, hung

    def _collect(self) -> Tuple[List[Dict[str, Any]], bool]:
        results: List[Dict[str, Any]] = []
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
            results += [json.loads(line.decode()) for line in lines]
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


def _work(steps: Sequence[Mapping[str, object]], stream: int, patience: float) -> None:
    stand_in(patience)
    for step in steps:
        result = _step(step)
        send_result(stream, {name: value for name, value in result.items() if name not in _BULK})


def send_result(stream: int, result: Mapping[str, object]) -> None:
    """Write a line for the parent."""
    data = json.dumps(result, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(stream, data) :]


def stand_in(patience: float = math.inf) -> None:
    """Give modules CheckMode for their AnsibleModule, and let them share what they read."""
    basic = types.ModuleType("ansible.module_utils.basic")
    basic.AnsibleModule = CheckMode  # type: ignore[attr-defined]
    for name in ("ansible", "ansible.module_utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["ansible.module_utils.basic"] = basic
    for reader in READERS:
        reader.read = cache_reads(reader.read)  # type: ignore[attr-defined]
    Host.run = _patient(Host.run, patience)  # type: ignore[method-assign]


def _step(step: Mapping[str, object]) -> Dict[str, Any]:
    _ARGUMENTS.clear()
    _ARGUMENTS.update(step["arguments"])
    try:
        importlib.import_module("%s.%s" % (LIBRARY, step["module"])).main()
    except ModuleExit as answer:
        return answer.result
    return {"failed": True, "msg": "module %s ended without a result" % step["module"]}


def cache_reads(read: Callable[..., Any]) -> Callable[..., Any]:
    """Cache a reader: several modules read the same of the node, and it does not change between them."""
    known: Dict[Tuple[Any, ...], Any] = {}

    def cached(host: Any, *arguments: Any, **named: Any) -> Any:
        key = (host.hardware_root, host.system_root, host.timeout, arguments, tuple(sorted(named.items())))
        if key not in known:
            known[key] = read(host, *arguments, **named)
        return known[key]

    return cached


def _patient(ask: Callable[..., Output], patience: float = math.inf) -> Callable[..., Output]:
    """Run a tool that hangs only once: it would hang for every device and every module."""
    hung: Dict[str, float] = {}

    def run(host: Host, argv: Sequence[str], timeout: Optional[float] = None) -> Output:
        limit = min(host.timeout if timeout is None else timeout, patience)
        if limit <= hung.get(argv[0], 0):
            raise ToolHung(" ".join(argv), "was not queried: %s did not respond within %g s" % (argv[0], hung[argv[0]]))
        try:
            return ask(host, argv, limit)
        except ToolHung:
            hung[argv[0]] = limit
            raise

    return run


def _abandon(pid: int, patience: float = 0.5) -> Optional[int]:
    """The child's exit status, None where it does not even take a SIGKILL (uninterruptible sleep)."""
    end = time.monotonic() + patience
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done or time.monotonic() > end:
            return status if done else None
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.005)
