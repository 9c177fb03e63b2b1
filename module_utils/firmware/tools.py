# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Two tools for a NIC's firmware, in Debian's names and NVIDIA's: mstconfig and mstflint.

Both end with an error and a line that begins with -E- on failure.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Sequence, Tuple

from ..core.host import Host, Output, ParseError, ReadError, ToolMissing
from . import nv_settings
from .nv_settings import Setting

# The tool of mstflint, then that of MFT.
CONFIG, FLINT = ("mstconfig", "mlxconfig"), ("mstflint", "flint")
# A query of some settings returns at once.
QUERY_SECONDS, SET_SECONDS = 60.0, 120.0
_REFUSED = re.compile(r"-E- (?:The Device doesn't support (\S+) parameter|Unknown Parameter:? (\S+?)\.?)")
_IMAGE_LINE = re.compile(r"(FW Version|FW Version\(Running\)|PSID): +(\S{1,64})")


class Image(NamedTuple):
    """following: version that the next boot loads.   running: the same where the tool prints it once.   psid: board."""

    following: str
    running: str
    psid: str

    @property
    def pending(self) -> bool:
        """Return whether other firmware was burned and waits for a reset."""
        return self.following != self.running


def find_tool(host: Host, names: Tuple[str, str]) -> str:
    """Return the first of two names that is installed. Raises ToolMissing, which names both."""
    for name in names:
        if host.has(name):
            return name
    raise ToolMissing(names[0], "is not installed, nor is %s" % names[1])


def query(host: Host, address: str, names: Sequence[str]) -> Tuple[Dict[str, Setting], str]:
    """Return the named settings of the card at a PCI address, and the command: a query of all takes many seconds.

    Settings that it does not have, or hides, are left out. Raises ReadError and ParseError.
    """
    tool = find_tool(host, CONFIG)
    left: List[str] = list(names)
    while left:
        done = host.run([tool, "-d", address, "-e", "query", *left], QUERY_SECONDS)
        if done.rc == 0:
            return nv_settings.parse_text(done.stdout), done.command
        left.remove(_refused(done, left))
    return {}, "%s -d %s -e query" % (tool, address)


def _refused(done: Output, queried: Sequence[str]) -> str:
    """Return the setting that the card does not have. Raises ReadError for any other failure."""
    for line in (done.stdout + "\n" + done.stderr).splitlines():
        found = _REFUSED.fullmatch(line.strip())
        name = (found.group(1) or found.group(2)) if found else ""
        if name in queried:
            return name
    raise _error(done)


def _error(done: Output) -> ReadError:
    """Return the error of a tool, with the line that names it."""
    lines = (done.stdout + "\n" + done.stderr).splitlines()
    error = next((line for line in lines if line.startswith("-E-")), done.last_words)
    return ReadError(done.command, "exited with %d: %.200s" % (done.rc, error))


def flash(host: Host, address: str) -> Image:
    """Return the firmware in the card's flash, and the running one. Raises ReadError and ParseError."""
    done = host.run([find_tool(host, FLINT), "-d", address, "query"], QUERY_SECONDS)
    if done.rc != 0:
        raise _error(done)
    return parse_image(done.stdout)


def parse_image(text: str) -> Image:
    """Parse ``mstflint -d DEVICE query``. Raises ParseError."""
    told: Dict[str, str] = {}
    for line in text.splitlines():
        found = _IMAGE_LINE.fullmatch(line.strip())
        if found is not None:
            told.setdefault(found.group(1), found.group(2))
    following = told.get("FW Version")
    if following is None:
        raise ParseError("%.80r, expected a line FW Version" % text)
    return Image(following, told.get("FW Version(Running)", following), told.get("PSID", ""))
