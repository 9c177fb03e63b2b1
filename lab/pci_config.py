# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Config space of a simulated PCI function, as sysfs has it in the file ``config``.

Identity, the lists of capabilities, and the registers of PCI Express and ACS that somebody may look at; the rest is
zero. Written from the PCI Express Base Specification 6.0: 7.5.1 (header), 7.5.2 (power management), 7.5.3 (PCI
Express), 7.8.4 (advanced error reporting), 7.7.11 (ACS).
"""

from __future__ import annotations

import re
import struct

from .machine import BRIDGE, Function, Machine

_CONVENTIONAL_SIZE, _EXPRESS_SIZE = 256, 4096
_POWER, _EXPRESS, _ERRORS, _ACS = 0x40, 0x68, 0x100, 0x148
_ENDPOINT, _ROOT_PORT, _UPSTREAM, _DOWNSTREAM, _TO_PCI = 0, 4, 5, 6, 7
_SPEEDS = {"2.5": 1, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
# All but egress control.
_ACS_CAPABLE = 0x5F


def render(machine: Machine, function: Function) -> bytes:
    """A function without a link is a conventional one: a host bridge, what is behind the BMC, a virtio device."""
    space = bytearray(_CONVENTIONAL_SIZE if function.link is None else _EXPRESS_SIZE)
    vendor, device, subsystem, revision = (
        int(text, 16) for text in (function.vendor, function.device, function.subsystem, function.revision)
    )
    command = 0x0406 if function.driver else 0
    # Status: there is a list of capabilities.
    struct.pack_into("<HHHH", space, 0x00, vendor, device, command, 0x0010)
    struct.pack_into("<I", space, 0x08, int(function.class_code, 16) << 8 | revision)
    if function.class_code == BRIDGE:
        space[0x0E] = 1
    else:
        struct.pack_into("<HH", space, 0x2C, vendor if subsystem else 0, subsystem)
    space[0x34] = _POWER
    struct.pack_into("<BBH", space, _POWER, 0x01, _EXPRESS if function.link else 0, 0x0003)
    if function.link is not None:
        _express(space, machine, function)
        struct.pack_into("<I", space, _ERRORS, (0 if function.acs is None else _ACS) << 20 | 2 << 16 | 0x0001)
    if function.acs is not None:
        struct.pack_into("<IHH", space, _ACS, 1 << 16 | 0x000D, _ACS_CAPABLE, _by_kernel(machine, function))
    return bytes(space)


def _by_kernel(machine: Machine, function: Function) -> int:
    """The control word, after the kernel has read the last pci=config_acs (kernel-parameters.txt)."""
    word = function.acs or 0
    for items in re.findall(r'config_acs=([^" ]*)', machine.cmdline)[-1:]:
        for flags, _at, address in (item.partition("@") for item in items.split(";")):
            for bit, flag in enumerate(reversed(flags)) if address == function.address else ():
                word = word & ~(1 << bit) | int(flag) << bit if flag in "01" else word
    return word


def vpd(function: Function) -> bytes:
    """Vital product data with V3 alone (PCI Local Bus Specification 3.0, appendix I)."""
    field = b"V3" + bytes([len(function.vpd)]) + function.vpd.encode()
    return b"\x90" + struct.pack("<H", len(field)) + field + b"\x78"


def _express(space: bytearray, machine: Machine, function: Function) -> None:
    # Payloads up to 512 bytes, 256 in use; relaxed ordering, tags of 8 bits, no snoop.
    control = (function.read_request // 128).bit_length() - 1 << 12 | 0x0910 | 1 << 5
    struct.pack_into("<BBH", space, _EXPRESS, 0x10, 0, _port_type(machine, function) << 4 | 2)
    struct.pack_into("<IH", space, _EXPRESS + 0x04, 0x8002, control)
    for offset, link in ((0x0C, function.max_link), (0x12, function.link)):
        if link is not None:
            speed = _SPEEDS.get(link.speed.split()[0], 0)
            struct.pack_into("<H", space, _EXPRESS + offset, link.width << 4 | speed)


def _port_type(machine: Machine, function: Function) -> int:
    if function.class_code != BRIDGE:
        return _ENDPOINT
    if function.parent.startswith("pci"):
        return _ROOT_PORT
    if function.acs is not None:
        return _DOWNSTREAM
    below = [other for other in machine.functions if other.parent == function.address]
    return _UPSTREAM if all(other.link for other in below) else _TO_PCI
