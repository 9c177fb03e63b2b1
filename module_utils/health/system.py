# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the operating system below the GPUs: the kernel's page size, and the driver's libraries.

On Arm the page size is a choice of the kernel's build.
Source: ldconfig(8), which prints that an empty file "is empty, not checked".
"""

from __future__ import annotations

import re
from typing import List, Optional

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError, Problem, ReadError, attempt

PAGES = ("getconf", "PAGESIZE")
FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
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


def parse_page_size(text: str) -> int:
    """Return bytes. Raises ParseError."""
    if re.fullmatch(r"[0-9]{4,7}", text.strip()) is None:
        raise ParseError("%.80r is not a page size in bytes" % text)
    return int(text)


def judge_page_size(host: Host, asked: Optional[int]) -> List[Finding]:
    """Judge the page size. asked: bytes, None if the profile has none."""
    if asked is None:
        return []
    problems: List[Problem] = []
    source, want = " ".join(PAGES), "%d bytes" % asked
    have = attempt(lambda: parse_page_size(host.query(PAGES)), source, problems)
    if have is None:
        return [PAGE_SIZE.judge("kernel", "unknown", want, str(problems[0]), source, "run %s on the node" % source)]
    return [PAGE_SIZE.judge("kernel", "ok" if have == asked else "drift", want, "%d bytes" % have, source)]


def judge_libraries(host: Host, version: Optional[str]) -> List[Finding]:
    """Look for empty files.   version: of the running driver, None where there is none."""
    name = re.compile(r"lib(?:cuda|cudadebugger|nvidia-[a-z0-9-]+|nvcuvid)\.so\.%s" % re.escape(version or ""))
    found: List[Finding] = []
    for folder in FOLDERS if version else ():
        try:
            paths = ["%s/%s" % (folder, one) for one in host.listdir_system(folder) if name.fullmatch(one)]
            empty = [path for path in paths if not host.size_system(path)]
            have = "%d files, none empty" % len(paths)
            state = "drift" if empty else "ok"
        except ReadError as error:
            paths, empty, state, have = [folder], [], "unknown", str(error)
        if empty:
            have = "%d of %d are empty: %s" % (len(empty), len(paths), ", ".join(empty[:4]))
        if paths:
            found.append(DRIVER_LIBRARY.judge(folder, state, "libraries of %s" % version, have, folder))
    return found
