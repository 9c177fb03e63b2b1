# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Test whether an unfragmented packet of the full MTU reaches the same rail of another host.

Both ends may have the MTU and a switch between them not; one end may have a wrong MTU. The control node chooses the
pairs, in rounds: in one round every host has one partner.
Sources: ping(8) of iputils 20211215 to 20240905 and its texts; RFC 792, RFC 4443.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address
from typing import List, Mapping, Optional, Sequence, Tuple

from .core.check import Check
from .core.finding import Finding
from .core.host import Host, ParseError, ReadError, ToolMissing
from .nccl_tests.codec import decode

COUNT, WAIT = 3, 1
# Rounds, and so targets of each host: two make one ring of any number of hosts.
PARTNERS = 2
# Bytes that pass everywhere.
SMALL = 84
# At once from one host.
PARALLEL = 32
# Seconds until the response: a second between requests, and the last wait.
TIMEOUT = 3.0 * (COUNT + WAIT)
# Headers of IP and ICMP.
_HEADERS = {4: 28, 6: 48}
_COUNTS = re.compile(r"([0-9]+) packets transmitted, ([0-9]+) (?:packets )?received\b")
# "mtu=1500" of IPv4, "mtu: 1500" of IPv6; a router on the way: "Frag needed and DF set (mtu = 1500)".
_LOCAL = re.compile(r"local error: message too long, mtu[=:] ?([0-9]+)", re.IGNORECASE)
_REMOTE = re.compile(
    r"From (\S+?):? (?:icmp_seq=[0-9]+ )?(?:Frag needed and DF set \(mtu = |Packet too big: mtu[=:] ?)([0-9]+)"
)
_UNREACHABLE = re.compile(
    r"((?:Destination )?(?:Host|Net(?:work)?|Address|Port) [Uu]nreachable|Destination unreachable: [A-Za-z ]+"
    r"|Network is unreachable|No route to host)"
)
_ERROR = re.compile(r"ping6?: (?!local error|(?i:warning))(.+)")
RUN = "run site.yml --tags mtu for %s"

PATH = Check(
    "rail_ping.path",
    why="if the MTU of the two ends, or of a switch between them, differs, large packets are lost while small tests"
    " pass: NCCL hangs in its first large collective",
)
"""Does a packet of the full MTU reach the same rail of two other hosts, unfragmented; names the end that is smaller, or
that it is a switch. A rail that does not respond is `unknown`"""


@dataclass(frozen=True)
class Peer:
    """One rail of one host. live: id of its netdev_mtu.live finding. mtu: live, None where it is not known.

    address: "" for none.   vrf: that its interface is in, "" for none.
    """

    host: str
    rail: int
    live: str
    netdev: str
    address: str
    mtu: Optional[int]
    vrf: str = ""


@dataclass(frozen=True)
class Ping:
    """A ping from one end to the other. The other direction is another Ping.

    mtu: bytes that have to pass, None if not known.
    """

    source: Peer
    target: Peer
    mtu: Optional[int] = None


@dataclass(frozen=True)
class PingResult:
    """sent, received: packets. mtu: reported limit, said_by: the host that reports it, "" for the sender.

    error: another error of ping, "" for none.
    """

    sent: int
    received: int
    mtu: Optional[int] = None
    said_by: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.sent > 0 and self.received == self.sent


# -- ping ------------------------------------------------------------------------------------------------------------


def argv(ping: Ping, mtu: int) -> Tuple[str, ...]:
    """Command line of ping for packets of ``mtu`` bytes. ParseError for addresses that are none, or of two families."""
    versions = set()
    for peer in (ping.source, ping.target):
        try:
            versions.add(ip_address(peer.address).version)
        except ValueError as error:
            raise ParseError(
                "%s: %r of rail %d is not an address" % (peer.host, peer.address[:60], peer.rail)
            ) from error
    if len(versions) != 1:
        text = "%s has %s and %s has %s: they cannot talk"
        raise ParseError(text % (ping.source.host, ping.source.address, ping.target.host, ping.target.address))
    size = mtu - _HEADERS[versions.pop()]
    if size < 0:
        raise ParseError("MTU %d is too small for a ping" % mtu)
    numbers = ("-s", str(size), "-c", str(COUNT), "-W", str(WAIT))
    # In a VRF its table has the way, and the second -I the source.
    within = ("-I", ping.source.vrf) if ping.source.vrf else ()
    return ("ping", "-n", "-M", "do", *numbers, *within, "-I", ping.source.address, ping.target.address)


