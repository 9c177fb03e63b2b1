# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA GPUs: from sysfs, /proc/driver/nvidia and nvidia-smi, each value with the source that gave it.

sysfs says which GPUs are there, /proc/driver/nvidia which of them the driver has, nvidia-smi the rest: NVLinks
and the NVSwitch fabric have no other source. A tool that is missing or hangs costs only its values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar
from xml.etree import ElementTree

from ..core.host import Host, Output, ParseError, Problem, ReadError, ToolHung, ToolMissing, attempt, noted
from .pci import PciDevice, address_key, is_gpu_class, parse_address

VERSION = "/proc/driver/nvidia/version"
GPUS = "/proc/driver/nvidia/gpus"
QUERY = (
    "nvidia-smi",
    "--query-gpu=index,uuid,name,pci.bus_id,fabric.state,fabric.status",
    "--format=csv",
)
XML = ("nvidia-smi", "-q", "-x")
NVLINK = ("nvidia-smi", "nvlink", "-s")

_VENDOR = 0x10DE
# Texts of nvidia-smi in place of a value, in lower case; the CSV, and the XML at times, in brackets.
ABSENT = ("", "n/a", "not supported", "not available", "requested functionality has been deprecated")
FAILED = ("unknown error", "gpu is lost", "gpu requires reset", "err!", "insufficient permissions")
# Drivers before 530 or so do not know fabric.state.
_OLD_DRIVER = "is not a valid field to query"

_VERSION_NUMBER = re.compile(r"^[0-9]+(?:\.[0-9]+)+$")
_COLUMN = re.compile(r"^([A-Za-z][A-Za-z0-9_.]*)(?: \[[^\]]*\])?$")
_NVLINK_GPU = re.compile(r"^GPU ([0-9]{1,4}): .*\(UUID: ([^()]*)\)$")
# Driver 595; the one before says nothing at all, not even of which GPU.
_WITHOUT_NVLINK = re.compile(r"^Device does not have or support NVLink\b", re.IGNORECASE)
_NVLINK_LINK = re.compile(r"^Link ([0-9]{1,3}): (?:(<inactive>)|[0-9]+(?:\.[0-9]+)? [KMGT]?B/s)$")

T = TypeVar("T")


@dataclass(frozen=True)
class Driver:
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
    sources: Tuple[str, ...]  # files and commands that answered


@dataclass(frozen=True)
class GpuRow:
    """One GPU as nvidia-smi prints it, as CSV or as a <gpu> of XML; None where it gives no value."""

    pci: Optional[str]
    uuid: Optional[str]
    product_name: Optional[str]
    fabric_state: Optional[str]
    fabric_status: Optional[str]


@dataclass(frozen=True)
class NvlinkStatus:
    """The NVLinks of one GPU. total is None where all are down: nvidia-smi then does not list them."""

    index: int
    uuid: Optional[str]
    active: Optional[int]  # None where nvidia-smi could not ask the GPU
    total: Optional[int]


# -- pure parsers ----------------------------------------------------------------------------------------------------


def parse_information(text: str) -> Dict[str, str]:
    """{"Model": "NVIDIA H200", "GPU UUID": "GPU-...", ...} of /proc/driver/nvidia/gpus/<address>/information."""
    values: Dict[str, str] = {}
    for line in _lines(text):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ParseError("%s is not a 'name: value' line" % _quote(line))
        values[name.strip()] = value.strip()
    return values


def parse_driver_version(text: str) -> Driver:
    """The NVRM line of /proc/driver/nvidia/version."""
    line = next((line for line in _lines(text) if line.startswith("NVRM version:")), "")
    words = line.split()
    # A build remark or date follows: a number at the very end may have been cut off.
    numbers = [word for word in words[:-1] if _VERSION_NUMBER.match(word)]
    if "Kernel Module" not in line or not numbers:
        raise ParseError("%s, expected 'NVRM version: NVIDIA UNIX ... Kernel Module ... <version> ...'" % _quote(text))
    return Driver(version=numbers[0], open_kernel_module="Open" in words, source=VERSION)


