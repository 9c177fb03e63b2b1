# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read files of sysctl settings, and find the line that counts at boot.

Sources: sysctl.d(5) and systemd-sysctl of 252; tuned's plugin_sysctl 2.20; ufw-framework(8); rc-local.service.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import tuned
from .host import Host
from .systemd_files import by_name

FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
# Read by sysctl -p and sysctl --system, and at boot only where 99-sysctl.conf points at it.
MAIN = "/etc/sysctl.conf"


class Assignment(NamedTuple):
    """One line of a sysctl file. key: with slashes, below /proc/sys. value: None excludes the key from globs.

    line: 0 if not known. program: sets it after systemd-sysctl has run; "" for systemd-sysctl.
    """

    key: str
    value: Optional[str]
    path: str
    line: int
    program: str = ""

    @property
    def place(self) -> str:
        return "%s:%s" % (self.path, self.line or self.key)


def normalized(key: str) -> str:
    """Return a key with slashes, as systemd-sysctl does: the first of . and / separates, the other belongs to names."""
    separators = [char for char in key if char in "./"]
    if separators[:1] == ["."]:
        key = key.translate({ord("."): "/", ord("/"): "."})
    return re.sub("/+", "/", key).strip("/")


def parse(text: str, path: str) -> List[Assignment]:
    """Return the assignments of a file, in order. Lines that systemd-sysctl refuses are passed over, as it does."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        ignore_errors = key.startswith("-")
        key = normalized(key[1:].strip() if ignore_errors else key)
        if key and (equals or ignore_errors):
            found.append(Assignment(key, value.strip() if equals else None, path, number))
    return found


def read(host: Host) -> Tuple[List[Assignment], List[Assignment]]:
    """Return lines in the order in which a boot applies them, and those of MAIN if it does not read that.

    Raises ReadError.
    """
    paths = [path for _name, path in by_name(host, FOLDERS, ".conf")]
    linked = any(path.endswith("/99-sysctl.conf") for path in paths)
    at_boot = [one for path in paths for one in _lines(host, path)]
    main = _lines(host, MAIN)
    # What sets kernel settings after systemd-sysctl, in the order of a boot.
    enabled = re.search(r"(?m)^\s*ENABLED=[\"']?yes", host.read_system("/etc/ufw/ufw.conf") or "")
    at_boot += [one._replace(program="ufw") for one in (_lines(host, "/etc/ufw/sysctl.conf") if enabled else ())]
    # Where tuned reapplies the administrator's lines, those count more than its own.
    again = ("/etc/sysctl.d/", "/run/sysctl.d/", MAIN) if tuned.reapplies_sysctl(host) else ()
    theirs = {one.key for one in (*at_boot, *main) if one.path.startswith(again)}
    for key, (value, path) in tuned.settings(host, "sysctl").items():
        if normalized(key) not in theirs:
            at_boot.append(Assignment(normalized(key), value.strip("\"'"), path, 0, "tuned"))
    return at_boot + _rc_local(host), [] if linked else main


def _lines(host: Host, path: str) -> List[Assignment]:
    return parse(host.read_system(path) or "", path)


_WRITE = re.compile(r"\s*echo\s+(?:-n\s+)?[\"']?([^\s\"'>]+)[\"']?\s*>+\s*[\"']?/proc/sys/([^\s\"';]+)")


def _rc_local(host: Host) -> List[Assignment]:
    """Return what ``sysctl -w KEY=VALUE`` and ``echo VALUE >/proc/sys/KEY`` set in a script that the boot may run."""
    found = []
    for path in ("/etc/rc.local", "/etc/rc.d/rc.local"):
        lines = (host.read_system(path) or "").split("\n") if (host.mode_system(path) or 0) & 0o100 else []
        for number, line in enumerate(lines, 1):
            words = line.split() or [""]
            pairs = [(match.group(2), match.group(1)) for match in [_WRITE.match(line)] if match]
            if words[0].rpartition("/")[2] == "sysctl":
                pairs += [word.strip("\"'").partition("=")[::2] for word in words[1:] if "=" in word]
            found += [Assignment(normalized(key), value, path, number, "rc.local") for key, value in pairs]
    return found


def effective(assignments: Sequence[Assignment], key: str) -> Optional[Assignment]:
    """Return the line that counts for one setting. One that names it wins over globs, wherever they are."""
    later = [one for one in assignments if one.program and one.key == key]
    if later:
        return later[-1]
    table: Dict[str, Assignment] = {}
    for one in (one for one in assignments if not one.program):
        if one.key in table and table[one.key].value == one.value:
            continue  # it keeps its place
        table.pop(one.key, None)
        table[one.key] = one
    if key in table:
        # "-KEY" alone keeps globs away and sets nothing.
        return table[key] if table[key].value is not None else None
    globs = [one for one in table.values() if one.value is not None and _fits(one.key, key)]
    return globs[-1] if globs else None


def _fits(pattern: str, key: str) -> bool:
    """Return whether a key is, or matches, a pattern as glob(3) does: an asterisk does not cross a slash."""
    parts, names = pattern.split("/"), key.split("/")
    return len(parts) == len(names) and all(fnmatchcase(name, part) for part, name in zip(parts, names))
