# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read what the kernel counts and measures of PCI functions; judge its page size, and the driver's libraries.

A function without AER counters, as most in a virtual machine, is "not exposed", which is not 0. Only sensors with a
limit count, which the maker of the module sets. On Arm the page size is a choice of the kernel's build.
Sources: kernel Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats, Documentation/hwmon/sysfs-interface.rst;
ldconfig(8), which prints that an empty file "is empty, not checked".
"""

from __future__ import annotations

import re
from functools import partial
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.host import Host, ParseError, Problem, ReadError, attempt, noted

PAGES = ("getconf", "PAGESIZE")
FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
_DEVICES = "/sys/bus/pci/devices"
_TOTAL = re.compile(r"(?m)^TOTAL_ERR_[A-Z]{1,20} ([0-9]{1,19})$")
PAGE_SIZE = Check(
    "node_health.page_size",
    why="GPUs and NICs of this platform map memory in kernel pages: smaller ones cause TLB misses and are unsupported",
    fix="boot a kernel that was built with pages of that size (linux-nvidia-64k on Ubuntu, kernel-64k on EL)",
    disruption="reboot",
)
"For a profile with `page_size`: does the kernel have pages of that size"
DRIVER_LIBRARY = Check(
    "node_health.driver_library",
    why="a program that loads an empty library ends with 'file too short', and CUDA finds no GPU",
    fix="install the driver's packages of this version again, then run ldconfig",
    severity="critical",
)
"""Is each user-space library of the running driver's version intact; not judged if the loader's usual directories
have none, as with a driver from a container"""


class Sensor(NamedTuple):
    """degrees, limit: Celsius.   source: the file of the first."""

    pci: str
    label: str
    degrees: float
    limit: float
    source: str


def read_errors(host: Host, addresses: Iterable[str], problems: List[Problem]) -> Dict[str, Dict[str, int]]:
    """Return address -> kind of AER error -> total, of functions that count."""
    found: Dict[str, Dict[str, int]] = {}
    for address in addresses:
        for kind in ("correctable", "nonfatal", "fatal"):
            path = "%s/%s/aer_dev_%s" % (_DEVICES, address, kind)
            with noted(path, problems):
                text = host.read(path)
                total = None if text is None else _TOTAL.search(text)
                if total is not None:
                    found.setdefault(address, {})[kind] = int(total.group(1))
                elif text is not None:
                    raise ParseError("%.80r, expected a line with the total" % text)
    return found


def read_hot(host: Host, addresses: Iterable[str], problems: List[Problem]) -> Tuple[Sensor, ...]:
    """Return the hwmon sensors of these functions that are at or above their limit."""
    hot: List[Sensor] = []
    for address in addresses:
        folder = "%s/%s/hwmon" % (_DEVICES, address)
        with noted(folder, problems):
            stems = [
                "%s/%s/%s" % (folder, chip, name[: -len("input")])
                for chip in host.listdir(folder)
                for name in host.listdir("%s/%s" % (folder, chip))
                if re.fullmatch(r"temp[0-9]{1,3}_input", name)
            ]
            for stem in stems:
                limit = _degrees(host, stem + "crit")
                # A cage without a module has no temperature: its file is there and cannot be read.
                degrees = _degrees(host, stem + "input") if limit else None
                if limit and degrees is not None and degrees >= limit:
                    label = printable((host.read(stem + "label") or stem)[:40])
                    hot.append(Sensor(address, label, degrees, limit, stem + "input"))
    return tuple(hot)


def _degrees(host: Host, path: str) -> Optional[float]:
    text = attempt(partial(host.read, path), path, []) or ""
    return int(text) / 1000.0 if re.fullmatch(r"-?[0-9]{1,7}", text) else None


def parse_page_size(text: str) -> int:
    """Return bytes. Raises ParseError."""
    if re.fullmatch(r"[0-9]{4,7}", text.strip()) is None:
        raise ParseError("%.80r is not a page size in bytes" % text)
    return int(text)


def judge_page_size(host: Host, wanted: Optional[int]) -> List[Finding]:
    """Judge the page size. wanted: bytes, None if the profile has none."""
    if wanted is None:
        return []
    problems: List[Problem] = []
    source, want = " ".join(PAGES), "%d bytes" % wanted
    have = attempt(lambda: parse_page_size(host.query(PAGES)), source, problems)
    if have is None:
        return [PAGE_SIZE.judge("kernel", "unknown", want, str(problems[0]), source, "run %s on the node" % source)]
    return [PAGE_SIZE.judge("kernel", "ok" if have == wanted else "drift", want, "%d bytes" % have, source)]


def judge_libraries(host: Host, version: Optional[str]) -> List[Finding]:
    """Look for empty files.   version: of the running driver, None where there is none."""
    name = re.compile(r"lib(?:cuda|cudadebugger|nvidia-[a-z0-9-]+|nvcuvid)\.so\.%s" % re.escape(version or ""))
    found: List[Finding] = []
    for folder in FOLDERS if version else ():
        want = "libraries of %s" % version
        try:
            paths = ["%s/%s" % (folder, one) for one in host.listdir_system(folder) if name.fullmatch(one)]
            empty = [path for path in paths if not host.size_system(path)]
        except ReadError as error:
            found.append(DRIVER_LIBRARY.judge(folder, "unknown", want, str(error), folder))
            continue
        text = "%d files, %d empty %s" % (len(paths), len(empty), ", ".join(empty[:4]))
        if paths:
            found.append(DRIVER_LIBRARY.judge(folder, "drift" if empty else "ok", want, text, folder))
    return found
