# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the files of a node that set NCCL's variables for jobs before NCCL reads /etc/nccl.conf.

NCCL uses the first definition: the process's environment, then ~/.nccl.conf (or the file of NCCL_CONF_FILE), then
/etc/nccl.conf. Nothing is run here. A form whose effect depends on running it is ``unknown``; files on a network file
system are not opened, since a dead server would block us. A user's own shell files, pam_env.conf, environment.d,
systemd's system.conf, files of csh and zsh, modules, and settings of sshd, Open MPI and containers are not read.
Sources: NCCL src/misc/param.cc; pam_env(8), systemd.exec(5), bash(1) INVOCATION; slurm.conf(5) (Include, TaskProlog);
enroot's environ.d.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from functools import partial
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..core import ini, mounts, systemd_files
from ..core.finding import printable
from ..core.host import Host, ParseError, Problem, ReadError, attempt
from . import grammar, shell_assignments
from .grammar import MENTION, NAME, USER_FILE, Assignment

# Each home costs a file; a login node has thousands of users, a compute node a few.
MOST_HOMES = 500
MOST_FILES = 1000
# Per user, or for all users: each is a line of the report.
MOST_SETTINGS = 100
# Of texts that mention a variable: to go through one costs some 100 ns a byte.
MOST_BYTES = 2 << 20
# File systems without a server. Any other may have one, and it may be dead.
_LOCAL = "bcachefs btrfs devtmpfs erofs exfat ext2 ext3 ext4 f2fs jfs overlay ramfs reiserfs rootfs squashfs tmpfs"
_LOCAL += " vfat xfs zfs"
OF_USERS = "users' own services"
_USER = "user@.service"
# Units, and the jobs that they reach: the manager of a user's services hands on what it was started with.
_UNITS = {_USER: OF_USERS, "slurmd.service": "what slurmd starts itself, such as prologs"}
_SLURM = ("/etc/slurm", "/etc/slurm-llnl", "/usr/local/etc", "/run/slurm/conf", "/var/spool/slurmd/conf-cache")
_SLURM_LINE = re.compile(r"(?im)^[ \t]*(ClusterName|Include|TaskProlog)[ \t]*[= \t][ \t]*([^\s#=]+)")
_SOURCED = re.compile(r"(?m)(?:^|[\s;&|])(?:\.|source)[ \t]+[\"']?(/[^\s\"';&|()$*?]+)")
_PAIR = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_LUA = re.compile(r"environment\s*(?:\.|\[\s*[\"'])(%s)(?:[\"']\s*\])?\s*=\s*(.*)" % NAME)
_LITERAL = re.compile(r"([\"'])(.*?)\1\s*;?\s*$")


class Setting(NamedTuple):
    """A variable that a file sets before nccl.conf does.

    name: as the file has it.   value: None if it depends on running the file.
    source, line: the file, and the line in it, from 1.   reach: the jobs that get the variable, for people.
    conditional: set within ``if``, a function or after ``&&``.
    raw: of a file like nccl.conf, as NCCL takes the line: the name may be ``export NCCL_DEBUG``.
    missing: it is a NCCL_CONF_FILE that names a file that is not there.
    """

    name: str
    value: Optional[str]
    source: str
    line: int
    reach: str
    conditional: bool = False
    raw: bool = False
    missing: bool = False

    @property
    def place(self) -> str:
        """Return ``FILE:LINE``."""
        return "%s:%d" % (self.source, self.line)

    @property
    def reaches_all(self) -> bool:
        """Return whether jobs of all users get it in their environment, on no condition."""
        return self.reach in _OF_ALL and not (self.raw or self.conditional)

    @property
    def variable(self) -> str:
        """Return the NCCL variable that ``name`` stands for."""
        match = MENTION.search(self.name)
        return match.group() if match else self.name


class Environment(NamedTuple):
    """All that is set before nccl.conf.

    settings: in no order of precedence, for which wins depends on how a job is started.   problems: unreadable files.
    notes: what was left out, a sentence each.
    """

    settings: Tuple[Setting, ...] = ()
    problems: Tuple[Problem, ...] = ()
    notes: Tuple[str, ...] = ()


# -- parsers ---------------------------------------------------------------------------------------------------------

