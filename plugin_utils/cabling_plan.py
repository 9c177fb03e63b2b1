# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The cabling plan: which port is meant to be connected to which, as a CSV file that a person has committed.

    a_node,a_port,z_node,z_port,rail
    0x506b4b0300a1b2c0,1,0x1070fd03009f2e40,7,3
    leaf03,33,spine01,3,

A node is a GUID or a name: a switch's name, or a host's, whose port is then its HCA (``mlx5_0``; ``mlx5_0/2`` is that
HCA's port 2). ``rail`` is the number of the host's rail; such a cable's ``a`` end is the host. Columns that may be
added: ``a_type,z_type`` (host or switch) and ``a_name,z_name``, what people and Slurm call a node of which ``a_node``
is the GUID. docs/cabling.md says more.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.number import whole
from ansible_collections.busbar.fabric.plugins.plugin_utils import results_folder

# 10,000 hosts of 8 rails, with their uplinks, are some 160,000 cables of less than 100 characters.
FILE_LIMIT = 64 << 20
CABLE_LIMIT = 400_000
LINE_LIMIT = 1_000_000
# Of one line of any file here: names are short.
LENGTH_LIMIT = 1 << 16
# A NodeDescription has 64 bytes, a host's name 253 characters.
NAME_LIMIT = 255
RAIL_LIMIT = 64
PORT_LIMIT = 254
_MOST_REASONS = 20
HOST, SWITCH = "host", "switch"
REQUIRED = ("a_node", "a_port", "z_node", "z_port")
COLUMNS = (*REQUIRED, "rail", "a_type", "z_type", "a_name", "z_name")

# 0x, or ibnetdiscover's S- and H-, or the colons of /sys: one GUID, 16 hexadecimal digits.
_GUID = re.compile(r"(?:0x|[SHR]-)?([0-9a-f]{16})", re.IGNORECASE)
_COLONS = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}|[0-9a-f]{2}(?::[0-9a-f]{2}){7}", re.IGNORECASE)
# What a spreadsheet makes of 1/2 and of a GUID of digits: neither can be turned back.
_MONTH = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DATE = re.compile(rf"\d{{1,2}}-{_MONTH}(-\d+)?|{_MONTH}-\d{{2}}|\d{{4}}-\d\d-\d\d( .*)?")
_FLOAT = re.compile(r"\d[.,]?\d*E\+\d+")
_FORMULA = ("=", "+", "-", "@")


class UnfitError(ValueError):
    """What was asked cannot be made of this. ``reasons``: what is in the way, and the way out, a line each."""

    def __init__(self, reasons: Sequence[str]) -> None:
        more = len(reasons) - _MOST_REASONS
        self.reasons = tuple(reasons[:_MOST_REASONS]) + ((f"and {more} more",) if more > 0 else ())
        super().__init__("; ".join(self.reasons))


