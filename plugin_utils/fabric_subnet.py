# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is set up in a plane as a whole: its subnet managers, partitions, routing, and the firmware of its nodes.

What the site does not ask for, and what no source of the sweep shows, yields nothing; what is asked for and not shown
is ``unknown``, with where to look. Pure. Sources: fabric.md 1; opensm's manual for partitions.
"""

from __future__ import annotations

from collections import Counter

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.node_checks import MANAGER_LOG, UNHEALTHY
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import EXITED
from ansible_collections.busbar.fabric.plugins.module_utils.machine import partition
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_lines import names
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import (
    SWEEP_AGAIN,
    Fabric,
    Plane,
    Said,
    is_aggregation,
    several,
)

MASTER, STANDBY = "master", "standby"
_OPENSM_LOG = "/var/log/opensm.log on the machine that runs the subnet manager"

MANAGER = Check(
    "ib_fabric.manager",
    why="two masters overwrite each other's routes; without one no link comes up, and no change is noticed",
    severity="critical",
)
"""Does each plane have exactly one master subnet manager, a standby, and only those of `busbar_fabric_managers`, if
it names any"""

FIRMWARE = Check(
    "ib_fabric.firmware",
    why="two firmwares of one board behave differently under congestion and in link training",
    severity="minor",
)
"""Have all nodes of one PSID one firmware, that of `busbar_firmware` where it names one; checked if the sweep's source
reports firmware: ibdiagnet does"""

PARTITION = Check(
    "ib_fabric.partition",
    why="a port without the key cannot talk in that partition, and two limited members cannot talk to each other",
    severity="critical",
)
"Has each rail's port all keys of `busbar_fabric_partitions`, as a full member where the key has bit 15"

ROUTING = Check(
    "ib_fabric.routing",
    why="with another routing engine, or without adaptive routing, flows share links though others are free",
)
"Is the plane routed by the engine, and with the adaptive routing, that the site requires"


def events(fabric: Fabric, plane: Plane) -> tuple[list[Said], dict[Check, str]]:
    """Judge what the managers' logs and the dump of unhealthy ports report, where a source has them."""
    found = []
    masters = any(one.state == MASTER for one in plane.best.managers)
    for event in dict.fromkeys(event for sweep in plane.sweeps for event in sweep.events):
        exited = event.code == EXITED
        fix = f"see the lines of {event.code} in {_OPENSM_LOG}: the path or GUID there names the node to look at"
        if exited:
            fix = "start it (systemctl start opensm on its machine), or remove its old log if it moved on purpose"
        have = f"{event.count} since {event.when}" if not exited else f"exited at {event.when}"
        severe = exited or "duplicat" in event.text.lower()
        severity = "critical" if exited and not masters else "major" if severe else None
        finding = MANAGER_LOG.judge(
            *(f"{plane.label}: {event.code}", "drift", "no error", f"{have}: {event.text}", "opensm.log"),
            fix=f"{fix}; then sweep again: {SWEEP_AGAIN}",
            severity=severity,
        )
        found.append(Said(plane.hosts, finding, plane.index))
    for end, said in {end: said for sweep in plane.sweeps for end, said in sweep.unhealthy.items()}.items():
        other = fabric.cables.get(end)
        subject = fabric.subject(end, other) if other else f"0x{end[0]} port {end[1]}"
        hosts = fabric.concerned(plane, end, other) if other else plane.hosts
        fix = (
            "see ib_fabric findings and counters of this link, reseat or exchange cable and transceivers; then mark the"
            f" port healthy in UFM (Unhealthy Ports) or in opensm's health policy file; then sweep again: {SWEEP_AGAIN}"
        )
        finding = UNHEALTHY.judge(subject, "drift", "healthy", said, "opensm-unhealthy-ports.dump", fix)
        kind = "ports that the subnet manager lists as unhealthy"
        found.append(Said(hosts, finding, plane.index, kind, f"0x{end[0]} port {end[1]}", (end,)))
    return found, {}


