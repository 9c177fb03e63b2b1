# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a plane as a whole: subnet managers and their logs, partitions, routing, and firmware.

What the site does not require, and no source shows, is not judged; what it requires and no source shows is ``unknown``.
Pure. Sources: SMInfo of the IBTA (14.2.5.13); opensm(8), for partitions and routing engines.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.subnet_manager import MANAGER_LOG, UNHEALTHY
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import EXITED, SubnetManager
from ansible_collections.busbar.fabric.plugins.module_utils.machine import partition

from .evidence import Plane
from .map import Entry, Fabric, is_aggregation, manager_names, names, several

MASTER, STANDBY = "master", "standby"
_OPENSM_LOG = "/var/log/opensm.log on the machine that runs the subnet manager"

MANAGER = Check("ib_fabric.manager", why="masters overwrite each other; without one no link is up", severity="critical")
"Has each plane one master subnet manager and a standby, and only those of `busbar_fabric_managers`, if it names any"

FIRMWARE = Check("ib_fabric.firmware", why="they differ under congestion and in link training", severity="minor")
"Have all nodes of one PSID one firmware, that of `busbar_firmware` if it names one; needs dumps of ibdiagnet"

PARTITION = Check("ib_fabric.partition", why="without the key a port cannot talk in it", severity="critical")
"Has each rail's port all keys of `busbar_fabric_partitions`, as a full member where the key has bit 15"

ROUTING = Check("ib_fabric.routing", why="otherwise flows share links though others are free")
"Is the plane routed by the engine, and with the adaptive routing, that the site requires"


def events(fabric: Fabric, plane: Plane) -> Iterator[Entry]:
    """Judge the managers' logs and the dump of unhealthy ports, where a source has them."""
    for event in dict.fromkeys(event for sweep in plane.sweeps for event in sweep.events):
        have, severity = f"{event.count} since {event.when}", None
        fix = f"see the lines of {event.code} in {_OPENSM_LOG}: the path or GUID there names the node to look at"
        if event.code == EXITED:
            have, severity = f"exited at {event.when}", "major" if _masters(plane) else "critical"
            fix = "start it (systemctl start opensm on its machine), or remove its old log if it moved on purpose"
        elif "duplicat" in event.text.lower():
            severity = "major"
        log, subject, have = "opensm.log", f"{plane.label}: {event.code}", f"{have}: {event.text}"
        why = (MANAGER_LOG, "drift", plane, (), "no error", have, fix)
        yield fabric.entry(*why, source=log, subject=subject, severity=severity)
    fix = "repair this link by its findings and counters, then mark it healthy in UFM or opensm's health policy file"
    for end, text in {end: text for sweep in plane.sweeps for end, text in sweep.unhealthy.items()}.items():
        other, name = fabric.cables.get(end), f"0x{end[0]} port {end[1]}"
        about, source = (UNHEALTHY, "drift", plane, [end], "healthy", text, fix), "opensm-unhealthy-ports.dump"
        hosts = fabric.concerned(plane, end, other) if other else plane.hosts
        subject = fabric.subject(end, other) if other else name
        kind = "ports that the subnet manager lists as unhealthy"
        yield fabric.entry(*about, source=source, kind=kind, subject=subject, hosts=hosts, name=name)


def _masters(plane: Plane) -> list[str]:
    return sorted({one.guid for one in plane.best.managers if one.state == MASTER})


def managers(fabric: Fabric, plane: Plane) -> Iterator[Entry]:
    """Judge master, standby and strangers. Of joined planes only that they are joined is reported."""
    if plane.joined:
        return

    def entry(what: str, state: str, have: str, fix: str, severity: str | None = None) -> Entry:
        about, subject = (MANAGER, state, plane, (), "one master and a standby", have, fix), f"{plane.label}{what}"
        return fabric.entry(*about, source="saquery SMIR", subject=subject, severity=severity)

    sweep = plane.best
    seen = {one.guid: one for one in sorted(sweep.managers, key=lambda one: one.guid)}
    query = f"run saquery SMIR -C {sweep.device or 'DEVICE'} on {plane.hosts[0]}, as root: SMState"
    if not seen:
        yield entry("", "unknown", "the managers could not be listed", f"{query} 3 is a master, 2 a standby")
        return
    shown = {guid: _manager_name(fabric, plane, one) for guid, one in seen.items()}
    listed = several([f"{shown[guid]} {one.state}" for guid, one in seen.items()])
    plane.passed[MANAGER] = listed
    masters = _masters(plane)
    if len(masters) > 1:
        fix = "stop all but one (systemctl disable --now opensm); start the others with a lower priority"
        yield entry("", "drift", listed, fix)
    elif not masters:
        yield entry("", "unknown", listed, f"start the subnet manager, and read why none is master in {_OPENSM_LOG}")
    allowed = manager_names(fabric.evidence.wanted.managers)
    strange = [
        shown[guid]
        for guid, one in seen.items()
        if allowed and not {guid, one.description.lower(), *one.description.lower().split()[:1]} & allowed
    ]
    if strange:
        fix = "stop it there (systemctl disable --now opensm), or add its GUID to busbar_fabric_managers"
        yield entry(": strangers", "drift", f"not in busbar_fabric_managers: {several(strange)}", fix)
    alone = len(masters) == 1 and not any(one.state == STANDBY for one in seen.values())
    if alone and any(problem.source.startswith("saquery") for problem in sweep.problems):
        # sminfo names only the master.
        yield entry(": standby", "unknown", f"{listed}; others could not be listed", f"{query} 2 is a standby")
    elif alone:
        fix = "start a second one of lower priority on another machine, or accept this finding (busbar_accepted)"
        yield entry(": standby", "drift", f"{shown[masters[0]]} alone", fix, "minor")


