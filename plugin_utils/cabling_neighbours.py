# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the neighbours of hosts' ports that a switch's own tools export, as CSV."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import cabling_plan

NEIGHBOUR = ("host", "port", "chassis", "port_id")


@dataclass(frozen=True)
class Neighbour:
    """The other end of a host's port: a switch by its LLDP chassis id or name, and the port id there.

    port: name of the host's interface, or its MAC address.   line: of the file.
    """

    host: str
    port: str
    chassis: str
    port_id: str
    line: int


def neighbours(text: str, source: str) -> tuple[Neighbour, ...]:
    """A CSV ``host,port,chassis,port_id``, a line for each port of a host. Raises ParseError, with file and line."""
    found: dict[tuple[str, str], Neighbour] = {}
    for line, row in cabling_plan.rows(text, source, NEIGHBOUR, NEIGHBOUR):
        where = f"{source}, line {line}"
        host, port, chassis, port_id = (cabling_plan.name(row[column], where, column) for column in NEIGHBOUR)
        before = found.setdefault((host, port), Neighbour(host, port, chassis, port_id, line))
        if before.line != line:
            raise ParseError(f"{where}: {host} {port} has a neighbour already (line {before.line}); remove one")
    if not found:
        raise ParseError(f"{source}: no neighbour in it; export it again, or take it out of the inventory")
    return tuple(found.values())
