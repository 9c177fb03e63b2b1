# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""RoCE on one Ethernet port of mlx5: its state, the rules that change it, and the files that show it.

Port is the state; its methods are what driver and firmware do when a tool asks (Linux, mlx5/core/en_dcbnl.c). What
the kernel shows only to tools is kept in JSON files below STATE in the hardware root, the rest are sysfs files.

These files live: the model says what a configured port is like, a new tree shows what comes out of the box, tools
change that, and rendering again (``settle``) changes only what the model says otherwise than before. So a fault of
one value leaves all that the node was given since. Copied to each node beside its tools: stands alone, Python 3.11.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from typing import Any

STATE = "/sys/kernel/busbar-lab"
RENDERED = f"{STATE}/rendered.json"
WRITES = f"{STATE}/writes"
RULES = f"{STATE}/rules.json"
NETDEVS = f"{STATE}/netdevs.json"
LLDP = f"{STATE}/lldp.json"
LLDPAD = 3127  # its process id, where it runs
SYSCTLS = ("arp_ignore", "arp_announce", "rp_filter", "accept_local")

STRICT, ETS, VENDOR = 0, 2, 255
MAX_CABLE = 1000
MAX_MTU = 9978
BUFFER = 4151520


class Refused(Exception):
    """Driver or firmware says no. ``errno``: as the kernel numbers it."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.errno = number


class Port:
    """What comes out of the box.

    pfc: mask of priorities.   cable: metres.   bounces: of the link.
    apps: the kernel's entries [dscp, priority], the newest first.   table: the priority that the firmware has for each.
    manual: the buffers were set by hand, else ``buffers`` makes them.   dcbx: "os" or "firmware".
    ecn_np, ecn_rp: masks of priorities.   traffic_class: forced on all queue pairs, None for none.
    tos: of rdma_cm.   stale_mtu: an active_mtu that has not followed the netdev.
    sends, receives: priority that the data has had, for the counters of `ethtool -S`.

    No dataclass: importing that module takes a third of a tool's call.
    """

    def __init__(self, **values: Any) -> None:
        """Raises TypeError for a value that a port does not have."""
        self.pfc = 0
        self.cable = 7
        self.apps: list[list[int]] = []
        self.table = [dscp >> 3 for dscp in range(64)]
        self.prio_tc = [1, 0, 2, 3, 4, 5, 6, 7]
        self.tsa = [VENDOR] * 8
        self.bw = [0] * 8
        self.manual = False
        self.prio_buffer = [0] * 8
        self.buffer_size = [0] * 8
        self.dcbx = "os"
        self.rx_pause = True
        self.tx_pause = True
        self.bounces = 0
        self.tos = 0
        self.stale_mtu: int | None = None
        self.sends = 0
        self.receives = 0
        self.ecn_np = 0xFF
        self.ecn_rp = 0xFF
        self.cnp_dscp = 48
        self.cnp_prio = 6
        self.traffic_class: int | None = None
        if strange := values.keys() - vars(self).keys():
            raise TypeError(f"a port has no {', '.join(sorted(strange))}")
        vars(self).update(values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Port) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def trust(self) -> str:
        """There is no such setting: trust follows from the entries (mlx5/core/en_dcbnl.c)."""
        return "dscp" if self.apps else "pcp"

    def set_pfc(self, mask: int, cable: int) -> None:
        """A mask that differs bounces the link; the same does nothing. A length out of range is dropped silently."""
        self._owned()
        if mask != self.pfc:
            # One register (PFCC) holds PFC and global pause: who writes last has it.
            self.pfc, self.bounces = mask, self.bounces + 1
            self.rx_pause = self.tx_pause = False
        if 0 < cable < MAX_CABLE:
            self.cable = cable

    def set_pause(self, autoneg: bool, rx: bool, tx: bool) -> None:
        if autoneg:
            raise Refused(errno.EINVAL)
        self.rx_pause, self.tx_pause = rx, tx
        if (rx or tx) and self.pfc:
            self.pfc, self.bounces = 0, self.bounces + 1

    def set_app(self, dscp: int, prio: int) -> None:
        """The first entry makes the port trust DSCP. An older one of the same DSCP is replaced: there is no EEXIST."""
        self._owned()
        if not (0 <= dscp < 64 and 0 <= prio < 8):
            raise Refused(errno.EINVAL)
        self.apps = [[dscp, prio], *(entry for entry in self.apps if entry[0] != dscp)]
        self.table[dscp] = prio

    def del_app(self, dscp: int, prio: int) -> None:
        """The firmware has priority 0 for it then. Without its last entry the port trusts PCP."""
        self._owned()
        if [dscp, prio] not in self.apps:
            raise Refused(errno.ENOENT)
        self.apps.remove([dscp, prio])
        self.table[dscp] = 0

    def set_ets(self, prio_tc: list[int], tsa: list[int], bw: list[int]) -> None:
        self._owned()
        shares = [share for kind, share in zip(tsa, bw, strict=True) if kind == ETS]
        if any(tc > 7 for tc in prio_tc) or (shares and sum(shares) != 100):
            raise Refused(errno.EINVAL)
        self.prio_tc, self.tsa, self.bw = list(prio_tc), list(tsa), list(bw)

    def set_buffers(self, prio_buffer: list[int], buffer_size: list[int]) -> None:
        if sum(buffer_size) > BUFFER or any(number > 7 for number in prio_buffer):
            raise Refused(errno.EINVAL)
        self.manual, self.prio_buffer, self.buffer_size = True, list(prio_buffer), list(buffer_size)

    def buffers(self, mtu: int, mbps: int) -> tuple[list[int], list[int]]:
        """Buffer of each priority and bytes of each buffer; by MTU, cable and PFC while nobody has set them."""
        if self.manual:
            return self.prio_buffer, self.buffer_size
        lossy = -(-(2 * mtu + 1024) // 96) * 96
        # Room for what is under way when a pause is sent: the cable both ways at 5 ns a metre, and two frames each way.
        lossless = -(-(mbps * self.cable * 10 // 8000 + 4 * mtu) // 96) * 96 + lossy
        sizes = [lossy, lossless if self.pfc else lossy] + [0] * 6
        return [self.pfc >> prio & 1 for prio in range(8)], sizes

    def driver_load(self) -> None:
        """ETS and cable length are reset; trust, mapping and PFC are read back (mlx5/core/en_dcbnl.c)."""
        new, trusted = Port(), self.trust == "dscp"
        self.prio_tc, self.tsa, self.bw = new.prio_tc, new.tsa, new.bw
        self.cable, self.manual = new.cable, False
        self.apps = [[dscp, self.table[dscp]] for dscp in reversed(range(64))] if trusted else []
        self.ecn_np, self.ecn_rp, self.cnp_dscp, self.cnp_prio = new.ecn_np, new.ecn_rp, new.cnp_dscp, new.cnp_prio
        self.traffic_class, self.stale_mtu = None, None

    def _owned(self) -> None:
        """mlx5 takes the write, and the switch's next LLDP frame undoes it. Here it fails at once, so that it shows."""
        if self.dcbx == "firmware":
            raise Refused(errno.EINVAL)


