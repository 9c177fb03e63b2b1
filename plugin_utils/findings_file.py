# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write and read the findings file: every host's result, and the run."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import UNSUPPORTED

from . import codec, result_schema
from .plain_data import Plain, PlainView

# Readers refuse a file of another format.
FORMAT = 1
# Version of the suite; a collection has no other place from which its plugins could read it.
VERSION = "0.2.0"
GROUP = "gpu_nodes"


def now() -> str:
    """Return the current time, as ``utc`` formats it."""
    return utc(time.time())


def utc(seconds: float) -> str:
    """Format seconds since 1970, any number, as ``2026-11-21T02:00:07Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(max(seconds, 0.0), 2e11)))


def of_run(
    started: str | None,
    ended: str,
    inventory: Sequence[str],
    limit: str | None,
    group: Sequence[str],
    simulated: bool,
    commit: str | None = None,
) -> Plain:
    """Return the file's key ``run``.

    started, ended: as now() returns them; started is None where unknown. group: every node of the inventory, also
    those outside the limit. commit: of the inventory or the project.
    """
    of_file = {"format": FORMAT, "version": VERSION, "started": started, "ended": ended, "commit": commit}
    return {**of_file, "inventory": [*inventory], "limit": limit, "group": [*group], "simulated": simulated}


# Id of a passed check -> the value, and its source.
Evidence = Mapping[str, Sequence[str]]


class Packed(str):
    """Evidence as ASCII of a tenth of its size: that of all hosts is in memory at once."""


def packed(evidence: Evidence) -> Packed:
    data = zlib.compress(json.dumps(evidence).encode(), 1) if evidence else b""
    return Packed(base64.b64encode(data).decode())


def unpacked(text: str) -> dict[str, list[str]]:
    """Return what ``packed`` was called on; {} for an empty text."""
    found: dict[str, list[str]] = json.loads(zlib.decompress(base64.b64decode(text))) if text else {}
    return found


def compacted(data: dict[str, object]) -> dict[str, object]:
    """Pack the evidence of a host's entry as soon as JSON is read. Invalid data stays, and is refused later."""
    found = data.get("evidence")
    if isinstance(found, dict) and codec.is_valid(result_schema.evidence, found):
        data["evidence"] = packed(found)
    return data


def text(data: PlainView, evidence: Callable[[str], Evidence]) -> Iterator[str]:
    """Yield the file, a line for each host: indented, or as one text, it would cost as much as all of a verdict.

    evidence: of the passed checks of a host.
    """
    yield json.dumps({name: value for name, value in data.items() if name != "hosts"}, sort_keys=True)[:-1]
    yield ', "hosts": {'
    for number, (host, of_host) in enumerate(data["hosts"].items()):
        known = evidence(host)
        # Of passed checks, and of what the hardware cannot have.
        cannot = [name for name, (value, _source) in known.items() if value.startswith(UNSUPPORTED)]
        shown = {name: known[name] for name in (*of_host["passed_ids"], *cannot) if name in known}
        whole = {**of_host, "evidence": shown}
        yield f"{',' if number else ''}\n{json.dumps(host)}: {json.dumps(whole, sort_keys=True)}"
    yield "\n}}\n"
