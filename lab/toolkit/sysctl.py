# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Of sysctl, on a simulated node: net.ipv4.conf of its interfaces. The rest is left to the real one.

And what systemd-sysctl makes of the node's files at boot, when the interfaces appear: sysctl.d(5), sysctl(8).
"""

from __future__ import annotations

import glob
import os
import re

from .. import qos
from .networkd import first_named
from .roce_program import Stop, read, run_real

CONF = "net/ipv4/conf"
FOLDERS = tuple(f"{folder}/sysctl.d" for folder in ("etc", "run", "usr/local/lib", "usr/lib", "lib"))


def sysctl(system: str, root: str, arguments: list[str]) -> int:
    words = [word for word in arguments if not word.startswith("-")]
    flags = [word for word in arguments if word.startswith("-")]
    if not words or set(flags) - {"-w", "-n", "-q"} or any(not _path(word).startswith(f"{CONF}/") for word in words):
        run_real(system, "sysctl", arguments)
    for word in words:
        name, equals, value = word.partition("=")
        path = f"{root}/proc/sys/{_path(name)}"
        if not os.path.isfile(path):
            raise Stop(255, f"sysctl: cannot stat /proc/sys/{_path(name)}: No such file or directory")
        if equals:
            qos.note_write(root, "sysctl", word)
            if not re.fullmatch(r"-?\d+", value.strip()):
                raise Stop(255, f'sysctl: setting key "{name}": Invalid argument')
            qos.replace(path, f"{value.strip()}\n")
        if "-q" not in flags:
            print(read(path) if "-n" in flags else f"{name.replace('/', '.')} = {read(path)}")
    return 0


def start(root: str, system: str) -> None:
    """An interface that appears has the values of default, then its own: udev asks systemd-sysctl for these."""
    settings, base = _settings(system), f"{root}/proc/sys"
    paths = [path for path in glob.glob(f"{CONF}/*/*", root_dir=base) if path.rpartition("/")[2] in qos.SYSCTLS]
    for path in paths:
        _, _, _, interface, name = path.split("/")
        usual = settings.get(f"{CONF}/default/{name}") if interface != "all" else None
        if value := settings.get(path, usual):
            qos.replace(f"{base}/{path}", f"{value}\n")


def _settings(system: str) -> dict[str, str]:
    """Path -> value, of lines without a pattern."""
    found: dict[str, str] = {}
    for _, path in sorted(first_named(system, FOLDERS, ".conf").items()):
        place = os.path.join(system, path)
        for line in read(place).splitlines() if os.path.exists(place) else ():
            name, equals, value = line.partition("=")
            if equals and name[0] not in "#;":
                found[_path(name)] = value.strip()
    return found


def _path(key: str) -> str:
    """Dots and slashes change places where a dot comes first: a VLAN's name has one."""
    key = key.partition("=")[0].strip()
    first = next((char for char in key if char in "./"), "/")
    return key.translate(str.maketrans("./", "/.")) if first == "." else key.lstrip("/")