def parse(text: str) -> PingResult:
    """Parse ping's stdout and stderr. Raises ParseError without a count and an error."""
    counts, local, remote = _COUNTS.search(text), _LOCAL.search(text), _REMOTE.search(text)
    unreachable, errors = _UNREACHABLE.search(text), _ERROR.findall(text)
    error = errors[-1].strip()[:120] if errors else ""
    if counts is None:
        if not error:
            raise ParseError("%r is not what ping prints" % text[:120])
        return PingResult(0, 0, error=error)
    said = unreachable.group(1) if unreachable else error
    sent, received = int(counts.group(1)), int(counts.group(2))
    if local:
        return PingResult(sent, received, int(local.group(1)), "", said)
    if remote:
        return PingResult(sent, received, int(remote.group(2)), remote.group(1), said)
    return PingResult(sent, received, error=said)


# -- pairs of hosts ---------------------------------------------------------------------------------------------------


def rounds(hosts: Sequence[str], limit: Optional[int] = None) -> Tuple[Tuple[Tuple[str, str], ...], ...]:
    """Return pairs of hosts, round by round; no host is in two pairs of a round, and no pair comes twice.

    All rounds contain every pair. limit: stop after that many; one more is added if a host would have no partner (an
    odd number of hosts).
    """
    ring: List[Optional[str]] = list(dict.fromkeys(hosts))
    if len(ring) < 2:
        return ()
    odd = len(ring) % 2 == 1
    ring += [None] if odd else []
    count = len(ring) - 1
    if limit is not None:
        count = min(count, max(limit, 2 if odd else 1))
    found = []
    for _round in range(count):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]))
        found.append(tuple((one, other) for one, other in pairs if one is not None and other is not None))
        # One stays in its place, the others move on.
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return tuple(found)


def pings(data: Sequence[Mapping[str, object]]) -> List[Ping]:
    """Return what ``asdict`` wrote of each, after its way through JSON. Raises ParseError."""
    return [decode(Ping, one, "ping") for one in data]


def unproven(subject: str, have: str, fix: str) -> Finding:
    """Judge a rail that is not pinged."""
    want = "full packets pass to the same rail of another host"
    return PATH.judge(subject, "unknown", want, have, "inventory and sysfs of all hosts", fix)


# -- asking ----------------------------------------------------------------------------------------------------------


def ping_all(host: Host, asked: Sequence[Ping]) -> Tuple[Finding, ...]:
    """Ping all at once: a host has few partners, and each ping mostly waits."""
    if not asked:
        return ()
    with ThreadPoolExecutor(min(PARALLEL, len(asked))) as pool:
        return tuple(pool.map(lambda one: _ping(host, one), asked))


def _ping(host: Host, ping: Ping) -> Finding:
    if ping.mtu is None:
        fix = "look at /sys/class/net/%s/mtu" % ping.source.netdev
        return unproven("rail %d to %s" % (ping.source.rail, ping.target.host), "the MTU wanted is not known", fix)
    try:
        answer = _answer(host, ping, ping.mtu)
        # A host that is down loses small packets, too: then the size is not the cause.
        small = _answer(host, ping, SMALL) if answer.sent and not answer.received and answer.mtu is None else None
        return finding(ping, answer, ping.mtu, small=small)
    except ToolMissing:
        return finding(ping, None, ping.mtu, "ping is not installed; install iputils-ping (iputils on EL)")
    except (ReadError, ParseError) as error:
        return finding(ping, None, ping.mtu, str(error))


