# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The three tools for a NIC's firmware, in Debian's names and NVIDIA's: mstconfig, mstfwreset, mstflint.

All of them end with an error and a line that begins with -E- where they cannot do what they are to do.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, field, replace
from typing import List, Mapping, Optional, Sequence, Tuple

from ..core.host import Host, Output, ParseError, ReadError, ToolMissing
from . import image, nv_settings, reset_levels
from .image import Image
from .nv_settings import Setting
from .reset_levels import Levels

# The tool of mstflint, then that of MFT.
CONFIG, RESET, FLINT = ("mstconfig", "mlxconfig"), ("mstfwreset", "mlxfwreset"), ("mstflint", "flint")
# A card that is asked for some settings answers at once; one that is reset takes minutes, a BlueField above all.
QUERY_SECONDS, SET_SECONDS, RESET_SECONDS = 60.0, 120.0, 600.0
_JSON_LIMIT = 4 * 1024 * 1024
_NO_JSON = re.compile(r"-E- invalid argument: -j")
_REFUSED = re.compile(r"-E- (?:The Device doesn't support (\S+) parameter|Unknown Parameter:? (\S+?)\.?)")


@dataclass(frozen=True)
class Answer:
    """settings: what the card shows, by name.   absent: what was asked for and it does not have, or hides."""

    settings: Mapping[str, Setting]
    absent: Tuple[str, ...]
    source: str


def named(host: Host, names: Tuple[str, str]) -> str:
    """The first of two names that is installed. Raises ToolMissing, which names both."""
    for name in names:
        if host.has(name):
            return name
    raise ToolMissing(names[0], "is not installed, nor is %s" % names[1])


@dataclass
class Config:
    """mstconfig, or mlxconfig. json: whether this release writes JSON; None before it was asked."""

    host: Host
    json: Optional[bool] = None
    _tool: str = field(default="", init=False)

    def query(self, address: str, names: Sequence[str]) -> Answer:
        """Settings of the card at a PCI address. Only those: to ask for all of them takes a card many seconds.

        Raises ReadError and ParseError.
        """
        left = list(names)
        absent: List[str] = []
        while left:
            done, text = self._ask(address, left)
            if done.rc == 0:
                parse = nv_settings.parse_json if self.json else nv_settings.parse_text
                return Answer(parse(text), tuple(absent), done.command)
            refused = self._refused(done, left)
            left.remove(refused)
            absent.append(refused)
        return Answer({}, tuple(absent), "%s -d %s -e query" % (self._tool, address))

    def _refused(self, done: Output, asked: Sequence[str]) -> str:
        """Which setting the card does not have. Raises ReadError where the tool says something else."""
        for line in (done.stdout + "\n" + done.stderr).splitlines():
            found = _REFUSED.fullmatch(line.strip())
            name = (found.group(1) or found.group(2)) if found else ""
            if name in asked:
                return name
        done.answer()
        raise ReadError(done.command, "names no setting")

    def _ask(self, address: str, names: Sequence[str]) -> Tuple[Output, str]:
        self._tool = self._tool or named(self.host, CONFIG)
        start = [self._tool, "-d", address]
        if self.json is not False:
            with tempfile.TemporaryDirectory(prefix="busbar-") as folder:
                path = os.path.join(folder, "query.json")
                done = self.host.run([*start, "-j", path, "-e", "query", *names], timeout=QUERY_SECONDS)
                # Findings name their source, and stay the same from night to night.
                done = replace(done, command=done.command.replace(" -j " + path, ""))
                if done.rc == 0:
                    self.json = True
                    return done, _read(path)
                if not any(_NO_JSON.match(line) for line in done.stdout.splitlines()):
                    return done, ""
                self.json = False
        done = self.host.run([*start, "-e", "query", *names], timeout=QUERY_SECONDS)
        return done, done.stdout

    def set(self, address: str, arguments: Sequence[str]) -> List[str]:
        """The command that writes settings, ``NAME=VALUE`` each. Raises ToolMissing."""
        return [self._tool or named(self.host, CONFIG), "-d", address, "-y", "set", *arguments]


def _read(path: str) -> str:
    with open(path, "rb") as stream:
        data = stream.read(_JSON_LIMIT + 1)
    if len(data) > _JSON_LIMIT:
        raise ParseError("the JSON of mstconfig is larger than %d MiB" % (_JSON_LIMIT >> 20))
    return data.decode("utf-8", "replace")


def levels(host: Host, address: str) -> Levels:
    """By which resets the card can load its settings. Raises ReadError and ParseError."""
    return reset_levels.parse_query(host.ask([named(host, RESET), "-d", address, "query"], timeout=QUERY_SECONDS))


def reset(host: Host, address: str, level: int) -> None:
    """Raises ReadError where the tool does not end with 0."""
    argv = [named(host, RESET), "-d", address, "-l", str(level), "-y", "reset"]
    # Drivers that it starts stay.
    host.run(argv, timeout=RESET_SECONDS, leaves=True).answer()


def flash(host: Host, address: str) -> Image:
    """The firmware in the card's flash, and the running one. Raises ReadError and ParseError."""
    return image.parse_query(host.ask([named(host, FLINT), "-d", address, "query"], timeout=QUERY_SECONDS))
