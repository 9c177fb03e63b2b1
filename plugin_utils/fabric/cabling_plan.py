# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The cabling plan: which port is connected to which by design, as a CSV file.

    a_node,a_port,z_node,z_port,rail
    0x506b4b0300a1b2c0,1,0x1070fd03009f2e40,7,3
    leaf03,33,spine01,3,

A node is a GUID or a name: a switch's name, or a host's, whose port is then its HCA (``mlx5_0``; ``mlx5_0/2`` is that
HCA's port 2). ``rail`` is the number of the host's rail; such a cable's ``a`` end is the host. Columns that may be
added: ``a_type,z_type`` (host or switch) and ``a_name,z_name``, the name of a node of which ``a_node`` is the GUID. See
docs/cabling.md.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.number import whole

from .. import results_folder

# 10,000 hosts of 8 rails, with their uplinks, are some 160,000 cables of less than 100 characters.
FILE_LIMIT = 64 << 20
CABLE_LIMIT, LINE_LIMIT = 400_000, 1_000_000
# Of one line of any file here: names are short. A NodeDescription has 64 bytes, a host's name 253 characters.
LENGTH_LIMIT, NAME_LIMIT = 1 << 16, 255
RAIL_LIMIT, PORT_LIMIT = 64, 254
HOST, SWITCH = "host", "switch"
REQUIRED = ("a_node", "a_port", "z_node", "z_port")
COLUMNS = (*REQUIRED, "rail", "a_type", "z_type", "a_name", "z_name")

# 0x, or ibnetdiscover's S- and H-, or the colons of /sys: one GUID, 16 hexadecimal digits.
_GUID = re.compile(r"(?:0x|[SHR]-)?([0-9a-f]{16})", re.IGNORECASE)
_COLONS = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}|[0-9a-f]{2}(?::[0-9a-f]{2}){7}", re.IGNORECASE)
# What a spreadsheet makes of 1/2 and of a GUID of digits: neither can be turned back.
_MONTH = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_SPREADSHEET = re.compile(rf"\d{{1,2}}-{_MONTH}(-\d+)?|{_MONTH}-\d\d|\d{{4}}-\d\d-\d\d( .*)?|\d[.,]?\d*E\+\d+")


