# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What systemd would run when a node boots that is a tree and not a container.

Only units that a drop-in of multi-user.target wants, and of them only programs that are files of the node: anything
else would be one of the machine that the tree is on. From systemd.unit(5) and systemd.service(5).
"""

from __future__ import annotations

import configparser
import shlex
import subprocess
import sys
from pathlib import Path

from .toolkit import start

_UNITS = "etc/systemd/system"


def start_units(system_root: Path) -> None:
    """A unit that fails is none that keeps a node from booting."""
    start.main(str(system_root.parent / "hw"), str(system_root))
    for dropin in sorted((system_root / _UNITS / "multi-user.target.d").glob("*.conf")):
        for name in _read(dropin).get("Unit", "Wants", fallback="").split():
            command = _read(system_root / _UNITS / name).get("Service", "ExecStart", fallback="")
            argv = [_of_node(system_root, word) for word in shlex.split(command.lstrip("-"))]
            if any(word.startswith(str(system_root)) for word in argv):
                python = [sys.executable] if argv[0].startswith("/usr/bin/python3") else argv[:1]
                subprocess.run([*python, *argv[1:]], capture_output=True, check=False)


def _of_node(system_root: Path, word: str) -> str:
    path = system_root / word.lstrip("/")
    return str(path) if word.startswith("/") and path.is_file() else word


def _read(path: Path) -> configparser.ConfigParser:
    """Empty where there is no such file."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.read(path)
    return unit
