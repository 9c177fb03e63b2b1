# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""mlnx_qos on a simulated node: its options, order of work, words and exit codes (host.md 1.2, 1.3)."""

from __future__ import annotations

import functools
import json
import optparse
import os
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from .. import qos
from ..qos import ETS, STRICT, VENDOR, Port, Refused
from .roce_program import Stop


class Layout(NamedTuple):
    """How a version prints (host.md 1.3), or a page shows it.

    wrap: a priority's line ends after eight values.   buffers: what follows their sizes, None for no buffer lines.
    one_by_one: it has --specific_pfc and --get_pfc.
    """

    indent: str = "\t"
    wrap: bool = True
    default_priority: bool = False
    buffers: str | None = "max_buffer_size=%d"
    sorted: bool = True
    one_by_one: bool = True


LAYOUTS = {
    "new": Layout(),
    "pasted": Layout(indent=" " * 8, buffers=""),
    "ofed-23.10": Layout(default_priority=True, one_by_one=False),
    "total-size": Layout(buffers="total_size=%d", one_by_one=False),
    "old": Layout(wrap=False, buffers=None, sorted=False, one_by_one=False),
}
_TSA = {"strict": STRICT, "ets": ETS, "vendor": VENDOR}


def mlnx_qos(root: str, arguments: list[str]) -> int:
    with open(root + qos.NODE, encoding="utf-8") as stream:
        layout = LAYOUTS[json.load(stream)["mlnx_qos"]]
    parser = _qos_parser(layout)
    options, more = parser.parse_args(arguments)
    if more or options.i is None:
        print("Bad arguments" if more else "Interface name is required")
        parser.print_usage()
        return 1
    if _lldpad(root):
        print("****** WARNING: lldpad service is running and may overwrite your settings ******\n")
    return _Qos(root, options, parser, layout).run()


def _qos_parser(layout: Layout) -> optparse.OptionParser:
    parser = optparse.OptionParser("%prog -i <interface> [options]", prog="mlnx_qos", version="%prog 1.2")
    texts = {
        "--pfc": ("-f", "PFC of each priority: 0 or 1, eight of them"),
        "--specific_pfc": ("-F", "the same, x for one that stays; prints nothing"),
        "--get_pfc": ("-P", "print PFC of one priority"),
        "--prio_tc": ("-p", "TC of each priority"),
        "--tsa": ("-s", "strict, ets or vendor for each TC"),
        "--tcbw": ("-t", "percent for each TC that is ets, 0 for others"),
        "--ratelimit": ("-r", "Gbps for each TC, 0 for no limit"),
        "--dcbx": ("-d", "os, fw or get"),
        "--trust": (None, "pcp or dscp"),
        "--cable_len": (None, "metres"),
        "--prio2buffer": (None, "receive buffer of each priority"),
        "--buffer_size": (None, "bytes of each receive buffer"),
        "--interface": ("-i", "name of the interface"),
    }
    for option, (short, text) in texts.items():
        if layout.one_by_one or short not in ("-F", "-P"):
            names = [short, option] if short else [option]
            parser.add_option(*names, dest="i" if short == "-i" else option[2:], help=f"{text} (simulated)")
    parser.add_option("--dscp2prio", action="append", help="set,DSCP,PRIO or del,DSCP,PRIO or flush (simulated)")
    parser.add_option("-a", action="store_true", help="nothing, as in the real one")
    return parser


