# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Part and serial number of a PCI function, and the UUID of its card, from its vital product data.

Sources: PCI Local Bus Specification 3.0, appendix I; linux-rdma/rdma-core rdma_topo (V3).
"""

from __future__ import annotations

from typing import Dict

from ..core.finding import printable
from ..core.host import Host, ParseError

_READ_ONLY, _END = 0x90, 0x78
_NAMES = {b"PN": "part", b"SN": "serial", b"V3": "uuid"}


def read(host: Host, pci: str) -> Dict[str, str]:
    """Return ``part``, ``serial`` and ``uuid`` where the function has them. Root alone can read them.

    Raises ReadError, ParseError.
    """
    text = host.read("/sys/bus/pci/devices/%s/vpd" % pci, "surrogateescape")
    # Host.read replaces a zero byte by U+FFFD.
    return parse((text or "").replace("\ufffd", "\0").encode("utf-8", "surrogateescape"))


def parse(data: bytes) -> Dict[str, str]:
    """Return the fields of the read-only resource by name, each of at most 200 characters. Raises ParseError."""
    at = 0
    while at < len(data) and data[at] != _END:
        if not data[at] & 0x80:
            raise ParseError("byte %d of the VPD is not a large resource" % at)
        end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "little")
        if data[at] == _READ_ONLY:
            return _fields(data[at + 3 : end])
        at = end
    return {}


def _fields(data: bytes) -> Dict[str, str]:
    found: Dict[str, str] = {}
    at = 0
    while at + 3 <= len(data):
        end = at + 3 + data[at + 2]
        name, value = _NAMES.get(data[at : at + 2]), data[at + 3 : end].strip(b" \0").decode("ascii", "replace")
        if name and value and end <= len(data):
            found.setdefault(name, printable(value)[:200])
        at = end
    return found