def parse_query_csv(text: str) -> List[Dict[str, Optional[str]]]:
    """Rows of ``nvidia-smi --query-gpu=... --format=csv``, header included; None for N/A, [Unknown Error] and such.

    Units are cut off the column names and stay with the values.
    """
    header, *rows = _lines(text)
    names: List[str] = []
    for cell in header.split(","):
        match = _COLUMN.match(cell.strip())
        if match is None:
            raise ParseError("%s, expected a header of column names" % _quote(header))
        names.append(match.group(1))
    if not rows:
        raise ParseError("no row follows the header %s" % _quote(header))
    parsed: List[Dict[str, Optional[str]]] = []
    for row in rows:
        cells = row.split(",")
        if len(cells) != len(names):
            raise ParseError("%s, expected the %d columns %s" % (_quote(row), len(names), ", ".join(names)))
        parsed.append({name: _value(cell) for name, cell in zip(names, cells)})
    return parsed


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


def parse_xml(text: str) -> List[GpuRow]:
    """GPUs of ``nvidia-smi -q -x``, in its order. Older drivers have no <fabric>."""
    gpus = []
    for gpu in parse_markup(text, "nvidia_smi_log").findall("gpu"):
        gpus.append(
            GpuRow(
                pci=parse_address(gpu.get("id", "")),
                uuid=_value(gpu.findtext("uuid")),
                product_name=_value(gpu.findtext("product_name")),
                fabric_state=_value(gpu.findtext("fabric/state")),
                fabric_status=_value(gpu.findtext("fabric/status")),
            )
        )
    if not gpus:
        raise ParseError("the XML lists no <gpu>")
    return gpus


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
    if lines and all(_WITHOUT_NVLINK.match(line) for line in lines):
        return 0, 0
    said = [line.lower() for line in lines if line.startswith("NVML:")]
    if any("all links are inactive" in line for line in said):
        return 0, None
    if said:
        return (0, 0) if all("not supported" in line for line in said) else (None, None)
    links: Dict[str, bool] = {}
    for line in lines:
        match = _NVLINK_LINK.match(line)
        if match is None or match.group(1) in links:
            raise ParseError("%s, expected 'Link <n>: <speed> GB/s' or 'Link <n>: <inactive>'" % _quote(line))
        links[match.group(1)] = match.group(2) is None
    return sum(links.values()), len(links)


