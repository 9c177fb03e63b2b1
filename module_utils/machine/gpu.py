# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA GPUs: from sysfs, /proc/driver/nvidia and nvidia-smi, each value with the source that gave it.

sysfs says which GPUs are there, /proc/driver/nvidia which of them the driver has, nvidia-smi the rest: NVLinks
and the NVSwitch fabric have no other source. A tool that is missing or hangs costs only its values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar
from xml.etree import ElementTree

from ..core.host import Host, Output, ParseError, Problem, ReadError, ToolHung, ToolMissing, attempt, noted
from .pci import PciDevice, address_key, fullmatch, is_gpu_class, parse_address, read_value

VERSION = "/proc/driver/nvidia/version"
GPUS = "/proc/driver/nvidia/gpus"
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,pci.bus_id,fabric.state,fabric.status", "--format=csv")
NVLINK = ("nvidia-smi", "nvlink", "-s")

_VENDOR = 0x10DE
# Texts of nvidia-smi in place of a value, in lower case; the CSV has them in brackets.
ABSENT = ("", "n/a", "not supported", "not available", "requested functionality has been deprecated")
FAILED = ("unknown error", "gpu is lost", "gpu requires reset", "err!", "insufficient permissions")
_COLUMN = re.compile(r"([A-Za-z][A-Za-z0-9_.]*)(?: \[[^\]]*\])?")
_NVLINK_GPU = re.compile(r"^GPU ([0-9]{1,4}): .*\(UUID: ([^()]*)\)$")
# Driver 595; the one before says nothing at all, not even of which GPU.
_WITHOUT_NVLINK = re.compile(r"^Device does not have or support NVLink\b", re.IGNORECASE)
_NVLINK_LINK = re.compile(r"Link ([0-9]{1,3}): (?:(<inactive>)|[0-9]+(?:\.[0-9]+)? [KMGT]?B/s)")

T = TypeVar("T")


class Driver(NamedTuple):
    version: str  # 580.159.04
    open_kernel_module: bool
    source: str


@dataclass(frozen=True)
class Gpu:
    pci: str
    index: int  # position in PCI order, which is nvidia-smi's and NCCL's
    device: PciDevice
    model: Optional[str]  # "NVIDIA H100 80GB HBM3"; None where the driver does not have the GPU
    uuid: Optional[str]
    in_driver: bool  # listed below /proc/driver/nvidia/gpus
    nvlinks_active: Optional[int]
    nvlinks_total: Optional[int]
    fabric_state: Optional[str]  # "Completed", "In Progress", "Not Started"; None: not read, or not supported
    fabric_status: Optional[str]  # "Success" or the error


@dataclass(frozen=True)
class NvlinkStatus:
    """The NVLinks of one GPU. total is None where all are down: nvidia-smi then does not list them."""

    index: int
    uuid: Optional[str]
    active: Optional[int]  # None where nvidia-smi could not ask the GPU
    total: Optional[int]


# A GPU as a row of the query: column -> value.
Row = Dict[str, Optional[str]]


# -- pure parsers ----------------------------------------------------------------------------------------------------


def parse_information(text: str) -> Dict[str, str]:
    """{"Model": "NVIDIA H200", "GPU UUID": "GPU-...", ...} of /proc/driver/nvidia/gpus/<address>/information."""
    matches = [fullmatch(r"([^:]*\S)\s*:(.*)", line, "a 'name: value' line") for line in _lines(text)]
    return {match.group(1): match.group(2).strip() for match in matches}


def parse_driver_version(text: str) -> Driver:
    """The NVRM line of /proc/driver/nvidia/version."""
    line = next((line for line in _lines(text) if line.startswith("NVRM version:")), "")
    # A build remark or date follows: a number at the very end may have been cut off.
    number = re.search(r"Kernel Module\b.*? ([0-9]+(?:\.[0-9]+)+) ", line)
    if number is None:
        raise ParseError("%s, expected 'NVRM version: NVIDIA UNIX ... Kernel Module ... <version> ...'" % _quote(text))
    return Driver(number.group(1), "Open" in line.split(), VERSION)


def parse_query_csv(text: str) -> List[Row]:
    """Rows of ``nvidia-smi --query-gpu=... --format=csv``, header included; None for N/A, [Unknown Error] and such.

    Units are cut off the column names and stay with the values.
    """
    header, *rows = _lines(text)
    names = [fullmatch(_COLUMN, cell.strip(), "the name of a column").group(1) for cell in header.split(",")]
    wrong = [row for row in rows if row.count(",") != len(names) - 1] if rows else [header]
    if wrong:
        raise ParseError("%s, expected rows of the columns %s" % (_quote(wrong[0]), ", ".join(names)))
    return [dict(zip(names, map(_value, row.split(",")))) for row in rows]


