# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""smpquery: partition keys and identity of one port. The SA refuses PKeyTableRecords to an ordinary client.

Source: rdma-core infiniband-diags/smpquery.c (pkey_table, node_info).
"""

from __future__ import annotations

import re
from typing import Dict, Tuple

from ..core.host import ParseError

_ROW = re.compile(r"([0-9]+):((?: 0x[0-9a-f]{4}){1,8})")
_CAPACITY = re.compile(r"([0-9]+) pkeys capacity for this port")
_FIELD = re.compile(r"(\w+):\.*(.*)")


def parse_pkeys(text: str) -> Tuple[int, ...]:
    """The keys in use, in their order; 0x0000 is an empty place. Raises ParseError."""
    keys = []
    capacity = None
    for line in text.splitlines():
        row = _ROW.fullmatch(line.strip())
        if row is not None:
            keys += [int(key, 16) for key in row.group(2).split()]
            continue
        match = _CAPACITY.fullmatch(line.strip())
        if match is not None:
            capacity = int(match.group(1))
        elif line.strip() and not line.startswith("#"):
            raise ParseError("%.80r is not a row of partition keys" % line)
    if capacity is None or len(keys) < capacity:
        raise ParseError(
            "it shows %d partition keys of %s" % (len(keys), "an unknown number" if capacity is None else capacity)
        )
    return tuple(key for key in keys if key)


def parse_nodeinfo(text: str) -> Dict[str, str]:
    """``{"Guid": "0x0008f10500100010", "NodeType": "Channel Adapter", ...}``. Raises ParseError."""
    found = {}
    for line in text.splitlines():
        match = _FIELD.fullmatch(line.strip())
        if match is not None:
            found[match.group(1)] = match.group(2).strip()
        elif line.strip() and not line.startswith("#"):
            raise ParseError("%.80r is not a field of NodeInfo" % line)
    if "Guid" not in found:
        raise ParseError("it has no Guid")
    return found
