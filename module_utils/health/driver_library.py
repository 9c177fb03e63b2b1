# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The driver's user-space libraries: a broken installation, or a container that mounts them, may leave empty ones.

Source: ldconfig(8), which prints that such a file "is empty, not checked".
"""

from __future__ import annotations

import re
from typing import List, Optional

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ReadError

FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
DRIVER_LIBRARY = Check(
    "node_health.driver_library",
    why="a program that loads an empty library ends with 'file too short', and CUDA finds no GPU",
    fix="install the driver's packages of this version again, then run ldconfig",
    severity="critical",
)
"""Is each user-space library of the running driver's version intact; not judged if the loader's usual directories
have none, as with a driver from a container"""


def judge(host: Host, version: Optional[str]) -> List[Finding]:
    """Look for empty files.   version: of the running driver, None where there is none."""
    name = re.compile(r"lib(?:cuda|cudadebugger|nvidia-[a-z0-9-]+|nvcuvid)\.so\.%s" % re.escape(version or ""))
    found: List[Finding] = []
    for folder in FOLDERS if version else ():
        try:
            paths = ["%s/%s" % (folder, one) for one in host.listdir_system(folder) if name.fullmatch(one)]
            empty = [path for path in paths if not host.size_system(path)]
            have = "%d files, none empty" % len(paths)
            state = "drift" if empty else "ok"
        except ReadError as error:
            paths, empty, state, have = [folder], [], "unknown", str(error)
        if empty:
            have = "%d of %d are empty: %s" % (len(empty), len(paths), ", ".join(empty[:4]))
        if paths:
            found.append(DRIVER_LIBRARY.judge(folder, state, "libraries of %s" % version, have, folder))
    return found
