# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge GDRCopy where something switches it on: NCCL loads its library and goes on without it, and warns in each job.

Source: NCCL src/misc/gdrwrap.cc (libgdrapi.so is opened by that name), src/init.cc (NCCL_GDRCOPY_ENABLE is 0).
"""

from __future__ import annotations

from typing import List, Mapping, Optional

from ..core.finding import Finding
from ..core.host import Host, Problem, attempt
from .checks import GDRCOPY
from .environment import Environment
from .grammar import strtoll
from .library import STANDARD_PATHS

NAME = "NCCL_GDRCOPY_ENABLE"
MODULE, DEVICE, LIBRARY = "/sys/module/gdrdrv", "/dev/gdrdrv", "libgdrapi.so"
_FOLDERS = tuple(dict.fromkeys(path.rpartition("/")[0] for path in STANDARD_PATHS))


def lacking(host: Host) -> List[str]:
    """Return what of the driver this machine lacks. Raises ReadError."""
    found = [] if host.realpath(MODULE) is not None else ["the module gdrdrv is not loaded"]
    return found if host.mode_system(DEVICE) is not None else [*found, "there is no %s" % DEVICE]


def is_on(value: Optional[str]) -> bool:
    return value is not None and strtoll(value)[0] == 1


def judge(host: Host, meant: Mapping[str, str], environment: Environment) -> Optional[Finding]:
    """Return the finding where GDRCopy is switched on. meant: variables of nccl.conf as it should be."""
    places = [one.source for one in environment.settings if one.name == NAME and is_on(one.value)]
    places += ["nccl.conf"] if is_on(meant.get(NAME)) else []
    if not places:
        return None
    want = "gdrdrv, %s and %s: %s sets %s=1" % (DEVICE, LIBRARY, places[0], NAME)
    problems: List[Problem] = []
    missing = attempt(lambda: lacking(host), MODULE, problems)
    if missing is None:
        return GDRCOPY.judge("GDRCopy", "unknown", want, str(problems[0]), MODULE)
    if missing:
        return GDRCOPY.judge("GDRCopy", "drift", want, ", ".join(missing), MODULE)
    paths = ["%s/%s" % (folder, LIBRARY) for folder in _FOLDERS]
    library = next((path for path in paths if host.is_file_system(path)), None)
    if library is None:
        have = "gdrdrv is loaded, and %s is in no standard folder" % LIBRARY
        fix = "install GDRCopy's library (libgdrapi), or accept this (busbar_accepted) where each job's image has it"
        return GDRCOPY.judge("GDRCopy", "unknown", want, have, LIBRARY, fix)
    return GDRCOPY.judge("GDRCopy", "ok", want, "gdrdrv is loaded, %s" % library, MODULE)
