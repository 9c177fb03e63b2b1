# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What udev and systemd make of a simulated netdev that comes: real ones do not see it.

Of udev(7): the rules in the node's own /etc/udev/rules.d, with the keys that a rule for netdevs needs; anything else
in one makes it match nothing, and none is skipped by a GOTO. Of systemd.device(5): the units in SYSTEMD_WANTS. They
are really started where the node has a systemd; there is no device unit that they could be bound to, so what names one
is left out. On a tree the program of ExecStart is run, if it is a file of the node.
"""

from __future__ import annotations

import configparser
import fnmatch
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence

from . import networkd, sysctl

RULES = "etc/udev/rules.d"
UNITS = "etc/systemd/system"
_TOKEN = re.compile(r'([A-Z]+)(?:\{([^}]*)\})?(==|!=|\+=|=)"([^"]*)"')
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def boot(root: str, system: str) -> None:
    """What the node's own files make of it at boot, before its other units run.

    ``root``, ``system``: the hardware root and the system root of the node.
    """
    sysctl.start(root, system)
    networkd.start(root, system)
    added(root, system, netdevs(root), at_boot=True)


def netdevs(root: str) -> list[str]:
    """Those with a device, as they would come at boot."""
    folder = f"{root}/sys/class/net"
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [name for name in names if os.path.exists(f"{folder}/{name}/device")]


def added(root: str, system: str, names: Sequence[str], at_boot: bool = False) -> list[str]:
    """The netdevs have just come; the units that this has started. At boot nobody waits for their end."""
    units = list(dict.fromkeys(unit for name in names for unit in wanted(root, system, name)))
    if os.path.isdir(os.path.join(system, "run/systemd/system")) and system == "/":
        for unit in units:
            _unbind(system, unit)
        if units:
            subprocess.run(["systemctl", "daemon-reload"], check=False)
            words = ["--no-block"] if at_boot else []
            # A device unit that goes takes with it what is bound to it.
            subprocess.run(["systemctl", "restart", *words, *units], check=False)
        return units
    commands = [argv for argv in (command(system, unit) for unit in units) if argv]
    running = [subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for argv in commands]
    for process in running:
        process.wait()
    return units


def wanted(root: str, system: str, name: str) -> list[str]:
    """Units that the node's rules want for a netdev with ACTION add."""
    found: list[str] = []
    folder = os.path.join(system, RULES)
    for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if file.endswith(".rules"):
            with open(os.path.join(folder, file), encoding="utf-8") as stream:
                found += _wanted(root, name, stream.read())
    return found


def _wanted(root: str, name: str, rules: str) -> list[str]:
    path = os.path.realpath(f"{root}/sys/class/net/{name}")
    found: list[str] = []
    for line in rules.splitlines():
        tokens = [] if line.startswith("#") else _TOKEN.findall(line)
        values = {(key, attribute): value for key, attribute, _operator, value in tokens}
        parent = ""
        for key, attribute, operator, value in tokens:
            if operator not in ("==", "!="):
                continue
            there = _matched(path, key, attribute, value)
            if (there is not None) != (operator == "=="):
                break
            parent = there if there and key in ("KERNELS", "SUBSYSTEMS") else parent
        else:
            found += values.get(("ENV", "SYSTEMD_WANTS"), "").replace("$id", parent).split()
    return found


def _matched(path: str, key: str, attribute: str, value: str) -> str | None:
    """What a key matched, "" where that has no name; None where it does not."""
    if key in ("KERNELS", "SUBSYSTEMS"):
        # Upward, the netdev itself first.
        for name in reversed(path.split("/")):
            if _fits(name if key == "KERNELS" else "pci" if _PCI.fullmatch(name) else "", value):
                return name
        return None
    if key == "ATTR":
        try:
            with open(f"{path}/{attribute}", encoding="utf-8") as stream:
                return "" if _fits(stream.read().strip(), value) else None
        except OSError:
            return None
    return "" if _fits({"ACTION": "add", "SUBSYSTEM": "net"}.get(key, ""), value) else None


def _fits(text: str, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(text, one) for one in pattern.split("|"))


def _template(system: str, unit: str) -> str:
    """Text of what a unit is an instance of, "" where there is none."""
    try:
        with open(os.path.join(system, UNITS, re.sub("@.*", "@.service", unit)), encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def _unbind(system: str, unit: str) -> None:
    """systemd takes a unit of just this name before the template."""
    lines = [line for line in _template(system, unit).splitlines() if not line.strip().endswith(".device")]
    if lines:
        with open(os.path.join(system, "run/systemd/system", unit), "w", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")


def command(system: str, unit: str) -> list[str]:
    """Argv of ExecStart with the node's own files, [] where none of its words is one."""
    template = configparser.ConfigParser(interpolation=None, strict=False)
    template.read_string(_template(system, unit))
    instance = unit.partition("@")[2].rpartition(".")[0]
    words = shlex.split(template.get("Service", "ExecStart", fallback="").lstrip("-").replace("%i", instance))
    files = [os.path.join(system, word.lstrip("/")) for word in words]
    argv = [file if os.path.isfile(file) else word for word, file in zip(words, files, strict=True)]
    if argv == words:
        return []
    return [sys.executable, *argv[1:]] if words[0].startswith("/usr/bin/python3") else argv
