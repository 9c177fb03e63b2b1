# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who differs from the fleet: firmware, PSID, driver, rail order, MTU and QoS of every host beside all others.

Each host alone may look well. What the intent declares is compared with that, the rest with what most hosts of the
same kind have: same profile, fabric and product. Two halves that differ are told as that; which is right is not
guessed. Linear in the number of hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import HostInfo, RailInfo

FIRMWARE = Check(
    "consistency.firmware",
    why="two firmwares behave differently under congestion: the slowest rail sets the pace of all",
    fix="mstflint -d ADDRESS query on both kinds; bring this one to the fleet's firmware while drained:"
    " mstflint -d ADDRESS -i FILE burn, then mstfwreset -d ADDRESS -y reset or a reboot",
)
"""Is the firmware of the rails' NICs the declared one, else that of most hosts of the kind; a tie is `unknown`, as for
all of these"""
PSID = Check(
    "consistency.psid",
    why="another PSID is another card: other speed, other firmware, other defaults",
    fix="see what card is in the slot (lspci -vv, mlxfwmanager --query); exchange it, or declare it",
)
"Are the rails' NICs cards (PSIDs) that are declared, else those of most hosts of the kind"
DRIVER = Check(
    "consistency.driver",
    why="a node that missed a rollout fails in its own way",
    fix="run site.yml --tags mofed for this host, and reboot what waits for it",
)
"Is the driver of the rails' NICs that of most hosts of the kind"
RAIL_ORDER = Check(
    "consistency.rail_order",
    why="rail N of one node talks to rail N of all: another order sends it through the spine",
    fix="compare the slots with another node; name the rails' addresses in a site profile if the machine is built"
    " otherwise",
    severity="critical",
)
"Are the rails' PCI addresses, in order, those of most hosts of the kind"
MTU = Check(
    "consistency.mtu",
    why="two ends with different MTUs lose what is large",
    fix="run site.yml --tags mtu for this host",
)
"Is the rails' MTU the declared one, else that of most hosts of the kind"
QOS = Check(
    "consistency.qos",
    why="a port that is set otherwise drops what its neighbours send as lossless",
    fix="run site.yml --tags roce_qos for this host",
)
"Are the rails' trust, PFC and map the declared ones, else those of most hosts of the kind"
ADDRESS = Check(
    "consistency.address",
    why="two nodes with one address: switches send what is meant for one to the other, by turns",
    fix="see in the site's address plan whose it is, and correct the file that sets up the other's",
    severity="critical",
)
"Has no rail of another host, whatever kind of host it is, one of this host's addresses"
HOST = Check(
    "consistency.host",
    why="a host that did not answer counts like one that differs",
    fix="run it again for this host when it can be reached",
)
"Could the host be compared at all"
_TIE = "decide which is right: declare it (%s) or change the others, see docs/verify.md"


@dataclass(frozen=True)
class Member:
    """One host. kind: profile and fabric; what differs there is compared with nobody. info: None where there is none.

    Declared by the intent: firmware: PSID -> version, {} for none.   mtu.   qos: as RailInfo.qos words it.
    """

    host: str
    kind: str
    info: HostInfo | None
    firmware: Mapping[str, str] = field(default_factory=dict)
    mtu: int | None = None
    qos: str | None = None


# Rail, None for the host as a whole, and what it has there, None where that is not known.
_Values = list[tuple[int | None, str | None]]


def _order(member: Member, info: HostInfo) -> _Values:
    # A missing rail is a finding of platform, and makes no other order.
    complete = not info.missing
    return [(None, " ".join(rail.pci for rail in info.rails))] if complete and info.rails else []


def _of_rails(value: Callable[[RailInfo], str | None]) -> Callable[[Member, HostInfo], _Values]:
    def values(member: Member, info: HostInfo) -> _Values:
        return [(rail.number, value(rail)) for rail in info.rails if value(rail) != ""]

    return values


def _firmware(member: Member, info: HostInfo) -> _Values:
    """With its PSID where it is not what is declared for that card. A card that is not declared is told by its PSID."""
    found: _Values = []
    for rail in info.rails:
        text = rail.firmware
        if text is not None and rail.psid in member.firmware and member.firmware[rail.psid or ""] != text:
            text = f"{text} (PSID {rail.psid})"
        elif member.firmware and rail.psid not in member.firmware:
            continue
        found.append((rail.number, text))
    return found


@dataclass(frozen=True)
class Aspect:
    """What is compared. declared_by: the value of a site that says which is right.

    declared: what the intent says of a host, None where it says nothing. read: what the host has.
    """

    check: Check
    declared_by: str
    read: Callable[[Member, HostInfo], _Values]
    declared: Callable[[Member], tuple[str, ...] | None] = lambda member: None


_ASPECTS = (
    Aspect(FIRMWARE, "busbar_firmware", _firmware, lambda member: tuple(sorted(set(member.firmware.values()))) or None),
    Aspect(
        PSID,
        "busbar_firmware",
        _of_rails(lambda rail: rail.psid),
        lambda member: tuple(sorted(member.firmware)) or None,
    ),
    Aspect(DRIVER, "mofed_version", lambda member, info: [(None, info.driver)] if info.rails else []),
    Aspect(RAIL_ORDER, "pci in a site profile", _order),
    Aspect(
        MTU,
        "busbar_mtu",
        _of_rails(lambda rail: str(rail.mtu) if rail.mtu is not None else None),
        lambda member: None if member.mtu is None else (str(member.mtu),),
    ),
    Aspect(
        QOS,
        "busbar_roce",
        _of_rails(lambda rail: rail.qos),
        lambda member: None if member.qos is None else (member.qos,),
    ),
)


