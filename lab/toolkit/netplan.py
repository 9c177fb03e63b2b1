# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`netplan generate` on a simulated node: of its files, ethernets with match, addresses and mtu, for systemd-networkd.

From netplan(5): files in the order of their names, whatever folder they are in; later values count, lists grow. Only
blocks are read, no {...} and no anchors.
"""

from __future__ import annotations

import os
from typing import Any

from .roce_program import Stop

FOLDERS = ("etc/netplan", "run/netplan", "lib/netplan")
GENERATED = "run/systemd/network"


def netplan(system: str, root: str, arguments: list[str]) -> int:
    if arguments != ["generate"]:
        raise Stop(2, f"netplan: the lab has no netplan {' '.join(arguments)}")
    generate(system)
    return 0


def generate(system: str) -> None:
    folder = os.path.join(system, GENERATED)
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        if name.startswith("10-netplan-"):
            os.unlink(os.path.join(folder, name))
    for ident, values in _ethernets(system).items():
        match = values.get("match", {}).get("macaddress")
        lines = ["[Match]", f"PermanentMACAddress={match}" if match else f"Name={ident}", ""]
        lines += ["[Link]", f"MTUBytes={values['mtu']}", ""] if "mtu" in values else []
        lines += ["[Network]", "LinkLocalAddressing=ipv6"]
        lines += [f"Address={address}" for address in values.get("addresses", [])]
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"10-netplan-{ident}.network"), "w", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")


def _ethernets(system: str) -> dict[str, Any]:
    files: dict[str, str] = {}
    for folder in FOLDERS:
        path = os.path.join(system, folder)
        for name in os.listdir(path) if os.path.isdir(path) else []:
            if name.endswith(".yaml"):
                files.setdefault(name, os.path.join(path, name))
    merged: dict[str, Any] = {}
    for _, path in sorted(files.items()):
        with open(path, encoding="utf-8") as stream:
            _merge(merged, _read(stream.read()))
    found: dict[str, Any] = merged.get("network", {}).get("ethernets", {})
    return found


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif isinstance(value, list):
            into[key] = [*into.get(key, []), *value]
        else:
            into[key] = value


def _read(text: str) -> dict[str, Any]:
    """Mappings of blocks; of lists the items that are plain."""
    top: dict[str, Any] = {}
    inside: list[tuple[int, dict[str, Any], str]] = [(-1, {"": top}, "")]
    for line in text.splitlines():
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        if content.startswith("- "):
            _, above, key = inside[-1]
            above[key] = [*(above[key] or []), _plain(content[2:])]
            continue
        while inside[-1][0] >= indent:
            inside.pop()
        _, above, key = inside[-1]
        if above[key] is None:
            above[key] = {}
        name, _, value = content.partition(":")
        above[key][_plain(name)] = _plain(value) or None
        if not value.strip():
            inside.append((indent, above[key], _plain(name)))
    return top


def _plain(text: str) -> str:
    return text.strip().strip("\"'")
