# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge the MTU of the compute rails' interfaces: now, after a boot, and the RDMA MTU; judge their addresses.

After a boot both come from the file of the interface's owner (owner.py); if that is not clear, nothing is written.
Source: kernel include/rdma/ib_addr.h iboe_get_mtu.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..change import written
from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Problem
from ..core.plan import Command, FileChange, Plan
from ..machine import netdev, rdma
from ..machine.netdev_address import Address
from ..machine.rail_address import RAIL_ADDRESS
from ..machine.rdma import DEVINFO, RdmaPort
from ..machine.topology import Nic
from . import device, owner
from .claim import Claim
from .device import Device
from .networkd import FOLDERS
from .owner import Owner

# Bytes: the least that IPv6 takes, the most that Linux does.
LEAST, MOST = 1280, 65535
RDMA_MTUS = (256, 512, 1024, 2048, 4096)
# Of RoCE: GRH or IP, UDP, BTH, the largest extended headers and the checksum.
RDMA_HEADERS = 96
_BONDS = ("bond", "team")
RUN = fix_command.run_tag("mtu")

LIVE = Check(
    "netdev_mtu.live",
    why="the interface's MTU limits RDMA packets; connections between ends with different MTUs hang or fall back",
    fix=RUN,
    disruption="link",
)
"Do each rail's interface, its bond, and the interfaces above that RDMA uses have `busbar_mtu`"

OWNER = Check(
    "netdev_mtu.owner",
    why="an MTU in a file that is not read, or that another file overrides, is lost at the next boot",
    aspect="persisted",
)
"""Does exactly one file configure the interface at boot, and can it be read and written; two are `unknown`, and
neither is changed"""

PERSISTED = Check(
    "netdev_mtu.persisted",
    why="at the next boot the interface gets the MTU in its network manager's file, whatever it has now",
    fix=RUN,
    aspect="persisted",
)
"Does the file that configures the interface at boot set the MTU"

ACTIVE_MTU = Check(
    "netdev_mtu.active_mtu",
    why="this is the packet size of queue pairs: the largest of 256 to 4096 bytes that fits into the MTU minus %d"
    " bytes of headers; 4096 needs an MTU of 4192" % RDMA_HEADERS,
    disruption="link",
)
"""Does RDMA use the largest size that fits: 4096 bytes from an MTU of 4192 on; if only this is wrong, the link has
to go down and up"""

READABLE = Check("netdev_mtu.readable", why="what cannot be read cannot be judged")
"Could the interface's own files be read"


class MtuState(NamedTuple):
    """nics: of the Ethernet rails. devices, owners: by interface, of all. rdma: (RDMA device, port) -> its MTU."""

    nics: Tuple[Nic, ...]
    devices: Mapping[str, Device]
    owners: Mapping[str, Owner]
    rdma: Mapping[Tuple[str, int], RdmaPort]
    problems: Tuple[Problem, ...] = ()


# -- what is there ---------------------------------------------------------------------------------------------------


def rdma_mtu(mtu: int) -> int:
    """Return the RDMA MTU of RoCE for an interface's MTU; 0 if none fits."""
    return max([size for size in RDMA_MTUS if size <= mtu - RDMA_HEADERS], default=0)


def read(host: Host, nics: Sequence[Nic]) -> MtuState:
    """nics: of the Ethernet rails. What cannot be read is in MtuState's problems, or a doubt of the owners."""
    if not nics:
        return MtuState((), {}, {}, {})
    netdevs, unread = netdev.read(host)
    problems = list(unread)
    devices = device.read(host, netdevs, problems)
    ports = rdma.read_mtus(host)
    if isinstance(ports, Problem):
        problems.append(ports)
        ports = {}
    return MtuState(tuple(nics), devices, owner.read(host, devices), ports, tuple(problems))


# -- the plan --------------------------------------------------------------------------------------------------------


def wanted(nic: Nic, devices: Mapping[str, Device]) -> Tuple[str, ...]:
    """Return interfaces whose MTU matters to a rail: the NIC's, its bond, those above with a GID, and those between.

    A NIC that switches between virtual functions shows their representors, too: its GIDs identify its interface.
    """
    gids = {gid.netdev for port in nic.rdma.ports for gid in port.gids if gid.netdev} if nic.rdma else set()
    own = [one.name for one in nic.netdevs if one.name in devices]
    found = [name for name in own if name in gids] or own
    for name in found:  # which grows
        for upper in devices[name].upper:
            is_bond = upper in devices and devices[name].master == upper and devices[upper].kind in _BONDS
            if (
                upper not in found
                and upper in devices
                and (is_bond or gids.intersection(_reach(upper, devices, "upper")))
            ):
                found.append(upper)
    return tuple(found)


