# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find other setters of a port's values at boot: lldpad, and scripts, hooks, units, udev rules and cron jobs.

Sources: lldpad(8); NetworkManager-dispatcher(8); udev(7); crontab(5); mlnx_qos of mlnx-tools.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ..core import effective_unit, udev_rules
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Problem, attempt
from ..core.plan import Plan, merge
from ..core.systemd_files import UNITS, wanted_at_boot
from ..core.systemd_files import read as read_unit
from ..machine import pci
from . import boot_unit
from .boot_script import Intent
from .config import PortConfig
from .port import Port
from .settings import DCBX

BOOT_SETTER = Check(
    "roce_qos.boot_setter",
    why="it is chance which of two programs sets a port last, so the port may have other values after each boot",
    aspect="persisted",
)
"Does no other script, unit, udev rule or cron job set PFC, trust, DSCPs, ECN, pause or ToS at boot"

Line = Tuple[str, int, str]
_FILES = ("/etc/rc.local", "/etc/rc.d/rc.local", "/etc/infiniband/post-start-hook.sh")
_FOLDERS = (
    *("/etc/NetworkManager/dispatcher.d", "/etc/NetworkManager/dispatcher.d/pre-up.d", "/etc/network/if-up.d"),
    *("/etc/network/if-pre-up.d", "/etc/networkd-dispatcher/routable.d", "/etc/networkd-dispatcher/configured.d"),
    "/usr/lib/NetworkManager/dispatcher.d",
)
DRIVER = "mlx5_core"
_PATH = re.compile(r"/(?!usr/s?bin/|s?bin/)[^\s\"';|&]+")


def _scripts(host: Host, _ports: Sequence[Port], unread: List[Problem]) -> List[Line]:
    paths = [*_FILES, *("%s/%s" % (folder, name) for folder in _FOLDERS for name in host.listdir_system(folder))]
    return [line for path in paths if (host.mode_system(path) or 0) & 0o100 for line in _lines(host, path, unread)]


def _units(host: Host, _ports: Sequence[Port], unread: List[Problem]) -> List[Line]:
    """Return commands of the administrator's units that the boot wants, and lines of the scripts that they run."""
    found: List[Line] = []
    for name in host.listdir_system(UNITS[0]):
        if name.endswith(".service") and not name.startswith("busbar-"):
            lines = [line for line in _lines(host, "%s/%s" % (UNITS[0], name), unread) if line[2].startswith("Exec")]
            called = [script for line in lines for script in _PATH.findall(line[2])]
            lines = [(path, number, text.partition("=")[2].lstrip("-+!@:")) for path, number, text in lines]
            # A program as large as that it cannot be read is no script.
            lines += [line for script in called for line in _lines(host, script, [])]
            is_setter = any(_options(text) for _path, _number, text in lines)
            found += lines if is_setter and not effective_unit.idle(host, name) else []
    return found


def _rules(host: Host, ports: Sequence[Port], _unread: List[Problem]) -> List[Line]:
    """Return commands of udev's rules for a rail's interface; udev puts its name for ``%k`` and ``$name``."""
    facts = [udev_rules.facts(port.netdev, "", DRIVER, port.pci, {}) for port in ports if port.netdev]
    rules = [one for one in udev_rules.read(host) if any(one.applies(known) is not False for known in facts)]
    runs = [(one.path, value) for one in rules for key, _sign, value in one.pairs if key in ("RUN", "RUN{program}")]
    return [(path, 0, value.replace("%k", "$name")) for path, value in runs]


def _cron(host: Host, _ports: Sequence[Port], unread: List[Problem]) -> List[Line]:
    """Return commands that cron runs once after each boot."""
    folders = ("/etc/cron.d", "/var/spool/cron/crontabs", "/var/spool/cron")
    paths = ["%s/%s" % (folder, name) for folder in folders for name in host.listdir_system(folder)]
    lines = [line for path in ("/etc/crontab", *paths) for line in _lines(host, path, unread)]
    return [line for line in lines if line[2].startswith("@reboot")]


# Places of commands that a boot runs. A new place needs one row.
PLACES: Tuple[Callable[[Host, Sequence[Port], List[Problem]], List[Line]], ...] = (_scripts, _units, _rules, _cron)


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
    pairs = dict(re.findall(r"\b(\d+|all)[:,](\w+)", line if "dcb" in names else found.pop("map", "")))
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
    for path, number, text in [line for place in PLACES for line in place(host, ports, unread)]:
        options = _options(text)
        port = options.pop("port", "")
        if port not in names and "$" not in port:
            continue
        for name, value in options.items():
            want = _wanted(wanted, name, value)
            if want is not None:
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
        have = "none in scripts, hooks, units, rules and cron"
        found["boot"] = BOOT_SETTER.judge("boot", "ok", "no other values", have, UNITS[0])
    return [*([] if wanted.dcbx == "firmware" else _lldpad(host)), *found.values()]


def overrides(host: Host, intent: Optional[Intent]) -> Plan:
    """Judge what files of others make of our unit, and of our rule: later ones of udev can take back what it sets."""
    ports = sorted(intent.ports) if intent is not None else []
    found = effective_unit.overrides(
        host, boot_unit.AT_BOOT, boot_unit.OWN, [boot_unit.instance(address) for address in ports[:1]]
    )
    rules = [rule for rule in udev_rules.read(host) if rule.path.rpartition("/")[2] > boot_unit.RULE.rpartition("/")[2]]
    keys = ("ENV{SYSTEMD_WANTS}", "ENV{SYSTEMD_ALIAS}", "TAG")
    judged: Dict[str, Finding] = {}
    for address in ports if rules and host.read_system(boot_unit.RULE) else ():
        for name in host.listdir("%s/%s/net" % (pci.DEVICES, address)):
            facts = udev_rules.facts(name, "", DRIVER, address, {})
            found_rules = [(key, *one) for key in keys for one in udev_rules.assignments(rules, key, facts)]
            for key, sign, value, path in found_rules:
                if sign in ("=", ":=") or (sign, value) == ("-=", "systemd"):
                    have, fix = "it sets %s%s" % (key, sign), "write += there, then udevadm control --reload"
                    judged[path] = boot_unit.AT_BOOT.judge(
                        path, "not_owned", "Busbar's rule takes effect", have, path, fix
                    )
    return merge(found, Plan(tuple(judged.values())))


def _lldpad(host: Host) -> List[Finding]:
    """Judge whether the boot starts lldpad; that it runs now is the live finding."""
    lldpad = read_unit(host, "lldpad.service")
    starts = bool(lldpad.path) and wanted_at_boot(host, lldpad.name)
    have = effective_unit.idle(host, lldpad.name) or "nothing starts it at boot"
    have = "enabled: it takes the ports over at boot" if starts else have
    fix = "systemctl disable --now lldpad.service lldpad.socket"
    state = "not_owned" if starts else "ok"
    return [DCBX.judge("lldpad", state, "not started at boot", have, lldpad.path or UNITS[0], fix, aspect="persisted")]
