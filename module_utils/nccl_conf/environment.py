# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read every file of a node that sets NCCL's variables for jobs before NCCL reads /etc/nccl.conf.

NCCL uses the first definition: the process's environment, then ~/.nccl.conf (or the file of NCCL_CONF_FILE), then
/etc/nccl.conf. Nothing is run here. A form whose effect depends on running it is ``unknown``; files on a network file
system are not opened, since a dead server would block us.
Sources: NCCL src/misc/param.cc; pam_env.conf(5), environment.d(5), systemd.exec(5), systemd-system.conf(5), bash(1)
INVOCATION, slurm.conf(5) (Include, TaskProlog), enroot's environ.d.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from dataclasses import dataclass
from functools import partial
from typing import Dict, List, Optional, Sequence, Set, Tuple

from ..core import mounts, systemd_files
from ..core.finding import printable
from ..core.host import Host, ParseError, Problem, ReadError, attempt
from . import shell_assignments
from .environment_sources import (
    HOME_SOURCES,
    MODULES,
    MODULES_PATHS,
    OF_USERS,
    SOURCES,
    SSH_FILE,
    Pair,
    Parser,
    Source,
    parse_homes,
    parse_job_submit,
    parse_nccl_conf,
    parse_pairs,
    parse_shell,
    parse_task_prolog,
    parse_unit,
)

# Each home costs a handful of files; a login node has thousands of users, a compute node a few.
MOST_HOMES = 500
MOST_FILES = 1000
# Per user, or for all users: each is a line of the report.
MOST_SETTINGS = 100
# Of texts that mention a variable: to go through one costs some 50 ns a byte.
MOST_BYTES = 2 << 20
# File systems without a server. Any other may have one, and it may be dead.
_LOCAL = (
    *("bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs"),
    *("devtmpfs", "rootfs", "squashfs", "tmpfs", "vfat", "xfs", "zfs"),
)
_MANAGERS = {"system.conf": "every service of the node", "user.conf": OF_USERS}
_USER = "user@.service"
_CONTAINERS = "the daemon alone, for no container inherits it"
_UNITS = {
    # The manager of a user's services, which hands on what it was started with.
    _USER: OF_USERS,
    "slurmd.service": "what slurmd starts itself, such as prologs",
    "docker.service": _CONTAINERS,
    "containerd.service": _CONTAINERS,
    "crio.service": _CONTAINERS,
    "kubelet.service": _CONTAINERS,
}
_SLURM = ("/etc/slurm", "/etc/slurm-llnl", "/usr/local/etc", "/run/slurm/conf", "/var/spool/slurmd/conf-cache")
_SSHD = "/etc/ssh/sshd_config"
_SLURM_LINE = re.compile(r"(?im)^[ \t]*(ClusterName|Include|Prolog|TaskProlog)[ \t]*[= \t][ \t]*([^\s#=]+)")
_SOURCED = re.compile(r"(?m)(?:^|[\s;&|])(?:\.|source)[ \t]+[\"']?(/[^\s\"';&|()$*?]+)")


@dataclass(frozen=True)
class Setting:
    """A variable that a file sets before nccl.conf does.

    name: as the file has it.   value: None if it depends on running the file.
    source, line: the file, and the line in it, from 1.   reach: the jobs that get the variable, for people.
    conditional: set within ``if``, a function or after ``&&``.   idle: the variable reaches no job.
    raw: of a file like nccl.conf, as NCCL takes the line: the name may be ``export NCCL_DEBUG``.
    """

    name: str
    value: Optional[str]
    source: str
    line: int
    reach: str
    conditional: bool = False
    idle: bool = False
    raw: bool = False

    @property
    def variable(self) -> str:
        """Return the NCCL variable that ``name`` stands for."""
        match = shell_assignments.MENTION.search(self.name)
        return match.group() if match else self.name


@dataclass(frozen=True)
class Environment:
    """All that is set before nccl.conf.

    settings: in no order of precedence, for which wins depends on how a job is started.   problems: unreadable files.
    notes: what was left out, a sentence each.   missing: settings of NCCL_CONF_FILE that name a file that is not there.
    """

    settings: Tuple[Setting, ...] = ()
    problems: Tuple[Problem, ...] = ()
    notes: Tuple[str, ...] = ()
    missing: Tuple[Setting, ...] = ()


NOTHING = Environment()


# -- what is there ---------------------------------------------------------------------------------------------------


def read(host: Host) -> Environment:
    """Everything that is read before /etc/nccl.conf."""
    return _Reader(host).environment()


