# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render the unit that sets the registers at every boot, and its script, which needs nothing of this suite."""

from __future__ import annotations

from typing import Mapping, Sequence

from ..change import written
from .registers import Function, encode_size

UNIT = "/etc/systemd/system/busbar-pcie-path.service"
# multi-user.target wants the unit by this drop-in, not by a link: a plan knows plain files only.
DROPIN = "/etc/systemd/system/multi-user.target.d/busbar-pcie-path.conf"
SCRIPT = "/usr/local/libexec/busbar/pcie-path"
OWN = (SCRIPT, UNIT, DROPIN)
_UNIT_TEXT = """\
# Written by Busbar (role pcie_path).
[Unit]
Description=PCIe registers on the paths between GPUs and NICs
After=systemd-modules-load.service
Before=nvidia-fabricmanager.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 -I -S /usr/local/libexec/busbar/pcie-path
"""
_DROPIN_TEXT = """\
# Written by Busbar (role pcie_path): sets the registers at boot.
[Unit]
Wants=busbar-pcie-path.service
"""
_SCRIPT_TEXT = '''\
#!/usr/bin/python3 -IS
# Written by Busbar (role pcie_path). Sets PCIe registers as they should be; other bits of them stay.
import os
import sys

DEVICES = %(devices)r
# Address -> vendor and device, as config space begins: what is plugged in there later is left alone.
BRIDGES = {%(bridges)s}
NICS = {%(nics)s}
READ_REQUEST = 0x%(read_request)04x


def number(config, offset, size=2):
    return int.from_bytes(config[offset : offset + size], "little")


def acs_control(config):
    at, seen = 0x100, set()
    while at >= 0x100 and at not in seen:
        seen.add(at)
        header = number(config, at, 4)
        if header & 0xFFFF == 0x000D and at <= 0xFF8:
            return at + 6
        at = header >> 20 & 0xFFC
    return None


def device_control(config):
    at, seen = config[0x34] & 0xFC if config[6] & 0x10 else 0, set()
    while at >= 0x40 and at not in seen:
        seen.add(at)
        if config[at] == 0x10:
            return at + 8
        at = config[at + 1] & 0xFC
    return None


def bring(address, identity, find, mask, value):
    """What went wrong, "" where nothing did."""
    try:
        with open("%%s/%%s/config" %% (DEVICES, address), "r+b", buffering=0) as stream:
            config = stream.read(4096)
            if config[:4].hex() != identity:
                return "another device is there now"
            at = find(config) if len(config) >= 256 else None
            if at is None:
                return "the capability is not found in %%d bytes" %% len(config)
            new = number(config, at) & ~mask | value
            if new != number(config, at):
                stream.seek(at)
                stream.write(new.to_bytes(2, "little"))
                stream.seek(at)
                if number(stream.read(2), 0) != new:
                    return "does not take the value"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def main():
    failed = 0
    work = [(address, BRIDGES, acs_control, 0x1D, 0) for address in BRIDGES]
    work += [(address, NICS, device_control, 0x7000, READ_REQUEST) for address in NICS]
    for address, devices, find, mask, value in work:
        # A card that was taken out is no fault of this unit: the suite's checks of the hardware name it.
        if os.path.isdir(DEVICES) and not os.path.isdir("%%s/%%s" %% (DEVICES, address)):
            print("%%s: is not there any more, the others are set" %% address, file=sys.stderr)
            continue
        said = bring(address, devices[address], find, mask, value)
        if said:
            failed = 1
            print("%%s: %%s (run Busbar's role pcie_path again)" %% (address, said), file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
'''


def render(devices: str, bridges: Sequence[Function], nics: Sequence[Function], size: int) -> Mapping[str, str]:
    """The text of each file of OWN by its path; empty where nothing is to be set at boot.

    devices: the directory in which sysfs has the PCI devices of this machine.
    bridges, nics: those whose registers are set. size: of the NICs' read requests, in bytes; 0 leaves them.
    """
    bridges = [function for function in bridges if function.register is not None]
    if not bridges and not nics:
        return {}
    values = {
        "devices": devices,
        "bridges": _entries(bridges),
        "nics": _entries(nics),
        "read_request": encode_size(size),
    }
    texts = {UNIT: _UNIT_TEXT, DROPIN: _DROPIN_TEXT}
    sealed = {path: written.seal(path, text, "") for path, text in texts.items()}
    return {SCRIPT: written.seal(SCRIPT, _SCRIPT_TEXT % values, values), **sealed}


def _entries(functions: Sequence[Function]) -> str:
    """The inside of the script's mapping of addresses to identities, a line for each function."""
    lines = ["    %r: %r,\n" % (function.address, function.identity) for function in functions]
    return "\n" + "".join(lines) if lines else ""
