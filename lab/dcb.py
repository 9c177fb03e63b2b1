# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kernel's side of DCB for the real `dcb` of iproute2, which so judges the lab's ports and everybody's parsers.

No process can serve AF_NETLINK, and no emulated NIC has DCB. So the tool runs traced, with a netlink socket of the
real kernel; only its DCB messages (RTM_GETDCB, RTM_SETDCB) do not get there: ``answer`` does what the kernel would,
and the tool receives that. Needs ptrace on x86_64, and neither preloading, a compiler nor a network device.
Message layout: the kernel's uapi dcbnl.h; errors and their places: iproute2's dcb/dcb.c, the kernel's net/dcb/dcbnl.c.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Callable, Iterator, Sequence

from . import qos
from .qos import Refused

_GET, _SET = 78, 79  # RTM_GETDCB, RTM_SETDCB
_ERROR = 2  # NLMSG_ERROR
_ACK = 4  # NLM_F_ACK
_IEEE_SET, _IEEE_GET, _GDCBX, _SDCBX, _IEEE_DEL = 20, 21, 22, 23, 27
_IFNAME, _IEEE, _DCBX = 1, 13, 14
_ETS, _PFC, _APPS, _MAXRATE, _BUFFER = 1, 2, 3, 7, 10
_APP = 1
_NAMED = {_ETS: "ets", _PFC: "pfc", _APPS: "app", _BUFFER: "buffer"}
_NESTED_BITS = 0x3FFF
_HOST, _LLD, _CEE, _VER_IEEE = 1, 2, 4, 8
DSCP_SELECTOR = 5


# -- messages --------------------------------------------------------------------------------------------------------


def answer(root: str, message: bytes) -> bytes:
    """The kernel's reply to one netlink message with a DCB request, for the ports below a hardware root."""
    _, _, _, sequence, _ = struct.unpack_from("=IHHII", message)
    command = message[17]
    attributes = dict(_parse(message[20:]))
    netdev = attributes.get(_IFNAME, b"").split(b"\0")[0].decode()
    try:
        path = qos.find(root, netdev)
    except Refused as refused:
        return _message(_ERROR, sequence, struct.pack("=i", -refused.errno) + message[:16])
    head, name = struct.pack("=BBH", 0, command, 0), _attribute(_IFNAME, netdev.encode() + b"\0")
    if command == _IEEE_GET:
        return _message(
            _GET, sequence, head + name + _attribute(_IEEE, _tables(root, path, netdev)) + _dcbx(root, path)
        )
    if command == _GDCBX:
        return _message(_GET, sequence, head + name + _dcbx(root, path))
    if command == _SDCBX:
        result = _attribute(_DCBX, bytes([_set_dcbx(root, path, netdev, attributes.get(_DCBX, b"\0")[0])]))
    elif command in (_IEEE_SET, _IEEE_DEL):
        # How it went is a byte of the reply, not an error (net/dcb/dcbnl.c).
        number = _change(root, path, netdev, command, dict(_parse(attributes.get(_IEEE, b""))))
        result = _attribute(_IEEE, bytes([-number & 0xFF]))
    else:
        return _message(_ERROR, sequence, struct.pack("=i", -errno.EOPNOTSUPP) + message[:16])
    return _message(_SET, sequence, head + result)