class UnfitError(ValueError):
    """Nothing can be drafted. ``reasons``: why, and the remedy, a line each."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(reasons))


@dataclass(frozen=True)
class Cable:
    """Two ends that are connected by design.

    a_node, z_node: GUID (16 hexadecimal digits, lower case), or a name.   a_port, z_port: number, or a name.
    rail: of the host that ``a`` is, or None.   line: of the file, from 1; 0: of none.
    a_type, z_type: "host", "switch", or "".   a_name, z_name: or "".
    """

    a_node: str
    a_port: int | str
    z_node: str
    z_port: int | str
    rail: int | None = None
    line: int = 0
    a_type: str = ""
    z_type: str = ""
    a_name: str = ""
    z_name: str = ""

    @property
    def ends(self) -> tuple[tuple[str, int | str], tuple[str, int | str]]:
        return (self.a_node, self.a_port), (self.z_node, self.z_port)


@dataclass(frozen=True)
class Plan:
    """source: the file that the cables were read from, for messages."""

    cables: tuple[Cable, ...]
    source: str


def load(path: Path) -> Plan:
    """Return the plan in a file. Raises OSError; ParseError that names the file, the line and the remedy."""
    return read(read_text(path), str(path))


def read(text: str, source: str) -> Plan:
    """Return the plan in a CSV text. Raises ParseError that names the source, the line and the remedy."""
    cables: list[Cable] = []
    for line, row in _rows(text, source):
        where = f"{source}, line {line}"
        a, z = ((_node(row, where, f"{end}_node"), _port(row, where, f"{end}_port")) for end in "az")
        types = [row.get(f"{end}_type", "").lower() for end in "az"]
        names = [name(row.get(f"{end}_name", ""), where, f"{end}_name", needed=False) for end in "az"]
        for end, kind in zip("az", types, strict=True):
            if kind not in ("", HOST, SWITCH):
                raise ParseError(f"{where}: {end}_type is {printable(kind)[:40]!r}, expected host, switch or nothing")
        digits = row.get("rail", "")
        rail = whole(digits)
        if digits and (rail is None or rail >= RAIL_LIMIT):
            raise ParseError(f"{where}: rail is {printable(digits)[:40]!r}: a number from 0, or empty for other cables")
        if rail is not None and (types[0] or HOST, types[1] or SWITCH) != (HOST, SWITCH):
            raise ParseError(f"{where}: rail {rail}, but {a[0]} is not a host: a cable of a rail has its host as a")
        cables.append(Cable(*a, *z, rail, line, *types, *names))
        if len(cables) > CABLE_LIMIT:
            raise ParseError(f"{source}: more than {CABLE_LIMIT} cables, which no fabric has: is this the right file?")
    return checked(cables, source)


def checked(cables: Sequence[Cable], source: str) -> Plan:
    """Return a plan of these cables. Raises ParseError where there are none, or a port has two."""
    if not cables:
        raise ParseError(f"{source}: no cable in it; an empty plan would find every cable of the fabric wrong")
    taken: dict[tuple[str, int | str], Cable] = {}
    for cable in cables:
        where = f"{source}, line {cable.line}" if cable.line else source
        if cable.ends[0] == cable.ends[1]:
            raise ParseError(f"{where}: {end(*cable.ends[0])} is connected to itself; correct one end")
        for one in cable.ends:
            other = taken.setdefault(one, cable)
            if other is not cable:
                raise ParseError(f"{where}: {end(*one)} has another cable already (line {other.line}): correct one")
    return Plan(tuple(cables), source)


def write(plan: Plan) -> str:
    """Return the plan as CSV, which ``read`` reads again. Raises ParseError for a name that ``read`` refuses."""
    columns = [*COLUMNS[:5], *(one for one in COLUMNS[5:] if any(getattr(cable, one) for cable in plan.cables))]
    out = io.StringIO()
    # Not \r\n: the file is stored in version control.
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for cable in plan.cables:
        for one in (*REQUIRED, "a_name", "z_name"):
            name(str(getattr(cable, one)), plan.source, one, needed=not one.endswith("_name"))
        values = (getattr(cable, one) for one in columns)
        # A spreadsheet takes 1070000000000000 for a number and drops its last digit. None is an empty cell.
        writer.writerow([f"0x{value}" if isinstance(value, str) and is_guid(value) else value for value in values])
    return out.getvalue()


def is_guid(text: str) -> bool:
    """Return whether a node of a cable is a GUID."""
    return len(text) == 16 and not text.strip("0123456789abcdef")


def end(node: str, port: int | str) -> str:
    """Return one end of a cable for people: ``leaf03 port 7``, ``node001 mlx5_0``."""
    shown = f"0x{node}" if is_guid(node) else printable(node)
    return f"{shown} port {port}" if isinstance(port, int) else f"{shown} {printable(port)}"


# -- CSV ---------------------------------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    """Return the text of a file, UTF-8 with or without a byte order mark. Raises OSError, and ParseError for others."""
    if path.is_dir():
        raise ParseError(f"{path}: a directory; name the file in it")
    try:
        text = results_folder.content(path, FILE_LIMIT).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParseError(f'{path}: not UTF-8 text (byte {error.start}): export the sheet as "CSV UTF-8"') from error
    except ParseError as error:
        raise ParseError(f"{path}: {error}") from error
    if "\0" in text or text[:2] == "PK":
        raise ParseError(f'{path}: not text (a workbook, or it holds a zero byte): export each sheet as "CSV UTF-8"')
    return text


def _rows(text: str, source: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line and cells of each row of a CSV text, by column and without blanks around them.

    Commas, semicolons and tabulators separate, as in the header; empty lines and lines that begin with # are skipped.
    Raises ParseError, also for a header that lacks a required column or has an unknown one.
    """
    columns: list[str] = []
    separator = ","
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n", LINE_LIMIT)
    if len(lines) > LINE_LIMIT:
        raise ParseError(f"{source}: more than {LINE_LIMIT} lines: is this the right file?")
    for number, line in enumerate(lines, 1):
        where = f"{source}, line {number}"
        if len(line) > LENGTH_LIMIT:
            raise ParseError(f"{where}: {len(line)} characters: is this the right file?")
        if not line.strip() or line.strip()[0] == "#":
            continue
        separator = separator if columns else max(",;\t", key=line.count)
        try:
            read_lines = csv.reader([line], delimiter=separator, strict=True)
            cells = [cell.strip() for row in read_lines for cell in row]
        except csv.Error as error:
            raise ParseError(f"{where}: {error}: quotes have to match, within one line") from error
        if not columns:
            # A spreadsheet ends lines of which one was longer with empty cells.
            columns = [
                cell.lower().replace("-", "_").replace(" ", "_") for cell in ",".join(cells).rstrip(",").split(",")
            ]
            _check_header(columns, where)
        elif any(cells[len(columns) :]) or (any(cells) and len(cells) < len(REQUIRED)):
            what = f"{len(cells)} cells, but the header has {len(columns)} columns"
            raise ParseError(f"{where}: {what}: quote a cell that holds {separator!r}")
        elif any(cells):
            yield number, dict(zip(columns, cells + [""] * len(columns), strict=False))
    if not columns:
        raise ParseError(f"{source}: empty; its first line has to be {','.join(REQUIRED)}")


