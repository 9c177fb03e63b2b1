# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which modules PAM runs for the session of a service. Source: pam.d(5), pam_limits(8)."""

from __future__ import annotations

import re
from typing import Callable, List, Optional, Tuple

FOLDERS = ("/etc/pam.d", "/usr/lib/pam.d")
_LINE = re.compile(r"-?(?P<type>\w+)\s+(?P<control>\[[^\]]*\]|\S+)\s+(?P<module>\S+)\s*(?P<arguments>.*)")
_DEPTH = 16


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