def parse_markup(text: str, tag: str) -> ElementTree.Element:
    """Root of an XML document, which must be a ``tag``. Entities are refused: a few can unfold to gigabytes.

    A DOCTYPE may be there; what it points to is not fetched.
    """
    if "<!ENTITY" in text:
        raise ParseError("the XML declares an entity (<!ENTITY), expected none")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise ParseError("%s is not XML: %s" % (_quote(text), error)) from error
    if root.tag != tag:
        raise ParseError("the XML is a <%.40s>, expected <%s>" % (root.tag, tag))
    return root


def parse_nvlink_status(text: str) -> List[NvlinkStatus]:
    """GPUs of ``nvidia-smi nvlink -s`` with how many of their NVLinks are up."""
    blocks: List[Tuple[int, Optional[str], List[str]]] = []
    for line in _lines(text):
        head = _NVLINK_GPU.match(line)
        if head is not None:
            blocks.append((int(head.group(1)), _value(head.group(2)), []))
        elif blocks:
            blocks[-1][2].append(line)
        else:
            raise ParseError("%s, expected 'GPU 0: <name> (UUID: <uuid>)'" % _quote(line))
    return [NvlinkStatus(index, uuid, *_count_links(lines)) for index, uuid, lines in blocks]


def _count_links(lines: Sequence[str]) -> Tuple[Optional[int], Optional[int]]:
    """(active, total) of the lines below one GPU. A card without NVLink has none, or one that reports it."""
    errors = [line.lower() for line in lines if line.startswith("NVML:") or _WITHOUT_NVLINK.match(line)]
    if any("all links are inactive" in line for line in errors):
        return 0, None
    if errors:
        return (0, 0) if all("not supported" in line or "not have" in line for line in errors) else (None, None)
    links = [fullmatch(_NVLINK_LINK, line, "'Link <n>: <speed> GB/s' or 'Link <n>: <inactive>'") for line in lines]
    if len({link.group(1) for link in links}) != len(links):
        raise ParseError("a link is listed twice: %s" % _quote(" ".join(lines)))
    return sum(link.group(2) is None for link in links), len(links)