def configured(dscp: int = 26, priority: int = 3, tos: int = 106) -> Port:
    """A port as a RoCE site has it: DSCP trusted, PFC on one priority, no global pause."""
    port = Port(rx_pause=False, tx_pause=False, pfc=1 << priority, tos=tos, traffic_class=tos)
    for number, default in enumerate(Port().table):
        port.set_app(number, priority if number == dscp else default)
    port.sends = port.receives = priority
    return port


def active_mtu(mtu: int) -> int:
    """What RoCE uses on a netdev of this MTU: the largest of the five that leaves 96 bytes (iboe_get_mtu)."""
    return max((size for size in (256, 512, 1024, 2048, 4096) if size <= mtu - 96), default=256)


# -- files -----------------------------------------------------------------------------------------------------------

# Files of their own, so not in the JSON beside them.
_IN_FILES = ("ecn_np", "ecn_rp", "cnp_dscp", "cnp_prio", "traffic_class", "tos")


def state(port: Port) -> str:
    """The JSON of what only tools show."""
    return json.dumps({key: value for key, value in vars(port).items() if key not in _IN_FILES}) + "\n"


def state_path(address: str) -> str:
    return f"{STATE}/qos/{address}.json"


def statistics_path(address: str) -> str:
    """JSON of what the model adds to `ethtool -S` of the port with this PCI address."""
    return f"{STATE}/statistics/{address}.json"