class _Qos:
    """One call. What it does comes in the real one's order, so what fails late has done the earlier part."""

    def __init__(self, root: str, options: Any, parser: optparse.OptionParser, layout: Layout) -> None:
        self.root, self.options, self.parser, self.layout = root, options, parser, layout
        self.netdev: str = options.i
        self.port = Port()
        self.refused: Refused | None = None
        try:
            self.path = qos.find(root, self.netdev)
            self.port = qos.load(root, self.path)
        except Refused as refused:
            self.refused = refused
        setters = ("pfc", "specific_pfc", "prio_tc", "tsa", "tcbw", "ratelimit", "trust", "cable_len", "dscp2prio")
        asked = [name for name in (*setters, "prio2buffer", "buffer_size") if getattr(options, name, None)]
        if asked or options.dcbx in ("os", "fw"):
            qos.note_write(root, "mlnx_qos", self.netdev, *(asked or ["dcbx"]))

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
        self.parser.print_usage()
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
        mode = self.options.dcbx
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
            if options.cable_len:
                self._do(port.set_pfc, port.pfc, self._int(options.cable_len, 0xFFFF, "cable_len"))
            if getattr(options, "get_pfc", None):
                self._do(lambda: None)
                number = int(options.get_pfc)
                if not 0 <= number < 8:
                    print("pfc index must be in range of 0-7")
                    return 1
                print(port.pfc >> number & 1)
                raise SystemExit(0)
            if getattr(options, "specific_pfc", None):
                items = options.specific_pfc.split(",")
                if len(items) != 8:
                    print("pfc list must have 8 items")
                    return 1
                for item in items:
                    if item not in ("x", "0", "1"):
                        print(f"Bad value for 'PFC': {item}")
                        return 1
                bits = [port.pfc >> prio & 1 if item == "x" else int(item) for prio, item in enumerate(items)]
                self._do(port.set_pfc, sum(bit << prio for prio, bit in enumerate(bits)), port.cable)
                raise SystemExit(0)
            if options.pfc:
                bits = self._eight(options.pfc, 1, "PFC", "pfc", "PFC")
                self._do(port.set_pfc, sum(bit << prio for prio, bit in enumerate(bits)), port.cable)
        except Refused as refused:
            return self._unhandled(refused)
        return 0

    def _dscp(self) -> int:
        options, port = self.options, self.port
        if options.dscp2prio and options.trust:
            print("trust and dscp2prio commands cannot be used at the same time.")
            return 1
        changes: list[Callable[[], None]] = []
        for word in options.dscp2prio or []:
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
        wanted, port = self.options.trust, self.port
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
        options, port = self.options, self.port
        if self.refused:
            print("Buffers commands are not supported on your system")
            if options.prio2buffer or options.buffer_size:
                return 1
        elif options.prio2buffer or options.buffer_size:
            self._set_buffers()
        if options.ratelimit:
            items = options.ratelimit.split(",")
            rate = [self._int(item, 1000000, "ratelimit") * 1000 * 1000 for item in items[:8]]
            if len(items) != 8:
                print("Too many items for ratelimit" if len(items) > 8 else "ratelimit must have 8 items")
                return 1
            try:
                self._do(port.set_rate, rate)
            except Refused:
                print("Rate limit is not supported on your system!")
        if self.refused:
            print("Rate limit is not supported on your system!")
            print("ETS features are not supported on your system")
            return 1
        return self._ets()

    def _set_buffers(self) -> None:
        prio_buffer, size = map(list, self._buffers())
        for name, values, most in (("prio2buffer", prio_buffer, 7), ("buffer_size", size, 1 << 32)):
            items = (getattr(self.options, name) or "").split(",") if getattr(self.options, name) else []
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
        if options.tsa:
            names = options.tsa.split(",")
            for name in names[:8]:
                if name not in _TSA:
                    self._usage(str(("Bad TSA value: ", name)))
            if len(names) != 8:
                print("Too many items for TSA" if len(names) > 8 else "tsa list must have 8 items")
                return 1
            tsa = [_TSA[name] for name in names]
        if options.tcbw:
            bw = self._eight(options.tcbw, 100, "ETS BW", "tcbw", "ETS BW")
            if any(share and kind != ETS for share, kind in zip(bw, tsa, strict=True)):
                self._usage("ETS BW for a strict/vendor TC must be 0")
        if options.prio_tc:
            prio_tc = self._eight(options.prio_tc, 7, "UP => TC mapping", "prio_tc", "UP => TC mapping")
        if options.tsa or options.tcbw or options.prio_tc:
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
            rate = f"{port.rate[tc] / 1e6:.1f} Gbps" if port.rate[tc] else "unlimited"
            kind = next((name for name, number in _TSA.items() if number == port.tsa[tc]), "unknown")
            share = f", bw: {port.bw[tc]}%" if kind == "ets" else ""
            print(f"tc: {tc} ratelimit: {rate}, tsa: {kind}{share}")
            for prio in [prio for prio, its in enumerate(port.prio_tc) if its == tc]:
                print(f"{layout.indent} priority:  {prio}")


def _lldpad(root: str) -> bool:
    return os.path.exists(f"{root}/proc/{qos.LLDPAD}/comm")