def _lines(text: str) -> List[str]:
    """Stripped lines that hold something, at least one. Control characters have no place in any of them."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ParseError("there is no output")
    for line in lines:
        if not line.replace("\t", " ").isprintable():
            raise ParseError("%s, expected plain text" % _quote(line))
    return lines


def _value(text: Optional[str]) -> Optional[str]:
    text = (text or "").strip()
    in_brackets = text.startswith("[") and text.endswith("]")
    return None if in_brackets or text.lower() in ABSENT + FAILED else text


def _quote(text: str) -> str:
    return repr(text.strip()[:100])


# -- reader ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Listing:
    command: str
    gpus: Dict[str, GpuRow]  # by PCI address


def read(
    host: Host, devices: Mapping[str, PciDevice], ask_nvidia_smi: bool = True
) -> Tuple[Tuple[Gpu, ...], Optional[Driver], Tuple[Problem, ...]]:
    """GPUs in PCI order, the driver, and what could not be read.

    devices: PCI functions by address. ask_nvidia_smi: without it NVLinks and fabric stay None. It is not run where
    there is no GPU or no driver, nor again after it hung: the next call would hang too.
    """
    problems: List[Problem] = []
    addresses = sorted(
        (pci for pci, device in devices.items() if device.vendor == _VENDOR and is_gpu_class(device.class_code)),
        key=address_key,
    )
    loaded, driver = _read_driver(host, problems)
    information = _read_information(host, problems)
    listing: Optional[_Listing] = None
    links: Optional[List[NvlinkStatus]] = None
    if addresses and not loaded:
        problems.append(Problem(VERSION, "is not there: the NVIDIA driver is not loaded"))
    elif addresses and ask_nvidia_smi:
        try:
            listing = _list_gpus(host, problems)
            links = _nvlinks(_run(host, NVLINK, problems), listing, problems)
        except ReadError as error:
            problems.append(error.problem)
    gpus = tuple(
        _gpu(index, devices[address], information.get(address), listing, links)
        for index, address in enumerate(addresses)
    )
    problems.extend(_gaps(gpus, information, listing, links))
    return gpus, driver, tuple(problems)


def _read_driver(host: Host, problems: List[Problem]) -> Tuple[bool, Optional[Driver]]:
    """Return whether the driver is loaded, and its version; a version that cannot be parsed is loaded, too."""
    with noted(VERSION, problems):
        text = host.read(VERSION)
        return text is not None, None if text is None else parse_driver_version(text)
    return True, None


def _read_information(host: Host, problems: List[Problem]) -> Dict[str, Dict[str, str]]:
    """The information file of each GPU that the driver has, by address; {} for one that cannot be read."""
    found: Dict[str, Dict[str, str]] = {}
    for name in attempt(lambda: host.listdir(GPUS), GPUS, problems) or []:
        path = "%s/%s/information" % (GPUS, name)
        with noted(path, problems):
            address = parse_address(name)
            found[address] = {}
            found[address] = parse_information(host.read(path) or "")
    return found


def _list_gpus(host: Host, problems: List[Problem]) -> Optional[_Listing]:
    """Return the GPUs of nvidia-smi; None if it failed."""
    output, parse = _run(host, QUERY, problems), _rows_of_csv
    if output is not None and _OLD_DRIVER in output.stdout + output.stderr:
        output, parse = _run(host, XML, problems), parse_xml
    rows = _parsed(output, parse, problems)
    if output is None or rows is None:
        return None
    for row in rows:
        if row.pci is None:
            problems.append(Problem(output.command, "lists a GPU without a PCI address (UUID %r)" % row.uuid))
    return _Listing(output.command, {row.pci: row for row in rows if row.pci is not None})


def _rows_of_csv(text: str) -> List[GpuRow]:
    names = ("uuid", "name", "fabric.state", "fabric.status")
    rows = [(row.get("pci.bus_id"), map(row.get, names)) for row in parse_query_csv(text)]
    return [GpuRow(None if bus_id is None else parse_address(bus_id), *values) for bus_id, values in rows]


def _run(host: Host, argv: Sequence[str], problems: List[Problem]) -> Optional[Output]:
    """Run nvidia-smi. Raises ToolMissing and ToolHung, after which no other call is worth making."""
    try:
        return host.run(argv)
    except (ToolMissing, ToolHung):
        raise
    except ReadError as error:
        problems.append(error.problem)
        return None


def _parsed(output: Optional[Output], parse: Callable[[str], T], problems: List[Problem]) -> Optional[T]:
    """Return the parsed output. An exit code other than 0 is a Problem even if the output is complete."""
    if output is None:
        return None
    try:
        value = parse(output.stdout if output.stdout.strip() else output.stderr)
    except ParseError as error:
        problems.append(Problem(output.command, "%s (exit code %d)" % (error, output.rc)))
        return None
    if output.rc != 0:
        problems.append(Problem(output.command, "ended with exit code %d: %s" % (output.rc, _quote(output.stderr))))
    return value


def _nvlinks(
    output: Optional[Output], listing: Optional[_Listing], problems: List[Problem]
) -> Optional[List[NvlinkStatus]]:
    """Return NVLinks. An output without GPUs, from a tool that has just listed them, means cards without NVLink."""
    if output is not None and output.rc == 0 and listing is not None and not output.stderr.strip():
        lines = [line.strip() for line in output.stdout.splitlines() if line.strip()]
        if all(_WITHOUT_NVLINK.match(line) for line in lines):
            return [NvlinkStatus(n, answer.uuid, 0, 0) for n, answer in enumerate(listing.gpus.values())]
    return _parsed(output, parse_nvlink_status, problems)


def _gpu(
    index: int,
    device: PciDevice,
    information: Optional[Dict[str, str]],
    listing: Optional[_Listing],
    links: Optional[List[NvlinkStatus]],
) -> Gpu:
    """Join the sources of one GPU. information: None if the driver does not have it, {} if it could not be read."""
    said = information or {}
    answer = listing.gpus.get(device.address) if listing else None
    uuid = _started(said.get("GPU UUID")) or (answer.uuid if answer else None)
    status = next((status for status in links or () if uuid is not None and status.uuid == uuid), None)
    sources = [device.source]
    if information:
        sources.append("%s/%s/information" % (GPUS, device.address))
    if listing and answer:
        sources.append(listing.command)
    if status:
        sources.append(" ".join(NVLINK))
    return Gpu(
        pci=device.address,
        index=index,
        device=device,
        model=_started(said.get("Model")) or (answer.product_name if answer else None),
        uuid=uuid,
        in_driver=information is not None,
        nvlinks_active=status.active if status else None,
        nvlinks_total=status.total if status else None,
        fabric_state=answer.fabric_state if answer else None,
        fabric_status=answer.fabric_status if answer else None,
        sources=tuple(sources),
    )


def _started(text: Optional[str]) -> Optional[str]:
    """A value of the information file; the driver prints question marks for a GPU that it has not started."""
    return None if text is None or "?" in text or text == "Unknown" else _value(text)


def unlisted(command: str, pci: str) -> Problem:
    """Return the problem of a GPU that nvidia-smi leaves out."""
    return Problem(command, "does not list the GPU at %s" % pci)


def _gaps(
    gpus: Sequence[Gpu],
    information: Mapping[str, Dict[str, str]],
    listing: Optional[_Listing],
    links: Optional[List[NvlinkStatus]],
) -> List[Problem]:
    """Return what sources that did respond left out, and GPUs that sysfs does not have."""
    gaps: List[Problem] = []
    no_such = "lists a GPU at %s, /sys/bus/pci/devices has none there"
    pcis = {gpu.pci for gpu in gpus}
    uuids = {gpu.uuid for gpu in gpus}
    gaps.extend(Problem(GPUS, no_such % pci) for pci in sorted(set(information) - pcis))
    for gpu in gpus:
        if information.get(gpu.pci):
            for name, value in (("Model", gpu.model), ("GPU UUID", gpu.uuid)):
                if value is None:
                    gaps.append(Problem("%s/%s/information" % (GPUS, gpu.pci), "gives no %s" % name))
    if listing is not None:
        for gpu in gpus:
            if gpu.pci not in listing.gpus:
                gaps.append(unlisted(listing.command, gpu.pci))
            elif gpu.fabric_state is None and gpu.nvlinks_total != 0:
                gaps.append(Problem(listing.command, "gives no fabric state for %s" % gpu.pci))
            elif gpu.fabric_state == "Completed" and gpu.fabric_status is None:
                gaps.append(Problem(listing.command, "gives no fabric status for %s" % gpu.pci))
        for pci in sorted(set(listing.gpus) - pcis):
            uuids.add(listing.gpus[pci].uuid)
            gaps.append(Problem(listing.command, no_such % pci))
    if links is not None:
        command = " ".join(NVLINK)
        for gpu in gpus:
            if gpu.nvlinks_active is None and (listing is None or gpu.pci in listing.gpus):
                gaps.append(Problem(command, "gives no NVLinks for %s (UUID %r)" % (gpu.pci, gpu.uuid)))
        for status in links:
            if status.uuid not in uuids:
                gaps.append(
                    Problem(command, "lists GPU %d (UUID %r), which nothing else does" % (status.index, status.uuid))
                )
    return gaps