def ecn_files(port: Port) -> dict[str, str]:
    """Below the netdev's directory, with the driver of OFED (its en_sysfs.c)."""
    files = {
        "roce_np/cnp_dscp": f"{port.cnp_dscp}\n",
        "roce_np/cnp_802p_prio": f"{port.cnp_prio}\n",
        "roce_np/min_time_between_cnps": "4\n",
    }
    for role, mask in (("np", port.ecn_np), ("rp", port.ecn_rp)):
        files |= {f"roce_{role}/enable/{prio}": f"{mask >> prio & 1}\n" for prio in range(8)}
    return {f"ecn/{name}": text for name, text in files.items()}


def cc_params(port: Port) -> dict[str, str]:
    """The same of the kernel's own driver, in debugfs."""
    values = {"np_cnp_dscp": port.cnp_dscp, "np_cnp_prio_mode": 0, "np_cnp_prio": port.cnp_prio}
    return {name: f"{value}\n" for name, value in {**values, "np_min_time_between_cnps": 4}.items()}


def traffic_class(port: Port) -> str:
    """tc/1/traffic_class of an RDMA device. A tool that writes a number there finds the number: it is a plain file."""
    return "" if port.traffic_class is None else f"Global tclass={port.traffic_class}\n"


def tos_path(rdma: str) -> str:
    """A directory of an RDMA device is there once somebody has made it: here somebody has."""
    return f"/sys/kernel/config/rdma_cm/{rdma}/ports/1/default_roce_tos"


def settle(files: dict[str, str], live: Mapping[str, tuple[str, str]], root: str) -> None:
    """Put into ``files``, where the model's texts are, those that the live ones are to have.

    live: path -> what it is, whatever names and slots its device has, and its text out of the box; for each file of
    ``files`` that lives. A root that has none shows the latter. What is gone comes back as it went.
    """
    before = _rendered(root)
    if not live and before is None:
        return
    notes: dict[str, dict[str, Any]] = {}
    for path, (key, fresh) in live.items():
        note = notes[key] = {"path": path, "model": files[path], "fresh": fresh, "saved": {}}
        old = (before or {}).get(key)
        there = _there(root, old) if old else None
        if before is None:
            files[path] = fresh
        elif old and there is not None:
            files[path] = _follow(path, there, old, note)
    for key in (before or {}).keys() - notes.keys():
        old = (before or {})[key]
        notes[key] = {**old, "gone": _there(root, old)}
    files[RENDERED] = json.dumps(notes, sort_keys=True) + "\n"


def _there(root: str, note: Mapping[str, Any]) -> Any:
    return note["gone"] if "gone" in note else _text(root + note["path"])


def _follow(path: str, there: str, before: Mapping[str, Any], note: dict[str, Any]) -> str:
    """``there`` with what the model says otherwise now: of JSON files values, of others the whole.

    What it takes away comes back with the model's old value, unless somebody has changed it since.
    """
    parse = json.loads if path.endswith(".json") else lambda text: {"": text}
    current, was, shall = parse(there), parse(before["model"]), parse(note["model"])
    saved = note["saved"] = dict(before["saved"])
    for key in was.keys() | shall.keys():
        # A key that is not there is [].
        old, new, value = ([one[key]] if key in one else [] for one in (was, shall, current))
        if old == new:
            continue
        if key in saved and saved[key][0] == new:
            _, had = saved.pop(key)
            value = had if value == old else value
        else:
            saved.setdefault(key, [old, value])
            value = new
        if value:
            current[key] = value[0]
        else:
            current.pop(key, None)
    return json.dumps(current) + "\n" if path.endswith(".json") else str(current.get("", ""))


