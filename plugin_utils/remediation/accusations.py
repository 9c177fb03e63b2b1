# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read accused nodes from findings files (docs/findings.md).

Another machine may have written a file, and it holds output of nodes: everything is typed and sized here. A name in a
file is only compared with the inventory's names, and is no path, pattern or template.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core import finding as findings
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from .. import codec, result_schema, results_folder
from ..campaign import localise_judge

# Bytes of one file: 10,000 nodes with a dozen findings each.
LIMIT = 256 << 20
MOST_HOSTS = 20_000
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"
_OF_HOST = codec.record(
    ("findings", "boot_id"),
    others=True,
    findings=codec.maybe(result_schema.of_findings),
    boot_id=codec.maybe(codec.text(64, line=True)),
)


@dataclass(frozen=True)
class Accusation:
    """One finding of one node.

    at: time of the audit, seconds since 1970, None where unknown.   boot_id: of the node then, "" where unknown.
    good: nodes that were measured with others and are good.
    """

    host: str
    finding: Finding
    at: float | None = None
    boot_id: str = ""
    good: tuple[str, ...] = ()


@dataclass(frozen=True)
class Accusations:
    """strangers: hosts of the files that are not in the inventory.   wrong: host -> error of its findings."""

    accusations: tuple[Accusation, ...] = ()
    strangers: tuple[str, ...] = ()
    wrong: Mapping[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*(one.host for one in self.accusations), *self.wrong]))


def read(paths: Sequence[str | Path], inventory: Collection[str]) -> Accusations:
    """Read all files. Return each finding of a node once, from the latest file that has it.

    inventory: its nodes. Raises OSError, ParseError; the message names the file.
    """
    latest: dict[tuple[str, str], Accusation] = {}
    strangers: dict[str, None] = {}
    wrong: dict[str, str] = {}
    for path in paths:
        try:
            data = codec.read(results_folder.content(Path(path), LIMIT).decode(), LIMIT)
            found = list(_of_file(data))
        except (ParseError, ValueError) as error:
            raise ParseError(
                f"{printable(str(path))} is not a file of findings: {printable(str(error)[:300])}"
            ) from None
        for host, one in found:
            if host not in inventory:
                strangers[host] = None
            elif isinstance(one, str):
                wrong[host] = f"{printable(str(path))}: {one}"
            else:
                before = latest.get((host, one.finding.id))
                if before is None or (one.at or 0) >= (before.at or 0):
                    latest[host, one.finding.id] = one
    return Accusations(tuple(latest.values()), tuple(strangers), wrong)


def _of_file(data: object) -> Iterator[tuple[str, Accusation | str]]:
    """Yield host and accusation, or why its findings are invalid. Raises ValueError."""
    if not isinstance(data, dict):
        raise ParseError("it is not a dictionary")
    if not isinstance(data.get("hosts"), dict):
        raise ParseError(
            "it has no hosts: write one with busbar drift -i INVENTORY --findings FILE, or set busbar_findings_path for"
            " the playbook"
        )
    if len(data["hosts"]) > MOST_HOSTS:
        raise ParseError("it has more than %d hosts" % MOST_HOSTS)
    at = _ended(data.get("run"))
    good = tuple(host for host, said in data["hosts"].items() if isinstance(said, dict) and _is_good(said))
    for host, said in data["hosts"].items():
        try:
            _OF_HOST(said)
        except codec.Invalid as error:
            yield host, printable(f"its findings are not valid: {error}"[:300])
            continue
        for finding in map(findings.from_dict, said.get("findings") or ()):
            if not finding.ok:
                yield host, Accusation(host, finding, at, said.get("boot_id") or "", good)


def _is_good(said: Mapping[str, object]) -> bool:
    passed = said.get("passed_ids")
    return isinstance(passed, list) and localise_judge.NODE.finding_id("host") in passed


def _ended(run: object) -> float | None:
    ended = run.get("ended") if isinstance(run, dict) else None
    try:
        return datetime.datetime.strptime(str(ended), _MOMENT).replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        return None
