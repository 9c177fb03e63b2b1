# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The names of hosts, out of heads that are torn, glued to the end of another line, or cut at their begin."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Set

# In the end of a torn line that sticks to a host's name.
_TORN = re.compile(r"\d|[A-Z]|[^\w.-]")
# Characters behind which the rest of a name that was cut begins.
_CUT = ("-", ".")


class Hostnames:
    """``of`` says whose a head is. most: names, and processes, that are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_pid: Dict[int, str] = {}
        self._names: Set[str] = set()
        # Behind the text of another line: their begin may be its end.
        self._glued: Set[str] = set()
        # With a domain.
        self._full: Set[str] = set()
        # Names without their begin, of processes that say the whole one elsewhere.
        self._whole: Dict[str, str] = {}

    def of(self, host: str, pid: Optional[int], glued: bool = False) -> str:
        """The name of the host as it is known. glued: another line's text stands before it, without a line's end."""
        if pid is not None:
            known = self._of_pid.setdefault(pid, host) if len(self._of_pid) < self._most else host
            if not known:
                self._of_pid[pid] = host
            elif known in self._glued and known != host and known.endswith(host) and not glued:
                # A line of its own tells what of it is the name.
                self._of_pid[pid] = host
            elif known != host and (known.endswith(host) or _short(known) == host or known == _short(host)):
                host = known
            elif known != host and host.endswith(known):
                if host[: -len(known)].endswith(_CUT):
                    self._whole[known] = host
                host = known
        if not host or host in self._names:
            return host
        for at in range(1, len(host) - 2):
            if host[at:] in self._names and (glued or _TORN.search(host[:at])):
                if pid is not None and self._of_pid.get(pid) == host:
                    self._of_pid[pid] = host[at:]
                return host[at:]
        if len(self._names) < self._most:
            if _short(host) != host:
                self._full.add(host)
            (self._glued if glued else self._names).add(host)
        return host

    def settled(self) -> Dict[str, str]:
        """Names that turned out to be torn or cut -> the names of these hosts."""
        found = dict(self._whole)
        found.update(self._full_names())
        for host in self._glued - self._names:
            known = next((host[at:] for at in range(1, len(host) - 2) if host[at:] in self._names), "")
            if known:
                found[host] = known
        return found

    def _full_names(self) -> Dict[str, str]:
        """Names with a domain -> the same without it, where that is a host's name, too, and one host's alone."""
        of: Dict[str, List[str]] = {}
        for host in self._full:
            if _short(host) in self._names:
                of.setdefault(_short(host), []).append(host)
        return {full[0]: short for short, full in of.items() if len(full) == 1}


def _short(host: str) -> str:
    """A host's name without its domain, as NCCL prints it; an address as it is."""
    short = host.partition(".")[0]
    return host if short.isdigit() else short