Parser = Callable[[str], List[Assignment]]


def parse_pairs(text: str) -> List[Assignment]:
    """NAME=VALUE, an optional ``export``, quotes round the value dropped: files of EnvironmentFile= and enroot."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _PAIR.fullmatch(line)
        if match is None:
            # In a form that is not certain; behind # it is a comment.
            found += [Assignment(name, None, number) for name in MENTION.findall(line.partition("#")[0])]
        elif MENTION.fullmatch(match.group(1)):
            value = match.group(2).rstrip(" \t\r")
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            value = value[1:-1] if quoted else value
            found.append(Assignment(match.group(1), None if "${" in value else value, number))
    return found


def parse_pam(text: str) -> List[Assignment]:
    """/etc/environment: # ends a line anywhere, within quotes, too (Linux-PAM, pam_env.c)."""
    return parse_pairs("\n".join(line.partition("#")[0] for line in text.split("\n")))


def parse_shell(text: str) -> List[Assignment]:
    """The variables that a shell, when it has read the text, hands on to the programs that it starts."""
    found = _with_scope(text, "environment")
    certain = [(item.name, number) for number, item in enumerate(found) if item.scope == "environment"]
    last = {name: number for name, number in certain if not found[number].conditional}
    return [item for number, item in enumerate(found) if number >= last.get(item.name, 0)]


def parse_task_prolog(text: str) -> List[Assignment]:
    """``export NAME=VALUE`` that a task prolog prints: slurmd puts it into the task's environment. What the prolog
    exports itself ends with it."""
    return _with_scope(text, "printed")


def _with_scope(text: str, scope: str) -> List[Assignment]:
    """Return settings of a scope, and those that are not certain without their value: their file may be no job's."""
    found = (one for one in shell_assignments.parse(text) if one.scope in (scope, "unclear", "unread"))
    return [one if one.scope == scope else one._replace(value=None) for one in found]


def parse_unit(text: str) -> Tuple[List[Assignment], List[str]]:
    """The pairs of Environment= and PassEnvironment= of a service, and the files of EnvironmentFile=."""
    found: List[Assignment] = []
    files: List[str] = []
    for setting in ini.settings(text):
        if setting.section == "Service" and setting.key == "EnvironmentFile":
            files = [*files, setting.value.lstrip("-")] if setting.value else []
        elif setting.section == "Service" and setting.key in ("Environment", "PassEnvironment"):
            try:
                words = shlex.split(setting.value)
            except ValueError:  # quotes that do not end
                words = MENTION.findall(setting.value)
            found = found if setting.value else []
            for name, equals, value in (word.partition("=") for word in words):
                if MENTION.fullmatch(name):
                    # PassEnvironment= hands on what the manager itself was started with.
                    found.append(Assignment(name, value if equals else None, setting.first + 1))
    return found, files