def _check_header(columns: Sequence[str], where: str) -> None:
    for wrong, reason in (
        (sorted(set(REQUIRED).difference(columns)), "the header lacks"),
        ([one for one in columns if one not in COLUMNS], "unknown column"),
        ([one for one in COLUMNS if columns.count(one) > 1], "the header has twice"),
    ):
        if wrong:
            shown = printable(", ".join(wrong))[:120]
            raise ParseError(f"{where}: {reason} {shown}; columns are {', '.join(COLUMNS)}")


def name(text: str, where: str, column: str, needed: bool = True) -> str:
    """Return a cell that is a name. Raises ParseError for what cannot be the name of a device."""
    shown = printable(text)[:80]
    for wrong, reason in (
        (needed and not text, "is empty; every cable has two nodes and two ports"),
        (len(text) > NAME_LIMIT, f"has {len(text)} characters, more than any device's name"),
        (not text.isprintable(), f"is {shown!r}: take out what is not a visible character"),
        (text[:1] == "#", f"is {shown!r}, but # begins a comment: use the node's GUID"),
        (text[:1] in ("=", "+", "-", "@"), f"is a formula, {shown!r}: export values, not formulas"),
        (
            _SPREADSHEET.fullmatch(text),
            f"is {shown!r}, which a spreadsheet made of another text: format the column as text, and enter it again",
        ),
    ):
        if wrong:
            raise ParseError(f"{where}: {column} {reason}")
    return text


def _node(row: Mapping[str, str], where: str, column: str) -> str:
    text = row[column]
    found = _GUID.fullmatch(text)
    digits = found.group(1).lower() if found else text.replace(":", "").lower() if _COLONS.fullmatch(text) else ""
    if digits and not digits.strip("0"):
        raise ParseError(f"{where}: {column} is the GUID 0, which no node has")
    return digits or name(text, where, column)


def _port(row: Mapping[str, str], where: str, column: str) -> int | str:
    text = row[column]
    if not text.isascii() or not text.isdecimal():
        return name(text, where, column)
    number = whole(text)
    if number is None or not 1 <= number <= PORT_LIMIT:
        raise ParseError(f"{where}: {column} is {text[:20]}: ports of a cable have numbers from 1 to {PORT_LIMIT}")
    return number
