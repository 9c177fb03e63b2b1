# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""mlnx_qos on a simulated node: its options, and what it prints. What fails late has done the earlier part."""

from __future__ import annotations

import getopt
import os
from collections.abc import Callable

from .. import qos
from ..qos import ETS, STRICT, VENDOR, Port, Refused
from .roce_program import Stop

_DCBX = {"os": "os", "fw": "firmware"}
_TSA = {"strict": STRICT, "ets": ETS, "vendor": VENDOR}
# Those without a letter first.
_LONG = ("trust", "cable_len", "prio2buffer", "buffer_size", "dscp2prio", "pfc", "prio_tc", "tsa", "tcbw", "dcbx")
_SHORT = {"f": "pfc", "p": "prio_tc", "s": "tsa", "t": "tcbw", "d": "dcbx", "i": "interface"}
_SETTERS = ("pfc", "prio_tc", "tsa", "tcbw", "trust", "cable_len", "dscp2prio", "prio2buffer", "buffer_size")
_NO_PORT = (
    "Priority trust state is not supported on your system\nBuffers commands are not supported on your system\n"
    "Rate limit is not supported on your system!\nETS features are not supported on your system"
)


def mlnx_qos(system: str, root: str, arguments: list[str]) -> int:
    """Raises getopt.GetoptError and Stop."""
    letters, names = "".join(f"{letter}:" for letter in _SHORT) + "a", [f"{name}=" for name in (*_LONG, "interface")]
    options: dict[str, str] = {}
    entries: list[str] = []
    for word, value in getopt.getopt(arguments, letters, names)[0]:
        name = _SHORT.get(word[1:], word.lstrip("-"))
        options[name] = value
        entries += [value] if name == "dscp2prio" else []
    netdev = options.get("interface", "")
    if os.path.exists(f"{root}/proc/{qos.LLDPAD}/comm"):
        print("****** WARNING: lldpad service is running and may overwrite your settings ******\n")
    wanted = [name for name in _SETTERS if name in options]
    if wanted or options.get("dcbx") in _DCBX:
        qos.note_write(root, "mlnx_qos", netdev, *(wanted or ["dcbx"]))
    try:
        path = qos.find(root, netdev)
    except Refused:
        print(_NO_PORT)
        return 1
    port = qos.load(root, path)
    mtu, speed = (qos.shown(root, netdev, file) for file in ("mtu", "speed"))
    before = qos.state(port)
    if "trust" in options and entries:
        raise Stop(1, "trust and dscp2prio commands cannot be used at the same time.")
    try:
        if options.get("dcbx") in _DCBX:
            port.dcbx = _DCBX[options["dcbx"]]
        for step in (_pfc, _trust, _ets):
            step(port, options)
        for entry in entries:
            _entry(port, entry)
        if "prio2buffer" in options or "buffer_size" in options:
            values = map(list, port.buffers(mtu, speed))
            port.set_buffers(
                *(_eight(options.get(name, ""), old) for name, old in zip(_LONG[2:4], values, strict=True))
            )
    except Refused as refused:
        raise Stop(1, "Netlink error: Bad value. see dmesg.") from refused
    except ValueError as error:
        raise Stop(1, f"Bad value: {error}") from error
    finally:
        if qos.state(port) != before:
            qos.save(root, path, port, netdev)
    _print(port, *port.buffers(mtu, speed))
    return 0


def _eight(text: str, old: list[int], kind: Callable[[str], int] = int) -> list[int]:
    """Return the eight numbers of an option, the old ones for "". Raises ValueError."""
    found = [kind(item) for item in text.split(",")] if text else old
    if len(found) != 8:
        raise ValueError("the list must have 8 items")
    return found


def _pfc(port: Port, options: dict[str, str]) -> None:
    if "cable_len" in options:
        port.set_pfc(port.pfc, int(options["cable_len"]))
    if "pfc" in options:
        port.set_pfc(sum(bool(bit) << prio for prio, bit in enumerate(_eight(options["pfc"], []))), port.cable)


def _trust(port: Port, options: dict[str, str]) -> None:
    if options.get("trust") == "dscp" and port.trust != "dscp":
        for dscp in range(64):
            port.set_app(dscp, dscp >> 3)
    elif options.get("trust") == "pcp":
        for dscp, prio in list(port.apps):
            port.del_app(dscp, prio)


def _entry(port: Port, entry: str) -> None:
    """Set or delete a DSCP: set,26,3."""
    if entry == "flush":
        for dscp, prio in list(port.apps):
            port.del_app(dscp, prio)
        return
    action, dscp_, prio_ = entry.split(",")
    (port.set_app if action == "set" else port.del_app)(int(dscp_), int(prio_))


def _ets(port: Port, options: dict[str, str]) -> None:
    if options.keys() & {"tsa", "tcbw", "prio_tc"}:
        tsa = _eight(options.get("tsa", ""), port.tsa, lambda name: _TSA[name])
        port.set_ets(_eight(options.get("prio_tc", ""), port.prio_tc), tsa, _eight(options.get("tcbw", ""), port.bw))


def _print(port: Port, prio_buffer: list[int], sizes: list[int]) -> None:
    print(f"DCBX mode: {'OS' if port.dcbx == 'os' else 'Firmware'} controlled")
    print(f"Priority trust state: {port.trust}")
    if port.trust == "dscp":
        print("dscp2prio mapping:")
        for prio in range(8):
            values = [f"{dscp:02}," for dscp, its in port.apps if its == prio]
            for start in range(0, len(values), 8):
                print(f"\tprio:{prio} dscp:{''.join(values[start : start + 8])}")
    print(f"Receive buffer size (bytes): {''.join(f'{size},' for size in sizes)}max_buffer_size={qos.BUFFER}")
    print(f"Cable len: {port.cable}\nPFC configuration:")
    enabled = [port.pfc >> prio & 1 for prio in range(8)]
    for name, numbers in {"priority": range(8), "enabled": enabled, "buffer": prio_buffer}.items():
        line = f"\t{name:<12}{''.join(f'{number:<4}' for number in numbers)}"
        print(line.rstrip() if name == "priority" else line)
    for tc in sorted(set(port.prio_tc)):
        kind = next((name for name, number in _TSA.items() if number == port.tsa[tc]), "unknown")
        share = f", bw: {port.bw[tc]}%" if kind == "ets" else ""
        print(f"tc: {tc} ratelimit: unlimited, tsa: {kind}{share}")
        for prio in [prio for prio, its in enumerate(port.prio_tc) if its == tc]:
            print(f"\t priority:  {prio}")
