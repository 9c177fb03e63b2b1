# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""mlnx_qos on a simulated node: its options, order of work, words and exit codes (host.md 1.2, 1.3)."""

from __future__ import annotations

import functools
import getopt
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from .. import qos
from ..qos import ETS, STRICT, VENDOR, Port, Refused
from .roce_program import Stop


class Layout(NamedTuple):
    """How a version prints (host.md 1.3), or a page shows it.

    wrap: a priority's line ends after eight values.   buffers: what follows their sizes, None for no buffer lines.
    """

    indent: str = "\t"
    wrap: bool = True
    default_priority: bool = False
    buffers: str | None = "max_buffer_size=%d"
    sorted: bool = True


LAYOUTS = {
    "new": Layout(),
    "pasted": Layout(indent=" " * 8, buffers=""),
    "ofed-23.10": Layout(default_priority=True),
    "total-size": Layout(buffers="total_size=%d"),
    "old": Layout(wrap=False, buffers=None, sorted=False),
}
_TSA = {"strict": STRICT, "ets": ETS, "vendor": VENDOR}


# Option -> field; those without a letter first.
_LONG = ("trust", "cable_len", "prio2buffer", "buffer_size", "dscp2prio", "pfc", "prio_tc", "tsa", "tcbw", "dcbx")
_SHORT = {"f": "pfc", "p": "prio_tc", "s": "tsa", "t": "tcbw", "d": "dcbx", "i": "interface"}
_USAGE = "Usage: mlnx_qos -i <interface> [options]\n"


def mlnx_qos(system: str, root: str, arguments: list[str]) -> int:
    with open(root + qos.NODE, encoding="utf-8") as stream:
        layout = LAYOUTS[json.load(stream)["mlnx_qos"]]
    options: dict[str, Any] = {}
    try:
        given, more = getopt.gnu_getopt(arguments, "".join(f"{letter}:" for letter in _SHORT) + "a",
                                        [f"{name}=" for name in (*_LONG, "interface")])  # fmt: skip
    except getopt.GetoptError as error:
        word = f"-{error.opt}" if len(error.opt) == 1 else f"--{error.opt}"
        raise Stop(2, f"{_USAGE}", f"mlnx_qos: error: no such option: {word}") from error
    for word, value in given:
        name = _SHORT.get(word[1:], word.lstrip("-"))
        options[name] = [*options.get(name, []), value] if name == "dscp2prio" else value
    if more or "interface" not in options:
        print("Bad arguments" if more else "Interface name is required")
        print(_USAGE)
        return 1
    if _lldpad(root):
        print("****** WARNING: lldpad service is running and may overwrite your settings ******\n")
    return _Qos(root, options, layout).run()