def _reach(name: str, devices: Mapping[str, Device], direction: str) -> List[str]:
    """The interface and all above it, or below it. direction: upper or lower."""
    found = [name]
    for one in found:  # which grows
        found += [other for other in getattr(devices.get(one), direction, ()) if other not in found]
    return found


def in_order(names: Iterable[str], devices: Mapping[str, Device], mtu: int) -> Tuple[str, ...]:
    """Interfaces in the order in which they can be set: what shrinks from the top, then what grows from below.

    What has a bond above it that is set as well follows that bond.
    """
    changing = [name for name in names if devices[name].mtu not in (None, mtu)]
    masters = {name: devices[name].master or "" for name in changing}
    alone = [name for name in changing if not (masters[name] in changing and devices[masters[name]].kind in _BONDS)]
    from_below = sorted(alone, key=lambda name: (len(_reach(name, devices, "lower")), name))
    from_top = sorted(alone, key=lambda name: (-len(_reach(name, devices, "lower")), name))
    shrinking = [name for name in from_top if (devices[name].mtu or 0) > mtu]
    return (*shrinking, *(name for name in from_below if name not in shrinking))


def plan(have: MtuState, want: int) -> Plan:
    """want: MTU in bytes, of every compute rail's interface and of what RDMA uses above it."""
    findings: List[Finding] = []
    subjects: Dict[str, str] = {}
    for nic in have.nics:
        names = wanted(nic, have.devices)
        own = [one.name for one in nic.netdevs if one.name in names]
        for name in names:
            subjects.setdefault(name, nic.label if name == own[0] else name)
        findings.append(_active(nic, have, own[0] if own else "", want))
    files, commands, changes = _mend(have, want, subjects)
    findings += files.edited(PERSISTED)
    for name, subject in subjects.items():
        findings.append(_live(have.devices[name], subject, want))
        if not _follows_bond(have, name, subjects):
            findings += _judge_persisted(have, name, subject, want, subjects, changes)
    why = "MTU of %s (mlx5 reopens its channels: traffic stops for a moment)"
    links = [
        Command(("ip", "link", "set", "dev", name, "mtu", str(want)), why % name, "link")
        for name in in_order(subjects, have.devices, want)
    ]
    own_files = tuple("%s/%s/" % (netdev.INTERFACES, name) for name in subjects)
    findings += [READABLE.unreadable(problem) for problem in have.problems if problem.source.startswith(own_files)]
    return Plan(tuple(findings), files.changes, (*commands, *links), notes=files.notes)


def unwritable(owned: Owner, others: Sequence[str], name: str) -> Tuple[str, str, str]:
    """Return state, have and fix where the owner's file of ``name`` cannot be written; state "" where it can.

    others: interfaces that are not rails and that this file sets up, too.
    """
    if owned.unclear:
        return "unknown", owned.unclear, "configure %s in one file only, in a form that Busbar can read" % name
    if owned.claim is None:
        have = "no file of netplan, NetworkManager, networkd or ifupdown configures %s" % name
        return "unknown", have, "give %s its own file, with its addresses" % name
    if owned.claim.refused[0]:
        return ("not_owned", *owned.claim.refused)
    if others:
        have = "%s also configures %s" % (owned.claim, ", ".join(others[:4]))
        return "not_owned", have, "give every rail its own file, or configure all of them alike there"
    return "", "", ""


def _state_of(have: MtuState, name: str, subjects: Collection[str]) -> Tuple[Owner, Tuple[str, str, str]]:
    owned = have.owners.get(name, Owner())
    others = owner.shared(owned.claim, have.owners, subjects) if owned.claim else ()
    return owned, unwritable(owned, others, name)


def _follows_bond(have: MtuState, name: str, subjects: Collection[str]) -> bool:
    """Return whether an interface gets its bond's MTU at boot: its own files set none (kernel bond_enslave)."""
    owned, master = have.owners.get(name, Owner()), have.devices[name].master or ""
    of_bond = master in subjects and have.devices[master].kind in _BONDS
    return of_bond and not owned.unclear and (owned.claim is None or owned.claim.mtu is None)


