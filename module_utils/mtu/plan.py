# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge the MTU of the compute rails' interfaces: now, after a boot, and the RDMA MTU.

After a boot it comes from the file of the interface's owner (owner.py); if that is not clear, nothing is written.
Source: kernel include/rdma/ib_addr.h iboe_get_mtu.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ..change import written
from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Problem
from ..core.plan import Command, FileChange, Plan
from ..machine import netdev, rdma
from ..machine.profile import Profile, roce_rails
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


@dataclass(frozen=True)
class MtuState:
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
    netdevs, problems = netdev.read(host)
    said = list(problems)
    devices = device.read(host, netdevs, said)
    ports = rdma.read_mtus(host)
    if isinstance(ports, Problem):
        said.append(ports)
        ports = {}
    return MtuState(tuple(nics), devices, owner.read(host, devices), ports, tuple(said))


# -- the plan --------------------------------------------------------------------------------------------------------


def wanted(nic: Nic, devices: Mapping[str, Device]) -> Tuple[str, ...]:
    """Return interfaces whose MTU matters to a rail: the NIC's, its bond, those above with a GID, and those between.

    A NIC that switches between virtual functions shows their representors, too: its GIDs identify its interface.
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


def plan(have: MtuState, want: int) -> Plan:
    """want: MTU in bytes, of every compute rail's interface and of what RDMA uses above it."""
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
    files, commands, changes = _mend(have, want, subjects)
    findings += files.edited(PERSISTED)
    for name, subject in subjects.items():
        findings.append(_live(have.devices[name], subject, want))
        findings += _judge_persisted(have, name, subject, want, subjects, changes)
    links = [
        Command(
            ("ip", "link", "set", "dev", name, "mtu", str(want)),
            "MTU of %s (mlx5 reopens its channels: traffic stops for a moment)" % name,
            "link",
        )
        for name in in_order(subjects, have.devices, want)
    ]
    own_files = tuple("%s/%s/" % (netdev.INTERFACES, name) for name in subjects)
    findings += [READABLE.unreadable(problem) for problem in have.problems if problem.source.startswith(own_files)]
    return Plan(tuple(findings), files.changes, commands + tuple(links), notes=files.notes)


def _writable(have: MtuState, name: str, subjects: Mapping[str, str]) -> Tuple[Optional[Claim], str, str, str]:
    """Return the claim whose target can be written, None without a single one; state, have and fix."""
    owned = have.owners.get(name, Owner())
    if owned.unclear:
        return None, "unknown", owned.unclear, "configure %s in one file only, in a form that Busbar can read" % name
    if not owned.claims:
        said = "no file of netplan, NetworkManager, networkd, ifupdown or ifcfg configures it"
        return None, "unknown", said, "give %s its own file, with its addresses" % name
    claim = owned.claims[0]
    others = owner.shared(claim, have.owners, subjects)
    if others:
        said = "%s also configures %s" % (claim, ", ".join(others[:4]))
        return None, "not_owned", said, "give the rails their own files, or set the MTU for all of them there"
    if claim.refused[0]:
        return None, "not_owned", claim.refused[0], claim.refused[1]
    return claim, "ok", str(claim), ""


def _judge_persisted(
    have: MtuState, name: str, subject: str, want: int, subjects: Mapping[str, str], changes: Mapping[str, bool]
) -> List[Finding]:
    claim, state, said, fix = _writable(have, name, subjects)
    source = claim.path if claim else FOLDERS[0].rpartition("/")[0]
    owned = have.owners.get(name, Owner())
    # A file with the right MTU stays as it is, whatever its owner.
    right = bool(owned.claims) and not owned.unclear and owned.claims[0].mtu == want
    if right:
        claim, state, said, source = owned.claims[0], "ok", owned.claims[0].path, owned.claims[0].path
    found = [OWNER.judge(subject, state, "one file that configures it", said, source, fix)]
    if claim is None:
        return found
    said = "MTU %d" % claim.mtu if claim.mtu is not None else "no MTU (a NIC comes up with 1500)"
    state, fix = "ok" if right else "drift", RUN
    if not right and not changes[name]:
        state, fix = "not_owned", "correct %s, which counts more than %s" % (claim.source, claim.target)
    source = claim.source or claim.path
    said = "%s in %s (%s)" % (said, source, claim.stack)
    found.append(PERSISTED.judge(subject, state, "MTU %d" % want, said, source, fix))
    return found


def _mend(
    have: MtuState, want: int, subjects: Mapping[str, str]
) -> Tuple[written.Files, Tuple[Command, ...], Dict[str, bool]]:
    """Changes, commands that make the owners read them, and for each interface whether its file changes."""
    targets: Dict[str, List[Claim]] = {}
    of: Dict[str, str] = {}
    for name in subjects:
        claim = _writable(have, name, subjects)[0]
        if claim is None or claim.overridden(want):
            continue
        ours = claim.gathers or (claim.source == claim.target and written.HEAD in (claim.before or ""))
        if ours or claim.mtu != want:
            targets.setdefault(claim.target, []).append(claim)
            of[name] = claim.target
    unclear = any(have.owners.get(name, Owner()).unclear for name in subjects)
    files = written.compare(_change(claims, want, unclear) for _target, claims in sorted(targets.items()))
    changed = {change.path for change in files.changes}
    reloads = {claim.reload for path in changed for claim in targets[path] if claim.reload is not None}
    # netplan first: it makes files that NetworkManager reads.
    commands = sorted(reloads, key=lambda command: command.argv)
    return files, tuple(commands), {name: of.get(name) in changed for name in subjects}


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
    changed = [step for step in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if step[0] != "equal"]
    texts = (
        [line for _tag, start, end, _new, _to in changed for line in old[start:end]],
        [line for _tag, _old, _from, start, end in changed for line in new[start:end]],
    )
    first, second = ("\n".join(["(other lines are not shown)", *lines]) + "\n" for lines in texts)
    return first, second


def mends(finding: Finding) -> bool:
    """Return whether a run fixes it. RDMA's MTU changes only when the link, addresses and routes are set up again."""
    return finding.check != ACTIVE_MTU.id or finding.because is not None


def undecided(profile: Profile) -> List[str]:
    """Return a note that no MTU is wanted."""
    if not roce_rails(profile):
        return []
    return ["busbar_mtu is not set: the MTU of the RoCE rails is not judged"]


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


def _no_netdev(nic: Nic, want: int) -> Finding:
    fix = "look for %s in dmesg: load its driver, or take it back from a virtual machine" % nic.pci
    said, source = "it has no network interface", nic.device.source
    return LIVE.judge(nic.label, "unknown", "MTU %d" % want, said, source, fix, disruption="none")


def _active(nic: Nic, have: MtuState, name: str, want: int) -> Finding:
    port = nic.port
    rdma_device = nic.rdma.name if nic.rdma else ""
    found = have.rdma.get((rdma_device, port.number)) if port else None
    expected = rdma_mtu(want)
    source = " ".join(DEVINFO)
    state, fix, because = "ok", "", None
    if found is None:
        said = [problem for problem in have.problems if problem.source == source]
        text = str(said[0]) if said else "ibv_devinfo does not show %s" % rdma_device
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
