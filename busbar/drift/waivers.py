# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Accepted deviations of a run (``busbar_accepted``), as the history stores them: each with its hosts, folded."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.accepted import Acceptance
from ansible_collections.busbar.fabric.plugins.plugin_utils.nodeset import expand, fold

from .run import HostResult


class WaiverError(ValueError):
    """An invalid entry of a history or findings file; the message has the reason."""


@dataclass(frozen=True)
class Waiver(Acceptance):
    """An entry with its hosts."""

    hosts: frozenset[str] = frozenset()


def of_hosts(hosts: Mapping[str, HostResult]) -> tuple[dict[str, str], ...]:
    """Return the entries of all hosts, equal ones joined."""
    found: dict[Acceptance, list[str]] = {}
    for host in hosts.values():
        for entry in host.acceptances:
            found.setdefault(entry, []).append(host.host)
    return tuple({**to_plain(entry), "hosts": fold(names)} for entry, names in found.items())


def to_plain(entry: Acceptance) -> dict[str, str]:
    words = entry.to_dict()
    words["expires"] = words.pop("until")
    return words


def parse(entries: Sequence[Mapping[str, str]]) -> tuple[Waiver, ...]:
    """Return the entries of a run. Raises WaiverError."""
    found = []
    for entry in entries:
        try:
            hosts, day = frozenset(expand(entry["hosts"])), datetime.date.fromisoformat(entry["expires"])
        except ParseError as error:
            raise WaiverError(f"waivers: hosts: {error}") from error
        except ValueError as error:
            raise WaiverError(f"waivers: expires is {entry['expires']!r}, expected YYYY-MM-DD") from error
        words = (entry["check"], entry.get("subject", ""), entry["reason"], entry["owner"])
        found.append(Waiver(*words, until=day, hosts=hosts))
    return tuple(found)
