# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read what is mounted, and will be at boot: /proc/mounts and fstab. Source: proc(5), fstab(5), nfs(5)."""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

from .host import ParseError

PATH = "/proc/mounts"
FSTAB = "/etc/fstab"


class Mount(NamedTuple):
    """source: device or server.   folder: a blank in it is ``\\040``.   kind: ext4, nfs4, ..."""

    source: str
    folder: str
    kind: str
    options: Tuple[str, ...]


def parse(text: str) -> List[Mount]:
    """Parse /proc/mounts. Raises ParseError."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4:
            raise ParseError("%r is not a line of %s" % (line[:160], PATH))
        found.append(Mount(words[0], words[1], words[2], tuple(words[3].split(","))))
    return found


def parse_fstab(text: str) -> List[Mount]:
    """Return what the boot mounts; comments and incomplete lines are passed over."""
    lines = [line for line in text.splitlines() if line.lstrip()[:1] != "#"]
    return parse("\n".join(line for line in lines if len(line.split()) > 3))
