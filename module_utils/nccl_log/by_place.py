# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a line of NCCL's TCP code was about: the same words stand behind every use of a socket.

Which use it was is told by the file of the warning and of the calls that returned its error; where these do not tell,
no stage is named.
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from ..core.check import Check
from .failure_checks import BOOTSTRAP, CONNECTION
from .job import Reported
from .outcome import after

# Files of NCCL's sources -> use of the socket. The first that one of the calls names decides.
_USES: Tuple[Tuple[str, str], ...] = (
    (r"(?:^|/)bootstrap\.", "bootstrap"),
    (r"(?:^|/)ras/", "ras"),
    (r"(?:^|/)net_socket\.", "NET/Socket"),
    (r"(?:^|/)net_ib|(?:^|/)ib_plugin\.", "NET/IB"),
    (r"(?:^|/)transport/net\.|(?:^|/)net\.(?:cc|cpp|cu)", "the network"),
    (r"(?:^|/)proxy\.", "a proxy thread"),
    # NCCL's own is misc/socket.cc.
    (r"^(?!misc/)[\w./-]*\.c$|^socket\.", "the network's plugin"),
)
# NCCL's numbers for what a socket is for.
_KINDS: Dict[int, str] = {
    1: "bootstrap", 2: "a proxy thread", 3: "NET/Socket", 4: "NET/IB", 5: "RAS",
}  # fmt: skip
_WRONG = re.compile(r"wrong type (?P<came>\d{1,6}) != (?P<want>\d{1,6})")


class Told(NamedTuple):
    """check: whose question it is.   possible: causes that fit."""

    check: Check
    why: str
    fix: str
    possible: str


def use(places: Sequence[str]) -> str:
    """What a socket was used for, by the places of a warning and of its calls; "" where they do not tell."""
    for pattern, name in _USES:
        if any(re.search(pattern, place.partition(":")[0]) for place in places if place):
            return name
    return ""


def look_after(one: Reported) -> Optional[Told]:
    """Of a connection of a wrong kind, and of an address that is none; None of other failures."""
    if one.failure.kind not in ("handshake", "address"):
        return None
    used = use([one.place, *(call.place for call in after(one))])
    return _handshake(one, used) if one.failure.kind == "handshake" else _address(one, used)


def _met(one: Reported, used: str) -> str:
    """Whether the ranks had found each other before."""
    if used not in ("", "bootstrap", "ras"):
        return "; the ranks had found each other before it"
    if not used and one.process is not None and one.process.connections:
        return "; connections of this process (Channel ... via) are in this log, so it had found ranks before"
    return ""


def _handshake(one: Reported, used: str) -> Told:
    of = {"": "", "bootstrap": " in bootstrap", "ras": " by RAS"}.get(used, " of %s" % used)
    why = "a TCP connection%s was accepted, but its first data was not as expected%s" % (of, _met(one, used))
    why += "" if used else "; the lines do not show what the connection was for"
    possible = "another program connects to the port, or connections of two interfaces in one subnet are mixed up"
    match = _WRONG.search(one.failure.text)
    if match:
        came, want = (_KINDS.get(int(number), "no kind of NCCL's") for number in match.groups())
        possible = "%s is %s by NCCL's numbers, and %s is %s: ranks that use different networks or plugins, or" % (
            match.group("came"), came, match.group("want"), want,
        )  # fmt: skip
        possible += " different releases of NCCL; or another program connects to the port"
    if used == "bootstrap":
        return Told(BOOTSTRAP, why, BOOTSTRAP.fix, possible)
    fix = "compare `Using network`, NCCL_NET, NCCL_NET_PLUGIN and NCCL's release of all ranks (this command shows them"
    fix += " where it has their logs); then see by `ss -tnp` on the node who connects to that process"
    return Told(CONNECTION if used else BOOTSTRAP, why, fix, possible)


def _address(one: Reported, used: str) -> Told:
    possible = "two builds or releases of NCCL among the ranks, or memory that was overwritten on the way"
    fix = "check that all ranks load one libnccl.so.2: `grep libnccl /proc/PID/maps` on each node"
    if used == "bootstrap":
        why = "an address of bootstrap, usually that of rank 0 in the unique id that ranks exchange, is not a"
        why += " address; no HCA is involved in that"
        fix += "; then how the program hands the unique id on"
        return Told(BOOTSTRAP, why, fix, possible + "; or the program passes the unique id on wrongly")
    why = "the address that a peer handed over%s is not an IP address%s" % (
        " for a connection of %s" % used if used else "", _met(one, used),
    )  # fmt: skip
    why += "" if used else "; the lines do not show for which connection"
    if used == "NET/Socket":
        possible += "; or sends and receives of the ranks that do not fit each other, as outside of a group"
        fix += "; calls that send and receive belong between ncclGroupStart and ncclGroupEnd"
    return Told(CONNECTION if used else BOOTSTRAP, why, fix, possible)
