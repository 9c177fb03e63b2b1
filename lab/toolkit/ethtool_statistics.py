# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`ethtool -S` of a simulated mlx5 port: names of mlx5/counters.rst, a day's traffic.

Simulated, and only what is about faults or tells one priority from another. The answer is kept beside the tools, as the
shell that runs this one (ethtool) gives it again as long as nothing has happened to the port.
"""

from __future__ import annotations

import contextlib
import json
import os

from .. import qos
from ..qos import Port
from .nccl_model.pcie import read
from .perftest_tools import traffic
from .roce_program import Stop

_MESSAGES = 1_250_000_000
_PHYSICAL = (
    *("rx_discards_phy", "tx_discards_phy", "rx_out_of_buffer", "rx_crc_errors_phy", "rx_pcs_symbol_err_phy"),
    *("outbound_pci_stalled_rd", "outbound_pci_stalled_wr", "outbound_pci_stalled_rd_events"),
    *("outbound_pci_stalled_wr_events", "outbound_pci_buffer_overflow", "tx_pause_storm_error_events"),
)


def main(root: str, system: str, netdev: str) -> int:
    """Raises Stop: of a virtual function, or a NIC that is no mlx5."""
    address = os.path.basename(os.path.realpath(f"{root}/sys/class/net/{netdev}/device"))
    state, model = root + qos.state_path(address), root + qos.statistics_path(address)
    if not os.path.exists(state) and not os.path.exists(model):
        raise Stop(94, "netlink error: Operation not supported")
    # Of InfiniBand there is no priority, and nothing of a RoCE port's settings.
    port = qos.load(root, qos.state_path(address)) if os.path.exists(state) else Port()
    counts = counters(port)
    for more in (json.loads(read(model) or "{}"), traffic(system, address)):
        for name, count in more.items():
            counts[name] = counts.get(name, 0) + count
    text = "NIC statistics:\n" + "".join(f"     {name}: {count}\n" for name, count in counts.items())
    print(text, end="")
    stored = f"{system}/usr/share/busbar-lab/roce/statistics/{netdev}"
    # A node that may not be written to is asked anew each time.
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(stored), exist_ok=True)
        qos.replace(stored, text)
    return 0


def counters(port: Port) -> dict[str, int]:
    """mlx5 shows pause frames of the priorities that have PFC, or of the whole port."""
    found = {"rx_packets": _MESSAGES, "tx_packets": _MESSAGES, "link_down_events_phy": port.bounces}
    # Of PAM4 lanes all are, a little.
    found |= {**dict.fromkeys(_PHYSICAL, 0), "rx_corrected_bits_phy": 98_213}
    for prio in range(8):
        for way, used in (("rx", port.receives), ("tx", port.sends)):
            packets = _MESSAGES if prio == used else 0
            found |= {f"{way}_prio{prio}_bytes": packets * 4200, f"{way}_prio{prio}_packets": packets}
        found |= {f"rx_prio{prio}_{what}": 0 for what in ("discards", "buf_discard", "cong_discard")}
    for prio in [prio for prio in range(8) if port.pfc >> prio & 1]:
        for way in ("rx", "tx"):
            found |= {f"{way}_prio{prio}_pause": 12, f"{way}_prio{prio}_pause_duration": 48}
    if port.rx_pause or port.tx_pause:
        found |= {f"{way}_global_pause{what}": 0 for way in ("rx", "tx") for what in ("", "_duration")}
    return found
