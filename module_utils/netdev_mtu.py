# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The MTU of the compute rails' interfaces: as it is, as it will be after a boot, and what RDMA makes of it.

After a boot it comes from the file of whoever sets the interface up (netdev_owner); where that is not clear nothing
is written.
Sources: kernel include/rdma/ib_addr.h iboe_get_mtu; host.md 2.4, 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from .core import advice
from .core.finding import Finding, printable, unreadable
from .core.host import Host, Problem
from .core.plan import Command, FileChange, Plan
from .machine import netdev, rdma
from .machine.profile import Profile, active_port, roce_rails
from .machine.rails import Rails
from .machine.rdma import DEVINFO, RdmaPort
from .machine.topology import Nic
from .owner.owner import (
    NETPLAN_FILE,
    NETWORKD_FOLDERS,
    Claim,
    Device,
    Owner,
    parse_netplan,
    read_devices,
    read_owners,
    render_netplan,
    set_iface_mtu,
    set_ifcfg,
    set_setting,
    shared,
)

# Bytes: the least that IPv6 takes, the most that Linux does.
LEAST, MOST = 1280, 65535
RDMA_MTUS = (256, 512, 1024, 2048, 4096)
# Of RoCE: GRH or IP, UDP, BTH, the largest extended headers and the checksum.
RDMA_HEADERS = 96
_NETPLAN_COMMENT = "Written by Busbar (role mtu). What else belongs to these interfaces is in the other files here."
RUN = advice.run("mtu")
WHY = {
    "live": "RDMA sends as much at once as the interface's MTU lets it; two ends that differ hang or fall back",
    "persisted": "at the next boot the interface gets what the file of its owner says, whatever it has now",
    "owner": "an MTU in a file that nobody reads, or that somebody else overrides, is gone after a boot",
    "active_mtu": "this is what queue pairs send: the largest of 256 to 4096 bytes that fits into the MTU less %d of"
    " headers, so that 4096 needs an MTU of 4192" % RDMA_HEADERS,
}


@dataclass(frozen=True)
class Want:
    """mtu: bytes, of every compute rail's interface and of what RDMA uses above it."""

    mtu: int


@dataclass(frozen=True)
class Have:
    """nics: the compute rails that are Ethernet. devices: all interfaces. owners: by interface.

    rdma: (device, port) -> its MTU. netplan: our own file there. nmcli: whether there is one.
    """

    nics: Tuple[Nic, ...]
    devices: Mapping[str, Device]
    owners: Mapping[str, Owner]
    rdma: Mapping[Tuple[str, int], RdmaPort]
    netplan: Optional[str] = None
    nmcli: bool = False
    problems: Tuple[Problem, ...] = ()


# -- what is there ---------------------------------------------------------------------------------------------------


def rdma_mtu(mtu: int) -> int:
    """What RoCE makes of an interface's MTU; 0 where nothing fits."""
    return max([size for size in RDMA_MTUS if size <= mtu - RDMA_HEADERS], default=0)


def ethernet_rails(rails: Rails, profile: Profile) -> Dict[int, Nic]:
    """Rail number -> NIC, where the profile asks for Ethernet and the port is that. InfiniBand has no such MTU."""
    asked = {rail.number for rail in profile.rails if "Ethernet" in rail.link_layers}
    found = {}
    for number, nic in sorted(rails.nics.items()):
        port = active_port(nic)
        if number in asked and port is not None and port.link_layer == "Ethernet":
            found[number] = nic
    return found


def read(host: Host, nics: Sequence[Nic]) -> Have:
    """nics: those of ethernet_rails. Raises ReadError where our own file cannot be read."""
    if not nics:
        return Have((), {}, {}, {})
    netdevs, problems = netdev.read(host)
    said = list(problems)
    devices = read_devices(host, netdevs, said)
    return Have(
        nics=tuple(nics),
        devices=devices,
        owners=read_owners(host, devices),
        rdma=_mtus(rdma.read_mtus(host), said),
        netplan=host.read_system(NETPLAN_FILE),
        nmcli=host.has("nmcli"),
        problems=tuple(said),
    )


def _mtus(read: rdma.Mtus, problems: List[Problem]) -> Mapping[Tuple[str, int], RdmaPort]:
    if isinstance(read, Problem):
        problems.append(read)
        return {}
    return read


# -- the plan --------------------------------------------------------------------------------------------------------


