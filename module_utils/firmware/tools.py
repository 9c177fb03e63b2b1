# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The three tools for a NIC's firmware, in Debian's names and NVIDIA's: mstconfig, mstfwreset, mstflint.

All of them end with an error and a line that begins with -E- on failure.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.host import Host, Output, ParseError, ReadError, ToolMissing
from . import nv_settings
from .nv_settings import Setting

# The tool of mstflint, then that of MFT.
CONFIG, RESET, FLINT = ("mstconfig", "mlxconfig"), ("mstfwreset", "mlxfwreset"), ("mstflint", "flint")
# A query of some settings returns at once; a reset takes minutes, most of all on a BlueField.
QUERY_SECONDS, SET_SECONDS, RESET_SECONDS = 60.0, 120.0, 600.0
_JSON_LIMIT = 4 * 1024 * 1024
_NO_JSON = re.compile(r"-E- invalid argument: -j")
_REFUSED = re.compile(r"-E- (?:The Device doesn't support (\S+) parameter|Unknown Parameter:? (\S+?)\.?)")
_IMAGE_LINE = re.compile(r"(FW Version|FW Version\(Running\)|PSID): +(\S{1,64})")
# Level 1 resets only a BlueField's processor.
LIVE_PATCH, PCI_RESET, WARM_REBOOT, COLD_REBOOT = 0, 3, 4, 5
NAMES = {
    LIVE_PATCH: "live patch",
    PCI_RESET: "driver restart and PCI reset",
    WARM_REBOOT: "warm reboot",
    COLD_REBOOT: "cold reboot",
}
_LEVEL = re.compile(r"([0-9]): (.{1,120}?) *-(Supported|Not Supported) *(?:\(default\))?")


@dataclass(frozen=True)
class CardSettings:
    """settings: the card's, by name, without those that it does not have, or hides."""

    settings: Mapping[str, Setting]
    source: str


@dataclass(frozen=True)
class Image:
    """following: version that the next boot loads.   running: the same where the tool prints it once.   psid: board."""

    following: str
    running: str
    psid: str

    @property
    def pending(self) -> bool:
        """Return whether other firmware was burned and waits for a reset."""
        return self.following != self.running


@dataclass(frozen=True)
class Levels:
    """offered: the levels that the NIC supports in its present state, ascending."""

    offered: Tuple[int, ...]

    @property
    def resets(self) -> Tuple[int, ...]:
        """Return the levels that need no reboot of the node."""
        return tuple(level for level in self.offered if level in (LIVE_PATCH, PCI_RESET))

    def __str__(self) -> str:
        return ", ".join("%d (%s)" % (level, NAMES.get(level, "unknown")) for level in self.offered) or "none"


def find_tool(host: Host, names: Tuple[str, str]) -> str:
    """Return the first of two names that is installed. Raises ToolMissing, which names both."""
    for name in names:
        if host.has(name):
            return name
    raise ToolMissing(names[0], "is not installed, nor is %s" % names[1])


def query(host: Host, address: str, names: Sequence[str]) -> CardSettings:
    """Return the named settings of the card at a PCI address: a query of all takes many seconds.

    The table, which every release prints, is read first; JSON, which needs a file, only if the table lacks values.
    Raises ReadError and ParseError.
    """
    tool = find_tool(host, CONFIG)
    left = list(names)
    while left:
        done = host.run([tool, "-d", address, "-e", "query", *left], QUERY_SECONDS)
        if done.rc == 0:
            return CardSettings(_settings(host, tool, address, left, done), done.command)
        left.remove(_refused(done, left))
    return CardSettings({}, "%s -d %s -e query" % (tool, address))


def _settings(host: Host, tool: str, address: str, names: Sequence[str], done: Output) -> Mapping[str, Setting]:
    try:
        found = nv_settings.parse_text(done.stdout)
    except ParseError:
        told = as_json(host, tool, address, names)
        if told is None:
            raise
        return told
    if all(name in found and found[name].following is not None for name in names):
        return found
    return as_json(host, tool, address, names) or found


def as_json(host: Host, tool: str, address: str, names: Sequence[str]) -> Optional[Mapping[str, Setting]]:
    """Return the settings from the file that ``-j`` writes; None without that option. Raises as ``query``."""
    # The import costs each audit milliseconds, and is rarely needed.
    import tempfile

    with tempfile.TemporaryDirectory(prefix="busbar-") as folder:
        path = os.path.join(folder, "query.json")
        done = host.run([tool, "-d", address, "-j", path, "-e", "query", *names], QUERY_SECONDS)
        if any(_NO_JSON.match(line) for line in done.stdout.splitlines()):
            return None
        # Findings name their source, and must be the same from run to run.
        done = replace(done, command=done.command.replace(" -j " + path, " -j FILE"))
        _stdout(done)
        try:
            with open(path, "rb") as stream:
                data = stream.read(_JSON_LIMIT + 1)
        except OSError as error:
            raise ReadError(done.command, "has written no file: %s" % error.strerror) from error
    if len(data) > _JSON_LIMIT:
        raise ParseError("the JSON of %s is larger than %d MiB" % (tool, _JSON_LIMIT >> 20))
    return nv_settings.parse_json(data.decode("utf-8", "replace"))


def _refused(done: Output, asked: Sequence[str]) -> str:
    """Return the setting that the card does not have. Raises ReadError for any other failure."""
    for line in (done.stdout + "\n" + done.stderr).splitlines():
        found = _REFUSED.fullmatch(line.strip())
        name = (found.group(1) or found.group(2)) if found else ""
        if name in asked:
            return name
    _stdout(done)
    raise ReadError(done.command, "names no setting")


def _stdout(done: Output) -> str:
    """Return the output of a tool that ended with 0. Raises ReadError with the line that names the error."""
    if done.rc != 0:
        lines = (done.stdout + "\n" + done.stderr).splitlines()
        said = next((line for line in lines if line.startswith("-E-")), done.last_words)
        raise ReadError(done.command, "exited with %d: %.200s" % (done.rc, said))
    return done.stdout


def levels(host: Host, address: str) -> Levels:
    """Return the resets by which the card can load its settings. Raises ReadError and ParseError."""
    return parse_levels(_stdout(host.run([find_tool(host, RESET), "-d", address, "query"], QUERY_SECONDS)))


def reset(host: Host, address: str, level: int) -> None:
    """Reset the card. Raises ReadError if the tool does not end with 0."""
    argv = [find_tool(host, RESET), "-d", address, "-l", str(level), "-y", "reset"]
    # Drivers that it starts stay.
    _stdout(host.run(argv, RESET_SECONDS, leaves=True))


def flash(host: Host, address: str) -> Image:
    """Return the firmware in the card's flash, and the running one. Raises ReadError and ParseError."""
    return parse_image(_stdout(host.run([find_tool(host, FLINT), "-d", address, "query"], QUERY_SECONDS)))


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


def parse_levels(text: str) -> Levels:
    """Parse ``mstfwreset -d DEVICE query``. Raises ParseError if it shows no levels."""
    inside, seen = False, False
    offered: List[int] = []
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("Reset-levels:"):
            inside = seen = True
        elif line.startswith("Reset-types"):
            inside = False
        elif inside and line:
            found = _LEVEL.fullmatch(line)
            if found is None:
                raise ParseError("%.80r, expected a level such as '3: Driver restart and PCI reset -Supported'" % line)
            if found.group(3) == "Supported":
                offered.append(int(found.group(1)))
    if not seen:
        raise ParseError("%.80r, expected a list that begins with Reset-levels:" % text)
    return Levels(tuple(sorted(offered)))