def _lines(text: str) -> List[str]:
    """Stripped lines that hold something, at least one. Control characters have no place in any of them."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or not "".join(lines).replace("\t", " ").isprintable():
        raise ParseError("%s, expected plain text" % _quote(text) if lines else "there is no output")
    return lines


def _value(text: Optional[str]) -> Optional[str]:
    text = (text or "").strip()
    in_brackets = text.startswith("[") and text.endswith("]")
    return None if in_brackets or text.lower() in ABSENT + FAILED else text


def _quote(text: str) -> str:
    return repr(text.strip()[:100])


# -- reader ----------------------------------------------------------------------------------------------------------

Information = Mapping[str, Dict[str, str]]
# Row of the query by PCI address; None if nvidia-smi did not list the GPUs.
Rows = Optional[Dict[str, Row]]
Links = Optional[List[NvlinkStatus]]
_QUERY, _NVLINK = " ".join(QUERY), " ".join(NVLINK)


def read(
    host: Host, devices: Mapping[str, PciDevice], ask_nvidia_smi: bool = True
) -> Tuple[Tuple[Gpu, ...], Optional[Driver], Tuple[Problem, ...]]:
    """GPUs in PCI order, the driver, and what could not be read.

    devices: PCI functions by address. ask_nvidia_smi: without it NVLinks and fabric stay None. It is not run where
    there is no GPU or no driver, nor again after it hung: the next call would hang too.
    """
    problems: List[Problem] = []
    found = [device for device in devices.values() if device.vendor == _VENDOR and is_gpu_class(device.class_code)]
    driver = read_value(host, VERSION, parse_driver_version, problems)
    # One whose version cannot be parsed is loaded, too.
    loaded = driver is not None or bool(problems)
    information = _read_information(host, problems)
    rows: Rows = None
    links: Links = None
    if found and not loaded:
        problems.append(Problem(VERSION, "is not there: the NVIDIA driver is not loaded"))
    elif found and ask_nvidia_smi:
        with noted(_QUERY, problems):
            rows = _list_gpus(_query(host, QUERY, lambda output: parse_query_csv(_text(output)), problems), problems)
            links = _query(host, NVLINK, lambda output: _nvlinks(output, rows), problems)
    ordered = enumerate(sorted(found, key=lambda device: address_key(device.address)))
    gpus = tuple(_gpu(number, device, information.get(device.address), rows, links) for number, device in ordered)
    problems += [*_gaps(gpus, information, rows, links)]
    return gpus, driver, tuple(problems)


def _read_information(host: Host, problems: List[Problem]) -> Information:
    """The information file of each GPU that the driver has, by address; {} for one that cannot be read."""
    found: Dict[str, Dict[str, str]] = {}
    for name in attempt(lambda: host.listdir(GPUS), GPUS, problems) or []:
        path = "%s/%s/information" % (GPUS, name)
        with noted(path, problems):
            address = parse_address(name)
            found[address] = {}
            found[address] = parse_information(host.read(path) or "")
    return found


def _query(host: Host, argv: Sequence[str], parse: Callable[[Output], T], problems: List[Problem]) -> Optional[T]:
    """Return nvidia-smi's parsed output. An exit code other than 0 is a Problem even if the output is complete.

    Raises ToolMissing and ToolHung, after which no other call is worth making.
    """
    try:
        output = host.run(argv)
    except (ToolMissing, ToolHung):
        raise
    except ReadError as error:
        problems.append(error.problem)
        return None
    try:
        value = parse(output)
    except ParseError as error:
        problems.append(Problem(output.command, "%s (exit code %d)" % (error, output.rc)))
        return None
    if output.rc != 0:
        problems.append(Problem(output.command, "ended with exit code %d: %s" % (output.rc, _quote(output.stderr))))
    return value


def _text(output: Output) -> str:
    return output.stdout if output.stdout.strip() else output.stderr


def _list_gpus(parsed: Optional[List[Row]], problems: List[Problem]) -> Rows:
    if parsed is None:
        return None
    rows: Dict[str, Row] = {}
    for row in parsed:
        with noted(_QUERY, problems):
            rows[parse_address(row.get("pci.bus_id") or "")] = row
    return rows


def _nvlinks(output: Output, rows: Rows) -> List[NvlinkStatus]:
    """Parse NVLinks. An output without GPUs, from a tool that has just listed them, means cards without NVLink."""
    lines = [line.strip() for line in output.stdout.splitlines() if line.strip()]
    without = rows is not None and output.rc == 0 and not output.stderr.strip()
    if rows is not None and without and all(_WITHOUT_NVLINK.match(line) for line in lines):
        return [NvlinkStatus(number, row.get("uuid"), 0, 0) for number, row in enumerate(rows.values())]
    return parse_nvlink_status(_text(output))


def _gpu(index: int, device: PciDevice, information: Optional[Dict[str, str]], rows: Rows, links: Links) -> Gpu:
    """Join the sources of one GPU. information: None if the driver does not have it, {} if it could not be read."""
    own, row = information or {}, (rows or {}).get(device.address, {})
    model, uuid = _started(own.get("Model")) or row.get("name"), _started(own.get("GPU UUID")) or row.get("uuid")
    status = next((one for one in links or () if uuid is not None and one.uuid == uuid), None)
    active, total = (status.active, status.total) if status else (None, None)
    fabric = row.get("fabric.state"), row.get("fabric.status")
    return Gpu(device.address, index, device, model, uuid, information is not None, active, total, *fabric)


def _started(text: Optional[str]) -> Optional[str]:
    """A value of the information file; the driver prints question marks for a GPU that it has not started."""
    return None if text is None or "?" in text or text == "Unknown" else _value(text)


def unlisted(command: str, pci: str) -> Problem:
    """Return the problem of a GPU that nvidia-smi leaves out."""
    return Problem(command, "does not list the GPU at %s" % pci)


def _gaps(gpus: Sequence[Gpu], information: Information, rows: Rows, links: Links) -> Iterator[Problem]:
    """Yield what sources that did respond left out, and GPUs that sysfs does not have."""
    no_such = "lists a GPU at %s, /sys/bus/pci/devices has none there"
    pcis, uuids = {gpu.pci for gpu in gpus}, {gpu.uuid for gpu in gpus}
    yield from (Problem(GPUS, no_such % pci) for pci in sorted(set(information) - pcis))
    for gpu in gpus:
        for name, value in (("Model", gpu.model), ("GPU UUID", gpu.uuid)):
            if information.get(gpu.pci) and value is None:
                yield Problem("%s/%s/information" % (GPUS, gpu.pci), "gives no %s" % name)
    for gpu in gpus if rows is not None else ():
        if gpu.pci not in (rows or {}):
            yield unlisted(_QUERY, gpu.pci)
        elif gpu.fabric_state is None and gpu.nvlinks_total != 0:
            yield Problem(_QUERY, "gives no fabric state for %s" % gpu.pci)
        elif gpu.fabric_state == "Completed" and gpu.fabric_status is None:
            yield Problem(_QUERY, "gives no fabric status for %s" % gpu.pci)
    for pci in sorted(set(rows or ()) - pcis):
        uuids.add((rows or {})[pci].get("uuid"))
        yield Problem(_QUERY, no_such % pci)
    for gpu in gpus if links is not None else ():
        if gpu.nvlinks_active is None and (rows is None or gpu.pci in rows):
            yield Problem(_NVLINK, "gives no NVLinks for %s (UUID %r)" % (gpu.pci, gpu.uuid))
    for status in links or ():
        if status.uuid not in uuids:
            yield Problem(_NVLINK, "lists GPU %d (UUID %r), which nothing else does" % (status.index, status.uuid))
