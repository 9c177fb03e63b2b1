# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a PCI function's directory in sysfs shows of the way between NIC, GPU and memory.

Registers: PCI Express Base Specification 6.0, 7.5.3.4 (device control), 7.7.11.3 (ACS control).
"""

from __future__ import annotations

import os
import struct

# NCCL's own figure (graph/topo.h) of a lane, GB/s for each GT/s.
_LANE = 48 / 16 / 32
_EXPRESS, _ACS = 0x10, 0x000D
# Requests, completions and peers' traffic are sent upstream.
_REDIRECTS = 0b11100


def read(path: str) -> str:
    """Return the text of a file without blanks at its ends, "" where there is no file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def slot(device: str) -> float:
    """Return GB/s as NCCL has them. A virtual function shows no link: its owner's counts."""
    for where in (device, f"{device}/physfn"):
        speed, width = (read(f"{where}/current_link_{what}") for what in ("speed", "width"))
        if speed[:1].isdigit():
            return float(speed.split()[0]) * int(width) * _LANE
    return 48.0


def read_request(device: str) -> int:
    """Return the bytes of the largest read request."""
    space = _config(device)
    place = space[0x34] if len(space) > 0x34 else 0
    while 0x40 <= place < len(space) - 10:
        if space[place] == _EXPRESS:
            return int(128 << (struct.unpack_from("<H", space, place + 8)[0] >> 12 & 7))
        place = space[place + 1]
    return 4096


def redirects(port: str) -> bool:
    """Return whether a switch port sends what is for its neighbours up to the CPU. port: its directory."""
    space = _config(port)
    place = 0x100
    while 0x100 <= place < len(space) - 8:
        (head,) = struct.unpack_from("<I", space, place)
        if head & 0xFFFF == _ACS:
            return bool(struct.unpack_from("<H", space, place + 6)[0] & _REDIRECTS)
        place = head >> 20
    return False


def _config(device: str) -> bytes:
    if not os.path.exists(f"{device}/config"):
        return b""
    with open(f"{device}/config", "rb") as stream:
        return stream.read()