def _parse(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind & _NESTED_BITS, data[4:length]
        data = data[max(4, -(-length // 4) * 4) :]


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _message(kind: int, sequence: int, payload: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, 0, sequence, 0) + payload


def _dcbx(root: str, path: str) -> bytes:
    host = _HOST if qos.load(root, path).dcbx == "os" else 0
    return _attribute(_DCBX, bytes([host | _CEE | _VER_IEEE]))


def _tables(root: str, path: str, netdev: str) -> bytes:
    port = qos.load(root, path)
    ets = bytes([0, 8, 0, *port.bw, *[0] * 8, *port.tsa, *port.prio_tc, *[0] * 24])
    pfc = struct.pack("=BBBxH2x", 8, port.pfc, 0, port.cable) + bytes(128)
    apps = b"".join(_attribute(_APP, struct.pack("=BBH", DSCP_SELECTOR, prio, dscp)) for dscp, prio in port.apps)
    prio_buffer, sizes = port.buffers(qos.shown(root, netdev, "mtu"), qos.shown(root, netdev, "speed"))
    buffers = bytes(prio_buffer) + struct.pack("=9I", *sizes, qos.BUFFER)
    tables = ((_ETS, ets), (_MAXRATE, bytes(64)), (_BUFFER, buffers), (_PFC, pfc), (_APPS, apps))
    return b"".join(_attribute(kind, data) for kind, data in tables)


def _set_dcbx(root: str, path: str, netdev: str, mode: int) -> int:
    """0, or 1 for a mode that mlx5 does not have."""
    if mode & _LLD or (mode and not mode & _HOST):
        return 1
    qos.note_write(root, "dcb", netdev, "dcbx")
    port = qos.load(root, path)
    port.set_dcbx("os" if mode else "firmware")
    qos.save(root, path, port, netdev)
    return 0


def _change(root: str, path: str, netdev: str, command: int, tables: dict[int, bytes]) -> int:
    """0 or the error. As in the kernel, what came before the one that fails has been done."""
    port = qos.load(root, path)
    qos.note_write(root, "dcb", netdev, *(_NAMED.get(kind, str(kind)) for kind in tables))
    try:
        if command == _IEEE_SET and _ETS in tables:
            ets = tables[_ETS]
            port.set_ets(list(ets[27:35]), list(ets[19:27]), list(ets[3:11]))
        if command == _IEEE_SET and _PFC in tables:
            _, mask, _, cable = struct.unpack_from("=BBBxH", tables[_PFC])
            port.set_pfc(mask, cable)
        if command == _IEEE_SET and _BUFFER in tables:
            buffer = tables[_BUFFER]
            port.set_buffers(list(buffer[:8]), list(struct.unpack_from("=8I", buffer, 8)))
        for _, data in _parse(tables.get(_APPS, b"")):
            selector, prio, protocol = struct.unpack_from("=BBH", data)
            if selector != DSCP_SELECTOR:
                raise Refused(errno.EINVAL)
            (port.set_app if command == _IEEE_SET else port.del_app)(protocol, prio)
    except Refused as refused:
        return refused.errno
    finally:
        qos.save(root, path, port, netdev)
    return 0


# -- the traced tool -------------------------------------------------------------------------------------------------

_TRACEME, _CONT_SYSCALL, _GETREGS, _SETREGS, _SETOPTIONS = 0, 24, 12, 13, 0x4200
_OPTIONS = 0x1 | 0x100000  # system calls are told from signals, and the tool does not outlive us
_STOPPED = signal.SIGTRAP | 0x80
_SOCKET, _SENDTO, _SENDMSG, _RECVFROM, _RECVMSG, _CLOSE = 41, 44, 46, 45, 47, 3
_AF_NETLINK, _MSG_PEEK, _MSG_TRUNC = 16, 0x2, 0x20
_SKIP = (1 << 64) - 1
_ADDRESS = struct.pack("=HHII", _AF_NETLINK, 0, 0, 0)  # the kernel's


_NAMES = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
)


class _Registers(ctypes.Structure):
    """user_regs_struct of x86_64."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in _NAMES]


class Endpoint:
    """One run of a tool. ``reply``: what the kernel says to a message with a DCB request."""

    def __init__(self, reply: Callable[[bytes], bytes]) -> None:
        self.reply = reply
        self.sockets: set[int] = set()
        self.waiting: dict[int, list[bytes]] = {}
        libc = ctypes.CDLL(None, use_errno=True)
        self._ptrace = libc.ptrace
        self._ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._ptrace.restype = ctypes.c_long

    def run(self, argv: Sequence[str]) -> int:
        """Exit code, as a shell has it. Raises OSError where the tool cannot be traced."""
        pid = os.fork()
        if pid == 0:
            try:
                self._trace(_TRACEME, 0)
                os.execv(argv[0], list(argv))
            finally:
                os._exit(127)
        _, status = os.waitpid(pid, 0)
        if os.WIFSTOPPED(status):
            self._trace(_SETOPTIONS, pid, _OPTIONS)
            with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
                status = self._serve(pid, memory.fileno())
        return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def _trace(self, request: int, pid: int, data: int = 0, registers: _Registers | None = None) -> None:
        pointer = ctypes.byref(registers) if registers else ctypes.c_void_p(data)
        if self._ptrace(request, pid, None, pointer) == -1:
            number = ctypes.get_errno()
            raise OSError(number, f"ptrace: {os.strerror(number)}")

    def _serve(self, pid: int, memory: int) -> int:
        """Until the tool ends; its wait status. Every system call stops twice: before it, and after it."""
        entering, result, sent = True, None, 0
        registers = _Registers()
        while True:
            self._trace(_CONT_SYSCALL, pid, sent)
            _, status = os.waitpid(pid, 0)
            if not os.WIFSTOPPED(status):
                return status
            sent = 0 if os.WSTOPSIG(status) == _STOPPED else os.WSTOPSIG(status)
            if sent:
                continue
            self._trace(_GETREGS, pid, registers=registers)
            if entering:
                result = self._enter(memory, registers)
                if result is not None:
                    registers.orig_rax = _SKIP
                    self._trace(_SETREGS, pid, registers=registers)
            elif result is not None:
                registers.rax = result
                self._trace(_SETREGS, pid, registers=registers)
            elif registers.orig_rax == _SOCKET and registers.rdi == _AF_NETLINK and registers.rdx == 0:
                self.sockets.add(registers.rax)
            entering = not entering

    def _enter(self, memory: int, registers: _Registers) -> int | None:
        """The result of a system call that is not to be made, None for one that is."""
        call, descriptor = registers.orig_rax, registers.rdi
        if descriptor not in self.sockets:
            return None
        if call == _CLOSE:
            self.sockets.discard(descriptor)
        elif call in (_SENDTO, _SENDMSG):
            if call == _SENDTO:
                message = os.pread(memory, registers.rdx, registers.rsi)
            else:
                message = b"".join(os.pread(memory, size, at) for at, size in _vectors(memory, registers.rsi))
            if len(message) >= 20 and struct.unpack_from("=H", message, 4)[0] in (_GET, _SET):
                # What was not read goes, which the kernel would keep: 6.1 leaves each acknowledgement for its next
                # request, and takes it for that one's, or for an error where the second has changed.
                self.waiting[descriptor] = _replies(message, self.reply(message))
                return len(message)
        elif call == _RECVMSG and self.waiting.get(descriptor):
            return self._receive(memory, registers)
        return None

    def _receive(self, memory: int, registers: _Registers) -> int:
        reply, header = self.waiting[registers.rdi][0], registers.rsi
        if not registers.rdx & _MSG_PEEK:
            del self.waiting[registers.rdi][0]
        left = reply
        for at, size in _vectors(memory, header):
            os.pwrite(memory, left[:size], at)
            left = left[size:]
        name = struct.unpack("=Q", os.pread(memory, 8, header))[0]
        if name:
            os.pwrite(memory, _ADDRESS, name)
            os.pwrite(memory, struct.pack("=I", len(_ADDRESS)), header + 8)
        os.pwrite(memory, struct.pack("=Q", 0), header + 40)  # no ancillary data
        os.pwrite(memory, struct.pack("=I", _MSG_TRUNC if left else 0), header + 48)
        return len(reply) if not left or registers.rdx & _MSG_TRUNC else len(reply) - len(left)


def _replies(message: bytes, reply: bytes) -> list[bytes]:
    """With what netlink says behind a reply that is no error, where asked to: Debian 13's iproute2 waits for it."""
    flags, sequence = struct.unpack_from("=HI", message, 6)
    if not flags & _ACK or struct.unpack_from("=H", reply, 4)[0] == _ERROR:
        return [reply]
    return [reply, _message(_ERROR, sequence, struct.pack("=i", 0) + message[:16])]


def _vectors(memory: int, header: int) -> list[tuple[int, int]]:
    """Address and size of each part of a struct msghdr."""
    first, count = struct.unpack("=QQ", os.pread(memory, 16, header + 16))
    data = os.pread(memory, 16 * count, first)
    return [struct.unpack_from("=QQ", data, 16 * number) for number in range(count)]
