# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the kernel's page size, if the profile has one: on Arm it is a choice of the kernel's build."""

from __future__ import annotations

import re
from typing import List, Optional

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError, Problem, attempt

TOOL = ("getconf", "PAGESIZE")
PAGE_SIZE = Check(
    "node_health.page_size",
    why="GPUs and NICs of this platform map memory in kernel pages: smaller ones cause TLB misses and are unsupported",
    fix="boot a kernel that was built with pages of that size (linux-nvidia-64k on Ubuntu, kernel-64k on EL)",
    disruption="reboot",
)
"For a profile with `page_size`: does the kernel have pages of that size"


def parse(text: str) -> int:
    """Return bytes. Raises ParseError."""
    if re.fullmatch(r"[0-9]{4,7}", text.strip()) is None:
        raise ParseError("%.80r is not a page size in bytes" % text)
    return int(text)


def judge(host: Host, asked: Optional[int]) -> List[Finding]:
    """Judge the page size. asked: bytes, None if the profile has none."""
    if asked is None:
        return []
    problems: List[Problem] = []
    source, want = " ".join(TOOL), "%d bytes" % asked
    have = attempt(lambda: parse(host.query(TOOL)), source, problems)
    if have is None:
        return [PAGE_SIZE.judge("kernel", "unknown", want, str(problems[0]), source, "run %s on the node" % source)]
    return [PAGE_SIZE.judge("kernel", "ok" if have == asked else "drift", want, "%d bytes" % have, source)]
