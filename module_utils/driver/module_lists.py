# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find out whether a kernel module is loaded at boot (modules-load.d) or must not be (modprobe.d, kernel command line).

Sources: modules-load.d(5), modprobe.d(5), kernel-command-line(7).
"""

from __future__ import annotations

from functools import partial
from typing import Dict, List, Optional, Sequence, Tuple

from ..core.finding import printable
from ..core.host import Host, Problem, attempt
from .module_file import plain

# The first of two files with one name hides the other.
LISTS = ("/etc/modules-load.d", "/usr/local/lib/modules-load.d", "/usr/lib/modules-load.d")
MODPROBE = ("/etc/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")


def listed(text: str) -> List[str]:
    """Return the modules that a file of modules-load.d names."""
    return [plain(line) for line in text.splitlines() if line.strip() and not _comment(line)]


def unlisted(text: str, module: str) -> Optional[str]:
    """Return a file of modules-load.d without a module; None if it then names none."""
    kept = [line for line in text.splitlines(keepends=True) if _comment(line) or plain(line) != module]
    return "".join(kept) if listed("".join(kept)) else None


def blocks(text: str, module: str) -> List[str]:
    """Return the lines of a file of modprobe.d that keep a module from being loaded."""
    return [line for _raw, line in _logical(text) if _blocks(line, module)]


def unblocked(text: str, module: str) -> str:
    """Return a file of modprobe.d without these lines."""
    return "".join(raw for raw, line in _logical(text) if not _blocks(line, module))


def forbidding(cmdline: str, module: str) -> List[str]:
    """Return the arguments of the kernel's command line that keep a module from being loaded."""
    found = []
    for argument in printable(cmdline).split():
        name, _equals, value = argument.partition("=")
        if name in ("module_blacklist", "modprobe.blacklist") and module in map(plain, value.split(",")):
            found.append(argument)
    return found


def read(host: Host, folders: Sequence[str], problems: List[Problem]) -> Dict[str, str]:
    """Return path -> text of the .conf files that count, in the order of their names. folders: LISTS or MODPROBE."""
    found: Dict[str, Tuple[str, str]] = {}
    for folder in folders:
        for name in attempt(partial(host.listdir_system, folder), folder, problems) or []:
            if not name.endswith(".conf") or name in found:
                continue
            path = "%s/%s" % (folder, name)
            text = attempt(partial(host.read_system, path), path, problems)
            if path == "/etc/modules-load.d/modules.conf":
                # Debian's is a link, and a link must not become a file.
                behind = attempt(partial(host.read_system, "/etc/modules"), "/etc/modules", problems)
                path = "/etc/modules" if behind == text else path
            if text is not None:
                found[name] = (path, text)
    return dict(found[name] for name in sorted(found))


def _logical(text: str) -> List[Tuple[str, str]]:
    """Return (as in the file, as one line) of each line; a backslash at the end joins the next."""
    found: List[Tuple[str, str]] = []
    raw = ""
    for line in [*text.splitlines(keepends=True), ""]:
        raw += line
        if raw and (not line or not raw.rstrip("\r\n").endswith("\\")):
            found.append((raw, " ".join(raw.replace("\\\n", " ").split())))
            raw = ""
    return found


def _blocks(line: str, module: str) -> bool:
    words = line.split()
    if len(words) < 2 or plain(words[1]) != module:
        return False
    # An install line that runs modprobe for the same module loads it after all.
    return words[0] == "blacklist" or (words[0] == "install" and module not in map(plain, words[2:]))


def _comment(line: str) -> bool:
    return line.strip().startswith(("#", ";"))
