# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a simulated node's own files make of it at boot, before its other units run."""

from __future__ import annotations

from . import networkd, sysctl, udev


def main(root: str, system: str) -> None:
    """``root``, ``system``: the hardware root and the system root of the node."""
    sysctl.start(root, system)
    networkd.start(root, system)
    udev.added(root, system, udev.netdevs(root), at_boot=True)