def parse_job_submit(text: str) -> List[Assignment]:
    """``job_desc.environment.NAME = "VALUE"`` of a job_submit.lua."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _LUA.search(line.partition("--")[0])
        literal = _LITERAL.match(match.group(2)) if match else None
        if match:
            found.append(Assignment(match.group(1), literal.group(2) if literal else None, number, conditional=True))
    return found


EVERYBODY, LOGINS, _SLURM_JOBS, _ENROOT = (
    *("jobs of all users", "logins of all users", "Slurm jobs", "enroot containers"),
)
_OF_ALL = (EVERYBODY, LOGINS, _SLURM_JOBS, _ENROOT)
_PROFILES = ("/etc/profile", "/etc/profile.d/sh.local", "/etc/bash.bashrc", "/etc/bashrc")
# Files, or folders of files with an ending; their parser, and whom they reach. A new place is one row.
_SOURCES: Tuple[Tuple[Tuple[str, ...], str, Parser, str], ...] = (
    (("/etc/environment",), "", parse_pam, LOGINS),
    (_PROFILES, "", parse_shell, EVERYBODY),
    (("/etc/profile.d",), ".sh", parse_shell, EVERYBODY),
    (("/etc/enroot/environ.d", "/usr/local/etc/enroot/environ.d"), ".env", parse_pairs, _ENROOT),
)


# -- the places ------------------------------------------------------------------------------------------------------


def read(host: Host) -> Environment:
    """Everything that is read before /etc/nccl.conf."""
    return _Reader(host).environment()


class _Reader:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._settings: List[Setting] = []
        self._problems: List[Problem] = []
        self._elsewhere: Dict[str, Set[str]] = {}
        self._done: Set[str] = set()
        self._left = MOST_BYTES
        self._counts: Dict[str, int] = {}
        self._named: List[Tuple[str, str]] = []
        self._kinds = self._mounted()

    def environment(self) -> Environment:
        for places, ending, parser, reach in _SOURCES:
            for path in (path for place in places for path in (self._list(place, ending) if ending else [place])):
                self._file(path, parser, reach)
        self._of_services()
        self._of_slurm()
        notes = self._of_homes()
        for path, reach in self._named:
            self._file(path, grammar.assignments, reach)
        for kind, folders in sorted(self._elsewhere.items()):
            places_text = ", ".join(sorted(folders)[:3]) + (", ..." if len(folders) > 3 else "")
            notes.append(
                "not read, since it is not a local file system (%s): %s; what lies there can set NCCL's variables, too:"
                " busbar lint ~/.nccl.conf ~/.bashrc" % (kind, printable(places_text))
            )
        return Environment(tuple(self._settings), tuple(self._problems), tuple(notes))

    def _of_services(self) -> None:
        named_users = attempt(partial(systemd_files.instances, self._host, _USER), _USER, self._problems) or ()
        # Drop-ins of all services are read with each of them.
        done: Set[Tuple[str, str]] = set()
        for name, reach in {**_UNITS, **dict.fromkeys(named_users, OF_USERS)}.items():
            files = attempt(partial(systemd_files.unit_files, self._host, name), name, self._problems) or {}
            for path, text in files.items():
                if (path, reach) not in done:
                    done.add((path, reach))
                    pairs, named = parse_unit(text)
                    self._record(path, pairs, reach)
                    for file in named:
                        self._file(file, parse_pairs, reach)

    def _of_slurm(self) -> None:
        for folder in _SLURM:
            self._file(folder + "/job_submit.lua", parse_job_submit, _SLURM_JOBS)
            waiting, cluster = [folder + "/slurm.conf"], ""
            # No file is read twice, so a circle ends.
            while waiting:
                path = waiting.pop()
                for key, value in _SLURM_LINE.findall(self._text(path) or ""):
                    value = value.strip("\"'")
                    if key.lower() == "clustername":
                        cluster = value.lower()
                    elif key.lower() == "include":
                        waiting.append(os.path.join(os.path.dirname(path), value.replace("%c", cluster)))
                    else:
                        self._file(os.path.join(folder, value), parse_task_prolog, _SLURM_JOBS)

    def _of_homes(self) -> List[str]:
        rows = [line.split(":") for line in (self._text("/etc/passwd") or "").splitlines()]
        # Not the shared directories of system users. Users of a directory service stand in no file.
        homes = {row[5].rstrip("/"): row[0] for row in reversed(rows) if len(row) == 7 and row[5][:1] == "/"}
        homes = {**{path: os.path.basename(path) for path in self._list("/home")}, **homes, "/root": "root"}
        homes.pop("", None)
        for home in sorted(homes, key=lambda home: (home != "/root", home))[:MOST_HOMES]:
            reach = "jobs of %s" % printable(homes[home])[:40]
            self._file("%s/%s" % (home, USER_FILE), grammar.assignments, reach)
        left = max(len(homes) - MOST_HOMES, 0)
        return ["%d home directories more than %d were not read" % (left, MOST_HOMES)] if left else []

    # -- files ------------------------------------------------------------------------------------------------------

    def _record(self, path: str, pairs: Sequence[Assignment], reach: str, raw: bool = False) -> None:
        already = self._counts.get(reach, 0)
        self._counts[reach] = already + len(pairs)
        if already <= MOST_SETTINGS < self._counts[reach]:
            self._problems.append(Problem(path, "NCCL's variables are set more than %d times" % MOST_SETTINGS))
        for pair in pairs[: max(MOST_SETTINGS - already, 0)]:
            named = pair.value if pair.name == "NCCL_CONF_FILE" and not raw else None
            missing = named is not None and self._is_missing(path, named, reach)
            self._settings.append(
                Setting(pair.name, pair.value, path, pair.line, reach, pair.conditional, raw, missing)
            )

    def _is_missing(self, source: str, path: str, reach: str) -> bool:
        """Return whether there is no such file as NCCL_CONF_FILE names; NCCL reads it instead of the user's."""
        if not path.startswith("/"):
            self._problems.append(Problem(source, "names a NCCL_CONF_FILE that is not an absolute path"))
            return False
        try:
            self._resolved(path)
        except OSError:
            return True
        self._named.append((path, reach))
        return False

    def _file(self, path: str, parser: Parser, reach: str) -> None:
        # A comment in Latin-1 must not make a shell file unreadable.
        text = self._text(path, "replace" if parser is parse_shell else "strict")
        if text is None:
            return
        if parser is parse_shell:
            for source in _SOURCED.findall(text[: shell_assignments.LONGEST])[:20]:
                self._file(source, parser, reach)
        if not MENTION.search(text):
            return
        raw = parser is grammar.assignments
        if len(text) > shell_assignments.LONGEST and not raw:
            self._problems.append(Problem(path, "mentions NCCL's variables and is too long to be read in full"))
        elif self._left < len(text):
            self._problems.append(Problem(path, "was not read: the limit was reached with the files before it"))
        else:
            self._left -= len(text)
            self._record(path, parser(text), reach, raw)

    def _text(self, path: str, errors: str = "strict") -> Optional[str]:
        """None where there is none, where it was read already, and where it does not lie on this machine."""
        real = self._real_path(path)
        if real is None or real in self._done:
            return None
        self._done.add(real)
        return attempt(lambda: self._host.read_system(real, errors=errors), path, self._problems)

    def _real_path(self, path: str) -> Optional[str]:
        """Return the path without links; None if it does not exist on this machine, or is not absolute."""
        try:
            return self._resolved(path) if path.startswith("/") else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._problems.append(Problem(path, "cannot be read: %s" % error.strerror))
            return None

    def _list(self, folder: str, ending: str = "") -> List[str]:
        if self._real_path(folder) is None:
            return []
        names = attempt(lambda: self._host.listdir_system(folder), folder, self._problems) or []
        if len(names) > MOST_FILES:
            self._problems.append(Problem(folder, "holds more than %d files; the others are not read" % MOST_FILES))
        return ["%s/%s" % (folder, name) for name in names[:MOST_FILES] if name.endswith(ending)]

    # -- what is local ----------------------------------------------------------------------------------------------

    def _mounted(self) -> Dict[str, str]:
        """Folder -> kind of file system. Where the root is a server's, so is the Python that runs this."""
        try:
            mounted = mounts.parse(self._host.read(mounts.PATH) or "")
        except (ReadError, ParseError):
            return {"/": "unknown"}
        return {**{mount.folder.replace("\\040", " "): mount.kind for mount in mounted}, "/": "rootfs"}

    def _local(self, path: str) -> bool:
        """Return whether a path without links is on a local file system; if not, note it."""
        place = path
        while place not in self._kinds and place != "/":
            place = place.rpartition("/")[0] or "/"
        kind = self._kinds[place]
        if kind in _LOCAL.split():
            return True
        # The homes that an automounter has mounted at the moment do not matter.
        self._elsewhere.setdefault(kind, set()).add("/" + path.split("/")[1])
        return False

    def _resolved(self, path: str, links: int = 40) -> Optional[str]:
        """The path without links; None where it leads off the machine, or nowhere. Looks at nothing that is not local.
        Raises OSError."""
        parts = path.split("/")
        done = ""
        for number, part in enumerate(parts):
            if part == "..":
                done = done.rpartition("/")[0]
            elif part not in ("", "."):
                here = "%s/%s" % (done, part)
                if not self._local(here):
                    return None
                full = self._host.system(here)
                if stat.S_ISLNK(os.lstat(full).st_mode):
                    if not links:
                        raise OSError(40, "Too many levels of symbolic links")
                    target = os.readlink(full)
                    above = "" if target.startswith("/") else done
                    return self._resolved("/".join([above, target, *parts[number + 1 :]]), links - 1)
                done = here
        return done or "/"