def _judge_persisted(
    have: MtuState, name: str, subject: str, want: int, subjects: Collection[str], changes: Collection[str]
) -> List[Finding]:
    """Judge the owner's file. changes: interfaces whose file changes."""
    owned, (state, text, fix) = _state_of(have, name, subjects)
    claim = owned.claim
    # A file with the right MTU stays as it is, whatever its owner.
    right = claim is not None and claim.mtu == want
    if claim is not None and (right or not state):
        state, text = "ok", claim.path if right else str(claim)
    source = claim.path if claim is not None and state == "ok" else FOLDERS[0].rpartition("/")[0]
    found = [OWNER.judge(subject, state, "one file that configures it", text, source, fix)]
    if claim is None or state != "ok":
        return found
    text = "MTU %d" % claim.mtu if claim.mtu is not None else "no MTU (a NIC comes up with 1500)"
    state, fix = "ok" if right else "drift", RUN
    if not right and name not in changes:
        state, fix = "not_owned", "correct %s, which counts more than %s" % (claim.source, claim.target)
    source = claim.source or claim.path
    text = "%s in %s (%s)" % (text, source, claim.stack)
    return [*found, PERSISTED.judge(subject, state, "MTU %d" % want, text, source, fix)]


def _mend(
    have: MtuState, want: int, subjects: Collection[str]
) -> Tuple[written.Files, Tuple[Command, ...], Collection[str]]:
    """Changes, commands that make the owners read them, and the interfaces whose file changes."""
    targets: Dict[str, Dict[str, Claim]] = {}
    for name in subjects:
        owned, (state, _have, _fix) = _state_of(have, name, subjects)
        claim = owned.claim
        if claim is None or state or claim.overridden(want) or _follows_bond(have, name, subjects):
            continue
        ours = claim.gathers or (claim.source == claim.target and written.HEAD in (claim.before or ""))
        if ours or claim.mtu != want:
            targets.setdefault(claim.target, {})[name] = claim
    unclear = any(have.owners.get(name, Owner()).unclear for name in subjects)
    files = written.compare(
        _change(list(claims.values()), want, unclear) for _target, claims in sorted(targets.items())
    )
    changed = [targets[change.path] for change in files.changes]
    reloads = {claim.reload for claims in changed for claim in claims.values() if claim.reload is not None}
    # netplan first: it makes files that NetworkManager reads.
    commands = sorted(reloads, key=lambda command: command.argv)
    return files, tuple(commands), {name for claims in changed for name in claims}


def _change(claims: Sequence[Claim], mtu: int, unclear: bool) -> FileChange:
    """Plan one target. unclear: some rail's owner is not clear; our file may hold its MTU, which then stays."""
    first = claims[0]
    text = first.before if unclear or not first.gathers else None
    for claim in claims:
        text = claim.with_mtu(text or "", mtu)
    shown = _changed_lines(first.before or "", text or "") if first.secret else None
    return FileChange(first.target, first.before, text, first.mode, backup=first.keeps_backup, shown=shown)


def _changed_lines(before: str, after: str) -> Tuple[str, str]:
    """Return the lines that a diff may show: the files can hold passwords of 802.1X or Wi-Fi."""
    old, new = before.splitlines(), after.splitlines()
    first, second = ["(other lines are not shown)"], ["(other lines are not shown)"]
    for tag, start, end, start_new, end_new in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            first += old[start:end]
            second += new[start_new:end_new]
    return "\n".join(first) + "\n", "\n".join(second) + "\n"


def mends(finding: Finding) -> bool:
    """Return whether a run fixes it. RDMA's MTU changes only when the link, addresses and routes are set up again."""
    return finding.check != ACTIVE_MTU.id or finding.because is not None


def notes(nics: Sequence[Nic], want: int) -> List[str]:
    """Return facts for the reader beside the findings. nics: those of the Ethernet rails."""
    if not nics or rdma_mtu(want) == RDMA_MTUS[-1]:
        return []
    least = RDMA_MTUS[-1] + RDMA_HEADERS
    return ["with an MTU of %d RDMA sends %d bytes; 4096 need %d" % (want, rdma_mtu(want), least)]


def _live(one: Device, subject: str, want: int) -> Finding:
    path = "%s/%s/mtu" % (netdev.INTERFACES, one.name)
    wanted = "MTU %d" % want
    if one.mtu is None:
        return LIVE.judge(subject, "unknown", wanted, "%s cannot be read" % path, path, "look at %s" % path)
    return LIVE.judge(subject, "ok" if one.mtu == want else "drift", wanted, "MTU %d" % one.mtu, path)