def _manager_name(fabric: Fabric, plane: Plane, manager: SubnetManager) -> str:
    guid = manager.guid
    own = [end for end, port in fabric.ports.items() if port.guid == guid and fabric.plane_of[end] is plane]
    if guid in plane.nodes or (own and own[0] not in fabric.rails):
        return f"{fabric.node(guid if guid in plane.nodes else own[0][0])} (0x{guid})"
    return fabric.end(own[0]) if own else f"{manager.description[:64]} (0x{guid})".strip()


def firmware(fabric: Fabric, plane: Plane) -> Iterator[Entry]:
    """Compare nodes of one PSID with the declared version, else with the majority."""
    boards: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for guid, node in plane.nodes.items():
        if node.psid and node.firmware and not is_aggregation(node):
            boards[node.psid][node.firmware].append(guid)
    for psid, versions in sorted(boards.items()):
        right = fabric.evidence.wanted.firmware.get(psid)
        state, want = "drift", f"{right} (busbar_firmware)"
        if right is None:
            (right, most), *others = Counter({version: len(guids) for version, guids in versions.items()}).most_common()
            want = f"{right}, as on {most} of {sum(map(len, versions.values()))} of this PSID"
            if others and others[0][1] == most:
                state, want, right = "unknown", "one version; declare the right one in busbar_firmware", None
        odd = {version: guids for version, guids in sorted(versions.items()) if version != right}
        if not odd:
            continue
        ends = {guid: fabric.ends_of[guid][0] for guids in odd.values() for guid in guids if guid in fabric.ends_of}
        have = "; ".join(
            f"{version} on {len(guids)}: "
            + names(fabric.name(ends[guid]) if guid in ends else fabric.node(guid) for guid in guids)
            for version, guids in odd.items()
        )
        fix = f"drain them and burn one version of PSID {psid}: flint -d lid-LID for a switch, mlxfwmanager for an HCA"
        about, hosts = (FIRMWARE, state, plane, (), want, have, fix), fabric.concerned(plane, *ends.values())
        yield fabric.entry(*about, subject=f"{plane.label}: PSID {psid}", hosts=hosts)
    if boards:
        plane.passed[FIRMWARE] = f"{len(boards)} PSIDs, one version each"


def partitions(fabric: Fabric, plane: Plane) -> Iterator[Entry]:
    wanted = fabric.evidence.wanted.partitions
    rails = [end for end in fabric.rails if end in fabric.cables and fabric.plane_of.get(end) is plane]
    if not wanted or not rails:
        return
    want = ", ".join(f"0x{key:04x}" for key in wanted)
    unread = []
    for end in rails:
        keys = {key for sweep in plane.sweeps for key in sweep.pkeys.get(end[0], ())}
        lacking = ", ".join(partition.lacking(keys, wanted))
        if not keys:
            unread.append(fabric.name(end))
        elif lacking:
            guid = fabric.ports[end].guid or end[0]
            fix = f"add GUID 0x{guid} as full in UFM, or in /etc/opensm/partitions.conf with pkill -HUP opensm"
            # It is of the rail's host, and not of its cable.
            about = (PARTITION, "drift", plane, (), want, f"lacks {lacking}: {fabric.end(end)}", fix)
            hosts, name, kind = fabric.concerned(plane, end), fabric.name(end), f"rails that lack {lacking}"
            subject = fabric.subject(end)
            yield fabric.entry(*about, source="smpquery pkeys", subject=subject, hosts=hosts, kind=kind, name=name)
    if unread:
        have = f"not read of {len(unread)} rails: {names(unread)}"
        fix = f"run smpquery pkeys LID on {plane.hosts[0]}, and repair what it reports"
        yield fabric.entry(PARTITION, "unknown", plane, (), want, have, fix, subject=f"{plane.label}: keys")
    plane.passed[PARTITION] = f"{want} on {len(rails)} rails"


def routing(fabric: Fabric, plane: Plane) -> Iterator[Entry]:
    wanted, sweep = fabric.evidence.wanted, plane.best
    modes = {True: "adaptive routing on", False: "adaptive routing off", None: ""}
    engine, adaptive = wanted.routing, modes[wanted.adaptive_routing]
    set_up = "set it in the subnet manager's configuration (/etc/opensm/opensm.conf, or UFM's gv.cfg) and restart it"
    # Wanted, present, subject; what to do if it is unknown.
    for want, have, subject, read in (
        (
            *(engine, sweep.routing or "", plane.label),
            "name the subnet manager's node in busbar_fabric_hosts, or add its /var/log/opensm.log to the dumps"
            " (ib_fabric_dumps), or unset busbar_fabric_routing_engine",
        ),
        (
            *(adaptive, modes[sweep.adaptive_routing], f"{plane.label}: adaptive"),
            "run ibdiagnet -r on a fabric host and judge its ibdiagnet2.db_csv alone (ib_fabric_dumps), or unset"
            " busbar_fabric_adaptive_routing",
        ),
    ):
        if want.lower() != have.lower() and want:
            state, fix = ("drift", set_up) if have else ("unknown", read)
            about = (ROUTING, state, plane, (), want, have or "not shown by the sweep", fix)
            yield fabric.entry(*about, subject=subject)
    if engine or adaptive:
        plane.passed[ROUTING] = ", ".join(filter(None, (engine and sweep.routing, adaptive)))
