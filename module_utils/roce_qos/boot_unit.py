# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Restore the ports' RoCE settings after a boot or a reload of the driver: a udev rule, a unit, a script.

The script is boot_script.py with all that it imports, in one file for the system's Python; it gets the wanted state,
not a list of calls. The rule wants the unit for a port when its netdev appears, and names a device unit by PCI address,
which the unit is bound to: so it runs once for each appearance of the netdev. A link that goes down and up adds none.
Sources: systemd.device(5), systemd.unit(5), udev(7).
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..change import apply, written
from ..core import bundle, fix_command
from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.host import Host, ParseError, ReadError, problem_of
from ..core.plan import Command, FileChange, Plan
from . import boot_script, chain
from .boot_script import Intent, Result
from .chain import PortConfig
from .port import Port
from .settings import enabled

SCRIPT = "/usr/local/lib/busbar/roce_qos.py"
INTENT = "/etc/busbar/roce_qos.json"
UNIT = "/etc/systemd/system/busbar-roce-qos@.service"
RULE = "/etc/udev/rules.d/90-busbar-roce-qos.rules"
OWN = (SCRIPT, INTENT, UNIT, RULE)
# Without it no device has a unit.
_SYSTEMD_RULES = ("/usr/lib/udev/rules.d/99-systemd.rules", "/lib/udev/rules.d/99-systemd.rules")
# Folders in which a file for one port overrides the unit of all.
_IN_FRONT = ("/etc/systemd/system", "/run/systemd/system")
_RUN = fix_command.run_tag("roce_qos")
_UNSET: Tuple[object, ...] = (None, "", {})
# Longer than the unit itself may take.
_START_TIMEOUT = 400.0
_UNIT_TEXT = """\
# Written by Busbar (role roce_qos).
[Unit]
Description=RoCE settings of the port %i
# 90-busbar-roce-qos.rules gives the netdev this name.
BindsTo=busbar-roce_qos-%i.device
After=busbar-roce_qos-%i.device
# They bring the RDMA device, and what sets the ToS of rdma_cm.
After=openibd.service rdma-load-modules@rdma.service rdma-load-modules@roce.service sys-kernel-config.mount
# At its stop: a device that has a directory in configfs keeps rdma_cm loaded.
PartOf=openibd.service
# Storage and jobs find the port as it has to be.
Before=network-online.target slurmd.service kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=300
ExecStartPre=-/sbin/modprobe --quiet rdma_cm
ExecStart=/usr/bin/python3 -I -S /usr/local/lib/busbar/roce_qos.py /etc/busbar/roce_qos.json %i
ExecStop=-/bin/sh -c 'cd /sys/kernel/config/rdma_cm && rmdir $$(ls /sys/bus/pci/devices/%i/infiniband)'
ProtectSystem=full
ProtectHome=yes
PrivateTmp=yes
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
"""
_RULE_TEXT = """\
# Written by Busbar (role roce_qos): RoCE settings for a port whose netdev comes.
ACTION=="remove", GOTO="busbar_roce_qos_end"
SUBSYSTEM!="net", GOTO="busbar_roce_qos_end"
KERNELS=="%(ports)s", %(then)s
# A virtual function of one of them.
SUBSYSTEMS=="pci", ATTR{device/physfn/uevent}=="%(physical)s", %(then)s
LABEL="busbar_roce_qos_end"
"""
_THEN = 'TAG+="systemd", ENV{SYSTEMD_ALIAS}+="/busbar/roce_qos/$id", ENV{SYSTEMD_WANTS}+="busbar-roce-qos@$id.service"'
_SCRIPT_HEAD = """\
#!/usr/bin/python3 -IS
# Written by Busbar (role roce_qos): what busbar-roce-qos@.service runs.
# Python modules of the collection busbar.fabric without their comments.
"""
_MAIN = """\
from %s.roce_qos import boot_script
sys.exit(boot_script.main(sys.argv[1:]))
"""

AT_BOOT = Check(
    "roce_qos.unit",
    why="a reboot or a reload of the driver resets trust, PFC, ECN and ToS, and only this unit sets them again",
    fix=_RUN,
    aspect="persisted",
)
"""Is the unit that restores `roce_qos` after a boot or a reload of the driver as written (`persisted`), and did its
last run for each port succeed (`live`)"""
_unit = functools.partial(AT_BOOT.judge, UNIT, want="the ports get their settings whenever their netdevs appear")


