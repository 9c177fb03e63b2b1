# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find, parse and write the registers of the PCIe path: ACS of bridges, and the maximum read request of NICs.

Both are words in config space, each found by its capability. Only their own bits are changed.
Sources: PCI Express Base Specification 7.5.3.4 (Device Control), 7.7.11 (ACS); sysfs-bus-pci.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Callable, List, NamedTuple, Optional, Set, Tuple

from ..change import apply
from ..core.host import Host, ParseError, Problem, ReadError, attempt
from ..core.plan import Command, Plan
from ..machine import pci
from ..machine.profile import READ_REQUESTS

CONFIG_SIZE = 4096

# Bits of the ACS control word, by the names that lspci gives them.
ACS_BITS = (
    ("SrcValid", 0x01),
    ("TransBlk", 0x02),
    ("ReqRedir", 0x04),
    ("CmpltRedir", 0x08),
    ("UpstreamFwd", 0x10),
    ("EgressCtrl", 0x20),
    ("DirectTrans", 0x40),
)
REDIRECT = 0x1C  # ReqRedir, CmpltRedir, UpstreamFwd

# SrcValid redirects nothing, but nothing needs it where no ACS is wanted, and tests of others take it for ACS.
CLEARED = REDIRECT | 0x01
READ_REQUEST = 0x7000  # bits of the device control word that hold n of a largest read request of 128 bytes << n
_ACS_ID, _EXPRESS_ID = 0x000D, 0x10
_SILENT = "reads as all ones: the device does not respond"


class Register(NamedTuple):
    """A 16-bit word of config space. offset: in bytes.   word: its value.   text: what it says, as lspci has it."""

    offset: int
    word: int
    text: str


class Function(NamedTuple):
    """A bridge or a NIC.

    address: its PCI address. label: subject of its findings. identity: vendor and device, the first four bytes of its
    config space in hexadecimal, "" where these could not be read.
    register: of a bridge its ACS control, None where it has none; of a NIC its device control.
    problem: why the register is not known; "" where it is.
    """

    address: str
    label: str
    identity: str = ""
    register: Optional[Register] = None
    problem: str = ""


@dataclass(frozen=True)
class Write(Command):
    """A write of some bits of a 16-bit word in the config space of a function: ``write`` below does it.

    argv: the setpci command that would do the same, for people to read; it is never run.
    address: of the function. offset: of the word, in bytes.
    mask: the bits that change.   value: what these bits shall be, in their places in the word.
    """

    address: str = ""
    offset: int = 0
    mask: int = 0
    value: int = 0

    @classmethod
    def to_register(cls, address: str, register: str, offset: int, mask: int, value: int) -> Write:
        """Return the write. register: setpci's name of the word. The rest is as in Write."""
        argv = ("setpci", "-s", address, "%s=%04x:%04x" % (register, value, mask))
        return cls(argv=argv, why="set a PCIe register", address=address, offset=offset, mask=mask, value=value)


def parse_acs(config: bytes) -> Optional[Register]:
    """Return the ACS control of a function from its config space, None without ACS.

    Raises ParseError if these are not all of its 4096 bytes, as for users who are not root, or if they are invalid.
    """
    _check_length(config, CONFIG_SIZE)
    at = _find(config, 0x100, 0x100, _ACS_ID, _extended)
    if at is None:
        return None
    if at + 8 > CONFIG_SIZE:
        raise ParseError("the ACS capability at 0x%03x leaves config space" % at)
    word = _number(config, at + 6)
    return Register(at + 6, word, acs_text(word))


def acs_text(word: int, of: int = 0x7F) -> str:
    """Return a control word as lspci has it.   of: the bits that are named."""
    return " ".join(name + ("+" if word & bit else "-") for name, bit in ACS_BITS if of & bit)


