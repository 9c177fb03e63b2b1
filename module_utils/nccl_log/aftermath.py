# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Warnings that read like failures of their own, and follow from another one of the same process."""

from __future__ import annotations

from .job import Reported
from .jobs import Job

_PROXY = "Failed to execute operation"
_POLLED = "while polling for opId"
# Lines between a closed connection and what the reader says of it.
_NEAR = 8
_EARLIER = "before the previous operation returned"


def of_itself(one: Reported) -> bool:
    """Whether the peer whose connection is gone is on the host of the process that lost it."""
    host = one.process.host if one.process is not None else ""
    return bool(host) and (one.failure.peer == host or one.failure.peer.startswith(host + "."))


def follows(job: Job, one: Reported) -> str:
    """Why a warning follows from another one of its process; "" where that is not shown."""
    closed = one.failure.kind == "closed"
    refused = one.failure.kind == "usage" and _EARLIER in one.failure.text
    if one.process is None or not (closed or refused):
        return ""
    mine = [
        other for other in job.failures
        if other is not one and other.process is one.process and other.source == one.source
    ]  # fmt: skip
    # Who polls for an operation's answer reads from its own process's proxy, whatever name the address has.
    polled = any(_POLLED in other.failure.text and 0 < other.order - one.order < _NEAR for other in mine)
    lost = closed and (of_itself(one) or polled)
    if lost and any(_PROXY in other.failure.text for other in mine):
        text = "the peer is this host: a thread of NCCL lost its own process's proxy thread, whose operation failed"
        return text + " (%s); no other rank was lost" % _PROXY
    before = any(other.order < one.order and other.failure.kind not in _ADVICE for other in mine)
    return "caused by the failure before it in the same process" if refused and before else ""


# Warnings after which a communicator is as good as before.
_ADVICE = ("event", "ras", "fallback", "libfabric", "gdrcopy", "value")
