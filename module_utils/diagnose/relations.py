# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Relations between events: what is the cause of what, under which condition, and how sure that is.

A relation is a row. Beside these rows one rule holds for all events: what is more upstream (``event.py``) comes first,
of the same tier the earliest, and effects and reports follow from it.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

PROVEN, LIKELY = "proven", "likely"


class Relation(NamedTuple):
    """effect, cause: events, with a code behind a blank where it has to be that one.

    condition: before: the cause is earlier.   any: in any order, as launchers report ends late.   peer: the cause is on
    the host that the effect names as its peer, or on its own device.   other: another process or rank.   lost: the
    effect names the cause's host as lost.   own: each rank of the effect has had the cause before.
    link: how sure the relation is where the condition holds.
    """

    effect: str
    cause: str
    condition: str
    link: str


_KILLED = ("exit signal 9", "exit signal 11", "exit signal 7", "oom", "node_failure", "evicted")
_LOST = ("closed", "connect", "completion", "store", "gloo", "tcp", "exception_remote", "coordination", "uds")
RELATIONS: Tuple[Relation, ...] = (
    # A link that went down: the peer's, as the address of the completion shows, or one of the job's at all.
    Relation("completion", "port port error", "peer", PROVEN),
    Relation("completion", "port", "before", LIKELY),
    Relation("completion", "link_down", "before", LIKELY),
    Relation("hca_lost", "port", "before", LIKELY),
    Relation("hca_lost", "completion", "any", LIKELY),
    Relation("completion 5", "completion", "any", LIKELY),
    # What a call reports, and the line that says what the call was for.
    Relation("system", "shared_memory", "any", LIKELY),
    # A process that was killed: its peers lose it, and say so before the launcher reports its end.
    *(Relation(effect, cause, "other", LIKELY) for effect in _LOST for cause in _KILLED),
    Relation("exception_nccl", "exit signal 9", "other", LIKELY),
    Relation("closed", "exit", "lost", LIKELY),
    Relation("closed", "connect", "before", LIKELY),
    Relation("exit signal 9", "oom", "any", LIKELY),
    Relation("exit signal 11", "xid", "before", LIKELY),
    Relation("exit signal 11", "cuda", "before", LIKELY),
    # Hardware below CUDA, and what CUDA reports of it.
    Relation("cuda", "xid", "before", LIKELY),
    Relation("cuda", "sxid", "before", LIKELY),
    Relation("cuda", "gpu_lost", "any", LIKELY),
    Relation("cuda", "gpu_reset", "any", LIKELY),
    Relation("cuda", "fabric_manager MNNVL", "any", LIKELY),
    Relation("cuda device-side assert triggered", "kernel_assert", "any", PROVEN),
    Relation("cuda unspecified launch failure", "expert_wait", "before", LIKELY),
    Relation("xid 45", "xid", "any", LIKELY),
    Relation("gpu_lost", "xid 79", "any", PROVEN),
    # An interruption before a wait ran out.
    Relation("watchdog", "order", "before", PROVEN),
    Relation("watchdog", "cancelled", "before", LIKELY),
    Relation("signalled", "closed", "any", LIKELY),
    Relation("signalled", "watchdog", "any", PROVEN),
    Relation("stuck", "watchdog", "any", LIKELY),
    Relation("gloo", "watchdog", "before", LIKELY),
    Relation("store", "store_port", "any", LIKELY),
    Relation("store_connect", "store_port", "any", LIKELY),
    Relation("store", "store_connect", "any", LIKELY),
    # A plugin that failed leaves NCCL without a network; a login that was refused, the launcher without its daemon.
    Relation("no_network", "net_plugin", "before", LIKELY),
    Relation("no_network", "libfabric", "before", LIKELY),
    Relation("node_failure", "remote_shell", "before", PROVEN),
    # Ranks that wait, and PyTorch's or Horovod's list of those that have not come.
    *(Relation(effect, "behind", "any", PROVEN) for effect in ("watchdog", "signalled", "stall")),
    # An exception of the call that the watchdog has ended.
    Relation("exception", "watchdog", "own", LIKELY),
)
