# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""All that a judgement of the InfiniBand fabric rests on: sweeps, plan, hosts of the inventory, requirements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Sweep

from .cabling_plan import Plan


class Rail(NamedTuple):
    """A rail of a host, by the profile and the host's sysfs.

    pci: address of its NIC.   node_guid, port_guid: 16 hex digits, None where they were not read.
    port: of the NIC.   rate_gbps: of the profile.   device: ``mlx5_3``, or "".
    """

    rail: int
    pci: str
    node_guid: str | None
    port_guid: str | None
    port: int
    rate_gbps: float | None
    device: str = ""


@dataclass(frozen=True)
class Host:
    """A host of the inventory.   boot_id: of the running kernel, None where it is not known."""

    rails: tuple[Rail, ...] = ()
    boot_id: str | None = None


@dataclass(frozen=True)
class Wanted:
    """The site's ``busbar_fabric_*`` and ``busbar_firmware``: an empty value, or None, is not judged."""

    oversubscription: float = 1.0
    partitions: tuple[int, ...] = ()
    managers: tuple[str, ...] = ()
    firmware: Mapping[str, str] = field(default_factory=dict)
    routing: str = ""
    adaptive_routing: bool | None = None


@dataclass(frozen=True)
class Evidence:
    """sweeps: of this run.   before: of the last record.   boots: host -> boot_id at that time.

    plan: None where the site has none.   hosts: name in the inventory -> its rails.
    """

    sweeps: Sequence[Sweep]
    before: Sequence[Sweep] = ()
    plan: Plan | None = None
    hosts: Mapping[str, Host] = field(default_factory=dict)
    boots: Mapping[str, str] = field(default_factory=dict)
    wanted: Wanted = field(default_factory=Wanted)