def managers(fabric: Fabric, plane: Plane) -> tuple[list[Said], dict[Check, str]]:
    sweep = plane.best
    if plane.joined:
        # fabric_judge tells of it, and who is master of which half is no question before that is mended.
        return [], {}
    seen = {one.guid: one for one in sweep.managers}
    on = plane.hosts[0]
    if not seen:
        fix = f"run saquery SMIR -C {sweep.device or 'DEVICE'} on {on}, as root: SMState 3 is a master, 2 a standby"
        have = "the managers could not be listed"
        return [_manager(plane, plane.label, "unknown", have, fix)], {}
    masters = sorted(guid for guid, one in seen.items() if one.state == MASTER)
    others = sorted(guid for guid, one in seen.items() if one.state == STANDBY)
    called = {guid: _called(fabric, plane, guid, one.description) for guid, one in seen.items()}
    listed = several([f"{called[guid]} {seen[guid].state}" for guid in sorted(seen)])
    found = []
    if len(masters) != 1:
        fix = (
            "stop the subnet manager on all but one of them (systemctl disable --now opensm); check that saquery SMIR"
            " shows one master; start the others again with a lower priority and the same sm_key, as standbys; then"
            f" sweep again: {SWEEP_AGAIN}"
            if masters
            else f"start the subnet manager, and read why none is master in {_OPENSM_LOG}"
        )
        found.append(_manager(plane, plane.label, "drift" if masters else "unknown", listed, fix))
    allowed = {one.lower().removeprefix("0x") for one in fabric.asked.wanted.managers}
    strange = [guid for guid in sorted(seen) if allowed and not _is_allowed(guid, seen[guid].description, allowed)]
    if strange:
        fix = (
            "stop the subnet manager there (systemctl disable --now opensm), or add its GUID to"
            " busbar_fabric_managers if it is intended"
        )
        have = f"not in busbar_fabric_managers: {several([called[guid] for guid in strange])}"
        found.append(_manager(plane, f"{plane.label}: strangers", "drift", have, fix))
    if len(masters) == 1 and not others and any(problem.source.startswith("saquery") for problem in sweep.problems):
        # sminfo names the master alone: who stands by was to be seen in what saquery has not said.
        fix = f"run saquery SMIR -C {sweep.device or 'DEVICE'} on {on}, as root: SMState 2 is a standby"
        found.append(
            _manager(plane, f"{plane.label}: standby", "unknown", f"{listed}; others could not be listed", fix)
        )
    elif len(masters) == 1 and not others:
        have = f"{called[masters[0]]} alone"
        fix = (
            "start a second subnet manager of lower priority on another machine of this plane; where the site wants"
            " none, accept this finding (busbar_accepted)"
        )
        found.append(_manager(plane, f"{plane.label}: standby", "drift", have, fix, "minor"))
    return found, {MANAGER: listed}


def _manager(plane: Plane, subject: str, state: str, have: str, fix: str, severity: str | None = None) -> Said:
    finding = MANAGER.judge(subject, state, "one master and a standby", have, "saquery SMIR", fix, severity=severity)
    return Said(plane.hosts, finding, plane.index)


def _called(fabric: Fabric, plane: Plane, guid: str, description: str) -> str:
    if guid in plane.nodes:
        return f"{fabric.node(guid)} (0x{guid})"
    for end, port in fabric.ports.items():
        if port.guid == guid and fabric.plane_of[end] is plane:
            return fabric.end(end) if end in fabric.rails else f"{fabric.node(end[0])} (0x{guid})"
    return f"{description[:64]} (0x{guid})" if description else f"0x{guid}"


def _is_allowed(guid: str, description: str, allowed: set[str]) -> bool:
    text = description.lower()
    return guid in allowed or text in allowed or (text.split() or [""])[0] in allowed


def firmware(fabric: Fabric, plane: Plane) -> tuple[list[Said], dict[Check, str]]:
    of_board: dict[str, dict[str, list[str]]] = {}
    for guid, node in plane.nodes.items():
        if node.psid and node.firmware and not is_aggregation(node):
            of_board.setdefault(node.psid, {}).setdefault(node.firmware, []).append(guid)
    found = []
    for psid, versions in sorted(of_board.items()):
        declared = fabric.asked.wanted.firmware.get(psid)
        counts = Counter({version: len(guids) for version, guids in versions.items()}).most_common()
        right = declared
        state, want = "drift", f"{declared} (busbar_firmware)"
        if declared is None:
            right = counts[0][0]
            want = f"{right}, as on {counts[0][1]} of {sum(map(len, versions.values()))} of this PSID"
            if len(counts) > 1 and counts[0][1] == counts[1][1]:
                state, want = "unknown", "one version; declare the right one in busbar_firmware"
                right = None
        odd = {version: guids for version, guids in versions.items() if version != right}
        if not odd:
            continue
        ends = {guid: fabric.ends_of[guid][0] for group in odd.values() for guid in group if guid in fabric.ends_of}
        hosts = {fabric.rails[end][0] for end in ends.values()}
        have = "; ".join(
            f"{version} on {len(group)}: "
            + names([fabric.name(ends[guid]) if guid in ends else fabric.node(guid) for guid in group])
            for version, group in sorted(odd.items())
        )
        fix = (
            f"bring them to one version while they are drained: of a switch `flint -d lid-LID q` shows the version and"
            f" `flint -d lid-LID -i FILE burn` writes it, of an HCA mlxfwmanager on its host; PSID {psid}"
        )
        finding = FIRMWARE.judge(f"{plane.label}: PSID {psid}", state, want, have, plane.best.source, fix)
        found.append(Said(tuple(sorted(hosts)) or plane.hosts, finding, plane.index))
    return found, ({FIRMWARE: f"{len(of_board)} PSIDs, one version each"} if of_board else {})