def wanted(nic: Nic, devices: Mapping[str, Device]) -> Tuple[str, ...]:
    """Interfaces whose MTU matters to a rail: its own, its bond, those above that carry a GID, and what is between.

    A NIC that switches between virtual functions shows their representors, too: its GIDs tell which one is its own.
    """
    gids = {gid.netdev for port in nic.rdma.ports for gid in port.gids if gid.netdev} if nic.rdma else set()
    own = [one.name for one in nic.netdevs if one.name in devices]
    found = [name for name in own if name in gids] or own
    at = 0
    while at < len(found):
        for name in devices[found[at]].upper:
            reach = _reach(name, devices)
            master = devices[found[at]].master == name and name in devices and devices[name].kind in ("bond", "team")
            if name not in found and name in devices and (master or gids & reach):
                found.append(name)
        at += 1
    return tuple(found)


def _reach(name: str, devices: Mapping[str, Device]) -> Set[str]:
    """The interface and all above it."""
    found, waiting = {name}, [name]
    while waiting:
        one = waiting.pop()
        for upper in devices[one].upper if one in devices else ():
            if upper not in found:
                found.add(upper)
                waiting.append(upper)
    return found


def in_order(names: Iterable[str], devices: Mapping[str, Device], mtu: int) -> Tuple[str, ...]:
    """Interfaces in the order in which they can be set: what shrinks from the top, then what grows from below.

    What has a bond above it that is set as well follows that bond.
    """
    changing = [name for name in names if devices[name].mtu not in (None, mtu)]
    alone = [
        name
        for name in changing
        if not (devices[name].master in changing and devices[devices[name].master or ""].kind in ("bond", "team"))
    ]
    shrinking = [name for name in alone if (devices[name].mtu or 0) > mtu]
    growing = [name for name in alone if (devices[name].mtu or 0) < mtu]
    shrinking.sort(key=lambda name: (-_height(name, devices), name))
    growing.sort(key=lambda name: (_height(name, devices), name))
    return tuple(shrinking + growing)


def _height(name: str, devices: Mapping[str, Device], seen: Tuple[str, ...] = ()) -> int:
    below = [one for one in devices[name].lower if one in devices and one not in seen]
    return 1 + max(_height(one, devices, (*seen, name)) for one in below) if below else 0


def plan(have: Have, want: Want) -> Plan:
    findings: List[Finding] = []
    subjects: Dict[str, str] = {}
    for nic in have.nics:
        names = wanted(nic, have.devices)
        if not names:
            findings.append(_no_netdev(nic, want))
            continue
        own = [one.name for one in nic.netdevs if one.name in names]
        for name in names:
            subjects.setdefault(name, nic.label if name == own[0] else name)
        findings.append(_active(nic, have, own[0], want))
    changes, commands, written = _mend(have, want, subjects)
    for name, subject in subjects.items():
        findings.append(_live(have.devices[name], subject, want))
        findings += _kept(have, name, subject, want, subjects, written)
    links = [
        Command(
            ("ip", "link", "set", "dev", name, "mtu", str(want.mtu)),
            "MTU of %s (mlx5 opens its channels anew: traffic stops for a moment)" % name,
            "link",
        )
        for name in in_order(subjects, have.devices, want.mtu)
    ]
    own_files = tuple("%s/%s/" % (netdev.INTERFACES, name) for name in subjects)
    findings += [
        unreadable("netdev_mtu.readable", problem) for problem in have.problems if problem.source.startswith(own_files)
    ]
    return Plan(tuple(findings), changes, commands + tuple(links))


def _owner(have: Have, name: str, subjects: Mapping[str, str]) -> Tuple[Optional[Claim], str, str, str]:
    """The claim, where there is exactly one that can be written to; else state, what is there and the way out."""
    owner = have.owners.get(name, Owner())
    if owner.unclear:
        return None, "unknown", owner.unclear, "let one file set %s up, in a way that can be read" % name
    if not owner.claims:
        said = "no file of netplan, NetworkManager, networkd, ifupdown or ifcfg sets it up"
        return None, "unknown", said, "give %s a file of its own, with its addresses" % name
    claim = owner.claims[0]
    others = shared(claim, have.owners, subjects)
    if others:
        said = "%s (%s) sets up %s, too" % (claim.path, claim.stack, ", ".join(others[:4]))
        return None, "not_owned", said, "give the rails files of their own, or set the MTU for all of them there"
    if claim.refused[0]:
        return None, "not_owned", claim.refused[0], claim.refused[1]
    return claim, "ok", "%s (%s)" % (claim.path, claim.stack), ""


