# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The node's side of the nightly audit: every module of the suite in check mode, one after another, in one process.

They are the modules that site.yml runs, so the audit finds what ``site.yml --check`` finds; only AnsibleModule is
another, since importing the real one takes longer than reading the whole machine. A child does the work and the parent
waits with a time limit for each step: a read that never returns costs that step, and not the node's answer.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import time
import types
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

from . import netdev_address, topology
from .bundle import LIBRARY

# What the control node asks of a step's result; bulk data stays on the node.
_BULK = ("diff", "topology", "build", "variables", "share", "draft", "doubts", "backup_files")


class Answer(SystemExit):
    """Ends a module's main(), as AnsibleModule's exit_json and fail_json do."""

    def __init__(self, result: Dict[str, Any]) -> None:
        super().__init__(1 if result.get("failed") else 0)
        self.result = result


class CheckMode:
    """Stands for AnsibleModule. The arguments come from the roles' own tasks, and their types were checked there."""

    def __init__(self, argument_spec: Mapping[str, Mapping[str, Any]], **_more: Any) -> None:
        self.params = {name: _ARGUMENTS.get(name, spec.get("default")) for name, spec in argument_spec.items()}
        self.check_mode = True
        unknown = sorted(set(_ARGUMENTS) - set(argument_spec))
        if unknown:
            self.fail_json("there is no option %s" % ", ".join(unknown))

    def exit_json(self, **result: Any) -> NoReturn:
        raise Answer(result)

    def fail_json(self, msg: str, **result: Any) -> NoReturn:
        raise Answer(dict(result, msg=msg, failed=True))


_ARGUMENTS: Dict[str, Any] = {}


def main(steps: Sequence[Mapping[str, Any]], limit: float) -> NoReturn:
    """Prints a JSON list: the result of each step, in their order. Never waits for a child that does not end.

    steps: ``module`` and ``arguments`` of each.   limit: seconds for each.
    """
    results = run(steps, limit)
    sys.stdout.write(json.dumps(results, separators=(",", ":")) + "\n")
    sys.stdout.flush()
    # A thread or child in uninterruptible sleep would hold an orderly end up.
    os._exit(0)


def run(steps: Sequence[Mapping[str, Any]], limit: float) -> List[Dict[str, Any]]:
    results: List[Dict[str, Any]] = []
    while len(results) < len(steps):
        left = steps[len(results) :]
        pid, stream = _start(left)
        try:
            given, said = _collect(stream, len(left), limit)
        finally:
            os.close(stream)
        results += given
        if len(given) < len(left):
            results.append({"failed": True, "msg": said})
        _abandon(pid)
    return results


def _start(steps: Sequence[Mapping[str, Any]]) -> Tuple[int, int]:
    """The child that runs the steps, and where it writes a line of JSON for each."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours
    os.close(ours)
    os.setpgid(0, 0)
    # Only the parent speaks to the control node.
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    _work(steps, theirs)


def _work(steps: Sequence[Mapping[str, Any]], stream: int) -> NoReturn:
    basic = types.ModuleType("ansible.module_utils.basic")
    basic.AnsibleModule = CheckMode  # type: ignore[attr-defined]
    for name in ("ansible", "ansible.module_utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["ansible.module_utils.basic"] = basic
    topology.read, netdev_address.read = _once(topology.read), _once(netdev_address.read)
    for step in steps:
        result = _step(step)
        kept = {name: value for name, value in result.items() if name not in _BULK}
        os.write(stream, json.dumps(kept, separators=(",", ":")).encode() + b"\n")
    os._exit(0)


def _step(step: Mapping[str, Any]) -> Dict[str, Any]:
    _ARGUMENTS.clear()
    _ARGUMENTS.update(step["arguments"])
    try:
        importlib.import_module("%s.%s" % (LIBRARY, step["module"])).main()
    except Answer as answer:
        return answer.result
    return {"failed": True, "msg": "module %s ended without an answer" % step["module"]}


def _once(read: Callable[..., Any]) -> Callable[..., Any]:
    """Several modules read the topology and the addresses, and these do not change between them."""
    known: Dict[Tuple[Any, ...], Any] = {}

    def cached(host: Any, *arguments: Any, **named: Any) -> Any:
        key = (host.hardware_root, host.system_root, host.timeout, arguments, tuple(sorted(named.items())))
        if key not in known:
            known[key] = read(host, *arguments, **named)
        return known[key]

    return cached


def _collect(stream: int, expected: int, limit: float) -> Tuple[List[Dict[str, Any]], str]:
    """(results that came, why there are no more)."""
    results: List[Dict[str, Any]] = []
    data = b""
    deadline = time.monotonic() + limit
    while len(results) < expected:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([stream], [], [], left)[0]:
            return results, "gave no answer within %g s and was abandoned" % limit
        chunk = os.read(stream, 65536)
        if not chunk:
            return results, "ended without an answer; its error is in stderr (ansible-playbook -vvv)"
        data += chunk
        lines = data.split(b"\n")
        data = lines.pop()
        results += [json.loads(line.decode()) for line in lines]
        if lines:
            deadline = time.monotonic() + limit
    return results, ""


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
