# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A fault: one row of data/faults.json, in the terms that this file explains, and what it changes.

A text may name a part of the machine: "{nic 2}" is the PCI address of rail 2's NIC, "{rail 2.name}" a field of it.
``set`` of a change is part -> field -> value; dicts are merged, and "+field" appends to a list. ``call`` names a
function of fault_changes.py, or a method of Machine, for what no value says, with its arguments. ``file`` is changed
below the system root, as by hand (``Fault.edit``). ``run`` are programs of the node, of which one that is meant to fail
begins with "!", and ``undo`` those that repair it, whatever has been done meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from . import fault_changes
from .machine import LabError, Machine, first

HGX = ("hgx-h100", "hgx-h200", "hgx-b200")
ALL = (*HGX, "h200-vm")


@dataclass(frozen=True)
class Fault:
    """check: id of the finding that is the root.

    subject: its identity, of the healthy machine; None where the check's own wording decides.
    state: of the root.   consequences: checks that follow from it, each finding ``because`` of the root.
    platforms: where it applies.   excludes: faults it hides or is hidden by (either may say so).
    measured: only a benchmark shows it, so the node has to be one that can run it.
    between_nodes: no check of one node shows it.   stays: a run tries to mend it, and a tool of the node fails.
    site: variables that the healthy machine's inventory has to set so that this is a fault at all.
    """

    name: str
    description: str
    check: str
    change: Mapping[str, Any]
    subject: str | None = None
    state: str = "drift"
    consequences: tuple[str, ...] = ()
    platforms: tuple[str, ...] = HGX
    excludes: tuple[str, ...] = ()
    measured: bool = False
    between_nodes: bool = False
    stays: bool = False
    site: Mapping[str, Any] | None = None

    @property
    def file(self) -> str:
        """Return the path of the file that it changes, "" for none."""
        return str(self.change.get("file", ""))

    def apply(self, machine: Machine) -> Machine:
        """Return the machine with this fault. One of files leaves the machine as it is."""
        broken = deepcopy(machine)
        apply(broken, self.change)
        return broken

    def edit(self, machine: Machine, text: str | None) -> str | None:
        """Return the file's new text for the text before; None for no file.

        append: at the end of a file, which there may not have been.   text: the whole.   merge: into a file of JSON.
        replace: [old, new] in a file that provisioning writes; removed: such a file is gone; neither: only its mode is
        another.   edit: a function of fault_changes.py; provisioned: of such a file.
        """
        row = self.change
        if text is None and (row.get("provisioned") or not row.keys() & {"append", "text", "merge", "edit"}):
            raise LabError(f"there is no {self.file} yet: provision the node first")
        if "append" in row:
            return (text or "") + str(row["append"])
        if "text" in row:
            return str(row["text"])
        if "merge" in row:
            data = json.loads(text or "{}")
            merge(data, row["merge"])
            return json.dumps(data, indent=4) + "\n"
        if "edit" in row:
            changed: str | None = getattr(fault_changes, row["edit"])(machine, text)
            return changed
        return None if row.get("removed") else (text or "").replace(*row.get("replace", ("", "")))


def read(text: str) -> list[Fault]:
    """Parse the catalogue: groups of names, which ``excludes`` has as "@group", and rows."""
    data = json.loads(text)
    return [_fault(row, data["groups"]) for row in data["faults"]]


def _fault(row: dict[str, Any], groups: Mapping[str, list[str]]) -> Fault:
    excludes = [name for word in row.pop("excludes", ()) for name in groups.get(word[1:], [word])]
    platforms = row.pop("platforms", HGX)
    return Fault(
        excludes=tuple(name for name in excludes if name != row["name"]),
        platforms=ALL if platforms == "all" else tuple(platforms),
        consequences=tuple(row.pop("consequences", ())),
        **row,
    )


# -- changes of the model --------------------------------------------------------------------------------------------


def apply(machine: Machine, row: Mapping[str, Any]) -> None:
    """Change the machine as ``set`` and ``call`` of a row say. All texts are of the machine before."""
    changes = [(part(machine, place), fill(machine, fields)) for place, fields in row.get("set", {}).items()]
    for found, fields in changes:
        for name, value in fields.items():
            _set(machine, found, name, value)
    if "call" in row:
        function, *arguments = row["call"]
        change = getattr(fault_changes, function, None) or getattr(Machine, function)
        change(machine, *(fill(machine, argument) for argument in arguments))


def _set(machine: Machine, found: Any, name: str, value: Any) -> None:
    if name.startswith("+"):
        getattr(found, name[1:]).append(value)
        return
    before = getattr(found, name)
    if name == "link":
        if before:
            machine.set_link(found.address, replace(before, **value))
    elif isinstance(before, dict):
        merge(before, value)
    else:
        setattr(found, name, tuple(value) if isinstance(before, tuple) else value)


def merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Put the values of one mapping into another; what is a mapping in both is merged in turn."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def part(machine: Machine, place: str) -> Any:
    """Return a part of a machine by its kind and number. Raises LabError.

    rail 2, nic 2, slot 2, uplink 2: RDMA device and PCI function of a rail, the switch port above that, and the
    upstream port of that switch.   netdev 2, port 2, switch 2: its interface, QoS and neighbour by LLDP.
    gpu 2, card 2: a GPU, and its PCI function.
    """
    kind, _, digits = place.partition(" ")
    if kind == "machine":
        return machine
    number = int(digits)
    if kind in ("gpu", "card"):
        gpu = machine.gpu(number)
        return gpu if kind == "gpu" else machine.function(gpu.address)
    rdma = machine.rail(number)
    if kind in ("netdev", "port", "switch"):
        found = machine.netdev(number)
        parts: dict[str, list[Any]] = {"netdev": [found], "port": [found.qos], "switch": list(found.switch)}
        return first(f"{kind} of rail {number}", filter(None, parts[kind]))
    function = machine.function(rdma.address)
    above = {"rail": 0, "nic": 0, "slot": 1, "uplink": 2}[kind]
    for _step in range(above):
        function = machine.function(function.parent)
    return rdma if kind == "rail" else function


def fill(machine: Machine, value: Any) -> Any:
    """Put what "{part}" and "{part.field}" name into all texts of a value of JSON."""
    if isinstance(value, dict):
        return {fill(machine, key): fill(machine, item) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(machine, item) for item in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"\{(\w+(?: \d+)?)(?:\.(\w+))?\}", lambda match: _text(machine, *match.groups()), value)


def _text(machine: Machine, place: str, field: str | None) -> str:
    if field == "slot":
        return str(part(machine, place).address).rpartition(".")[0]
    found = str(getattr(part(machine, place), field or "address"))
    # Of an interface's address nothing but the address.
    return found.partition("/")[0] if field == "ipv4" else found
