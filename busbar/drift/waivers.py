# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Drift that somebody answers for: who, why, and until when. A waiver that has expired is drift again."""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils.nodeset import NodesetError, expand

_REQUIRED = ("check", "hosts", "owner", "reason", "expires")
_KEYS = (*_REQUIRED, "subject")


class WaiverError(ValueError):
    """A waivers file that cannot be read as meant; the message names the entry."""


@dataclass(frozen=True)
class Waiver:
    """check: a check, or a pattern like ``platform.*``. subject: of the finding, empty for any.

    expires: the last day (UTC) on which it holds.
    """

    check: str
    hosts: frozenset[str]
    subject: str
    owner: str
    reason: str
    expires: datetime.date

    def covers(self, host: str, finding: Finding) -> bool:
        return (
            host in self.hosts
            and fnmatch.fnmatchcase(finding.check, self.check)
            and self.subject in ("", finding.subject, finding.identity)
        )


def load(path: Path) -> tuple[dict[str, str], ...]:
    """The entries of a waivers file, checked, as plain text for the history. Raises WaiverError."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise WaiverError(f"waivers {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict) or set(data) != {"waivers"} or not isinstance(data["waivers"] or [], list):
        raise WaiverError(f"waivers {path}: expected one key, waivers, with a list; see docs/drift.md")
    entries = []
    for number, item in enumerate(data["waivers"] or [], 1):
        where = f"waivers {path}, entry {number}"
        entries.append(_entry(item, where))
        parse(entries[-1:], where)
    return tuple(entries)


def _entry(item: Any, where: str) -> dict[str, str]:
    if not isinstance(item, dict):
        raise WaiverError(f"{where} is not a mapping with {', '.join(_REQUIRED)}")
    unknown = [str(key) for key in item if key not in _KEYS]
    missing = [key for key in _REQUIRED if not str(item.get(key) or "").strip()]
    if unknown or missing:
        wrong = [f"has no {', '.join(missing)}"] * bool(missing) + [f"has unknown {', '.join(unknown)}"] * bool(unknown)
        raise WaiverError(f"{where} {' and '.join(wrong)}; known: {', '.join(_KEYS)}")
    return {key: " ".join(str(item[key]).split()) for key in _KEYS if item.get(key) is not None}


def parse(entries: Sequence[Mapping[str, str]], where: str = "waivers") -> tuple[Waiver, ...]:
    """Raises WaiverError where hosts are no nodeset or the day is none."""
    found = []
    for entry in entries:
        try:
            hosts = frozenset(expand(entry["hosts"]))
            expires = datetime.date.fromisoformat(entry["expires"])
        except NodesetError as error:
            raise WaiverError(f"{where}: hosts: {error}") from error
        except ValueError as error:
            raise WaiverError(f"{where}: expires is {entry['expires']!r}, expected YYYY-MM-DD") from error
        found.append(Waiver(entry["check"], hosts, entry.get("subject", ""), entry["owner"], entry["reason"], expires))
    return tuple(found)
