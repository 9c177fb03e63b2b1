# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find sessions that run pam_limits, without which limits.d has no effect. Sources: pam.d(5), pam_limits(8),
sshd_config(5)."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host

FOLDERS = ("/etc/pam.d", "/usr/lib/pam.d")
_SSHD = "/etc/ssh/sshd_config"
_LINE = re.compile(r"-?(?P<type>\w+)\s+(?P<control>\[[^\]]*\]|\S+)\s+(?P<module>\S+)\s*(?P<arguments>.*)")
_DEPTH = 16
# Services whose sessions start jobs. Slurm has one if slurm.conf sets UsePAM.
_SERVICES = ("sshd", "login", "slurm")
SESSION = Check(
    "host_limits.session",
    why="limits.conf and limits.d count only for sessions that run pam_limits",
    aspect="persisted",
)
"Do sessions of sshd, login and Slurm run pam_limits with limits.d"


def session_modules(service: str, read: Callable[[str], Optional[str]]) -> Optional[List[Tuple[str, str]]]:
    """Return (module, arguments) in their order; None where the service has no file.

    service: such as ``sshd``.   read: the text of a path, None where it is absent; may raise ReadError.
    """
    text = next(filter(None, (read("%s/%s" % (folder, service)) for folder in FOLDERS)), None)
    return None if text is None else _modules(text, read, _DEPTH)


def _modules(text: str, read: Callable[[str], Optional[str]], depth: int) -> List[Tuple[str, str]]:
    found: List[Tuple[str, str]] = []
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.partition("#")[0].strip()
        include = re.match(r"@include\s+(\S+)", line)
        match = None if include else _LINE.fullmatch(line)
        if match is not None and match.group("type") == "session":
            if match.group("control") in ("include", "substack"):
                include = re.match(r"(\S+)", match.group("module"))
            else:
                found.append((match.group("module").rpartition("/")[2], match.group("arguments").strip()))
        if include is not None and depth:
            name = include.group(1)
            paths = [name] if name.startswith("/") else ["%s/%s" % (folder, name) for folder in FOLDERS]
            found += _modules(next(filter(None, map(read, paths)), ""), read, depth - 1)
    return found


def read(host: Host) -> Dict[str, Optional[str]]:
    """Return the arguments of pam_limits by service; None without it, and for a file with UsePAM no. ReadError."""
    found: Dict[str, Optional[str]] = {}
    for service in _SERVICES:
        modules = session_modules(service, host.read_system)
        if modules is not None:
            found[service] = next((given for name, given in modules if name == "pam_limits.so"), None)
    if host.mode_system(_SSHD) is not None:
        # Without such a line sshd runs no PAM.
        path, value = next(_use_pam(host, _SSHD), (_SSHD, "no"))
        found.update({} if value == "yes" else {path: None})
    return found


def _use_pam(host: Host, path: str, depth: int = 3) -> Iterator[Tuple[str, str]]:
    """Yield (file, value) of each line UsePAM, of which the first counts. An included file is read in its place."""
    for line in (host.read_system(path) or "").splitlines():
        key, *words = re.split(r"[\s=\"]+", line.strip())
        if key.lower() == "usepam":
            yield path, "".join(words).lower()
        for pattern in words if key.lower() == "include" and depth else ():
            folder, last = posixpath.split(posixpath.join(posixpath.dirname(_SSHD), pattern))
            for name in fnmatch.filter(sorted(host.listdir_system(folder)), last):
                yield from _use_pam(host, posixpath.join(folder, name), depth - 1)


def judge(service: str, given: Optional[str]) -> Finding:
    if service.startswith("/"):
        fix = "write UsePAM yes into %s, then sshd -t and systemctl reload ssh, on EL sshd" % service
        return SESSION.judge(service, "not_owned", "UsePAM yes", "no such line", service, fix)
    path = "%s/%s" % (FOLDERS[0], service)
    # With another file pam_limits reads no limits.d.
    other = next((word for word in (given or "").split() if word.startswith("conf=")), "")
    return SESSION.judge(
        service,
        "not_owned" if given is None or other else "ok",
        want="pam_limits with limits.d",
        have="no pam_limits" if given is None else "pam_limits %s" % (other or "with limits.d"),
        source=path,
        fix="remove %s from pam_limits in %s" % (other, path)
        if other
        else "add to %s: session required pam_limits.so" % path,
    )
