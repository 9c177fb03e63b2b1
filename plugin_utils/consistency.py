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

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import HostInfo, RailInfo

WHY = {
    "consistency.firmware": "two firmwares behave differently under congestion: the slowest rail sets the pace of all",
    "consistency.psid": "another PSID is another card: other speed, other firmware, other defaults",
    "consistency.driver": "a node that missed a rollout fails in its own way",
    "consistency.rail_order": "rail N of one node talks to rail N of all: another order sends it through the spine",
    "consistency.mtu": "two ends with different MTUs lose what is large",
    "consistency.address": "two nodes with one address: switches send what is meant for one to the other, by turns",
    "consistency.qos": "a port that is set otherwise drops what its neighbours send as lossless",
}
_FIX = {
    "consistency.firmware": "mlxfwmanager --query on both kinds; bring this one to the fleet's firmware while drained",
    "consistency.psid": "see what card is in the slot (lspci -vv, mlxfwmanager --query); exchange it, or declare it",
    "consistency.driver": "run site.yml --tags mofed for this host, and reboot what waits for it",
    "consistency.rail_order": "compare the slots with another node; name the rails' addresses in a site profile if the"
    " machine is built otherwise",
    "consistency.mtu": "run site.yml --tags mtu for this host",
    "consistency.address": "see in the site's address plan whose it is, and correct the file that sets up the other's",
    "consistency.qos": "run site.yml --tags roce_qos for this host",
}
_TIE = "decide which is right: declare it (%s) or change the others, see docs/verify.md"
_DECLARED_BY = {
    "consistency.firmware": "busbar_firmware",
    "consistency.psid": "busbar_firmware",
    "consistency.driver": "mofed_version",
    "consistency.rail_order": "pci in a site profile",
    "consistency.mtu": "busbar_mtu",
    "consistency.qos": "busbar_roce",
}


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


_ASPECTS: dict[str, Callable[[Member, HostInfo], _Values]] = {
    "consistency.firmware": _firmware,
    "consistency.psid": _of_rails(lambda rail: rail.psid),
    "consistency.driver": lambda member, info: [(None, info.driver)] if info.rails else [],
    "consistency.rail_order": _order,
    "consistency.mtu": _of_rails(lambda rail: str(rail.mtu) if rail.mtu is not None else None),
    "consistency.qos": _of_rails(lambda rail: rail.qos),
}


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
        for check, read in _ASPECTS.items():
            values = [(member, read(member, info)) for member, info in group]
            _compare(check, [(member, own) for member, own in values if own], found)
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
            state, fix = "drift" if said else "ok", _FIX["consistency.address"] if said else ""
            have = "; ".join(said) or "%d of its own" % len(own)
            finding = _finding("consistency.address", state, "addresses that no other host has", have, fix)
            yield member, Judged(finding, tuple(differ))


def _compare(check: str, values: Sequence[tuple[Member, _Values]], found: dict[str, list[Judged]]) -> None:
    # A host counts once for each value that it has on any rail.
    hosts = Counter(text for _member, own in values for text in {text for _name, text in own if text is not None})
    rails = Counter(text for _member, own in values for _name, text in own if text is not None)
    ranked = rails.most_common(2)
    tie = len(ranked) == 2 and ranked[0][1] == ranked[1][1]
    for member, own in values:
        declared = _declared(check, member)
        if declared is not None:
            wanted, of = declared, f"declared by {_DECLARED_BY[check]}"
        elif not ranked:
            wanted, of = ("a value",), "which no host could tell"
        else:
            wanted = (ranked[0][0],)
            of = "as on %d of %d hosts" % (hosts[ranked[0][0]], len(values))
        unread = [name for name, text in own if text is None]
        odd: _Values = [(name, text) for name, text in own if text is not None and text not in wanted]
        state, have, fix = "ok", _listed(own, own), ""
        if declared is None and tie:
            both = ["%s on %d" % (text, hosts[text]) for text, _count in ranked]
            state, fix = "unknown", _TIE % _DECLARED_BY[check]
            of = "no majority among %d hosts: %s" % (len(values), ", ".join(both))
            wanted = ("one value",)
        elif odd:
            state, have, fix = "drift", _listed(odd, own), _FIX[check]
        elif unread:
            state, have = "unknown", f"could not be read{_where(unread)}"
            fix = "run site.yml --tags platform for this host"
        finding = _finding(check, state, "{}, {}".format(" or ".join(wanted), of), have, fix)
        differ = _numbers(name for name, _text in odd) if state == "drift" else ()
        found[member.host].append(Judged(finding, differ))


def _declared(check: str, member: Member) -> tuple[str, ...] | None:
    if check == "consistency.firmware" and member.firmware:
        return tuple(sorted(set(member.firmware.values())))
    if check == "consistency.psid" and member.firmware:
        return tuple(sorted(member.firmware))
    if check == "consistency.mtu" and member.mtu is not None:
        return (str(member.mtu),)
    if check == "consistency.qos" and member.qos is not None:
        return (member.qos,)
    return None


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
    fix = "run it again for this host when it can be reached"
    return _finding("consistency.host", "unknown", "compared with the other hosts", "nothing was read", fix)


def _finding(check: str, state: str, want: str, have: str, fix: str) -> Finding:
    return Finding(
        check=check,
        subject="rails",
        state=state,
        severity="critical" if check in ("consistency.rail_order", "consistency.address") else "major",
        want=printable(want),
        have=printable(have),
        source="sysfs of all hosts",
        why=WHY.get(check, "a host that did not answer counts like one that differs"),
        fix=fix,
    )