@dataclass(frozen=True)
class UnitState:
    """files, modes: by the paths of OWN; None for a file that is not there.

    udev: whether devices have units of systemd here.   systemctl: whether the tool is there.

    masked: empty files that stand in front of ours for one port, as systemctl mask makes them.
    results: PCI address -> result of the unit's last run for that port, or why it is not known. Ports for which it has
        not run are left out.
    """

    files: Mapping[str, Optional[str]]
    modes: Mapping[str, Optional[int]] = field(default_factory=dict)
    udev: bool = True
    systemctl: bool = True
    masked: Tuple[str, ...] = ()
    results: Mapping[str, Result] = field(default_factory=dict)


def intent(
    host: Host, ports: Sequence[Port], want: PortConfig, roce: Mapping[str, Any], settings: Mapping[str, Any]
) -> Optional[Intent]:
    """Return the script's input; None if nothing is wanted of any port. roce, settings: as in Intent."""
    able = [port for port in ports if any(map(port.has, enabled(want)))]
    rdma = {port.pci: port.rdma is not None for port in able if port.gap is None or port.gap.state != "unsupported"}
    given = {name: value for name, value in settings.items() if value is not None}
    return Intent(rdma, roce, given, host.hardware_root, host.system_root) if rdma else None


def with_unset(
    text: Optional[str], roce: Optional[Mapping[str, Any]], given: Mapping[str, Any]
) -> Tuple[Mapping[str, Any], Mapping[str, Any], List[str]]:
    """Return roce and settings, completed from the node's INTENT where the inventory sets nothing, and notes.

    text: of INTENT.   roce, given: as the module has them; an empty ``roce`` means that nothing else is wanted.
    """
    if text is None or roce == {}:
        return roce or {}, given, []
    try:
        stored = boot_script.parse_intent(text)
        kept = {name: value for name, value in stored.settings.items() if value not in _UNSET and given[name] in _UNSET}
        whole, settings = stored.roce if roce is None else roce, {**given, **kept}
        PortConfig.from_values(chain.resolve(whole, settings), settings)
    except (ParseError, TypeError, KeyError):
        return roce or {}, given, []
    names = sorted(kept) + (["busbar_roce"] if whole is not roce and whole else [])
    said = "%s sets %s, which the inventory does not: not judged; busbar_roce: {} drops it, or to remove the file"
    return whole, settings, [said % (INTENT, ", ".join(names))] if names else []


def read(host: Host, wanted: Optional[Intent]) -> UnitState:
    """Read the files. Raises ReadError if one of ours cannot be read."""
    addresses = sorted(wanted.ports) if wanted is not None else []
    front = ["%s/%s" % (folder, instance(address)) for folder in _IN_FRONT for address in addresses]
    results = [(address, _result(host, address)) for address in addresses]
    return UnitState(
        files={path: host.read_system(path) for path in OWN},
        modes={path: host.mode_system(path) for path in OWN},
        udev=any(host.mode_system(path) is not None for path in _SYSTEMD_RULES),
        systemctl=host.has("systemctl"),
        # Empty, or a link to /dev/null; another text is an administrator's unit.
        masked=tuple(path for path in front if host.read_system(path) == ""),
        results={address: result for address, result in results if result is not None},
    )


def _result(host: Host, address: str) -> Optional[Result]:
    """Return the result of the unit's last run for a port, or why it is not known. None: no run since the boot."""
    path = boot_script.result_path(address)
    try:
        text = host.read_system(path)
        return None if text is None else boot_script.parse_result(text)
    except (ReadError, ParseError) as error:
        return Result("unread", (str(problem_of(error, path)),))


def render(wanted: Intent) -> Dict[str, str]:
    """Return path -> text of OWN."""
    addresses = sorted(wanted.ports)
    physical = "|".join("*PCI_SLOT_NAME=%s*" % one for one in addresses)
    rule = _RULE_TEXT % {"ports": "|".join(addresses), "physical": physical, "then": _THEN}
    intent = json.dumps({written.KEY: written.HEAD, **wanted._asdict()}, sort_keys=True, indent=1) + "\n"
    return {
        SCRIPT: _script(),
        INTENT: written.seal(INTENT, intent),
        UNIT: written.seal(UNIT, _UNIT_TEXT, ""),
        RULE: written.seal(RULE, rule, addresses),
    }


