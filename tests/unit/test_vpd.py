# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import vpd


def field(name: bytes, value: bytes) -> bytes:
    return name + bytes([len(value)]) + value


def resource(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + len(data).to_bytes(2, "little") + data


NAME = resource(0x82, b"ConnectX-7 SN PN, 400GbE")
# A length of 0x85 is not a character of any text, and V3 holds the letters of another field.
FIELDS = field(b"PN", b"MCX75310AAS-NEAT") + field(b"V2", b"\xff" * 0x85) + field(b"V3", b"SN\x03abc")
NIC = NAME + resource(0x90, FIELDS + field(b"SN", b"MT2317X00001   ") + field(b"RV", b"\0" * 9)) + b"\x78"
ROWS = {
    "a NIC": (NIC, {"part": "MCX75310AAS-NEAT", "serial": "MT2317X00001", "uuid": r"SN\x03abc"}),
    "no serial number": (
        NAME + resource(0x90, FIELDS) + b"\x78",
        {"part": "MCX75310AAS-NEAT", "uuid": r"SN\x03abc"},
    ),
    "an empty one": (resource(0x90, field(b"SN", b"  ")), {}),
    "cut off within it": (resource(0x90, field(b"SN", b"MT2317X00001"))[:-3], {}),
    "a long serial number": (resource(0x90, field(b"SN", b"x" * 201)), {"serial": "x" * 200}),
    "only a name": (NAME + b"\x78", {}),
    "written fields only": (resource(0x91, field(b"SN", b"x")), {}),
    "control characters": (resource(0x90, field(b"SN", b"a\x1b[31m")), {"serial": r"a\x1b[31m"}),
    "nothing": (b"", {}),
    "zeros": (b"\0" * 64, None),
}


@pytest.mark.parametrize("case", ROWS)
def test_parse(case: str) -> None:
    data, found = ROWS[case]
    if found is None:
        with pytest.raises(ParseError):
            vpd.parse(data)
    else:
        assert vpd.parse(data) == found
