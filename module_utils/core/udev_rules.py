# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Evaluate udev rules by a network interface's names, driver and address, and read udev's record of it.

Source: udev(7) of systemd 252.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .host import Host
from .systemd_files import by_name

FOLDERS = tuple(folder + "/udev/rules.d" for folder in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"))
_TESTS = ("==", "!=")
_PAIR = re.compile(r'\s*,?\s*([A-Z_]+(?:\{[^}]*\})?)\s*(==|!=|\+=|-=|:=|=)\s*"((?:[^"\\]|\\.)*)"')


class Line(NamedTuple):
    """One rule. pairs: (key, operator, value), in their order."""

    path: str
    pairs: Tuple[Tuple[str, str, str], ...]

    def value(self, key: str) -> str:
        return next((value for name, operator, value in self.pairs if name == key and operator not in _TESTS), "")

    def applies(self, facts: Mapping[str, str]) -> Optional[bool]:
        """Return whether its conditions hold for a device; None if they need facts that are absent."""
        answers: List[Optional[bool]] = []
        for key, operator, wanted in self.pairs:
            if operator in _TESTS:
                fits = any(fnmatchcase(facts.get(key, ""), word) for word in wanted.split("|"))
                answers.append((fits == (operator == "==")) if key in facts else None)
        return False if False in answers else None if None in answers else True


def read(host: Host) -> List[Line]:
    """Return all rules in their order. Raises ReadError."""
    return [
        line
        for _name, path in by_name(host, FOLDERS, ".rules")
        for line in parse(host.read_system(path, errors="replace") or "", path)
    ]


def parse(text: str, path: str) -> List[Line]:
    """Return the rules of a file; lines that udev would not take are passed over."""
    found = []
    for line in text.replace("\\\n", " ").split("\n"):
        if line.strip() and not line.lstrip().startswith("#"):
            found.append(Line(path, tuple((key, sign, value) for key, sign, value in _PAIR.findall(line))))
    return found


def assignments(rules: Sequence[Line], key: str, facts: Mapping[str, str]) -> List[Tuple[str, str, str]]:
    """Return (operator, value, path) of each rule that assigns a device's key, in order, as far as is known."""
    found: List[Tuple[str, str, str]] = []
    skipping = ("", "")
    for rule in rules:
        if skipping[0] != rule.path or ("LABEL", "=", skipping[1]) in rule.pairs:
            skipping = ("", "")
        if skipping[0] or rule.applies(facts) is not True:
            continue
        if rule.value("GOTO"):
            skipping = (rule.path, rule.value("GOTO"))
        found += [(sign, value, rule.path) for name, sign, value in rule.pairs if name == key and sign not in _TESTS]
    return found


def properties(host: Host, index: str) -> Dict[str, str]:
    """Return what udev has recorded of an interface since the boot. index: its ifindex. Raises ReadError."""
    text = host.read_system("/run/udev/data/n%s" % index, errors="replace") if index else None
    return dict(line[2:].partition("=")[::2] for line in (text or "").split("\n") if line.startswith("E:"))


def facts(
    name: str, mac: str, driver: str, pci: str, recorded: Mapping[str, str], ether: bool = True
) -> Dict[str, str]:
    """Return the keys of conditions that are known. recorded: properties of the interface. ether: else InfiniBand."""
    known = {"SUBSYSTEM": "net", "SUBSYSTEMS": "pci", "ACTION": "add", "KERNEL": name, "NAME": name, "KERNELS": pci}
    known.update({"ATTR{address}": mac, "ATTRS{address}": mac, "DRIVERS": driver, "ATTR{type}": "1" if ether else "32"})
    known.update({"ENV{INTERFACE}": name, "ENV{ID_NET_NAME}": name, "ENV{ID_NET_DRIVER}": driver})
    known.update({"ENV{%s}" % key: value for key, value in recorded.items()})
    return {key: value for key, value in known.items() if value}
