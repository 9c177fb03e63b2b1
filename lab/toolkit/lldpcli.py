# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""lldpcli of a simulated node, as lldpd 1.0.16 has it: ``-f json0 show neighbors [details] [ports IF]``.

What the switch ports say is in qos.LLDP: interface -> its neighbours. Shape and words are those of the real one, run.
"""

from __future__ import annotations

import json
import os
from typing import Any

from .. import qos
from .roce_program import Stop, read

NO_DAEMON = "[WARN/control] unable to connect to socket /run/lldpd.socket: No such file or directory"
IEEE_8021 = "00,80,C2"
ETS, ETS_RECOMMENDATION, PFC, APPLICATION = 9, 10, 11, 12


def lldpcli(system: str, root: str, arguments: list[str]) -> int:
    words = list(arguments)
    if words[:2] != ["-f", "json0"]:
        raise Stop(1, f"lldpcli: the lab has no lldpcli {' '.join(arguments)}, only -f json0")
    words = words[2:]
    if words[:2] != ["show", "neighbors"]:
        raise Stop(1, f"[WARN/lldpctl] unknown command from argument 1: `{' '.join(words)}`")
    of = words[words.index("ports") + 1].split(",") if "ports" in words[:-1] else None
    told = json.loads(read(root + qos.LLDP))
    if not told["running"]:
        raise Stop(1, NO_DAEMON)
    found = []
    for netdev, neighbours in told["neighbours"].items():
        if of is None or netdev in of:
            up = os.path.exists(f"{root}/sys/class/net/{netdev}") and _state(root, netdev) != "down"
            found += [_interface(netdev, number, one) for number, one in enumerate(neighbours, 1) if up]
    text = json.dumps({"lldp": [{"interface": found} if found else {}]}, indent=2)
    print(text[: len(text) // 2] if told["garbled"] else text)
    return 0


def _state(root: str, netdev: str) -> str:
    return read(f"{root}/sys/class/net/{netdev}/operstate")


def _interface(netdev: str, number: int, port: dict[str, Any]) -> dict[str, Any]:
    capabilities = [{"type": kind, "enabled": True} for kind in ("Bridge", "Router")]
    entry = {
        "name": netdev,
        "via": "LLDP",
        "rid": str(number),
        "age": "12 days, 03:41:07",
        "chassis": [
            {
                "id": [{"type": "mac", "value": port["chassis"]}],
                "name": [{"value": port["name"]}],
                "descr": [{"value": "simulated switch"}],
                "capability": capabilities,
            }
        ],
        "port": [
            {
                "id": [{"type": "ifname", "value": port["port"]}],
                "descr": [{"value": port["port"]}],
                "ttl": [{"value": "120"}],
                "mfs": [{"value": str(port["mfs"])}],
            }
        ],
    }
    if port["dcbx"]:
        told = [
            (ETS, _ets(port, 0)),
            (ETS_RECOMMENDATION, _ets(port, 0)),
            (PFC, bytes([8, sum(1 << priority for priority in port["pfc"])])),
            (APPLICATION, _applications(port["dscp"])),
        ]
        entry["unknown-tlvs"] = [{"unknown-tlv": [_tlv(subtype, data) for subtype, data in told]}]
    return entry


def _ets(port: dict[str, Any], flags: int) -> bytes:
    """Classes of the eight priorities, two a byte, then shares of the classes, and their algorithm: 2 is ETS."""
    classes = port["classes"]
    pairs = [classes[at] << 4 | classes[at + 1] for at in range(0, 8, 2)]
    used = [port["shares"][number] for number in range(8)]
    return bytes([flags, *pairs, *used, *(2 if share else 0 for share in used)])


def _applications(dscp: list[list[int]]) -> bytes:
    """A reserved byte; then for each priority and selector (5: DSCP) in one byte, and the DSCP in two."""
    return bytes([0, *(byte for code, priority in dscp for byte in (priority << 5 | 5, 0, code))])


def _tlv(subtype: int, data: bytes) -> dict[str, str]:
    value = ",".join(f"{byte:02X}" for byte in data)
    return {"oui": IEEE_8021, "subtype": str(subtype), "len": str(len(data)), "value": value}