class _Qos:
    """One call. What it does comes in the real one's order, so what fails late has done the earlier part."""

    def __init__(self, root: str, options: dict[str, Any], layout: Layout) -> None:
        self.root, self.options, self.layout = root, options, layout
        self.netdev: str = options["interface"]
        self.port = Port()
        self.refused: Refused | None = None
        try:
            self.path = qos.find(root, self.netdev)
            self.port = qos.load(root, self.path)
        except Refused as refused:
            self.refused = refused
        setters = ("pfc", "prio_tc", "tsa", "tcbw", "trust", "cable_len", "dscp2prio", "prio2buffer", "buffer_size")
        wanted = [name for name in setters if options.get(name)]
        if wanted or options.get("dcbx") in ("os", "fw"):
            qos.note_write(root, "mlnx_qos", self.netdev, *(wanted or ["dcbx"]))

    def run(self) -> int:
        before = qos.state(self.port)
        try:
            return self._dcbx() or self._pfc() or self._dscp() or self._trust() or self._rest()
        except SystemExit as end:
            return int(str(end.code))
        finally:
            if self.refused is None and qos.state(self.port) != before:
                qos.save(self.root, self.path, self.port, self.netdev)

    def _do(self, change: Callable[..., None], *values: Any) -> None:
        """Raises Refused, also where there is no port."""
        if self.refused:
            raise self.refused
        change(*values)

    def _unhandled(self, refused: Refused) -> int:
        """Here the real one fails while it puts its own message together."""
        raise Stop(
            1,
            "Traceback (most recent call last):",
            f"OSError: {refused if self.refused else 'Netlink error: Bad value. see dmesg.'}",
            'TypeError: can only concatenate str (not "OSError") to str',
        )

    def _usage(self, message: str) -> NoReturn:
        print(message)
        print(_USAGE)
        raise SystemExit(1)

    def _int(self, text: str, most: int, what: str) -> int:
        try:
            number = int(text)
        except ValueError as error:
            self._usage(f"Bad value for {what}: {error}")
        if not 0 <= number <= most:
            self._usage(f"Bad value for {what}: {number} is not in the range 0..{most}")
        return number

    def _eight(self, text: str, most: int, what: str, name: str, many: str) -> list[int]:
        items = text.split(",")
        numbers = [self._int(item, most, what) for item in items[:8]]
        if len(items) != 8:
            print(f"Too many items for {many}" if len(items) > 8 else f"{name} list must have 8 items")
            raise SystemExit(1)
        return numbers

    def _dcbx(self) -> int:
        mode = self.options.get("dcbx")
        if mode in ("os", "fw"):
            try:
                self._do(self.port.set_dcbx, "os" if mode == "os" else "firmware")
            except Refused as refused:
                return self._unhandled(refused)
        elif mode not in (None, "get"):
            print("Invalid dcbx mode command. Refer to the help.")
            return 1
        return 0

    def _pfc(self) -> int:
        options, port = self.options, self.port
        try:
            if options.get("cable_len"):
                self._do(port.set_pfc, port.pfc, self._int(options["cable_len"], 0xFFFF, "cable_len"))
            if options.get("pfc"):
                bits = self._eight(options["pfc"], 1, "PFC", "pfc", "PFC")
                self._do(port.set_pfc, sum(bit << prio for prio, bit in enumerate(bits)), port.cable)
        except Refused as refused:
            return self._unhandled(refused)
        return 0

    def _dscp(self) -> int:
        options, port = self.options, self.port
        if options.get("dscp2prio") and options.get("trust"):
            print("trust and dscp2prio commands cannot be used at the same time.")
            return 1
        changes: list[Callable[[], None]] = []
        for word in options.get("dscp2prio", ()):
            if word == "flush":
                changes += [functools.partial(self._do, port.del_app, *entry) for entry in port.apps]
                continue
            try:
                action, dscp, prio = (kind(part) for kind, part in zip((str, int, int), word.split(","), strict=True))
            except ValueError as error:
                # So does the real one: its handler asks this error for an errno.
                raise Stop(
                    1, "Traceback (most recent call last):", f"ValueError: {error}",
                    "AttributeError: 'ValueError' object has no attribute 'errno'",
                ) from error  # fmt: skip
            if action not in ("set", "del") or int(dscp) > 63 or int(prio) > 7:
                return 1
            changes.append(functools.partial(self._do, port.set_app if action == "set" else port.del_app, dscp, prio))
        try:
            for change in changes:
                change()
        except Refused:
            print("dscp2prio command failed")
            return 1
        return 0

    def _trust(self) -> int:
        wanted, port = self.options.get("trust"), self.port
        if wanted not in (None, "dscp", "pcp"):
            print("Invalid trust state command. Refer to the help.")
            return 1
        try:
            self._do(lambda: None)
            if wanted == "dscp" and port.trust != "dscp":
                for dscp in range(64):
                    port.set_app(dscp, dscp >> 3)
            elif wanted == "pcp":
                for dscp, prio in list(port.apps):
                    port.del_app(dscp, prio)
        except Refused:
            print("Priority trust state is not supported on your system")
            return 1 if wanted else 0
        return 0

    def _rest(self) -> int:
        options = self.options
        if self.refused:
            print("Buffers commands are not supported on your system")
            if options.get("prio2buffer") or options.get("buffer_size"):
                return 1
        elif options.get("prio2buffer") or options.get("buffer_size"):
            self._set_buffers()
        if self.refused:
            print("Rate limit is not supported on your system!")
            print("ETS features are not supported on your system")
            return 1
        return self._ets()

    def _set_buffers(self) -> None:
        prio_buffer, size = map(list, self._buffers())
        for name, values, most in (("prio2buffer", prio_buffer, 7), ("buffer_size", size, 1 << 32)):
            items = self.options[name].split(",") if self.options.get(name) else []
            if len(items) > 8:
                print(f"Too many items for {name}")
                raise SystemExit(1)
            values[: len(items)] = [self._int(item, most, "prio buffer") for item in items]
        try:
            self._do(self.port.set_buffers, prio_buffer, size)
        except Refused:
            print("Buffers commands error")
            raise SystemExit(1) from None

    def _buffers(self) -> tuple[list[int], list[int]]:
        return self.port.buffers(*(qos.shown(self.root, self.netdev, file) for file in ("mtu", "speed")))

    def _ets(self) -> int:
        options, port = self.options, self.port
        prio_tc, tsa, bw = list(port.prio_tc), list(port.tsa), list(port.bw)
        if options.get("tsa"):
            names = options["tsa"].split(",")
            for name in names[:8]:
                if name not in _TSA:
                    self._usage(str(("Bad TSA value: ", name)))
            if len(names) != 8:
                print("Too many items for TSA" if len(names) > 8 else "tsa list must have 8 items")
                return 1
            tsa = [_TSA[name] for name in names]
        if options.get("tcbw"):
            bw = self._eight(options["tcbw"], 100, "ETS BW", "tcbw", "ETS BW")
            if any(share and kind != ETS for share, kind in zip(bw, tsa, strict=True)):
                self._usage("ETS BW for a strict/vendor TC must be 0")
        if options.get("prio_tc"):
            prio_tc = self._eight(options["prio_tc"], 7, "UP => TC mapping", "prio_tc", "UP => TC mapping")
        if options.get("tsa") or options.get("tcbw") or options.get("prio_tc"):
            try:
                self._do(port.set_ets, prio_tc, tsa, bw)
            except Refused:
                print("Netlink error: Bad value. see dmesg.")
                return 1
        self._print()
        return 0

    def _print(self) -> None:
        port, layout = self.port, self.layout
        print(f"DCBX mode: {'OS' if port.dcbx == 'os' else 'Firmware'} controlled")
        print(f"Priority trust state: {port.trust}")
        if port.trust == "dscp":
            print("dscp2prio mapping:")
            for prio in range(8):
                values = [f"{dscp:02}," for dscp, its in port.apps if its == prio]
                step = 8 if layout.wrap else 64
                for start in range(0, len(values), step):
                    print(f"{layout.indent}prio:{prio} dscp:{''.join(values[start : start + step])}")
        if layout.default_priority:
            print("default priority:")
        prio_buffer, sizes = self._buffers()
        if layout.buffers is not None:
            total = layout.buffers % qos.BUFFER if layout.buffers else ""
            print(f"Receive buffer size (bytes): {''.join(f'{size},' for size in sizes)}{total}")
        print(f"Cable len: {port.cable}")
        print("PFC configuration:")
        rows = {"priority": range(8), "enabled": [port.pfc >> prio & 1 for prio in range(8)]}
        if layout.buffers is not None:
            rows["buffer"] = prio_buffer
        for name, numbers in rows.items():
            line = f"{layout.indent}{name:<12}{''.join(f'{number:<4}' for number in numbers)}"
            print(line.rstrip() if name == "priority" else line)
        tcs = list(dict.fromkeys(port.prio_tc))
        for tc in sorted(tcs) if layout.sorted else tcs:
            kind = next((name for name, number in _TSA.items() if number == port.tsa[tc]), "unknown")
            share = f", bw: {port.bw[tc]}%" if kind == "ets" else ""
            print(f"tc: {tc} ratelimit: unlimited, tsa: {kind}{share}")
            for prio in [prio for prio, its in enumerate(port.prio_tc) if its == tc]:
                print(f"{layout.indent} priority:  {prio}")


def _lldpad(root: str) -> bool:
    return os.path.exists(f"{root}/proc/{qos.LLDPAD}/comm")