def reboot(root: str) -> None:
    """It is lost (README of nic-configuration-operator); only the owner of DCBX is in the card's configuration."""
    for path, fresh in _present(root).items():
        if path.startswith(f"{STATE}/qos/"):
            fresh = json.dumps({**json.loads(fresh), "dcbx": load(root, path).dcbx}) + "\n"
        # What a card keeps in its flash is not lost: firmware_tools.spend.
        if path != WRITES and not path.startswith(f"{STATE}/firmware/"):
            replace(root + path, fresh)


def driver_load(root: str, netdev: str = "") -> None:
    """As after mlx5_core was loaded again, for all ports or one netdev's: ``driver_load``, and sysfs out of the box."""
    address = os.path.basename(os.path.realpath(f"{root}/sys/class/net/{netdev}/device")) if netdev else ""
    for path, fresh in _present(root).items():
        # In configfs a device goes by its name.
        device = f"{root}/sys/class/infiniband/{path.split('/')[5]}/device" if "/rdma_cm/" in path else ""
        if address not in (os.path.realpath(device) if device else path):
            continue
        if path.startswith(f"{STATE}/qos/"):
            port = load(root, path)
            port.driver_load()
            replace(root + path, state(port))
        elif device or "/ecn/" in path or path.endswith("/traffic_class"):
            replace(root + path, fresh)


def _present(root: str) -> dict[str, str]:
    """Path -> text out of the box, of the live files there are."""
    notes = (_rendered(root) or {}).values()
    return {note["path"]: note["fresh"] for note in notes if "gone" not in note}


def find(root: str, netdev: str) -> str:
    """The JSON file of a port. Raises Refused: no such device, or one without DCB (VF, InfiniBand)."""
    device = f"{root}/sys/class/net/{netdev}"
    if not os.path.exists(device):
        raise Refused(errno.ENODEV)
    path = state_path(os.path.basename(os.path.realpath(f"{device}/device")))
    if not os.path.exists(root + path):
        raise Refused(errno.EOPNOTSUPP)
    return path


def load(root: str, path: str) -> Port:
    """The state in a JSON file; what sysfs shows is not in it."""
    data: dict[str, Any] = json.loads(_text(root + path) or "{}")
    return Port(**data)


def save(root: str, path: str, port: Port, netdev: str) -> None:
    """With the link's bounces on the netdev's own count of changes of its carrier."""
    more = port.bounces - load(root, path).bounces
    replace(root + path, state(port))
    if more:
        changes = f"/sys/class/net/{netdev}/carrier_changes"
        replace(root + changes, f"{int(_text(root + changes) or 0) + 2 * more}\n")


def shown(root: str, netdev: str, file: str) -> int:
    """A number of the netdev's directory; 0 where it shows none."""
    return int(_text(f"{root}/sys/class/net/{netdev}/{file}") or 0)


def note_write(root: str, *words: str) -> None:
    """Into the log of calls that are to change something."""
    with open(root + WRITES, "a", encoding="utf-8") as log:
        log.write(" ".join(words) + "\n")


def writes(root: str) -> list[str]:
    """Command lines of every call that was to change something, oldest first."""
    return (_text(root + WRITES) or "").splitlines()


def _rendered(root: str) -> dict[str, dict[str, Any]] | None:
    """What a file is -> how it was rendered: path, model's text, that out of the box, what the model has taken away.

    gone: the text of one whose device is not there.
    """
    found: dict[str, dict[str, Any]] | None = json.loads(_text(root + RENDERED) or "null")
    return found


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def replace(path: str, text: str) -> None:
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(path + ".new", path)