def partitions(fabric: Fabric, plane: Plane) -> tuple[list[Said], dict[Check, str]]:
    wanted = fabric.asked.wanted.partitions
    rails = [end for end in fabric.rails if end in fabric.cables and fabric.plane_of.get(end) is plane]
    if not wanted or not rails:
        return [], {}
    found = []
    want = ", ".join(f"0x{key:04x}" for key in wanted)
    unread = []
    for end in rails:
        keys = {key for sweep in plane.sweeps for key in sweep.pkeys.get(end[0], ())}
        host, rail = fabric.rails[end]
        if not keys:
            unread.append((host, rail.rail))
            continue
        missing = partition.lacking(keys, wanted)
        if missing:
            what = ", ".join(missing)
            fix = (
                f"add the port (GUID 0x{fabric.ports[end].guid or end[0]}) to the partition as a full member, in"
                " partitions.conf of the subnet manager (/etc/opensm/partitions.conf) or in UFM, let opensm read the"
                " file again (pkill -HUP opensm), then sweep again: " + SWEEP_AGAIN
            )
            have = f"lacks {what}: {fabric.end(end)}"
            finding = PARTITION.judge(fabric.subject(end), "drift", want, have, "smpquery pkeys", fix)
            found.append(Said((host,), finding, plane.index, f"rails that lack {what}", (host, rail.rail)))
    if unread:
        fix = (
            "read them on a host: grep . /sys/class/infiniband/DEVICE/ports/1/pkeys/* | grep -v 0x0000, or by"
            f" smpquery pkeys LID on {plane.hosts[0]}"
        )
        have = f"not read of {len(unread)} rails: {names(unread)}"
        finding = PARTITION.judge(f"{plane.label}: keys", "unknown", want, have, plane.best.source, fix)
        found.append(Said(plane.hosts, finding, plane.index))
    return found, {PARTITION: f"{want} on {len(rails)} rails"}


def routing(fabric: Fabric, plane: Plane) -> tuple[list[Said], dict[Check, str]]:
    wanted, sweep = fabric.asked.wanted, plane.best
    found, good = [], []
    if wanted.routing:
        good.append(sweep.routing or "")
        if (sweep.routing or "").lower() != wanted.routing.lower():
            have = sweep.routing or "not shown by the sweep"
            fix = (
                f"set routing_engine {wanted.routing} where the subnet manager is configured (/etc/opensm/opensm.conf,"
                " or UFM), and restart it; if it is set there already, the manager could not use it and chose"
                f" another: see {_OPENSM_LOG}; then sweep again: {SWEEP_AGAIN}"
                if sweep.routing
                else "name the node that runs the subnet manager in busbar_fabric_hosts (its /var/log/opensm*.log is"
                " read there), or judge dumps with that log among them (ib_fabric_dumps); where neither can be, unset"
                " busbar_fabric_routing_engine"
            )
            found.append(_routing(plane, plane.label, wanted.routing, sweep.routing, have, fix))
    if wanted.adaptive_routing is not None:
        want = "adaptive routing " + ("on" if wanted.adaptive_routing else "off")
        good.append(want)
        if sweep.adaptive_routing is not wanted.adaptive_routing:
            shown = None if sweep.adaptive_routing is None else "on" if sweep.adaptive_routing else "off"
            have = "not shown of all switches alike" if shown is None else f"adaptive routing {shown}"
            fix = (
                "set it where the subnet manager is configured (NVIDIA's: ar_sl_mask and routing_engine ar_updn or"
                f" ar_ftree; UFM: [SubnetManager] of gv.cfg), and restart it; then sweep again: {SWEEP_AGAIN}"
                if shown
                else "run ibdiagnet -r on a fabric host, and judge what it wrote (ib_fabric_dumps, without the dumps of"
                " other tools: AR_INFO in ibdiagnet2.db_csv shows it for each switch); if that is not possible, unset"
                " busbar_fabric_adaptive_routing"
            )
            found.append(_routing(plane, f"{plane.label}: adaptive", want, shown, have, fix))
    return found, ({ROUTING: ", ".join(good)} if good else {})


def _routing(plane: Plane, subject: str, want: str, shown: str | None, have: str, fix: str) -> Said:
    finding = ROUTING.judge(subject, "drift" if shown else "unknown", want, have, plane.best.source, fix)
    return Said(plane.hosts, finding, plane.index)