def parse_device_control(config: bytes) -> Register:
    """The device control of the function whose config space this is, of which 256 bytes suffice.

    Raises ParseError where fewer bytes are given, where these make no sense, and where it is not PCI Express.
    """
    _check_length(config, 256)
    begin = config[0x34] & 0xFC if _number(config, 0x06) & 0x10 else 0
    at = _find(config, begin, 0x40, _EXPRESS_ID, lambda config, at: (config[at], config[at + 1] & 0xFC))
    if at is None:
        raise ParseError("has no PCI Express capability")
    word = _number(config, at + 8)
    read_request, payload = word >> 12 & 7, word >> 5 & 7
    if max(read_request, payload) >= len(READ_REQUESTS):
        raise ParseError("device control 0x%04x names a size that PCI Express does not have" % word)
    return Register(at + 8, word, "%d bytes (max payload %d)" % (READ_REQUESTS[read_request], READ_REQUESTS[payload]))


def _find(
    config: bytes, at: int, least: int, wanted: int, header: Callable[[bytes, int], Tuple[int, int]]
) -> Optional[int]:
    """Return where a capability is; None without it. header: returns the id at a place, and the next place; 0 ends."""
    seen: Set[int] = set()
    while at:
        if at < least or at in seen:
            raise ParseError("the list of capabilities leads to 0x%02x, where none can be" % at)
        seen.add(at)
        found, following = header(config, at)
        if found == wanted:
            return at
        at = following
    return None


def _extended(config: bytes, at: int) -> Tuple[int, int]:
    header = _number(config, at, 4)
    if header == 0xFFFFFFFF:
        raise ParseError("0x%03x reads as all ones: the device does not respond" % at)
    return header & 0xFFFF, header >> 20 & 0xFFC


def _check_length(config: bytes, needed: int) -> None:
    """Raises ParseError where fewer bytes than needed are there, or where the device does not respond.

    The kernel shows 64 bytes to users who are not root; a device without extended config space has only 256 bytes.
    """
    if len(config) < needed:
        way_out = "it needs root" if len(config) < 256 else "look for MMCONFIG in dmesg"
        raise ParseError("only %d of %d bytes can be read: %s" % (len(config), needed, way_out))
    if config[:4] == b"\xff" * 4:
        raise ParseError(_SILENT)


def _number(config: bytes, offset: int, size: int = 2) -> int:
    return int.from_bytes(config[offset : offset + size], "little")


def config_path(address: str) -> str:
    """The file in which sysfs has the config space of the function with this PCI address."""
    return "%s/%s/config" % (pci.DEVICES, address)


def read_function(host: Host, address: str, label: str, parse: Callable[[bytes], Optional[Register]]) -> Function:
    """The function with its register, or with the problem that kept it from being read. parse: of its config space."""

    def step() -> Function:
        config = read_config(host, address)
        return Function(address, label, config[:4].hex(), parse(config))

    problems: List[Problem] = []
    return attempt(step, address, problems) or Function(address, label, problem=problems[0].message)


def read_config(host: Host, address: str) -> bytes:
    """Return the config space of one function: 4096 bytes, less for users who are not root. Raises ReadError."""
    path = config_path(address)
    try:
        # Opening a pipe in its place would wait for ever without O_NONBLOCK.
        with open(os.open(host.hardware(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ReadError(path, "is not a regular file")
            return stream.read(CONFIG_SIZE)
    except OSError as error:
        raise ReadError(path, "cannot be read: %s" % error.strerror) from error


def execute(host: Host, planned: Plan) -> List[str]:
    """Make the changes of a plan: registers, then files and other commands. Return the paths of backups.

    Raises ReadError at the first that fails.
    """
    for command in planned.commands:
        if isinstance(command, Write):
            write(host, command)
    others = tuple(command for command in planned.commands if not isinstance(command, Write))
    return apply.execute(host, planned._replace(commands=others))


def write(host: Host, change: Write) -> None:
    """Reads the word of ``change``, changes its bits and writes it back. Raises ReadError, which names the file."""
    path = config_path(change.address)
    try:
        with open(host.hardware(path), "r+b", buffering=0) as stream:
            stream.seek(change.offset)
            word = _number(stream.read(2), 0)
            if word == 0xFFFF:
                raise ReadError(path, _SILENT)
            stream.seek(change.offset)
            stream.write((word & ~change.mask | change.value).to_bytes(2, "little"))
    except OSError as error:
        raise ReadError(path, "cannot be written: %s" % error.strerror) from error


def encode_size(size: int) -> int:
    """A size of READ_REQUESTS as the bits of READ_REQUEST have it; 0 for none."""
    return READ_REQUESTS.index(size) << 12 if size else 0
