# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a fault is: a change of the model, of one file of the node, or something that somebody has run on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from .machine import LabError, Machine

HGX = ("hgx-h100", "hgx-h200", "hgx-b200")
ALL = (*HGX, "h200-vm")


@dataclass(frozen=True)
class FileFault:
    """Somebody's change of one file below the system root.

    edit: the text there is (None: no file) -> the text there will be (None: no file).   mode: None keeps it.
    """

    path: str
    edit: Callable[[Machine, str | None], str | None]
    mode: int | None = None


@dataclass(frozen=True)
class Command:
    """``argv``: a program of the node; "{machine.kernel}" stands for that. fails: it is meant to end with an error."""

    argv: tuple[str, ...]
    fails: bool = False


@dataclass(frozen=True)
class CommandFault:
    """Somebody has run something on the node, and ``repair`` takes it back, whatever has been done meanwhile."""

    break_: tuple[Command, ...]
    repair: tuple[Command, ...]


@dataclass(frozen=True)
class Fault:
    """check: id of the finding that is the root.

    subject: its identity, from the healthy machine; None where the check's own wording decides.
    state: of the root.   consequences: checks that follow from it, each finding ``because`` of the root.
    platforms: where it applies.   excludes: faults it hides or is hidden by (either may say so).
    measured: only a benchmark shows it, so the node has to be one that can run it.
    stays: a run tries to mend it, and a tool of the node fails.
    file: a file that changes with the model.
    site: variables that the healthy machine's inventory has to set so that this is a fault at all.
    """

    name: str
    description: str
    check: str
    subject: Callable[[Machine], str] | None
    change: Callable[[Machine], None] | FileFault | CommandFault
    state: str = "drift"
    consequences: tuple[str, ...] = ()
    platforms: tuple[str, ...] = HGX
    excludes: tuple[str, ...] = ()
    measured: bool = False
    stays: bool = False
    file: FileFault | None = None
    site: Callable[[Machine], Mapping[str, Any]] | None = None

    @property
    def changed_file(self) -> FileFault | None:
        return self.change if isinstance(self.change, FileFault) else self.file

    def apply(self, machine: Machine) -> Machine:
        """The machine with this fault. One of files leaves the machine as it is."""
        broken = deepcopy(machine)
        if not isinstance(self.change, (FileFault, CommandFault)):
            self.change(broken)
        return broken


# -- what many faults are made of ------------------------------------------------------------------------------------


def said(text: str) -> Callable[[Machine], str]:
    """A subject that is the same on every machine."""
    return lambda machine: text


def rail_nic(rail: int) -> Callable[[Machine], str]:
    """The subject that is the PCI address of the rail's NIC."""
    return lambda machine: machine.rail(rail).address


def provisioned(path: str, text: str | None) -> str:
    """The text of a file that provisioning writes. Raises LabError where it has not been written."""
    if text is None:
        raise LabError(f"there is no {path} yet: provision the node first")
    return text


def removed(path: str) -> FileFault:
    """Somebody has removed a file that provisioning writes."""

    def edit(machine: Machine, text: str | None) -> None:
        provisioned(path, text)

    return FileFault(path, edit)


def appended(path: str, text: str) -> FileFault:
    """Somebody has added text at the end of a file, which there may not have been."""
    return FileFault(path, lambda machine, before: (before or "") + text)
