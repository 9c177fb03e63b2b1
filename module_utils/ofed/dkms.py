# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read which driver modules DKMS has built for which kernel.

A kernel update whose modules could not be built boots with the inbox drivers, or with none, without an error.
Source: dkms(8), 2.x and 3.x.
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Tuple

from ..core.host import Host, ParseError, Problem, attempt

STATUS = ("dkms", "status")
TREE = "/var/lib/dkms"
# 3.x: name/version, kernel, arch: state. 2.x: name, version, kernel, arch: state. Not built for any: without kernel.
_LINE = re.compile(
    r"(?P<name>[^\s,/:]+)(?:/|, )(?P<version>[^\s,/]+?)"
    r"(?:, (?P<kernel>[^\s,]+), (?P<arch>[^\s,:]+)(?: \([^)]*\))?)?: (?P<state>[a-z]+)(?P<rest>.*)"
)
# The NVIDIA driver: as NVIDIA names it, its open modules on EL, Ubuntu's for servers, Debian's.
DRIVER = re.compile(r"nvidia(-(open|srv|current|tesla)[\w-]*)?")
_STATES = ("added", "built", "installed", "broken")


class Build(NamedTuple):
    """One line of dkms status.   kernel: "" for a module that is only added.   state: one of _STATES."""

    name: str
    version: str
    kernel: str
    state: str


def parse_status(text: str) -> Tuple[Build, ...]:
    """Parse the output of ``dkms status``. Raises ParseError at a line that has none of its forms."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _LINE.fullmatch(line)
        if match is None or match["state"] not in _STATES:
            raise ParseError(
                "%r, expected a line such as 'nvidia/580.82.07, 6.8.0-60-generic, x86_64: installed'" % line
            )
        found.append(Build(match["name"], match["version"], match["kernel"] or "", match["state"]))
    return tuple(found)


def driver_name(host: Host, version: str) -> str:
    """Return the name under which DKMS has this release of the NVIDIA driver, "" for none. Raises ReadError."""
    names = filter(DRIVER.fullmatch, host.listdir_system(TREE))
    return next((name for name in names if version in host.listdir_system("%s/%s" % (TREE, name))), "")


def read(host: Host, problems: List[Problem]) -> Optional[Tuple[Build, ...]]:
    """Return all builds; () without DKMS; None plus a Problem if DKMS failed or was not understood."""
    if not host.has(STATUS[0]):
        return ()
    return attempt(lambda: parse_status(host.query(STATUS, timeout=60.0)), " ".join(STATUS), problems)