@dataclass(frozen=True)
class Cable:
    """Two ends that are meant to be connected.

    a_node, z_node: GUID (16 hexadecimal digits, lower case), or a name.   a_port, z_port: number, or a name.
    rail: of the host that ``a`` is; None: not a cable of a rail.   line: of the file, from 1; 0: of none.
    a_type, z_type: "host", "switch", or "" where the plan does not say.   a_name, z_name: "" where there is none.
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
    """The plan in a file. Raises OSError; ParseError that names the file, the line and the way out."""
    return read(text_of(path), str(path))


def read(text: str, source: str) -> Plan:
    """The plan in a CSV text. Raises ParseError that names the source, the line and the way out."""
    cables: list[Cable] = []
    for line, row in rows(text, source, REQUIRED, COLUMNS):
        with_line = f"{source}, line {line}"
        nodes = [node(row[f"{end}_node"], with_line, f"{end}_node") for end in "az"]
        ports = [port(row[f"{end}_port"], with_line, f"{end}_port") for end in "az"]
        types = [_type(row.get(f"{end}_type", ""), with_line, f"{end}_type") for end in "az"]
        names = [name(row.get(f"{end}_name", ""), with_line, f"{end}_name", needed=False) for end in "az"]
        rail = _rail(row.get("rail", ""), with_line)
        if rail is not None and (types[0] or HOST, types[1] or SWITCH) != (HOST, SWITCH):
            raise ParseError(
                f"{with_line}: rail {rail}, but {nodes[0]} is not a host: a cable of a rail has its host as a"
            )
        cables.append(Cable(nodes[0], ports[0], nodes[1], ports[1], rail, line, types[0], types[1], names[0], names[1]))
        if len(cables) > CABLE_LIMIT:
            raise ParseError(f"{source}: more than {CABLE_LIMIT} cables, which no fabric has: is this the right file?")
    return checked(cables, source)


def checked(cables: Sequence[Cable], source: str) -> Plan:
    """A plan of these cables. Raises ParseError where there are none, or a port has two."""
    if not cables:
        raise ParseError(f"{source}: no cable in it; an empty plan would find every cable of the fabric wrong")
    taken: dict[tuple[str, int | str], Cable] = {}
    for cable in cables:
        if cable.ends[0] == cable.ends[1]:
            raise ParseError(f"{_place(source, cable)}: {end(*cable.ends[0])} is connected to itself; correct one end")
        for where in cable.ends:
            other = taken.setdefault(where, cable)
            if other is not cable:
                before = f"line {other.line}" if other.line else f"{end(*other.ends[0])} - {end(*other.ends[1])}"
                text = f"{end(*where)} has another cable already ({before}): a port takes one; remove or correct one"
                raise ParseError(f"{_place(source, cable)}: {text}")
    return Plan(tuple(cables), source)


def write(plan: Plan) -> str:
    """The plan as CSV, of which ``read`` makes the same plan, but for line numbers.

    Raises ParseError for a name that ``read`` refuses.
    """
    optional = [one for one in COLUMNS[5:] if any(getattr(cable, one) for cable in plan.cables)]
    columns = [*COLUMNS[:5], *optional]
    out = io.StringIO()
    # Not \r\n: the file is kept in version control.
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for cable in plan.cables:
        for one in ("a_node", "z_node", "a_port", "z_port", "a_name", "z_name"):
            name(str(getattr(cable, one)), plan.source, one, needed=not one.endswith("_name"))
        writer.writerow([_cell(getattr(cable, one)) for one in columns])
    return out.getvalue()


def _cell(value: int | str | None) -> str:
    if value is None:
        return ""
    # With 0x, since a spreadsheet takes 1070000000000000 for a number and forgets its last digit.
    return f"0x{value}" if isinstance(value, str) and is_guid(value) else str(value)


def is_guid(text: str) -> bool:
    """Whether a node's name, as ``node`` returns it, is a GUID."""
    return len(text) == 16 and all(char in "0123456789abcdef" for char in text)


def end(of: str, at: int | str) -> str:
    """One end of a cable, for people: ``leaf03 port 7``, ``node001 mlx5_0``."""
    shown = f"0x{of}" if is_guid(of) else printable(of)
    return f"{shown} port {at}" if isinstance(at, int) else f"{shown} {printable(at)}"


def text_of(path: Path, limit: int = FILE_LIMIT) -> str:
    """All of a file that a person has written or exported. Raises OSError; ParseError for what is not a text.

    limit: bytes.
    """
    if path.is_dir():
        raise ParseError(f"{path}: a directory; name the file in it")
    try:
        data = results_folder.content(path, limit)
    except ParseError as error:
        raise ParseError(f"{path}: {error}") from error
    return decoded(data, str(path))


def decoded(data: bytes, source: str) -> str:
    """UTF-8, with or without a byte order mark. Raises ParseError."""
    way_out = 'save it as "CSV UTF-8"'
    if data[:2] == b"PK":
        raise ParseError(f"{source}: an Excel workbook or another archive: export each sheet as CSV (docs/cabling.md)")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ParseError(f'{source}: UTF-16, as a spreadsheet\'s "Unicode text" is: {way_out}')
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParseError(f"{source}: not UTF-8 text (byte {error.start}): {way_out}") from error
    if "\0" in text:
        raise ParseError(f"{source}: not text (it holds a zero byte): {way_out}")
    return text


def rows(text: str, source: str, required: Sequence[str], known: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Each row of a CSV text with its line: column -> cell without blanks around it.

    Commas, semicolons and tabulators separate, as the header has them; empty lines and lines that begin with # are
    passed over. Raises ParseError for a header that lacks a required column or has an unknown one.
    """
    kept = [
        (number, line)
        for number, line in enumerate(lines_of(text, source), 1)
        if line.strip() and line.strip()[0] != "#"
    ]
    if not kept:
        raise ParseError(f"{source}: empty; its first line has to be {','.join(required)}")
    at, header = kept[0]
    separator = max(",;\t", key=header.count)
    columns = [
        cell.lower().replace("-", "_").replace(" ", "_") for cell in cells_of(header, separator, f"{source}, line {at}")
    ]
    while columns and not columns[-1]:
        columns.pop()  # as a spreadsheet ends lines of which one was longer
    _header(columns, f"{source}, line {at}", required, known)
    for number, line in kept[1:]:
        cells = cells_of(line, separator, f"{source}, line {number}")
        if not any(cells):
            continue
        if any(cells[len(columns) :]) or len(cells) < len(required):
            what = f"{len(cells)} cells, but the header has {len(columns)} columns"
            raise ParseError(f"{source}, line {number}: {what}: quote a cell that holds {separator!r}")
        yield number, dict(zip(columns, cells + [""] * len(columns), strict=False))


def lines_of(text: str, source: str) -> list[str]:
    """The lines of a text from any machine, without a byte order mark. Raises ParseError for too many, or too long."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n", LINE_LIMIT)
    if len(lines) > LINE_LIMIT:
        raise ParseError(f"{source}: more than {LINE_LIMIT} lines: is this the right file?")
    for number, line in enumerate(lines, 1):
        if len(line) > LENGTH_LIMIT:
            raise ParseError(f"{source}, line {number}: {len(line)} characters: is this the right file?")
    return lines


