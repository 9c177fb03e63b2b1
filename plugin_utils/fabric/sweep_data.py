# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make a sweep of the plain data that a node has returned, or a record holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import (
    MOST_PORTS,
    PLAIN,
    STATES,
    ManagerEvent,
    Node,
    Port,
    SubnetManager,
    Sweep,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .. import codec, result_schema


def from_dict(data: Plain) -> Sweep:
    """Return the Sweep of ``sweep.to_dict``. Raises ParseError on anything else, with the name of the part."""
    try:
        result_schema.a_sweep(data)
        return _build(data)
    except (codec.Invalid, IndexError, ValueError) as error:
        raise ParseError(f"sweep: {error}") from None


def _build(data: Plain) -> Sweep:
    guids = [row[0] for row in data["nodes"]]
    if len(set(guids)) != len(guids):
        raise ValueError("nodes: a GUID is that of two nodes")
    if sum(len(row[-1]) for row in data["nodes"]) > MOST_PORTS:
        raise ValueError(f"nodes: more than {MOST_PORTS} ports")
    nodes = []
    for row in data["nodes"]:
        ports = tuple(_port(port, guids, data["counter_sets"]) for port in row[-1])
        if len({port.number for port in ports}) != len(ports):
            raise ValueError(f"nodes: node {row[0]} has a port twice")
        about: list[Any] = [*row[:-1], ports]
        nodes.append(Node(*about))
    return Sweep(
        **{name: data[name] for name in PLAIN},
        managers=tuple(SubnetManager(*row) for row in data["managers"]),
        nodes=tuple(nodes),
        pkeys={guid: tuple(keys) for guid, keys in data["pkeys"].items()},
        events=tuple(ManagerEvent(*row) for row in data["events"]),
        unhealthy={(guid, number): text for guid, number, text in data["unhealthy"]},
        problems=tuple(Problem(*row) for row in data["problems"]),
    )


def _port(row: Sequence[Any], guids: Sequence[str], sets: Sequence[Sequence[str]]) -> Port:
    values: list[Any] = [*row, *[None] * (12 - len(row))]
    values[1] = STATES[values[1]]
    if values[7] is not None:
        place, number = values[7]
        values[7] = (place if isinstance(place, str) else guids[place], number)
    counted: dict[str, int] = {}
    if values[10] is not None:
        number, *pairs = values[10]
        names = sets[number]
        counted = dict.fromkeys(names, 0)
        # An odd number of items is no pairs.
        counted.update({names[place]: value for place, value in zip(pairs[::2], pairs[1::2], strict=True)})
    values[10:] = counted, values[11] or ""
    return Port(*values)
