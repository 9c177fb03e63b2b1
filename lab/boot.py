# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What systemd would run when a node boots that is a tree and not a container.

Only units that a drop-in of multi-user.target wants, and of them only programs that are files of the node: anything
else would be one of the machine that the tree is on. From systemd.unit(5) and systemd.service(5).
"""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

from .toolkit import start, udev


def start_units(system_root: Path) -> None:
    """A unit that fails is none that keeps a node from booting."""
    start.main(str(system_root.parent / "hw"), str(system_root))
    for dropin in sorted((system_root / udev.UNITS / "multi-user.target.d").glob("*.conf")):
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.read(dropin)
        for name in unit.get("Unit", "Wants", fallback="").split():
            if argv := udev.command(str(system_root), name):
                subprocess.run(argv, capture_output=True, check=False)