def _answer(host: Host, ping: Ping, mtu: int) -> PingResult:
    done = host.run(argv(ping, mtu), TIMEOUT)
    return parse(done.stdout + done.stderr)


# -- what it means ---------------------------------------------------------------------------------------------------


def finding(
    ping: Ping, answer: Optional[PingResult], mtu: int, problem: str = "", small: Optional[PingResult] = None
) -> Finding:
    """Judge on the source's host. mtu: wanted. answer: None if ping failed; then problem has the reason.

    small: result of packets of SMALL bytes, if the large ones were lost without an error.
    """
    source, target = ping.source, ping.target
    state, because = "unknown", None
    if answer is None or answer.sent == 0:
        have = problem or (answer.error if answer else "") or "ping did not respond"
        fix = "%s: repair that, then ping %s from %s by hand" % (source.host, target.address, source.host)
    elif answer.ok:
        state, have, fix = "ok", "%d of %d came back" % (answer.received, answer.sent), ""
    elif small is not None and not small.received:
        have = "%s of %s does not respond%s" % (target.address, target.host, small.error and "; " + small.error)
        fix = "look for the link, the address and the route: on %s: ip route get %s, ip neigh show %s"
        fix %= (source.host, target.address, target.address)
    else:
        state = "drift"
        # The end that is smaller is the one to mend, whichever of the two noticed.
        smaller = [peer for peer in (source, target) if peer.mtu is not None and peer.mtu < mtu]
        if smaller:
            peer = min(smaller, key=lambda peer: peer.mtu or 0)
            have, fix = "%s of %s has MTU %d" % (peer.netdev, peer.host, peer.mtu or 0), RUN % peer.host
            # Only findings of the same host can be pointed at.
            because = source.live if peer is source else None
        else:
            have, fix = _lost(ping, answer, mtu, small)
    return PATH.judge(
        "rail %d to %s" % (source.rail, target.host),
        state,
        "%d bytes pass from %s rail %d to %s" % (mtu, source.netdev, source.rail, target.host),
        have,
        source="ping -M do -I %s %s" % (source.address, target.address),
        fix=fix,
        because=because,
        disruption="link" if because else "none",
    )


def _lost(ping: Ping, answer: PingResult, mtu: int, small: Optional[PingResult]) -> Tuple[str, str]:
    """Return what is known of full packets that are lost though both ends could send them, and what to do."""
    source, target = ping.source, ping.target
    route = "on %s: ip route get %s" % (source.host, target.address)
    raised = "raise the MTU of the switch ports between %s and %s to 9216" % (source.host, target.host)
    lost = "%d of %d came back" % (answer.received, answer.sent)
    if answer.mtu is not None and answer.said_by:
        fix = "set the MTU of %s's port, or of the switch behind it, to at least %d" % (answer.said_by, mtu)
        return "%s reports that the next hop accepts %d bytes" % (answer.said_by, answer.mtu), fix
    if answer.mtu is not None:
        own = "an unknown value" if source.mtu is None else source.mtu
        have = "%s sends at most %d towards %s, though %s has MTU %s"
        have = have % (source.host, answer.mtu, target.address, source.netdev, own)
        return have, route + "; look for a route with an mtu, or through another interface"
    if answer.received:
        fix = "look at counters.loss of rail %d on %s and %s, then at its cables and switch ports"
        return "%s: the size passes, but packets are lost" % lost, fix % (source.rail, source.host, target.host)
    if answer.error:
        return "%s; %s" % (lost, answer.error), "%s, ip neigh show %s" % (route, target.address)
    if small is not None:
        have = "%s, but of those with %d bytes %d did: a switch between the two accepts less than %d"
        return have % (lost, SMALL, small.received, mtu), raised
    known = source.mtu is not None and target.mtu is not None
    ends = "both ends have MTU %d or more" % mtu if known else "the MTU of one end is not known"
    fix = "ping %s from %s by hand, small: if it comes back, %s; if not, look for the link and the address"
    return "%s, without an ICMP report; %s" % (lost, ends), fix % (target.address, source.host, raised)