class _Reader:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._settings: List[Setting] = []
        self._problems: List[Problem] = []
        self._elsewhere: Dict[str, Set[str]] = {}
        self._seen: Set[Tuple[int, int]] = set()
        self._left = MOST_BYTES
        self._kept: Dict[str, int] = {}
        self._kinds = self._mounted()

    def environment(self) -> Environment:
        self._of_everybody()
        self._of_services()
        self._of_slurm()
        notes = self._of_homes()
        missing = self._named_files()
        for kind, places in sorted(self._elsewhere.items()):
            places_text = ", ".join(sorted(places)[:3]) + (", ..." if len(places) > 3 else "")
            notes.append(
                "not read, since it is not a local file system (%s): %s; what lies there can set NCCL's variables, too:"
                " busbar lint ~/.nccl.conf ~/.bashrc" % (kind, printable(places_text))
            )
        return Environment(tuple(self._settings), tuple(self._problems), tuple(notes), missing)

    # -- the places -------------------------------------------------------------------------------------------------

    def _of_everybody(self) -> None:
        for source in SOURCES:
            for path in source.paths if not source.ends else ():
                self._source(path, source.parser, source.reach)
            for folder in source.paths if source.ends else ():
                self._folder(folder, source, source.reach)
        text = "\n".join(re.sub(r"#.*", "", self._text(path) or "") for path in MODULES_PATHS)
        for folder in sorted({*re.findall(r"(?m)(?:^|[\s:])(/[^\s:*$]+)", text)}.difference(MODULES.paths)):
            self._folder(folder, MODULES, MODULES.reach)

    def _folder(self, folder: str, source: Source, reach: str, depth: int = 0) -> None:
        if not self._real_path(folder):
            return
        for path in self._list(folder, source.ends):
            if depth < source.depth and os.path.isdir(self._host.system(path)):
                self._folder(path, source, reach, depth + 1)
            else:
                self._source(path, source.parser, reach)

    def _source(self, path: str, parser: Parser, reach: str) -> None:
        if parser is parse_shell:
            self._shell(path, reach)
        else:
            self._file(path, parser, reach)

    def _of_services(self) -> None:
        manager = ("[Manager]", ("DefaultEnvironment", "ManagerEnvironment"), systemd_files.configuration, _MANAGERS)
        named_users = attempt(partial(systemd_files.instances, self._host, _USER), _USER, self._problems) or ()
        units = {**_UNITS, **dict.fromkeys(named_users, OF_USERS)}
        service = ("[Service]", ("Environment", "PassEnvironment"), systemd_files.unit_files, units)
        done: Set[Tuple[str, str]] = set()
        for section, keys, files_of, names in (manager, service):
            for name, reach in names.items():
                files = attempt(partial(files_of, self._host, name), name, self._problems)
                for path, text in (files or {}).items():
                    # Drop-ins of all services are read with each of them.
                    if (path, reach) in done:
                        continue
                    done.add((path, reach))
                    pairs, named = parse_unit(text, section, keys)
                    self._record(path, pairs, reach)
                    for file in named:
                        if not re.search(r"[%*?\[]", file):
                            self._named(file, parse_pairs, reach)

    def _of_slurm(self) -> None:
        for folder in _SLURM:
            self._file(folder + "/job_submit.lua", parse_job_submit, "Slurm jobs")
            waiting, cluster = [folder + "/slurm.conf"], ""
            # No file is read twice, so a circle ends.
            while waiting:
                path = waiting.pop()
                for key, value in _SLURM_LINE.findall(self._text(path) or ""):
                    value = value.strip("\"'")
                    if key.lower() == "clustername":
                        cluster = value.lower()
                    elif key.lower() == "include":
                        below = _below(path.rpartition("/")[0], value.replace("%c", cluster))
                        waiting += [below] if self._real_path(below) else []
                    else:
                        # Only the effects of a prolog count; its output is unused.
                        parser = parse_task_prolog if key.lower() == "taskprolog" else _parse_prolog
                        for program in self._programs(_below(folder, value)):
                            self._named(program, parser, "Slurm jobs")

    def _programs(self, path: str) -> List[str]:
        above, _slash, pattern = path.rpartition("/")
        if not re.search(r"[*?\[]", pattern):
            return [path]
        found = self._list(above, ("",)) if self._real_path(above) else []
        return [one for one in found if fnmatch.fnmatchcase(one.rpartition("/")[2], pattern)]

    def _of_homes(self) -> List[str]:
        homes = {"/root": "root"}
        text = self._text("/etc/passwd")
        for home, user in parse_homes(text or "").items():
            homes.setdefault(home, user)
        # Users of a directory service stand in no file.
        there = self._real_path("/home")
        for path in self._list(there, ("",)) if there else ():
            homes.setdefault(path, path.rpartition("/")[2])
        sshd = attempt(partial(self._host.read_system, _SSHD), _SSHD, self._problems)
        permitted = re.search(r"(?im)^\s*PermitUserEnvironment[ \t=]+(?!no\b)\S", sshd or "")
        kept = sorted(homes, key=lambda home: (home != "/root", home))[:MOST_HOMES]
        for named in kept:
            home = self._real_path(named)
            if home is None:
                continue
            reach = "jobs of %s" % printable(homes[named])[:40]
            for source in HOME_SOURCES:
                for name in source.paths if source.paths != (SSH_FILE,) or permitted else ():
                    path = "%s/%s" % (home, name)
                    if source.ends:
                        self._folder(self._real_path(path) or path, source, reach)
                    else:
                        self._source(path, source.parser, reach)
        left = len(homes) - len(kept)
        return ["%d home directories more than %d were not read" % (left, MOST_HOMES)] if left else []

    def _named_files(self) -> Tuple[Setting, ...]:
        missing = []
        for setting in [one for one in self._settings if one.name == "NCCL_CONF_FILE" and one.value and not one.raw]:
            try:
                path = self._resolved(setting.value or "")
            except OSError:
                missing.append(setting)
                continue
            if path is not None:
                self._file(path, parse_nccl_conf, setting.reach)
        return tuple(missing)

    # -- files ------------------------------------------------------------------------------------------------------

    def _record(self, path: str, pairs: Sequence[Pair], reach: str, raw: bool = False) -> None:
        already = self._kept.get(reach, 0)
        self._kept[reach] = already + len(pairs)
        if already <= MOST_SETTINGS < self._kept[reach]:
            self._problems.append(Problem(path, "NCCL's variables are set more than %d times" % MOST_SETTINGS))
        idle = reach == _CONTAINERS
        for pair in pairs[: max(MOST_SETTINGS - already, 0)]:
            self._settings.append(Setting(pair.name, pair.value, path, pair.line, reach, pair.conditional, idle, raw))

    def _shell(self, path: str, reach: str) -> None:
        """A shell's file, and those that it reads by name."""
        text = self._text(path, lenient=True)
        if text is None:
            return
        self._file(path, parse_shell, reach, text)
        for source in _SOURCED.findall(text[: shell_assignments.LONGEST])[:20]:
            self._named(source, parse_shell, reach)

    def _named(self, path: str, parser: Parser, reach: str) -> None:
        """A file that another one names, and that may lie anywhere."""
        if path.startswith("/") and self._real_path(path):
            self._file(path, parser, reach)

    def _file(self, path: str, parser: Parser, reach: str, text: Optional[str] = None) -> None:
        if text is None:
            text = self._text(path, lenient=parser is parse_shell)
        if text is None or not shell_assignments.MENTION.search(text):
            return
        if len(text) > shell_assignments.LONGEST and parser is not parse_nccl_conf:
            self._problems.append(Problem(path, "mentions NCCL's variables and is too long to be read in full"))
            return
        if self._left < len(text):
            self._problems.append(Problem(path, "was not read: the limit was reached with the files before it"))
            return
        self._left -= len(text)
        self._record(path, parser(text), reach, parser is parse_nccl_conf)

    def _text(self, path: str, lenient: bool = False) -> Optional[str]:
        """None where there is none, where it was read already, and where it does not lie on this machine."""
        full = self._host.system(path)
        try:
            found = os.lstat(full)
            if stat.S_ISLNK(found.st_mode):
                real = self._resolved(path)
                if real is None:
                    return None
                path, found = real, os.lstat(self._host.system(real))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._problems.append(Problem(path, "cannot be read: %s" % error.strerror))
            return None
        if (found.st_dev, found.st_ino) in self._seen:
            return None
        self._seen.add((found.st_dev, found.st_ino))
        # A comment in Latin-1 must not make a shell file unreadable.
        errors = "replace" if lenient else "strict"
        return attempt(lambda: self._host.read_system(path, errors=errors), path, self._problems)

    def _real_path(self, path: str) -> Optional[str]:
        """Return the path without links; None if it does not exist on this machine."""
        try:
            return self._resolved(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._problems.append(Problem(path, "cannot be read: %s" % error.strerror))
            return None

    def _list(self, folder: str, ends: Tuple[str, ...]) -> List[str]:
        names = attempt(lambda: self._host.listdir_system(folder), folder, self._problems) or []
        if len(names) > MOST_FILES:
            self._problems.append(Problem(folder, "holds more than %d files; the others are not read" % MOST_FILES))
        return ["%s/%s" % (folder, name) for name in names[:MOST_FILES] if name.endswith(ends)]

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
        if kind in _LOCAL:
            return True
        # The homes that an automounter has mounted at the moment do not matter.
        self._elsewhere.setdefault(kind, set()).add("/" + path.split("/")[1])
        return False

    def _resolved(self, path: str) -> Optional[str]:
        """The path without links; None where it leads off the machine, or nowhere. Looks at nothing that is not local.
        Raises OSError."""
        parts = path.split("/")[1:]
        done = ""
        links = 0
        while parts:
            part = parts.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            here = "%s/%s" % (done, part)
            if not self._local(here):
                return None
            full = self._host.system(here)
            if not stat.S_ISLNK(os.lstat(full).st_mode):
                done = here
                continue
            links += 1
            if links > 40:
                raise OSError(40, "Too many levels of symbolic links")
            target = os.readlink(full)
            done = "" if target.startswith("/") else done
            parts = target.split("/") + parts
        return done or "/"


def _below(folder: str, path: str) -> str:
    return path if path.startswith("/") else "%s/%s" % (folder, path)


def _parse_prolog(text: str) -> List[Pair]:
    """A prolog runs as root before the job, which inherits nothing of it; only what it may write for the job counts."""
    return [Pair(one.name, None, one.line) for one in shell_assignments.parse(text) if one.scope == "unclear"]
