# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find other setters of a port's values at boot: lldpad, and scripts, hooks, units and udev rules.

Sources: lldpad(8); NetworkManager-dispatcher(8); udev(7); mlnx_qos of mlnx-tools.
"""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from ..core import effective_unit, udev_rules
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Problem, attempt
from ..core.systemd_files import UNITS, wanted_at_boot
from ..core.systemd_files import read as read_unit
from .chain import PortConfig
from .port import Port
from .settings import DCBX

BOOT_SETTER = Check(
    "roce_qos.boot_setter",
    why="it is chance which of two programs sets a port last, so the port may have other values after each boot",
    aspect="persisted",
)
"Does no other script, unit or udev rule set PFC, trust, DSCPs, ECN, pause or ToS at boot"

Line = Tuple[str, int, str]
_FILES = ("/etc/rc.local", "/etc/rc.d/rc.local", "/etc/infiniband/post-start-hook.sh")
_FOLDERS = (
    *("/etc/NetworkManager/dispatcher.d", "/etc/NetworkManager/dispatcher.d/pre-up.d", "/etc/network/if-up.d"),
    *("/etc/network/if-pre-up.d", "/etc/networkd-dispatcher/routable.d", "/etc/networkd-dispatcher/configured.d"),
    *("/etc/networkd-dispatcher/carrier.d", "/etc/networkd-dispatcher/degraded.d"),
    *("/usr/lib/NetworkManager/dispatcher.d", "/etc/NetworkManager/dispatcher.d/no-wait.d"),
)
_INTERFACES = "/etc/network/interfaces"
_DRIVER = "mlx5_core"
_PATH = re.compile(r"/(?!usr/s?bin/|s?bin/)[^\s\"';|&]+")


def _lines_at_boot(host: Host, ports: Sequence[Port], unread: List[Problem]) -> Iterator[Line]:
    """Yield the commands of the programs that a boot starts, or that it starts for an interface of ``ports``."""
    for path in [*_FILES, *("%s/%s" % (folder, name) for folder in _FOLDERS for name in host.listdir_system(folder))]:
        if (host.mode_system(path) or 0) & 0o100:
            yield from _lines(host, path, unread)
    for path in [_INTERFACES, *("%s.d/%s" % (_INTERFACES, name) for name in host.listdir_system(_INTERFACES + ".d"))]:
        yield from (line for line in _lines(host, path, unread) if re.match(r"(pre-|post-)?up\s", line[2]))
    for name in host.listdir_system(UNITS[0]):
        if name.endswith(".service") and not name.startswith("busbar-"):
            started = [line for line in _lines(host, "%s/%s" % (UNITS[0], name), unread) if line[2].startswith("Exec")]
            lines = [(path, number, text.partition("=")[2].lstrip("-+!@:")) for path, number, text in started]
            # A program as large as that it cannot be read is no script.
            scripts = [script for line in started for script in _PATH.findall(line[2])]
            lines += [line for script in scripts for line in _lines(host, script, [])]
            if any(_options(text) for _path, _number, text in lines) and not effective_unit.idle(host, name):
                yield from lines
    # Of rules of udev, which puts the interface's name for ``%k`` and ``$name``.
    facts = [udev_rules.facts(port.netdev, "", _DRIVER, port.pci, {}) for port in ports if port.netdev]
    for rule in udev_rules.read(host):
        if any(rule.applies(known) is not False for known in facts):
            runs = [value for key, _sign, value in rule.pairs if key in ("RUN", "RUN{program}")]
            yield from ((rule.path, 0, value.replace("%k", "$name")) for value in runs)


_ASSIGNED = re.compile(r"^\s*(\w+)=[\"']?([\w.:-]+)[\"']?\s*(?:[;#]|$)", re.MULTILINE)


def _lines(host: Host, path: str, unread: List[Problem]) -> List[Line]:
    if not host.is_file_system(path):
        return []  # a folder, or a device
    text = attempt(lambda: host.read_system(path, errors="replace"), path, unread) or ""
    assigned = _ASSIGNED.findall(text)
    for name, value in assigned:
        if [other for other, _value in assigned].count(name) == 1:
            text = re.sub(r"\$(?:%s\b|\{%s\})" % (name, name), value, text)
    lines = enumerate(text.split("\n"), 1)
    return [(path, number, line.strip()) for number, line in lines if line.strip()[:1] not in ("", "#")]


_OPTIONS = {
    "mlnx_qos": {"-i": "port", "--interface": "port", "-f": "pfc", "--pfc": "pfc", "--trust": "trust"},
    "cma_roce_tos": {"-d": "port", "-t": "tos"},
    "ethtool": {"-A": "port", "--pause": "port", "rx": "pause", "tx": "pause"},
    "dcb": {"dev": "port"},
}
_OPTIONS["mlnx_qos"].update({"-F": "pfc", "--specific_pfc": "pfc", "--dscp2prio": "map"})
# A shell's write into a file of a port's interface or of its RDMA device.
_WRITE = re.compile(
    r"echo\s+(?:-n\s+)?[\"']?([-\w$]+)[\"']?\s*>+\s*[\"']?/sys/(?:class|kernel/config)/\w+/([^/\s]+)"
    r"/(?:ecn/roce_[nr]p/enable|tc|ports)/(\d)(?:/(?:default_roce_)?(tos|traffic_class))?(?![/\w])"
)


def _options(line: str) -> Dict[str, str]:
    """Return what a line sets that runs one of the tools, or writes into sysfs; nothing of another line."""
    for value, port, priority, name in _WRITE.findall(line)[:1]:
        return {"port": port, name or "ecn of priority " + priority: value}
    words = re.split(r"[\s=\"';|&]+", line)
    names = [word.rpartition("/")[2] for word in words]
    known = next((_OPTIONS[name] for name in names if name in _OPTIONS), {})
    # Of pause either direction is enough: "on" comes after "off".
    found = dict(sorted((known[option], value) for option, value in zip(words, words[1:]) if option in known))
    pairs: Dict[str, str] = dict(re.findall(r"\b(\d+|all)[:,](\w+)", line if "dcb" in names else found.pop("map", "")))
    if "prio-pfc" in words:
        bits = [pairs.get(str(number), pairs.get("all", "x")) for number in range(8)]
        found["pfc"] = ",".join({"on": "1", "off": "0"}.get(bit, bit) for bit in bits)
    else:
        found.update(("priority of DSCP " + dscp, "none" if " del" in line else to) for dscp, to in pairs.items())
    return found


def _wanted(want: PortConfig, name: str, value: str) -> Optional[str]:
    """Return what a line has to set; None where it may set this value."""
    chain = want.chain
    if name == "pfc" and chain.pfc is not None:
        bits = [str(int(number in chain.pfc)) for number in range(8)]
        return None if all(one in (bit, "x") for one, bit in zip(value.split(","), bits)) else ",".join(bits)
    expected: Dict[str, object] = {"priority of DSCP %d" % dscp: one for dscp, one in chain.dscp2prio.items()}
    expected.update({"ecn of priority %d" % priority: 1 for priority in chain.ecn}, trust=chain.trust, tos=chain.tos)
    expected.update(traffic_class=chain.traffic_class, pause="off" if want.pause_off else None)
    return None if expected.get(name) in (None, "") or str(expected[name]) == value else str(expected[name])


def findings(host: Host, ports: Sequence[Port], wanted: PortConfig) -> List[Finding]:
    """Judge the lines that a boot runs. Raises ReadError."""
    names = {name for port in ports for name in (port.netdev, port.rdma) if name}
    if not names or wanted == PortConfig():
        return []
    found: Dict[str, Finding] = {}
    unread: List[Problem] = []
    for path, number, text in _lines_at_boot(host, ports, unread):
        options = _options(text)
        port = options.pop("port", "")
        for name, value in options.items():
            want = _wanted(wanted, name, value)
            if want is not None and (port in names or "$" in port):
                state = "unknown" if "$" in value else "not_owned"
                place = "line %d of %s" % (number, path) if number else "the command %.60r from %s" % (text, path)
                fix = "remove %s, or write %s there" % (place, want)
                wanted_text, have = "%s %s" % (name, want), "%s %s for %s" % (name, value, port)
                subject = "%s:%d" % (path, number) if number else path
                subject = "%s %s" % (subject, name) if subject in found else subject
                found[subject] = BOOT_SETTER.judge(subject, state, wanted_text, have, path, fix)
    for one in unread:
        fix = "edit %s so that it does not change PFC, trust, pause and ToS" % one.source
        found[one.source] = BOOT_SETTER.judge(one.source, "unknown", "no other values", one.message, one.source, fix)
    if not found:
        have = "none in scripts, hooks, units and rules"
        found["boot"] = BOOT_SETTER.judge("boot", "ok", "no other values", have, UNITS[0])
    return [*([] if wanted.dcbx == "firmware" else _lldpad(host)), *found.values()]


def _lldpad(host: Host) -> List[Finding]:
    """Judge whether the boot starts lldpad; that it runs now is the live finding."""
    lldpad = read_unit(host, "lldpad.service")
    starts = bool(lldpad.path) and wanted_at_boot(host, lldpad.name)
    have = effective_unit.idle(host, lldpad.name) or "nothing starts it at boot"
    have = "enabled: it takes the ports over at boot" if starts else have
    fix = "systemctl disable --now lldpad.service lldpad.socket"
    state = "not_owned" if starts else "ok"
    return [DCBX.judge("lldpad", state, "not started at boot", have, lldpad.path or UNITS[0], fix, aspect="persisted")]
