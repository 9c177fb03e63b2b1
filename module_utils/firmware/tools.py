# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The three tools for a NIC's firmware, in Debian's names and NVIDIA's: mstconfig, mstfwreset, mstflint.

All of them end with an error and a line that begins with -E- on failure.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import List, Mapping, Optional, Sequence, Tuple

from ..core.host import Host, Output, ParseError, ReadError, ToolMissing
from . import image, nv_settings, reset_levels
from .image import Image
from .nv_settings import Setting
from .reset_levels import Levels

# The tool of mstflint, then that of MFT.
CONFIG, RESET, FLINT = ("mstconfig", "mlxconfig"), ("mstfwreset", "mlxfwreset"), ("mstflint", "flint")
# A query of some settings returns at once; a reset takes minutes, most of all on a BlueField.
QUERY_SECONDS, SET_SECONDS, RESET_SECONDS = 60.0, 120.0, 600.0
_JSON_LIMIT = 4 * 1024 * 1024
_NO_JSON = re.compile(r"-E- invalid argument: -j")
_REFUSED = re.compile(r"-E- (?:The Device doesn't support (\S+) parameter|Unknown Parameter:? (\S+?)\.?)")


@dataclass(frozen=True)
class CardSettings:
    """settings: the card's, by name.   absent: requested settings that it does not have, or hides."""

    settings: Mapping[str, Setting]
    absent: Tuple[str, ...]
    source: str


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
    absent: List[str] = []
    while left:
        done = host.run([tool, "-d", address, "-e", "query", *left], QUERY_SECONDS)
        if done.rc == 0:
            return CardSettings(_settings(host, tool, address, left, done), tuple(absent), done.command)
        refused = _refused(done, left)
        left.remove(refused)
        absent.append(refused)
    return CardSettings({}, tuple(absent), "%s -d %s -e query" % (tool, address))


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
    return reset_levels.parse_query(_stdout(host.run([find_tool(host, RESET), "-d", address, "query"], QUERY_SECONDS)))


def reset(host: Host, address: str, level: int) -> None:
    """Reset the card. Raises ReadError if the tool does not end with 0."""
    argv = [find_tool(host, RESET), "-d", address, "-l", str(level), "-y", "reset"]
    # Drivers that it starts stay.
    _stdout(host.run(argv, RESET_SECONDS, leaves=True))


def flash(host: Host, address: str) -> Image:
    """Return the firmware in the card's flash, and the running one. Raises ReadError and ParseError."""
    return image.parse_query(_stdout(host.run([find_tool(host, FLINT), "-d", address, "query"], QUERY_SECONDS)))