def _kept(
    have: Have, name: str, subject: str, want: Want, subjects: Mapping[str, str], written: Mapping[str, bool]
) -> List[Finding]:
    claim, state, said, fix = _owner(have, name, subjects)
    source = claim.path if claim else NETWORKD_FOLDERS[0].rpartition("/")[0]
    owner = have.owners.get(name, Owner())
    # One that brings the right MTU may stay as it is, whoever owns it.
    right = bool(owner.claims) and not owner.unclear and owner.claims[0].mtu == want.mtu
    if right:
        claim, state, said, source = owner.claims[0], "ok", owner.claims[0].path, owner.claims[0].path
    found = [_finding("owner", subject, state, "one file that sets it up", said, fix, source, "persisted")]
    if claim is None:
        return found
    said = "MTU %d" % claim.mtu if claim.mtu is not None else "no MTU (a NIC comes up with 1500)"
    state, fix = ("ok", "") if right else ("drift", RUN)
    if not right and not written[name]:
        state, fix = "not_owned", "correct %s, which counts more than %s" % (claim.source, claim.target)
    found.append(
        _finding(
            "persisted",
            subject,
            state,
            "MTU %d" % want.mtu,
            "%s in %s (%s)" % (said, claim.source or claim.path, claim.stack),
            fix,
            claim.source or claim.path,
            "persisted",
        )
    )
    return found


def _mend(
    have: Have, want: Want, subjects: Mapping[str, str]
) -> Tuple[Tuple[FileChange, ...], Tuple[Command, ...], Dict[str, bool]]:
    """Changes, commands that make the owners read them, and for each interface whether its file changes."""
    before: Dict[str, Tuple[Optional[str], int]] = {}
    after: Dict[str, Optional[str]] = {}
    stacks: Dict[str, str] = {}
    targets: Dict[str, str] = {}
    netplan = []
    for name in subjects:
        claim = _owner(have, name, subjects)[0]
        if claim is None or _overridden(claim, want):
            continue
        if claim.stack == "netplan":
            netplan.append(claim)
        elif claim.mtu == want.mtu:
            continue
        else:
            before.setdefault(claim.target, (claim.before, claim.mode))
            after[claim.target] = _edited(claim, after.get(claim.target, claim.before) or "", name, want.mtu)
        stacks[claim.target], targets[name] = claim.stack, claim.target
    if netplan:
        before[NETPLAN_FILE] = (have.netplan, 0o600)
        after[NETPLAN_FILE] = _netplan_text(have, want, netplan, subjects)
    changes = tuple(
        FileChange(path, before[path][0], text, before[path][1], shown=_shown(stacks.get(path), before[path][0], text))
        for path, text in sorted(after.items())
        if text != before[path][0]
    )
    changed = {change.path for change in changes}
    commands = []
    if NETPLAN_FILE in changed:
        commands.append(Command(("netplan", "generate"), "what netplan makes of it, for the next boot"))
    if have.nmcli and any(stacks[path] in ("NetworkManager", "ifcfg") for path in changed):
        commands.append(Command(("nmcli", "connection", "reload"), "have NetworkManager read its files again"))
    return changes, tuple(commands), {name: targets.get(name) in changed for name in subjects}


def _shown(stack: Optional[str], before: Optional[str], after: Optional[str]) -> Optional[Tuple[str, str]]:
    """What a diff may show: of files that can hold passwords of 802.1X or Wi-Fi, the lines that change."""
    if stack not in ("NetworkManager", "ifupdown", "ifcfg"):
        return None
    old, new = (before or "").splitlines(), (after or "").splitlines()
    changed = [step for step in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if step[0] != "equal"]
    texts = (
        [line for _tag, start, end, _new, _to in changed for line in old[start:end]],
        [line for _tag, _old, _from, start, end in changed for line in new[start:end]],
    )
    first, second = ("\n".join(["(other lines are not shown)", *lines]) + "\n" for lines in texts)
    return first, second


def _overridden(claim: Claim, want: Want) -> bool:
    """Whether a file that counts more than the one we would write says something else."""
    ours = claim.target.rpartition("/")[2]
    return (
        claim.stack in ("netplan", "networkd")
        and claim.mtu is not None
        and claim.mtu != want.mtu
        and claim.source not in (claim.target, claim.path)
        and claim.source.rpartition("/")[2] > ours
    )


def _netplan_text(have: Have, want: Want, claims: Sequence[Claim], subjects: Mapping[str, str]) -> Optional[str]:
    """Our file there. Where an owner is unclear, what the file says already stays."""
    mtus: Dict[str, int] = {}
    if any(have.owners.get(name, Owner()).unclear for name in subjects):
        there = parse_netplan(have.netplan or "")
        mtus = {"%s/%s" % key: value for key, value in there.items() if value is not None}
    for claim in claims:
        mtus.pop(claim.ident, None)
        if claim.others != want.mtu:
            mtus[claim.ident] = want.mtu
    definitions = {ident: ["mtu: %d" % mtu] for ident, mtu in mtus.items()}
    return render_netplan(_NETPLAN_COMMENT, definitions) if mtus else None