@dataclass(frozen=True)
class Judged:
    """rails: numbers of those that differ; empty where the whole host does, or none."""

    finding: Finding
    rails: tuple[int, ...] = ()


def judge(members: Sequence[Member]) -> dict[str, list[Judged]]:
    """Host -> what is to be said of it, once for each aspect that it has."""
    found: dict[str, list[Judged]] = {member.host: [] for member in members}
    groups: dict[tuple[str, str | None], list[tuple[Member, HostInfo]]] = {}
    for member in members:
        if member.info is None:
            found[member.host].append(Judged(_unread()))
        else:
            groups.setdefault((member.kind, member.info.product), []).append((member, member.info))
    for member, judged in _addresses(members):
        found[member.host].append(judged)
    for group in groups.values():
        for aspect in _ASPECTS:
            values = [(member, aspect.read(member, info)) for member, info in group]
            _compare(aspect, [(member, own) for member, own in values if own], found)
    return found


def _addresses(members: Sequence[Member]) -> Iterable[tuple[Member, Judged]]:
    """Of every host whose rails have addresses: does no other host, of whatever kind, have one of them."""
    holders: dict[str, list[tuple[str, int]]] = {}
    for member in members:
        for rail in member.info.rails if member.info is not None else ():
            if rail.address:
                holders.setdefault(rail.address, []).append((member.host, rail.number))
    for member in members:
        own = [rail for rail in member.info.rails if rail.address] if member.info is not None else []
        said, differ = [], []
        for rail in own:
            others = [(host, number) for host, number in holders[rail.address or ""] if host != member.host]
            if others:
                host, number = others[0]
                more = ", and %d more have it" % (len(others) - 1) if len(others) > 1 else ""
                said.append("%s of rail %d is rail %d of %s, too%s" % (rail.address, rail.number, number, host, more))
                differ.append(rail.number)
        if own:
            have = "; ".join(said) or "%d of its own" % len(own)
            finding = _judged(ADDRESS, "drift" if said else "ok", "addresses that no other host has", have)
            yield member, Judged(finding, tuple(differ))


def _compare(aspect: Aspect, values: Sequence[tuple[Member, _Values]], found: dict[str, list[Judged]]) -> None:
    # A host counts once for each value that it has on any rail.
    hosts = Counter(text for _member, own in values for text in {text for _name, text in own if text is not None})
    rails = Counter(text for _member, own in values for _name, text in own if text is not None)
    ranked = rails.most_common(2)
    tie = len(ranked) == 2 and ranked[0][1] == ranked[1][1]
    for member, own in values:
        declared = aspect.declared(member)
        if declared is not None:
            wanted, of = declared, f"declared by {aspect.declared_by}"
        elif not ranked:
            wanted, of = ("a value",), "which no host could tell"
        else:
            wanted = (ranked[0][0],)
            of = "as on %d of %d hosts" % (hosts[ranked[0][0]], len(values))
        unread = [name for name, text in own if text is None]
        odd: _Values = [(name, text) for name, text in own if text is not None and text not in wanted]
        state, have, fix = "ok", _listed(own, own), None
        if declared is None and tie:
            both = ["%s on %d" % (text, hosts[text]) for text, _count in ranked]
            state, fix = "unknown", _TIE % aspect.declared_by
            of = "no majority among %d hosts: %s" % (len(values), ", ".join(both))
            wanted = ("one value",)
        elif odd:
            state, have = "drift", _listed(odd, own)
        elif unread:
            state, have = "unknown", f"could not be read{_where(unread)}"
            fix = "run site.yml --tags platform for this host"
        finding = _judged(aspect.check, state, "{}, {}".format(" or ".join(wanted), of), have, fix)
        differ = _numbers(name for name, _text in odd) if state == "drift" else ()
        found[member.host].append(Judged(finding, differ))


def _listed(part: _Values, own: _Values) -> str:
    """``28.39.1002 on rails 3, 5``: each value with where it is, unless it is everywhere. part: of the host's own."""
    where: dict[str, list[int | None]] = {}
    for name, text in part:
        where.setdefault("not known" if text is None else text, []).append(name)
    if len(where) == 1 and len(part) == len(own):
        return next(iter(where))
    return "; ".join(text + _where(names) for text, names in where.items())


def _where(names: Sequence[int | None]) -> str:
    numbers = [str(number) for number in _numbers(names)]
    return " on rail{} {}".format("s" if len(numbers) > 1 else "", ", ".join(numbers)) if numbers else ""


def _numbers(names: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(number for number in names if number is not None)


def _unread() -> Finding:
    return _judged(HOST, "unknown", "compared with the other hosts", "nothing was read")


def _judged(check: Check, state: str, want: str, have: str, fix: str | None = None) -> Finding:
    return check.judge("rails", state, printable(want), have, "sysfs of all hosts", fix)
