# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Join parts of one run as one run would have made it; refuse overlaps and gaps. Pure.

Nothing is guessed: every expected host has to be in exactly one part, and all parts have to be of one inventory, in one
state, from one version of Busbar, at one time.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset

from . import runner
from .findings_part import MOMENT, Part, PartError, names
from .inventory import Manifest
from .run import HostResult

# Characters of host names in a message.
ROOM = 2000
# Comparisons between nodes, made only with those of the same part.
_COMPARED = "consistency."


@dataclass(frozen=True)
class Merged:
    """The joined run. Times as Run has them. inventory: its paths. hosts: in the inventory's order."""

    started: str
    ended: str
    inventory: tuple[str, ...]
    version: str
    commit: str | None
    simulated: bool
    hosts: Mapping[str, HostResult]


def join(parts: Sequence[Part], expected: Manifest | None, inventory: Sequence[str], within: int) -> Merged:
    """Join the parts. Raises PartError.

    expected: nodes that have to be in one of the parts, if the user names the inventory (inventory: its paths); None if
    the parts name them. within: seconds from the first query to the last result.
    """
    if not parts:
        raise PartError("no findings file was named")
    _check(parts, "version", lambda part: part.version, "are of different versions of Busbar")
    _check(parts, "roles", lambda part: ", ".join(part.expected), "checked different roles")
    _check(parts, "commit", lambda part: part.commit, "are of different commits of the inventory")
    _check(parts, "digest", lambda part: part.digest, "are of different states of the inventory (variables differ)")
    _one_night(parts, within)
    if expected is None:
        way_out = "; where they are slices of one inventory, name the whole of it with -i INVENTORY"
        _check(parts, "paths", lambda part: " ".join(part.inventory), "are of different inventories", way_out)
        _check(parts, "nodes", lambda part: nodeset.fold(part.group), "are of inventories with other nodes", way_out)
        hosts = parts[0].group
        inventory = parts[0].inventory
        if not hosts or not inventory:
            raise PartError(f"{parts[0].path} does not list the hosts of its inventory: add -i INVENTORY")
    else:
        hosts = tuple(map(printable, expected.hosts))
        for part in parts:
            if part.digest is not None and part.digest != expected.digest:
                raise PartError(f"{part.path} is of another state of the inventory than -i has now (variables differ)")
    _each_once(parts, hosts)
    found: dict[str, HostResult] = {}
    for part in parts:
        share = Manifest(tuple(part.hosts), expected.secrets if expected else (), part.simulated)
        results = runner.results({"hosts": part.hosts}, share, {})
        found.update(_with_limit(results) if len(parts) > 1 else results)
    return Merged(
        started=f"{min(part.started for part in parts):{MOMENT}}",
        ended=f"{max(part.ended for part in parts):{MOMENT}}",
        inventory=tuple(inventory),
        version=parts[0].version,
        commit=parts[0].commit,
        simulated=any(part.simulated for part in parts),
        hosts={host: found[host] for host in hosts},
    )


def _check(parts: Sequence[Part], what: str, of: Callable[[Part], str | None], wrong: str, way_out: str = "") -> None:
    """Raise PartError where parts differ."""
    first = parts[0]
    for part in parts[1:]:
        if of(part) != of(first):
            values = f"{what} {_short(of(first))} and {_short(of(part))}"
            raise PartError(f"{first.path} and {part.path} {wrong}: {values}{way_out}")


def _short(text: str | None) -> str:
    return "unknown" if text is None else text if len(text) <= 200 else f"{text[:200]}..."


def _one_night(parts: Sequence[Part], within: int) -> None:
    first = min(parts, key=lambda part: part.started)
    last = max(parts, key=lambda part: part.ended)
    if last.ended - first.started > datetime.timedelta(seconds=within):
        raise PartError(
            f"{first.path} was begun {first.started:{MOMENT}} and {last.path} ended {last.ended:{MOMENT}}: more than"
            f" {within} seconds lie between, so they are not of one run (--within SECONDS allows more)"
        )


def _each_once(parts: Sequence[Part], expected: Sequence[str]) -> None:
    of_host: dict[str, list[Part]] = {}
    for part in parts:
        for host in part.hosts:
            of_host.setdefault(host, []).append(part)
    twice: dict[str, list[str]] = {}
    for host, found in of_host.items():
        if len(found) > 1:
            twice.setdefault(names(part.path for part in found), []).append(host)
    if twice:
        told = "; ".join(f"{_hosts(hosts)} in {files}" for files, hosts in twice.items())
        raise PartError(f"hosts in more than one file: {told}; each host may be in one --limit or slice only")
    known = set(expected)
    strange = [host for host in of_host if host not in known]
    if strange:
        files = names(part.path for part in parts if not known.issuperset(part.hosts))
        raise PartError(f"hosts that the inventory does not expect: {_hosts(strange)} in {files}")
    missing = [host for host in expected if host not in of_host]
    if missing:
        raise PartError(f"hosts in none of the files: {_hosts(missing)}; audit them, too, and add that findings file")


def _hosts(hosts: Sequence[str]) -> str:
    return nodeset.brief(hosts, ROOM)


def _with_limit(hosts: Mapping[str, HostResult]) -> dict[str, HostResult]:
    """Return the hosts of one part of several, with a note where they were compared with each other."""
    compared = [
        name
        for name, host in hosts.items()
        if any(check.startswith(_COMPARED) for check in (*host.passed, *(finding.check for finding in host.findings)))
    ]
    note = f"compared with each other, and with no host of the other files: {_hosts(compared)} ({_COMPARED}*)"
    return {
        name: replace(host, notes=(*host.notes, note)) if name in compared else host for name, host in hosts.items()
    }
