# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's ib_write_bw between simulated nodes, over their network: what a search for a slow rail has to go by."""

from __future__ import annotations

from subprocess import PIPE, STDOUT, Popen

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import perftest, perftest_errors
from ansible_collections.busbar.fabric.plugins.module_utils.perftest import BANDWIDTH, Options, Port, Session

from lab.cluster_faults import RAIL

from .simulated import ROOT, Simulated

# Of 400 Gb/s, in packets of 4096 bytes.
WHOLE = 393.5


# The client knocks until the server listens, as the module does.
KNOCK = """\
until "$@" > /tmp/said.$$ 2>&1; do
    grep -q "^Couldn.t connect" /tmp/said.$$ || break
done
cat /tmp/said.$$
"""


def start(simulated: Simulated, role: str, own: int, other: int, port: int) -> Popen[str]:
    """One end, with the words of the module perftest. own, other: places of the nodes."""
    rdma, peer = simulated.machines[own].rail(RAIL), simulated.nodes[other].name
    session = Session(role, RAIL, rdma.address, rdma.name, peer, peer, 400, "InfiniBand")
    words = perftest.argv(session, Port(rdma.name, 1, None), BANDWIDTH, Options(3))
    argv = [f"{ROOT}/usr/bin/{words[0]}", *words[1:], "-p", str(port)]
    if role == perftest.CLIENT:
        argv = ["sh", "-c", KNOCK, "sh", *argv]
    process: Popen[str] = simulated.nodes[own].start(argv, stdout=PIPE, stderr=STDOUT, text=True)
    return process


def said(simulated: Simulated, *ends: tuple[int, int]) -> list[tuple[str, str]]:
    """What client and server say of each test, all of them at once. ends: places of client and server."""
    ports = range(18700, 18700 + len(ends))
    servers = [start(simulated, perftest.SERVER, *end[::-1], port) for end, port in zip(ends, ports, strict=True)]
    clients = [start(simulated, perftest.CLIENT, *end, port) for end, port in zip(ends, ports, strict=True)]
    both = zip(clients, servers, strict=True)
    return [(client.communicate(timeout=300)[0], server.communicate(timeout=300)[0]) for client, server in both]


def figures(simulated: Simulated, *ends: tuple[int, int]) -> list[float]:
    """Gb/s of each test. Both ends have to say the same."""
    found = []
    for client, server in said(simulated, *ends):
        found.append(perftest.parse(BANDWIDTH, client)[0])
        assert perftest.parse(BANDWIDTH, server)[0] == found[-1]
        assert "simulated: no figure here is a measurement" in client
    return found


def test_a_rail_that_is_slow_in_both_directions_at_once(simulated: Simulated) -> None:
    with simulated.broken("both-slow"):
        # A simulated transfer is 0.2 s long: where one program starts late, it had the rail alone for a part of it.
        tries = [figures(simulated, (0, 2), (2, 0)) for _each in range(8)]
        slowest = [*map(min, zip(*tries, strict=True))]
        assert min(slowest) == pytest.approx(0.6 * WHOLE, rel=0.01)
        # The one that always starts later is beside the other for one of the four parts of its time at least.
        assert max(slowest) < 0.91 * WHOLE
        assert figures(simulated, (0, 2)) == [pytest.approx(WHOLE, rel=0.01)]


def test_a_partner_that_dies_in_the_middle_leaves_an_error_and_no_figure(simulated: Simulated) -> None:
    with simulated.broken("dead-partner"):
        ((lonely, _), (_, forsaken)) = said(simulated, (0, 2), (2, 1))
    assert "transport retries exceeded" in perftest_errors.reason(lonely)[0]
    assert "the other end gave up" in perftest_errors.reason(forsaken)[0]
    ((client, _),) = said(simulated, (0, 2))
    assert perftest.parse(BANDWIDTH, client)[0] == pytest.approx(WHOLE, rel=0.01)
