# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find faults in a variable's name: no library reads it, or not from where it is set."""

from __future__ import annotations

import difflib
from typing import Collection, Optional

from . import lint_checks as checks
from .lint_issue import Fault, Use, show
from .variables import BUILD, NCCL_TESTS, NEVER, PYTORCH, VARIABLES, known_names, reader
from .version import NEWEST, format_version

# Name -> severity, why.
_WRONG_PLACE = {
    "NCCL_COMM_ID": ("critical", "It is the rendezvous address of one job; here every job would share it."),
    "NCCL_CONF_FILE": ("major", "Which files are read is settled before any of them is opened: here it does nothing."),
    "NCCL_HOSTID": ("major", "Ranks with equal values are taken for one machine, and a copied file makes them equal."),
    "NCCL_GRAPH_DUMP_FILE": ("minor", "It is a debugging output that every job would overwrite."),
    "NCCL_GRAPH_DUMP_FILE_RANK": ("minor", "It belongs to a debugging output of one job."),
    "NCCL_TOPO_DUMP_FILE": ("minor", "It is a debugging output that every job would overwrite."),
    "NCCL_TOPO_DUMP_FILE_RANK": ("minor", "It belongs to a debugging output of one job."),
}


def fault(name: str, use: Use) -> Optional[Fault]:
    """Return why no program reads this variable, or why it should not stand in ``use.place``."""
    if name in NEVER:
        return Fault(checks.NEVER_EXISTED, None, checks.NEVER_EXISTED.why % name, NEVER[name])
    if name in PYTORCH:
        why = "NCCL does not read %s. PyTorch does, as the old name of TORCH_%s, and warns of it."
        why += " It does so before NCCL reads this file." if use.place == "file" else ""
        return Fault(checks.FOREIGN_VARIABLE, "TORCH_" + name, why % (name, name), "Set TORCH_%s in the job." % name)
    who = reader(name)
    if who == NCCL_TESTS and use.place == "file":
        why = "%s is read by nccl-tests, before NCCL reads this file." % name
        return Fault(checks.WRONG_PLACE, None, why, "Set it where the test is started.")
    if who not in (None, "library") and (who != BUILD or use.place != "file"):
        return None
    if not name.startswith("NCCL_"):
        similar = _similar(name.upper(), VARIABLES, 0.85)
        if similar:
            why = "NCCL reads no variable %s; names are matched exactly." % show(name, 80)
            return Fault(checks.UNKNOWN_VARIABLE, similar, why, "Write %s." % similar)
        return Fault(checks.FOREIGN_VARIABLE, None, checks.FOREIGN_VARIABLE.why % show(name, 80))
    if name in _WRONG_PLACE and use.place != "job" and (name, use.place) != ("NCCL_CONF_FILE", "environment"):
        severity, why = _WRONG_PLACE[name]
        return Fault(checks.WRONG_PLACE, None, why, severity=severity)
    if use.place != "file" and who is None and not misspelt(name):
        why = "%s is not a variable of NCCL or of a plugin that Busbar knows." % show(name, 80)
        return Fault(checks.FOREIGN_VARIABLE, None, why, "Remove the line if no program or script of yours reads it.")
    return _never_read(name, use)


def misspelt(name: str) -> Optional[str]:
    """Return the variable that a name of none resembles; the prefix that all have in common does not count."""
    prefix = "NCCL_"
    if name in VARIABLES or not name.startswith(prefix) or reader(name) is not None:
        return None
    found = _similar(name[len(prefix) :], [other[len(prefix) :] for other in VARIABLES], 0.8)
    return prefix + found if found else None


def _similar(name: str, names: Collection[str], least: float) -> Optional[str]:
    found = difflib.get_close_matches(name, names, 1, least) if len(name) <= 100 else []
    return found[0] if found else None


def _never_read(name: str, use: Use) -> Optional[Fault]:
    variable = VARIABLES.get(name)
    names: Collection[str] = list(VARIABLES)
    if use.libraries:
        without = [library for library in use.libraries if name not in library.names]
        lacking = [library.version for library in without]
        where = ", ".join("%s (%s)" % (show(library.path), format_version(library.version)) for library in without)
        everywhere = len(without) == len(use.libraries)
        names = set().union(*(library.names for library in use.libraries))
    elif use.versions:
        lacking = [version for version in use.versions if name not in known_names(version)]
        where = ", ".join("NCCL %s" % format_version(version) for version in lacking)
        everywhere = len(lacking) == len(use.versions)
    else:
        # Which release reads the file is not known: only what none of the last years reads is certain.
        if variable is not None and (variable.removed is None or variable.removed > (2, 18, 1)):
            return None
        lacking, where, everywhere = [NEWEST], "NCCL %s" % format_version(NEWEST), True
    if not lacking:
        return None
    severity = "major" if everywhere else "minor"
    if variable is not None and variable.removed is not None and min(lacking) >= variable.removed:
        why = checks.DEAD_VARIABLE.why % (name, format_version(variable.removed), where)
        return Fault(checks.DEAD_VARIABLE, None, why, variable.remark or None, severity)
    why = checks.UNKNOWN_VARIABLE.why % (show(name, 80), where)
    if variable is not None and variable.since is not None and max(lacking) < variable.since:
        why += " The first release that reads it is %s." % format_version(variable.since)
        return Fault(checks.UNKNOWN_VARIABLE, None, why, "Remove the line until that release is installed.", severity)
    if not use.libraries and use.versions and max(lacking) > NEWEST and variable is None:
        why = "Whether NCCL %s reads %s is not known: it is newer than the table, which ends with %s." % (
            format_version(max(lacking)),
            show(name, 80),
            format_version(NEWEST),
        )
        fix = "Name the library (busbar_nccl_libraries; --library)."
        return Fault(checks.UNKNOWN_VARIABLE, None, why, fix, severity, "unknown")
    similar = misspelt(name) or _similar(name, sorted(names), 0.8)
    fix = "Write %s, if that was meant." % similar if similar else "Remove the line."
    return Fault(checks.UNKNOWN_VARIABLE, similar, why, fix, severity)
