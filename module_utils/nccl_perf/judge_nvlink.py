# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the transport of a run over the trays of one NVLink domain: NVLink between them, and no network.

Two sources have to agree: NCCL's log of that run, and the counters of the rails, which must not have carried it.
"""

from __future__ import annotations

from typing import Iterable, Mapping

from ..core.check import Check
from ..core.finding import Finding
from ..core.size import size_text
from .record import Wanted, short_names
from .transport import Moved, Network

_AGAIN = "then run playbooks/benchmark.yml again"
NVLINK = Check(
    "nccl_perf.nvlink",
    severity="critical",
    why="if NVLink between trays is off, NCCL silently uses the network, at a tenth of the bandwidth",
    fix="run site.yml for these nodes with --tags node_health: imex.* and node_health.fabric_state show why a tray is"
    " not in its domain; " + _AGAIN,
)
"""Did the data between trays of an NVLink domain go over NVLink, and not over the network: by NCCL's own log and the \
rails' counters; checked in scope nvlink_domain"""

# What to do where the figure is too low, though all of it went over NVLink.
SLOW = (
    "measure nccl_benchmark_scope: node on each of the trays; check `nvidia-smi nvlink -s` and `nvidia-smi nvlink -e`"
    " (every link up, no errors) and throttling in `nvidia-smi -q -d PERFORMANCE`; check links and errors of the"
    " switch trays (NMX-C); " + _AGAIN
)
# Of the largest size: the rails together move less than this part of it where nothing of a run goes over them.
_MOST_SENT = 0.05
_NAMED = 6


def judge(network: Network, wanted: Wanted, source: str, transport: Finding) -> Finding:
    """Judge NVLink. transport: the finding on the proof of the transport."""
    want = "NVLink between all %d trays" % len(short_names(wanted.hosts))
    said = network.nvlink
    if said is None or not transport.ok:
        return NVLINK.judge(wanted.subject, "unknown", want, None, source, because=transport)
    over = [host for host, one in network.hosts.items() if one.devices]
    if over or not said.on or network.nodes != 1:
        have = "the network (%s) between %s" % (", ".join(network.networks) or "not named", _few(over or network.hosts))
        if said.on:
            have += ": NVLink joins only parts of them, %s by NCCL's count" % network.nodes
        have += "; cause: %s" % "; ".join(said.causes) if said.causes else "; NCCL's log gives no reason"
        fix = None
        if said.variables:
            fix = (
                "take %s out of nccl_benchmark_environment and nccl_conf_extra, or out of the file that sets it, and"
                " run site.yml for these nodes with --tags nccl_conf; %s" % (" and ".join(said.variables), _AGAIN)
            )
        return NVLINK.judge(wanted.subject, "drift", want, have, source, fix)
    sent = _sent(network.rails)
    if sent > _MOST_SENT * wanted.sizes[-1]:
        have = "NCCL's log shows NVLink, but the rails sent %s meanwhile: part of it, or data of another job" % (
            size_text(sent)
        )
        fix = "find what uses the rails of these nodes (`rdma resource show qp`), and free the nodes; " + _AGAIN
        return NVLINK.judge(wanted.subject, "drift", want, have, source, fix)
    have = "NVLink between %d trays, nothing over the network" % len(said.joined)
    return NVLINK.judge(wanted.subject, "ok", want, have, source)


def _sent(rails: Mapping[str, Mapping[str, Moved]]) -> int:
    return sum(max(one.sent, 0) for devices in rails.values() for one in devices.values())


def _few(hosts: Iterable[str]) -> str:
    named = list(hosts)
    more = len(named) - _NAMED
    return ", ".join(named[:_NAMED]) + (" and %d more" % more if more > 0 else "")