@functools.lru_cache(maxsize=None)
def _script() -> str:
    """Return the script, the same for every intent; a run builds it before and after its changes."""
    code = bundle.plain_script(bundle.closure([boot_script.__name__], bundle.source_of), _MAIN % bundle.PACKAGE)
    return written.seal(SCRIPT, _SCRIPT_HEAD + code, "")


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: UnitState, wanted: Optional[Intent], ports: Sequence[Port], missing: Optional[Finding] = None) -> Plan:
    """Plan our files. wanted: None removes them.

    missing: the finding of a missing rail; the files then stay as they are, and serve the other ports.
    """
    if wanted is not None and not have.udev:
        text = "%s is not there: without udev and systemd nothing sets the ports" % _SYSTEMD_RULES[0]
        fix = "%s after every boot and every reload of the driver" % _RUN
        return Plan((_unit("unsupported", have=text, fix=fix),))
    results = _results(have, wanted, ports) if wanted is not None and have.files[SCRIPT] is not None else []
    again = tuple(
        Command(("systemctl", "restart", instance(finding.identity)), "run it again", timeout=_START_TIMEOUT)
        for finding in results
        if finding.state == "drift" and have.systemctl
    )
    if missing is not None and (wanted is not None or any(have.files.values())):
        found = _unit("unknown", have="not judged while a rail is missing", fix=missing.fix, because=missing)
        return Plan((found, *results), commands=again)
    texts = render(wanted) if wanted is not None else {}
    # Of the script only the head is shown, which holds its hash.
    heads = {SCRIPT: (_head(have.files[SCRIPT]), _head(texts.get(SCRIPT)))}
    files = written.compare(
        FileChange(path, have.files[path], texts.get(path), mode_before=have.modes.get(path), shown=heads.get(path))
        for path in OWN
    )
    if have.systemctl and UNIT in [change.path for change in files.changes]:
        again = (Command(("systemctl", "daemon-reload"), "systemd has to load the unit"), *again)
    units = []
    if files.wrong:
        units = [_unit("drift", have=files.wrong, severity=files.severity)]
    elif texts and have.masked:
        text = "%s overrides it, so the port gets no settings" % ", ".join(have.masked)
        # No run of ours mends that, so it is not drift, which a run would count as repaired.
        fix = "find out why it is masked; then run systemctl unmask %s" % have.masked[0].rpartition("/")[2]
        units = [_unit("not_owned", have=text, fix=fix)]
    elif texts:
        units = [_unit("ok", have="as written")]
    return Plan((*units, *results), files.changes, again, notes=files.notes)


def execute(host: Host, planned: Plan) -> None:
    """Write the files and run the commands. Raises ReadError if a file cannot be written, or systemd refuses it."""
    for change in planned.changes:
        apply.write(host, change)
    for command in planned.commands:
        if command.argv[1] == "daemon-reload":
            apply.run(host, command)
        else:
            # Its result is read afterwards.
            host.run(command.argv, timeout=command.timeout, leaves=True)


def _results(have: UnitState, wanted: Intent, ports: Sequence[Port]) -> List[Finding]:
    """Return the live findings: one for each port for which the unit has run."""
    found = []
    for port in ports:
        result = have.results.get(port.pci) if port.pci in wanted.ports else None
        if result is not None:
            state = {"ok": "ok", "failed": "drift"}.get(result.state, "unknown")
            fixed = {"ok": "all is as configured", "started": "it has not ended: it still runs, or was killed"}
            text = fixed.get(result.state, "; ".join(result.said))
            want, source = "its last run left the port as configured", boot_script.result_path(port.pci)
            fix = "look at journalctl -b -u %s, then %s" % (instance(port.pci), _RUN)
            found.append(AT_BOOT.judge(port.label, state, want, printable(text)[:300], source, fix, aspect="live"))
    return found


def _head(script: Optional[str]) -> str:
    return "".join((script or "").splitlines(True)[: _SCRIPT_HEAD.count("\n")])


def instance(address: str) -> str:
    return "busbar-roce-qos@%s.service" % address
