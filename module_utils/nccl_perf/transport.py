# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Summarise the transport of a run over several nodes per host: small enough to be stored and returned.

Sources: NCCL's log of that run, and the rank guards, which count what each rail moved. Here only the proof is
judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Mapping, Optional, Tuple

from ..core.finding import Finding, printable

SOCKETS = "Socket"
# Transports between hosts; and the name of NVLink among networks.
WAYS = ("network", "nvlink")
NVLINK = "NVLink"
# Of a run, and of each of its hosts.
HOSTS, DEVICES = 10_000, 64


@dataclass(frozen=True)
class HostTransport:
    """One host of a run. ranks: that NCCL's log shows on it.   found: HCAs that NCCL found there.

    devices: HCAs, or interfaces of NET/Socket, that connections to other nodes go over.
    without_gdr: those of them with a connection that has no GPUDirect RDMA.
    """

    ranks: int = 0
    devices: Tuple[str, ...] = ()
    without_gdr: Tuple[str, ...] = ()
    found: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Moved:
    """Bytes that a rail's counters rose by during a run."""

    sent: int
    received: int


@dataclass(frozen=True)
class Nvlink:
    """NVLink between the hosts of a run, from NCCL's log.

    on: every rank has it on; None if not all log it.   joined: hosts that have a connection to another one over it.
    causes: why it is off, or joins only some of them, in sentences.   variables: that do it.
    """

    on: Optional[bool] = None
    joined: Tuple[str, ...] = ()
    causes: Tuple[str, ...] = ()
    variables: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Network:
    """networks: that ranks use between nodes, by NCCL's names.   nodes: as NCCL counts.   expected: ranks of the job.

    missing: what is not proven, in sentences; nothing is proven of the transport while there is one.
    gdr: GPUDirect RDMA on every connection between nodes; None where none is shown.
    hosts, rails: by short host name; rails: HCA -> what it moved.
    versions: of NCCL.   tables: how many tables, or result files, there were: with more than one processes ran alone.
    quoted: errors in NCCL's log.   launched: findings on how it was launched.
    nvlink: of a run over NVLink; None for any other.
    """

    networks: Tuple[str, ...] = ()
    nodes: Optional[int] = None
    expected: Optional[int] = None
    missing: Tuple[str, ...] = ()
    gdr: Optional[bool] = None
    hosts: Mapping[str, HostTransport] = field(default_factory=dict)
    rails: Mapping[str, Mapping[str, Moved]] = field(default_factory=dict)
    versions: Tuple[str, ...] = ()
    tables: int = 1
    quoted: Tuple[Finding, ...] = ()
    launched: Tuple[Finding, ...] = ()
    nvlink: Optional[Nvlink] = None

    @property
    def proven(self) -> bool:
        return not self.missing

    def without(self, proof: str) -> Network:
        """The same, of which this is not proven."""
        return replace(self, missing=(*self.missing, printable(proof)))

    @property
    def sockets(self) -> bool:
        return SOCKETS in self.networks
