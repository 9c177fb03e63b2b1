# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find in the output of perftest why a test has no result, and where to look.

Sources: the texts of perftest 6.06 and logs of 23.x and 24.x; ibv_wc_status of rdma-core.
"""

from __future__ import annotations

import re
from typing import Tuple

from .core.finding import printable

_STATUS = re.compile(r"Failed status ([0-9]+)")
# Of ibv_wc_status.
_STATUSES = {
    4: "local protection error: the memory is not registered as it should be",
    5: "work request flushed: an earlier one failed",
    9: "remote invalid request",
    10: "remote access error",
    12: "transport retries exceeded: packets do not reach the other end",
    13: "the other end had no receive buffer (RNR retries exceeded)",
}
_LOST = "look at counters.loss and rail_ping.* of both hosts; then at MTU and PFC on the switches of this rail"
# (message of perftest, meaning, where to look). The first match is the reason: later lines follow from it.
_SAYS: Tuple[Tuple[str, str, str], ...] = (
    (
        r"Unable to find the Infiniband/RoCE device|Did not detect devices|IB device .* not found",
        "there is no such RDMA device",
        "run site.yml --tags platform,mofed for this host",
    ),
    (
        r"Port number \d+ state is \w+",
        "the port is not ACTIVE",
        "run site.yml --tags platform for this host; look at cable and switch port",
    ),
    (
        r"Couldn't listen to port|Failed to bind socket",
        "the TCP port is taken",
        "run ss -ltnp to find the process that listens; an earlier run may be left over",
    ),
    (
        r"Couldn't connect to \S+",
        "the other end does not listen: it did not start, or TCP cannot reach it",
        "look at perftest.served of the other host; ping it from here; look for a firewall (TCP 18600 to 18799)",
    ),
    (
        r"Found Incompatibility issue with GID types",
        "one end has a RoCE v1 GID, the other v2",
        "run site.yml --tags platform for both hosts and look at platform.rail_gid",
    ),
    (
        r"(?:[Cc]an't|Failed to|Unable to) (?:read|query|get) (?:s?gid|GID)|Invalid GID|Gid index",
        "the GID is not there",
        "run site.yml --tags platform for both hosts and look at platform.rail_gid",
    ),
    (
        r"Requested mtu is higher than active mtu",
        "the port's active_mtu is smaller than requested",
        "run site.yml --tags mtu for both hosts",
    ),
    (
        r"Unable to Connect the HCA's through the link|Failed to modify (?:RC )?QP",
        "the queue pair could not be connected: no route or no neighbour for the other end's GID",
        "ping the rail's address from this host; run site.yml --tags multirail,mtu for both hosts",
    ),
    (
        r"Couldn't allocate MR|[Ff]ailed to (?:create|register) (?:mr|MR|memory)|Couldn't create IB resources",
        "memory could not be registered",
        "run site.yml --tags host_limits,nvidia_peermem for this host: locked memory, and the path to the GPUs' memory",
    ),
    (
        r"Failed to exchange data between server and clients|Unable to read (?:from|to) socket"
        r"|Couldn't read remote address",
        "the other end gave up",
        "look at the other host's finding on this rail",
    ),
)
NOT_LISTENING = _SAYS[3][1]


def reason(text: str) -> Tuple[str, str]:
    """Return why there is no result, and where to look. text: both outputs together."""
    status = _STATUS.search(text)
    if status is not None:
        number = int(status.group(1))
        said = "completion with error %d, %s" % (number, _STATUSES.get(number, "see ibv_wc_status"))
        memory = "run site.yml --tags nvidia_peermem,iommu for both hosts"
        return said, memory if number in (4, 10) else _LOST
    for pattern, meaning, where in _SAYS:
        match = re.search(pattern, text)
        if match is not None:
            return "%s (%s)" % (meaning, printable(match.group(0).strip())), where
    lines = [line.strip() for line in text.splitlines() if line.strip(" -*#\t")]
    return "its last output: %s" % (printable(lines[-1])[:160] if lines else "nothing"), "run it by hand on both hosts"
