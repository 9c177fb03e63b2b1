# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""dcb of iproute2 6.1 on a simulated node: the objects that a RoCE port is set up with, in the form that -j prints.

Outputs, errors and exit codes are those of the real dcb, which was run on the same ports (tests/golden/lab_roce.json).
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Sequence

from .. import qos
from ..qos import ETS, STRICT, VENDOR, Port, Refused
from .roce_program import Stop

_TSA = {"strict": STRICT, "ets": ETS, "vendor": VENDOR}


def dcb(system: str, root: str, arguments: list[str]) -> int:
    """Raises Stop."""
    kind, command, _, netdev, *words = (*(word for word in arguments if word != "-j"), "", "", "", "")
    if kind not in _SHOW:
        raise Stop(1, f'Object "{kind}" is unknown')
    reads = command == "show" or kind not in ("app", "dcbx")
    try:
        path = qos.find(root, netdev)
    except Refused as refused:
        raise Stop(1, f"Attribute {'read' if reads else 'write'}: {refused}") from refused
    port = qos.load(root, path)
    mtu, speed = (qos.shown(root, netdev, file) for file in ("mtu", "speed"))
    if command == "show":
        shown = _SHOW[kind](port, *port.buffers(mtu, speed))
        print(json.dumps(shown, separators=(",", ":")))
        return 0
    changes = _changes(port, kind, command, [word for word in words if word], *port.buffers(mtu, speed))
    try:
        for change in changes:
            qos.note_write(root, "dcb", netdev, kind)
            change()
    except Refused as refused:
        replaced = ["Could not remove replaced APP entries"] if command == "replace" else []
        raise Stop(0 if replaced else 1, f"Attribute write: {refused}", *replaced) from refused
    finally:
        qos.save(root, path, port, netdev)
    return 0


def _ets(port: Port, *_buffers: list[int]) -> dict[str, object]:
    names = {number: name for name, number in _TSA.items()}
    zeros = [0] * 8
    shown = {"willing": False, "ets_cap": 8, "cbs": False, "tc_bw": port.bw, "pg_bw": zeros}
    shown |= {"tc_tsa": [names[number] for number in port.tsa], "prio_tc": port.prio_tc}
    return {**shown, "reco_tc_bw": zeros, "reco_tc_tsa": ["strict"] * 8, "reco_prio_tc": zeros}


_SHOW: dict[str, Callable[..., dict[str, object]]] = {
    "app": lambda port, *_buffers: {"dscp_prio": sorted(port.apps)} if port.apps else {},
    "buffer": lambda port, prios, sizes: {"prio_buffer": prios, "buffer_size": sizes, "total_size": qos.BUFFER},
    "dcbx": lambda port, *_buffers: {**({"host": True} if port.dcbx == "os" else {}), "cee": True, "ieee": True},
    "ets": _ets,
    "pfc": lambda port, *_buffers: {
        "pfc_cap": 8,
        "macsec_bypass": False,
        "delay": port.cable,
        "prio_pfc": [bool(port.pfc >> prio & 1) for prio in range(8)],
    },
}


def _changes(
    port: Port, kind: str, command: str, words: list[str], prios: list[int], sizes: list[int]
) -> list[Callable[[], None]]:
    """Return what each message of a command does; the driver refuses some."""
    if kind == "dcbx":
        if "host" not in words:
            raise Stop(1, "Attribute write: Unknown error -1")
        return [lambda: port.set_dcbx("os")]
    given: dict[str, list[str]] = {}
    for word in words:
        if ":" in word or word.isdigit():
            given[[*given][-1]].append(word)
        else:
            given[word] = []
    if kind == "app":
        return _app(port, command, given)
    if kind == "pfc":
        mask = _eight(given.get("prio-pfc", ()), [port.pfc >> prio & 1 for prio in range(8)], {"on": 1, "off": 0})
        cable = int(given.get("delay", [str(port.cable)])[0])
        return [lambda: port.set_pfc(sum(bit << prio for prio, bit in enumerate(mask)), cable)]
    if kind == "buffer":
        values = _eight(given.get("prio-buffer", ()), prios), _eight(given.get("buffer-size", ()), sizes)
        return [lambda: port.set_buffers(*values)]
    prio_tc, tsa = _eight(given.get("prio-tc", ()), port.prio_tc), _eight(given.get("tc-tsa", ()), port.tsa, _TSA)
    shares = _eight(given.get("tc-bw", ()), port.bw)
    if given.get("tc-bw") and sum(shares) not in (0, 100):
        raise Stop(1, f"Bandwidth percentages in tc-bw sum to {sum(shares)}%, expected 100%")
    return [lambda: port.set_ets(prio_tc, tsa, shares)]


def _eight(pairs: Sequence[str], old: list[int], names: dict[str, int] | None = None) -> list[int]:
    """Return the old values with those of pairs in their places: 3:on, all:off."""
    found = list(old)
    for place, _, word in (pair.partition(":") for pair in pairs):
        value = names[word] if names else int(word)
        for number in range(8) if place == "all" else [int(place)]:
            found[number] = value
    return found


def _refuse() -> None:
    raise Refused(errno.EINVAL)


def _app(port: Port, command: str, given: dict[str, list[str]]) -> list[Callable[[], None]]:
    """Return the changes of entries; the driver has none but those of DSCP."""
    if given.keys() - {"dscp-prio"}:
        return [_refuse]
    entries = [[int(number) for number in pair.split(":")] for pair in given.get("dscp-prio", ())]
    new = {entry[0]: entry[1] for entry in entries}
    if command == "flush":
        entries = list(port.apps)
    old = [entry for entry in port.apps if new.get(entry[0], entry[1]) != entry[1]] if command == "replace" else []
    change = port.set_app if command in ("add", "replace") else port.del_app
    steps = [(change, entries), (port.del_app, old)]
    return [lambda step=step: [step[0](*entry) for entry in step[1]] for step in steps if step[1]]  # type: ignore[misc]