def _edited(claim: Claim, text: str, name: str, mtu: int) -> str:
    edits: Dict[str, Callable[[], str]] = {
        "networkd": lambda: "# Written by Busbar (role mtu).\n[Link]\nMTUBytes=%d\n" % mtu,
        "link": lambda: set_setting(text, "Link", "MTUBytes", str(mtu)),
        "NetworkManager": lambda: set_setting(text, claim.ident, "mtu", str(mtu), continued=False),
        "ifupdown": lambda: set_iface_mtu(text, name, mtu),
        "ifcfg": lambda: set_ifcfg(text, "MTU", str(mtu)),
    }
    return edits[claim.stack]()


def keeps_backup(path: str) -> bool:
    """Whether the old file may stay beside the new one: ours need not, and ifupdown would read it, too."""
    return not path.endswith((".yaml", ".conf")) and not path.startswith("/etc/network/")


def mends(finding: Finding) -> bool:
    """Whether a run does. What is left of RDMA's own MTU goes only with the link, addresses and routes included."""
    return finding.check != "netdev_mtu.active_mtu" or finding.because is not None


def undecided(profile: Profile) -> List[str]:
    """What a reader should know where no MTU is asked for."""
    if not roce_rails(profile):
        return []
    return ["busbar_mtu is not set: the MTU of the RoCE rails is not judged"]


def notes(have: Have, want: Want) -> List[str]:
    """What a reader of the result should know beside the findings."""
    if not have.nics or rdma_mtu(want.mtu) == RDMA_MTUS[-1]:
        return []
    least = RDMA_MTUS[-1] + RDMA_HEADERS
    return ["with an MTU of %d RDMA sends %d bytes; 4096 need %d" % (want.mtu, rdma_mtu(want.mtu), least)]


def _live(device: Device, subject: str, want: Want) -> Finding:
    state = "unknown" if device.mtu is None else "ok" if device.mtu == want.mtu else "drift"
    path = "%s/%s/mtu" % (netdev.INTERFACES, device.name)
    have = "MTU %d" % device.mtu if device.mtu is not None else "%s cannot be read" % path
    fix = "look at %s" % path if device.mtu is None else RUN
    return _finding("live", subject, state, "MTU %d" % want.mtu, have, fix, path, "live", "link")


def _no_netdev(nic: Nic, want: Want) -> Finding:
    fix = "look at dmesg for %s: is its driver loaded, is it handed to a virtual machine" % nic.pci
    said = "it has no network interface"
    return _finding("live", nic.label, "unknown", "MTU %d" % want.mtu, said, fix, nic.device.source, "live")


def _active(nic: Nic, have: Have, name: str, want: Want) -> Finding:
    port = active_port(nic)
    device = nic.rdma.name if nic.rdma else ""
    found = have.rdma.get((device, port.number)) if port else None
    expected = rdma_mtu(want.mtu)
    state, fix, because = "ok", "", None
    if found is None:
        said = [problem for problem in have.problems if problem.source == " ".join(DEVINFO)]
        text = str(said[0]) if said else "ibv_devinfo does not show %s" % device
        state, fix = "unknown", "run ibv_devinfo -d %s on the host" % device
    else:
        text = "%d bytes" % found.active
        if found.largest < expected:
            state, text = "unsupported", "%d bytes, and the port has at most %d" % (found.active, found.largest)
            fix = "set busbar_mtu to what this port can use, or look at its firmware"
        elif found.active < expected:
            state = "drift"
            fix = "on a drained node: ip link set %s down && ip link set %s up; then ibv_devinfo -d %s" % (
                name,
                name,
                device,
            )
            live = _live(have.devices[name], nic.label, want)
            if not live.ok:
                because, fix = live.id, RUN
    want_text = "at least %d bytes" % expected
    return _finding(
        "active_mtu", nic.label, state, want_text, text, fix, " ".join(DEVINFO), "live", "link", because=because
    )


def _finding(
    check: str,
    subject: str,
    state: str,
    want: str,
    have: str,
    fix: str,
    source: str,
    aspect: str,
    disruption: str = "none",
    because: Optional[str] = None,
) -> Finding:
    return Finding(
        check="netdev_mtu.%s" % check,
        subject=subject,
        state=state,
        severity="major",
        want=want,
        have=printable(have),
        source=source,
        why=WHY[check],
        fix="" if state == "ok" else fix,
        aspect=aspect,
        disruption=disruption,
        because=because,
    )
