# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the programs of roce_tools.py share."""

from __future__ import annotations

import os
from typing import NoReturn

REAL = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")


class Stop(Exception):
    """The program ends here: its exit code, and what it prints to stderr before."""

    def __init__(self, code: int, *said: str) -> None:
        super().__init__(code)
        self.code, self.said = code, said


def real(name: str) -> str | None:
    """The distribution's own tool on this machine."""
    return next((path for path in (f"{place}/{name}" for place in REAL) if os.access(path, os.X_OK)), None)


def run_real(system: str, name: str, arguments: list[str]) -> NoReturn:
    """In the place of this one. A tree has no network of its own: there it would be the machine's."""
    path = real(name) if system == "/" else None
    if path is None:
        raise Stop(255, f"{name}: the lab has no {name} {' '.join(arguments)}".rstrip())
    os.execv(path, [name, *arguments])


def read(path: str) -> str:
    with open(path, encoding="utf-8") as stream:
        return stream.read().strip()
