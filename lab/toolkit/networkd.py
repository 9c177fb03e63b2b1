# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What systemd-networkd makes of a simulated node's own files: which is for whom, the MTU, and its state below /run.

And NetworkManager, of profiles that name an interface which networkd leaves alone. From systemd.network(5): of all
folders the first that has a name, files in the order of their names, the first that matches counts; drop-ins
NAME.network.d/*.conf come after it and the last value of a key counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from fnmatch import fnmatchcase

from .. import qos
from .iproute import interfaces, set_mtu
from .roce_program import Stop
from .roce_program import read as read_text

FOLDERS = ("etc/systemd/network", "run/systemd/network", "usr/local/lib/systemd/network", "usr/lib/systemd/network")
# What is copied to the node at its first start, and the mark of that.
OWN, MARK = "usr/share/busbar-lab/network", "var/lib/busbar-lab/network"
STATE, KEYFILES = "run/systemd/netif", "etc/NetworkManager/system-connections"

# A file's sections in order, each with its settings in order.
Sections = list[tuple[str, list[tuple[str, str]]]]


def start(root: str, system: str) -> None:
    """As at boot."""
    own, mark = os.path.join(system, OWN), os.path.join(system, MARK)
    if not os.path.isdir(own):
        return
    if not os.path.exists(mark):
        for folder, _, names in os.walk(own):
            there = os.path.join(system, os.path.relpath(folder, own))
            os.makedirs(there, exist_ok=True)
            for name in names:
                shutil.copy2(os.path.join(folder, name), there)
        _write(mark, "")
        # Enabled, as the real one would be; of a target that nothing starts, so that the real one stays out of the way.
        wants = os.path.join(system, "etc/systemd/system/busbar-lab.target.wants")
        os.makedirs(wants, exist_ok=True)
        os.symlink("/lib/systemd/system/systemd-networkd.service", os.path.join(wants, "systemd-networkd.service"))
    apply(root, system)
    add_routes(root, system)
    _network_manager(root, system)


def apply(root: str, system: str) -> None:
    """As `networkctl reload` and `reconfigure` of every interface do."""
    _write(os.path.join(system, STATE, "state"), "OPER_STATE=routable\nCARRIER_STATE=carrier\nADDRESS_STATE=routable\n")
    for netdev, (path, sections) in configured(root, system).items():
        _set(root, netdev, last(sections, "Link", "MTUBytes"))
        text = f"ADMIN_STATE=configured\nOPER_STATE=routable\nNETWORK_FILE=/{path}\n"
        _write(os.path.join(system, STATE, "links", interfaces(root)[netdev]["ifindex"]), text)


def add_routes(root: str, system: str) -> None:
    """Add rules and routes of the interfaces: [RoutingPolicyRule] and [Route]."""
    if not os.path.exists(root + qos.RULES):
        return
    own = json.loads(read_text(root + qos.RULES))
    for netdev, (_, sections) in configured(root, system).items():
        for name, pairs in sections:
            values = dict(pairs)
            table = values.get("Table", "main")
            if name == "RoutingPolicyRule" and values.get("From") and values.get("Priority", "").isdigit():
                own[f"rule {values['Priority']} from {values['From']}"] = f"lookup {table}"
            elif name == "Route" and table != "main":
                key = f"route {table} {values.get('Destination', 'default')}"
                words = {"via": values.get("Gateway"), "dev": netdev, "proto": "static"}
                words |= {"scope": values.get("Scope"), "src": values.get("PreferredSource")}
                own[key] = " ".join(f"{word} {value}" for word, value in words.items() if value)
    qos.replace(root + qos.RULES, json.dumps(own) + "\n")


def _network_manager(root: str, system: str) -> None:
    there, others = interfaces(root), configured(root, system)
    for path in sorted(first_named(system, (KEYFILES,), ".nmconnection").values()):
        profile = _parse(system, path)
        netdev = last(profile, "connection", "interface-name")
        if netdev in there and netdev not in others:
            _set(root, netdev, last(profile, "ethernet", "mtu"))
            text = f"[device]\nmanaged=true\nconnection-uuid={last(profile, 'connection', 'uuid')}\n"
            _write(os.path.join(system, "run/NetworkManager/devices", there[netdev]["ifindex"]), text)


def _set(root: str, netdev: str, mtu: str) -> None:
    """A value that the device has not is passed over, as both do."""
    if mtu:
        with contextlib.suppress(Stop):
            set_mtu(root, netdev, mtu)


def configured(root: str, system: str) -> dict[str, tuple[str, Sections]]:
    """Interface -> the file that counts for it, below the system root, and what it says with its drop-ins."""
    files = {
        name: (path, read(system, name, path))
        for name, path in sorted(first_named(system, FOLDERS, ".network").items())
    }
    found = {}
    for netdev, about in interfaces(root).items():
        matching = [entry for entry in files.values() if _matches(entry[1], netdev, about)]
        if matching:
            found[netdev] = matching[0]
    return found


def read(system: str, name: str, path: str) -> Sections:
    dropins = first_named(system, tuple(f"{folder}/{name}.d" for folder in FOLDERS), ".conf")
    return [section for one in (path, *(dropins[key] for key in sorted(dropins))) for section in _parse(system, one)]


def last(sections: Sections, section: str, key: str) -> str:
    """The value that counts, "" for none."""
    return next(
        (v for name, pairs in reversed(sections) if name == section for k, v in reversed(pairs) if k == key), ""
    )


def first_named(system: str, folders: tuple[str, ...], suffix: str) -> dict[str, str]:
    """Name -> path, below the system root, of the files with this suffix: of two with a name the first folder's."""
    found: dict[str, str] = {}
    for folder in folders:
        path = os.path.join(system, folder)
        for name in sorted(os.listdir(path)) if os.path.isdir(path) else []:
            if name.endswith(suffix):
                found.setdefault(name, f"{folder}/{name}")
    return found


def _parse(system: str, path: str) -> Sections:
    with open(os.path.join(system, path), encoding="utf-8") as stream:
        lines = [line.strip() for line in stream]
    found: Sections = []
    for line in lines:
        if line.startswith("[") and line.endswith("]"):
            found.append((line[1:-1], []))
        elif found and "=" in line and line[0] not in "#;":
            key, _, value = line.partition("=")
            found[-1][1].append((key.strip(), value.strip()))
    return found


def _matches(sections: Sections, netdev: str, about: dict[str, str]) -> bool:
    """A key that the lab does not know does not match."""
    wanted = [pair for name, pairs in sections if name == "Match" for pair in pairs]
    shown = {"Name": netdev, "PermanentMACAddress": about.get("permanent", ""), "MACAddress": about["address"]}
    return bool(wanted) and all(
        key in shown and any(fnmatchcase(shown[key], word) for word in value.split()) for key, value in wanted
    )


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
