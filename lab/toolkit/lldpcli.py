# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""lldpcli of a simulated node, as lldpd 1.0.16 has it: ``-f json0 show neighbors [details] [ports IF]``.

What the switch ports say is in qos.LLDP: interface -> its neighbours. Shape and words are those of the real one, run.
"""

from __future__ import annotations

import json
from typing import Any

from .. import qos
from .nccl_model.pcie import read
from .roce_program import Stop

NO_DAEMON = "[WARN/control] unable to connect to socket /run/lldpd.socket: No such file or directory"
ETS, ETS_RECOMMENDATION, PFC, APPLICATION = 9, 10, 11, 12


def lldpcli(system: str, root: str, words: list[str]) -> int:
    if words[:4] != ["-f", "json0", "show", "neighbors"]:
        raise Stop(1, f"lldpcli: the lab has no lldpcli {' '.join(words)}")
    of = words[words.index("ports") + 1].split(",") if "ports" in words[:-1] else None
    told = json.loads(read(root + qos.LLDP))
    if not told["running"]:
        raise Stop(1, NO_DAEMON)
    found = []
    for netdev, neighbours in told["neighbours"].items():
        if (of is None or netdev in of) and read(f"{root}/sys/class/net/{netdev}/operstate") not in ("", "down"):
            found += [_interface(netdev, number, port) for number, port in enumerate(neighbours, 1)]
    text = json.dumps({"lldp": [{"interface": found} if found else {}]}, indent=2)
    print(text[: len(text) // 2] if told["garbled"] else text)
    return 0


def _interface(netdev: str, number: int, port: dict[str, Any]) -> dict[str, Any]:
    def values(**texts: str) -> dict[str, list[dict[str, str]]]:
        return {name: [{"value": text}] for name, text in texts.items()}

    capabilities = [{"type": kind, "enabled": True} for kind in ("Bridge", "Router")]
    chassis = {"id": [{"type": "mac", "value": port["chassis"]}], **values(name=port["name"], descr="simulated switch")}
    ends = values(descr=port["port"], ttl="120", mfs=str(port["mfs"]))
    entry = {
        "name": netdev,
        "via": "LLDP",
        "rid": str(number),
        "age": "12 days, 03:41:07",
        "chassis": [{**chassis, "capability": capabilities}],
        "port": [{"id": [{"type": "ifname", "value": port["port"]}], **ends}],
    }
    if port["dcbx"]:
        classes, shares = port["classes"], port["shares"]
        # Classes of the eight priorities, two a byte, then shares of the classes, and their algorithm: 2 is ETS.
        pairs = [classes[at] << 4 | classes[at + 1] for at in range(0, 8, 2)]
        ets = bytes([0, *pairs, *shares, *(2 if share else 0 for share in shares)])
        # A reserved byte; then for each priority and selector (5: DSCP) in one byte, and the DSCP in two.
        dscp = bytes([0, *(byte for code, priority in port["dscp"] for byte in (priority << 5 | 5, 0, code))])
        pfc = bytes([8, sum(1 << priority for priority in port["pfc"])])
        told = {ETS: ets, ETS_RECOMMENDATION: ets, PFC: pfc, APPLICATION: dscp}
        tlvs = [
            {"oui": "00,80,C2", "subtype": str(subtype), "len": str(len(data)), "value": data.hex(",").upper()}
            for subtype, data in told.items()
        ]
        entry["unknown-tlvs"] = [{"unknown-tlv": tlvs}]
    return entry
