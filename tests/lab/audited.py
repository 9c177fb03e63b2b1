# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The node's side of host_audit, packed as it is sent, and what it answers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import audit
from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle

ARGV = (sys.executable, "-I", "-S")
Step = Mapping[str, Any]


@cache
def _sources(modules: tuple[str, ...]) -> dict[str, str]:
    names = [f"{bundle.PACKAGE}.audit", *(f"{bundle.LIBRARY}.{name}" for name in modules)]
    return bundle.closure(names, bundle.source_of)


def script(steps: Iterable[Step]) -> str:
    """What the action plugin pipes to a node."""
    asked = [dict(step) for step in steps]
    main = f"import json\nfrom {bundle.PACKAGE} import audit\naudit.main(json.loads({json.dumps(asked)!r}), 60)\n"
    return bundle.script(_sources(tuple(sorted({step["module"] for step in asked}))), main)


def ask(steps: Iterable[Step], within: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the results of an audit. within: a command that starts it, which ends with 99 where it cannot."""
    argv = [*within, *ARGV, "-"]
    done = subprocess.run(argv, input=script(steps), capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip(f"no mounts of one's own on this machine: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


def sent(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What of the modules' results the control node gets. A tool that hangs is asked once, and says so."""
    kept = [{name: value for name, value in one.items() if name not in (*audit._BULK, "invocation")} for one in results]
    hung = r"was not queried: \S+ did not respond within [\d.]+ s|did not respond within [\d.]+ s and was abandoned"
    # One question comes a moment after the other.
    text = re.sub(r'"seconds": [\d.]+', '"seconds": 0', re.sub(hung, "hung", json.dumps(kept)))
    found: list[dict[str, Any]] = json.loads(text)
    return found