def _active(nic: Nic, have: MtuState, name: str, want: int) -> Finding:
    """Judge RDMA's MTU. name: the NIC's interface; "" for none, which is then the finding."""
    if not name:
        fix = "look for %s in dmesg: load its driver, or take it back from a virtual machine" % nic.pci
        wanted, text = "MTU %d" % want, "it has no network interface"
        return LIVE.judge(nic.label, "unknown", wanted, text, nic.device.source, fix, disruption="none")
    port = nic.port
    rdma_device = nic.rdma.name if nic.rdma else ""
    found = have.rdma.get((rdma_device, port.number)) if port else None
    expected = rdma_mtu(want)
    source = " ".join(DEVINFO)
    state, fix, because = "ok", "", None
    if found is None:
        problems = [problem for problem in have.problems if problem.source == source]
        text = str(problems[0]) if problems else "ibv_devinfo does not show %s" % rdma_device
        state, fix = "unknown", "run ibv_devinfo -d %s on the host" % rdma_device
    elif found.largest < expected:
        state, text = "unsupported", "%d bytes, and the port has at most %d" % (found.active, found.largest)
        fix = "set busbar_mtu to what this port can use, or look at its firmware"
    else:
        text = "%d bytes" % found.active
        if found.active < expected:
            live = _live(have.devices[name], nic.label, want)
            state, because = "drift", live
            again = "ip link set %s down && ip link set %s up; then ibv_devinfo -d %s" % (name, name, rdma_device)
            fix = "on a drained node: %s" % again if live.ok else RUN
    return ACTIVE_MTU.judge(nic.label, state, "at least %d bytes" % expected, text, source, fix=fix, because=because)


# -- addresses ---------------------------------------------------------------------------------------------------------

PERSISTED_ADDRESS = Check(
    "platform.rail_address_persisted",
    why="the next boot sets the address in the file; rules and routes for another netmask or address are then wrong",
    aspect="persisted",
)
"""RoCE: does the file that configures the rail's interface at boot set its current IPv4 addresses and netmasks; not
judged with DHCP alone, or without addresses"""


def judge_address(
    subject: str, name: str, owned: Owner, live: Sequence[Address], causes: Sequence[Finding] = ()
) -> Optional[Finding]:
    """Compare live addresses with the file's. None if it has none, or if none is live, which rail_gid reports.

    causes: findings on rails; one that has the address of another rail explains the difference.
    """
    claim = owned.claim
    present = {"%s/%d" % (one.address, one.length) for one in live if one.family == 4}
    if claim is None or claim.unmanaged or claim.addressing.addresses is None or not present:
        return None
    given, dynamic = claim.addressing.addresses, claim.addressing.dynamic
    if not given and dynamic:
        return None
    same = present >= set(given) if dynamic else present == set(given)
    again = claim.apply_again % {"name": name}
    fix = "correct %s, or what adds to it, where it is wrong; then on a drained node: %s" % (claim.path, again)
    twice = (RAIL_ADDRESS.id, subject)
    cause = next((finding for finding in causes if (finding.check, finding.subject) == twice), None)
    want = "%s in %s (%s)" % (", ".join(given) or "no address", claim.path, claim.stack)
    state, have = "ok" if same else "drift", ", ".join(sorted(present))
    return PERSISTED_ADDRESS.judge(subject, state, want, have, claim.path, fix, cause)


def judge_addresses(
    host: Host, nics: Mapping[int, Nic], addresses: Mapping[str, Sequence[Address]], causes: Sequence[Finding]
) -> List[Finding]:
    """Judge the interfaces of each rail.

    nics: rail number -> its NIC, of the rails that are Ethernet. addresses: by interface. causes: as judge_address.
    """
    devices = device.read(host, netdev.read(host)[0], []) if nics else {}
    owners = owner.read(host, devices) if devices else {}
    found: Dict[str, Optional[Finding]] = {}
    for nic in nics.values():
        for name in wanted(nic, devices):
            subject = nic.label if name in [one.name for one in nic.netdevs] else name
            judged = judge_address(subject, name, owners.get(name, Owner()), addresses.get(name, ()), causes)
            found.setdefault(name, judged)
    return [finding for finding in found.values() if finding is not None]