def cells_of(line: str, separator: str, where: str) -> list[str]:
    """The cells of one line of a CSV, without blanks around them. Raises ParseError."""
    try:
        return [cell.strip() for row in csv.reader([line], delimiter=separator, strict=True) for cell in row]
    except csv.Error as error:
        raise ParseError(f"{where}: {error}: quotes have to match, within one line") from error


def _header(columns: Sequence[str], where: str, required: Sequence[str], known: Sequence[str]) -> None:
    missing = [one for one in required if one not in columns]
    if missing:
        got = printable(", ".join(columns))[:120]
        raise ParseError(
            f"{where}: the header lacks {', '.join(missing)} (it has {got}); columns are {', '.join(known)}"
        )
    for one in columns:
        if one not in known:
            text = f"unknown column {printable(one)[:60]!r}; remove it: columns are {', '.join(known)}"
            raise ParseError(f"{where}: {text}")
        if columns.count(one) > 1:
            raise ParseError(f"{where}: column {one} twice; remove one")


def name(text: str, where: str, column: str, needed: bool = True) -> str:
    """A cell that names something, as it stands. Raises ParseError for what no device is called."""
    if not text:
        if needed:
            raise ParseError(f"{where}: {column} is empty; every cable has two nodes and two ports")
        return text
    if len(text) > NAME_LIMIT:
        raise ParseError(f"{where}: {column} has {len(text)} characters, more than any device's name")
    if not text.isprintable():
        raise ParseError(f"{where}: {column} is {printable(text)[:80]!r}: take out what is not a visible character")
    if text[0] == "#":
        raise ParseError(f"{where}: {column} is {text[:80]!r}, but # begins a comment: use the node's GUID")
    if text.startswith(_FORMULA):
        raise ParseError(f"{where}: {column} is a formula, {text[:80]!r}: export values, not formulas")
    if _FLOAT.fullmatch(text) or _DATE.fullmatch(text):
        cause = "which a spreadsheet made of another text: format the column as text, and enter it again"
        raise ParseError(f"{where}: {column} is {text!r}, {cause} (a GUID with 0x before it stays as it is)")
    return text


def node(text: str, where: str, column: str) -> str:
    """A node's GUID as 16 digits, else its name as it stands. Raises ParseError."""
    found = _GUID.fullmatch(text)
    digits = found.group(1).lower() if found else text.replace(":", "").lower() if _COLONS.fullmatch(text) else ""
    if digits and not digits.strip("0"):
        raise ParseError(f"{where}: {column} is the GUID 0, which no node has")
    return digits or name(text, where, column)


def port(text: str, where: str, column: str) -> int | str:
    """A port's number, else its name as it stands. Raises ParseError."""
    if text.isascii() and text.isdecimal():
        number = whole(text)
        if number is None or not 1 <= number <= PORT_LIMIT:
            raise ParseError(f"{where}: {column} is {text[:20]}: ports of a cable have numbers from 1 to {PORT_LIMIT}")
        return number
    return name(text, where, column)


def _rail(text: str, where: str) -> int | None:
    if not text:
        return None
    rail = whole(text)
    if rail is None or rail >= RAIL_LIMIT:
        raise ParseError(
            f"{where}: rail is {printable(text)[:40]!r}: a number from 0, or empty where it is not a rail's cable"
        )
    return rail


def _type(text: str, where: str, column: str) -> str:
    kind = text.lower()
    if kind not in ("", HOST, SWITCH):
        raise ParseError(f"{where}: {column} is {printable(text)[:40]!r}, expected host, switch or nothing")
    return kind


def _place(source: str, cable: Cable) -> str:
    return f"{source}, line {cable.line}" if cable.line else source
