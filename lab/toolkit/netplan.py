# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`netplan generate` on a simulated node: of its files, ethernets with match, addresses and mtu, for systemd-networkd.

From netplan(5): files in the order of their names, whatever folder they are in; later values count, lists grow. Only
blocks as the site's and Busbar's files have them are read: a line of an interface, and below it those of its settings.
"""

from __future__ import annotations

import glob
import os

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
    for path in glob.glob(f"{folder}/10-netplan-*"):
        os.unlink(path)
    for ident, values in _ethernets(system).items():
        match = values.get("macaddress")
        lines = ["[Match]", f"PermanentMACAddress={match[-1]}" if match else f"Name={ident}", ""]
        lines += ["[Link]", f"MTUBytes={values['mtu'][-1]}", ""] if "mtu" in values else []
        lines += ["[Network]", "LinkLocalAddressing=ipv6"]
        lines += [f"Address={address}" for address in values.get("addresses", [])]
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"10-netplan-{ident}.network"), "w", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")


def _ethernets(system: str) -> dict[str, dict[str, list[str]]]:
    """Interface -> setting -> its values in all files."""
    files: dict[str, str] = {}
    for folder in FOLDERS:
        for path in glob.glob(os.path.join(system, folder, "*.yaml")):
            files.setdefault(os.path.basename(path), path)
    found: dict[str, dict[str, list[str]]] = {}
    for _, path in sorted(files.items()):
        with open(path, encoding="utf-8") as stream:
            lines = [line.rstrip() for line in stream if line.strip() and not line.lstrip().startswith("#")]
        ident = key = ""
        for line in lines:
            indent, word, value = len(line) - len(line.lstrip()), *line.strip().strip('"').partition(":")[::2]
            if line.lstrip().startswith("- "):
                found[ident].setdefault(key, []).append(line.strip()[2:].strip('"'))
            elif indent == 4:
                ident = word.strip('"')
                found.setdefault(ident, {})
            elif indent > 4:
                key = word
                found[ident].setdefault(key, []).extend([value.strip().strip('"')] if value.strip() else [])
    return found
