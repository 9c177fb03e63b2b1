# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The node's side of host_audit, packed as it is sent, and what it answers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils import audit
from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Output, ReadError

ROOT = Path(__file__).resolve().parent.parent.parent
ARGV = (sys.executable, "-I", "-S")
# Answers one question after another, each in a process of its own, and hears from the tools what it is told.
SERVE = f"""
import importlib, sys
from {bundle.PACKAGE} import audit
from {bundle.PACKAGE}.core import host
TOLD = {{}}
def told(node, argv, timeout=None):
    said = TOLD[json.dumps([argv, node.timeout if timeout is None else timeout])]
    if "raised" in said:
        raise getattr(host, said["raised"])(said["source"], said["message"])
    return host.Output(**said)
host.Host.run = told
for name in list(SOURCES):
    importlib.import_module(name)
for line in sys.stdin:
    asked = json.loads(line)
    TOLD.clear()
    TOLD.update(asked["told"])
    print(json.dumps(audit.run(asked["steps"], 60)), flush=True)
"""
Step = Mapping[str, Any]


@cache
def _sources(modules: tuple[str, ...]) -> dict[str, str]:
    names = [f"{bundle.PACKAGE}.audit", *(f"{bundle.LIBRARY}.{name}" for name in modules)]
    return bundle.closure(names, bundle.source_of)


def script(steps: Iterable[Step]) -> str:
    """What the action plugin pipes to a node."""
    asked = [dict(step) for step in steps]
    main = f"from {bundle.PACKAGE} import audit\naudit.main(json.loads({json.dumps(asked)!r}), 60)\n"
    return bundle.script(_sources(tuple(sorted({step["module"] for step in asked}))), main)


class Tools:
    """Keeps what a node's tools say, so that they need not be asked again."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, Any]] = {}
        self._ask = Host.run

    def run(self, host: Host, argv: Iterable[str], timeout: float | None = None) -> Output:
        """In place of Host.run."""
        words = list(argv)
        key = json.dumps([words, host.timeout if timeout is None else timeout])
        if "rc" in self.told.get(key, {}):
            return Output(**self.told[key])
        try:
            said = self._ask(host, words, timeout)
        except ReadError as error:
            of = {"source": error.problem.source, "message": error.problem.message}
            self.told[key] = {"raised": type(error).__name__, **of}
            raise
        self.told[key] = dict(said.__dict__)
        return said


class Server:
    """The audit as it is sent, loaded once."""

    def __init__(self, modules: Iterable[str], folder: Path) -> None:
        self.agreed: set[str] = set()
        path = folder / "audit.py"
        path.write_text(bundle.script(_sources(tuple(sorted(modules))), SERVE))
        # No child of ours: while there is one, each tool's end is looked for in all of /proc.
        argv = ["setsid", "--fork", *ARGV, str(path)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._process.wait()

    def ask(self, steps: Iterable[Step], tools: Tools) -> list[dict[str, Any]]:
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("Popen was asked for pipes")
        print(json.dumps({"steps": list(steps), "told": tools.told}), file=self._process.stdin, flush=True)
        answer: list[dict[str, Any]] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        self._process.communicate()


def sent(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What of the modules' results the control node gets. A tool that hangs is asked once, and says so."""
    kept = [{name: value for name, value in one.items() if name not in (*audit._BULK, "invocation")} for one in results]
    hung = r"was not queried: \S+ did not respond within [\d.]+ s|did not respond within [\d.]+ s and was abandoned"
    # One question comes a moment after the other.
    text = re.sub(r'"seconds": [\d.]+', '"seconds": 0', re.sub(hung, "hung", json.dumps(kept)))
    found: list[dict[str, Any]] = json.loads(text)
    return found
