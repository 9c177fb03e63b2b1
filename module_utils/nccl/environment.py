# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NCCL gets before it reads /etc/nccl.conf: every place of a node that sets its variables for jobs.

NCCL keeps the first definition: the process's environment, then ~/.nccl.conf (or the file that NCCL_CONF_FILE names in
its stead), then /etc/nccl.conf. Nothing is run here. Whatever mentions a variable in a form whose effect only running
it would tell is ``unknown``; what lies on a network file system is not touched, since a dead server would hold us.
Sources: NCCL src/misc/param.cc; pam_env.conf(5), environment.d(5), systemd.exec(5), systemd-system.conf(5), bash(1)
INVOCATION, slurm.conf(5) (Include, TaskProlog), enroot's environ.d.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from dataclasses import dataclass, replace
from functools import partial
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ..core import mounts, systemd_files
from ..core.check import Check
from ..core.finding import SEVERITIES, Finding, printable
from ..core.host import Host, ParseError, Problem, ReadError, attempt
from . import grammar, shell_assignments
from . import lint as nccl_lint
from .library import Library
from .variables import Version

OVERRIDES = Check(
    "nccl_conf.environment",
    why="NCCL keeps the first definition, and the environment and ~/.nccl.conf come before /etc/nccl.conf",
    fix="remove %s from line %d of %s, or accept it with a reason in nccl_conf_accepted",
    aspect="persisted",
)
"""Does nothing that jobs get earlier (`~/.nccl.conf`, shells' and PAM's files, units, `user@.service` and user.conf
among them, Slurm's task prolog, also of a file that slurm.conf includes, enroot) switch off a path or set what NCCL
does not read; `unknown` where only running it would tell. What costs little is a note"""

USER_FILE = ".nccl.conf"
ENVIRONMENT = "/etc/environment"
# Every user is asked for a handful of files; a login node has thousands of users, and a compute node needs a few.
MOST_HOMES = 500
MOST_FILES = 1000
# Of one user, or of what everybody gets. Nobody needs so many, and each is a line of the report.
MOST_SETTINGS = 100
# Of texts that mention a variable: to go through one costs some 50 ns a byte.
MOST_BYTES = 2 << 20
# On these the kernel answers by itself. What is not among them may be a server, and dead.
_LOCAL = (
    *("bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs"),
    *("devtmpfs", "rootfs", "squashfs", "tmpfs", "vfat", "xfs", "zfs"),
)
_SHELL_FILES = (
    *("/etc/profile", "/etc/bash.bashrc", "/etc/bashrc", "/etc/zshenv", "/etc/zsh/zshenv", "/etc/zsh/zprofile"),
    *("/etc/zsh/zshrc", "/etc/csh.cshrc", "/etc/csh.login"),
)
_SHELL_FOLDERS = (("/etc/profile.d", (".sh", ".csh", "sh.local")),)
_HOME_FILES = (
    *(".bashrc", ".bash_profile", ".bash_login", ".profile", ".zshenv", ".zprofile", ".zshrc", ".cshrc", ".tcshrc"),
    ".login",
)
_ENVIRONMENT_D = ("/etc/environment.d", "/run/environment.d", "/usr/local/lib/environment.d", "/usr/lib/environment.d")
_PAM_ENV = "/etc/security/pam_env.conf"
_OF_USERS = "users' own services"
_MANAGERS = {"system.conf": "every service of the node", "user.conf": _OF_USERS}
_USER = "user@.service"
_CONTAINERS = "the daemon alone, for no container inherits it"
_UNITS = {
    # The manager of a user's services, which hands on what it was started with.
    _USER: _OF_USERS,
    "slurmd.service": "what slurmd starts itself, such as prologs",
    "docker.service": _CONTAINERS,
    "containerd.service": _CONTAINERS,
    "crio.service": _CONTAINERS,
    "kubelet.service": _CONTAINERS,
}
_SLURM = ("/etc/slurm", "/etc/slurm-llnl", "/usr/local/etc", "/run/slurm/conf", "/var/spool/slurmd/conf-cache")
_ENROOT = ("/etc/enroot/environ.d", "/usr/local/etc/enroot/environ.d")
_WINS = "the environment comes before ~/.nccl.conf; which of several places makes it depends on how the job is started."
_EVERYBODY = "jobs of all users"
_SLURM_LINE = re.compile(r"(?im)^[ \t]*(ClusterName|Include|Prolog|TaskProlog)[ \t]*[= \t][ \t]*([^\s#=]+)")
_SOURCED = re.compile(r"(?m)(?:^|[\s;&|])(?:\.|source)[ \t]+[\"']?(/[^\s\"';&|()$*?]+)")
_PAIR = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_PAM_PAIR = re.compile(r"[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]+(.*)")
_LUA = re.compile(r"environment\s*(?:\.|\[\s*[\"'])(%s)(?:[\"']\s*\])?\s*=\s*(.*)" % shell_assignments.NAME)


@dataclass(frozen=True)
class Setting:
    """A variable that a file sets before nccl.conf does.

    name: as the file has it.   value: None where only running the file would tell.
    source, line: the file, and where in it, from 1.   reach: whose jobs get the variable, for people.
    conditional: set within ``if``, a function or behind ``&&``.   idle: the variable reaches nobody's job.
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
        """The name of NCCL's variable that is meant by ``name``."""
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


class _Pair(NamedTuple):
    name: str
    value: Optional[str]
    line: int
    conditional: bool = False


_Parser = Callable[[str], List[_Pair]]


# -- parsers ---------------------------------------------------------------------------------------------------------


def parse_pairs(text: str) -> List[_Pair]:
    """NAME=VALUE, an optional ``export``, quotes round the value dropped: /etc/environment, environment.d, files of
    EnvironmentFile= and enroot. The last of a name counts."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _PAIR.fullmatch(line)
        if match is None or not shell_assignments.MENTION.fullmatch(match.group(1)):
            continue
        value = match.group(2).rstrip(" \t\r")
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        value = value[1:-1] if quoted else value
        found.append(_Pair(match.group(1), None if "${" in value else value, number))
    return found


def parse_nccl_conf(text: str) -> List[_Pair]:
    """As NCCL takes it, odd names such as ``export NCCL_DEBUG`` included. The first of a name counts."""
    found: Dict[str, _Pair] = {}
    for line in grammar.parse(text):
        if line.name is not None and shell_assignments.MENTION.search(line.name) and line.name[0] != "#":
            found.setdefault(line.name, _Pair(line.name, line.value, line.number))
    return list(found.values())


def parse_pam_env(text: str) -> List[_Pair]:
    """``NAME DEFAULT=value OVERRIDE=value``: where the override is empty, the default counts."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _PAM_PAIR.fullmatch(line)
        if match and shell_assignments.MENTION.fullmatch(match.group(1)):
            given = dict(word.partition("=")[::2] for word in shell_assignments.words_of(match.group(2)))
            value = given.get("OVERRIDE") or given.get("DEFAULT", "")
            found.append(_Pair(match.group(1), None if re.search(r"[$@]\{", value) else value, number))
    return found


def parse_shell(text: str) -> List[_Pair]:
    """The variables that a shell, when it has read the text, hands on to the programs that it starts."""
    kept = shell_assignments.last_of_each(shell_assignments.parse(text))
    return [
        _Pair(one.name, one.value if one.scope == "environment" else None, one.line, one.conditional)
        for one in kept
        if one.scope in ("environment", "unclear")
    ]


def parse_task_prolog(text: str) -> List[_Pair]:
    """``export NAME=VALUE`` that a task prolog prints: slurmd puts it into the task's environment. What the prolog
    exports itself ends with it."""
    return [
        _Pair(one.name, one.value if one.scope == "printed" else None, one.line, one.conditional)
        for one in shell_assignments.parse(text)
        if one.scope in ("printed", "unclear")
    ]


def parse_unit(text: str, section: str, keys: Sequence[str]) -> Tuple[List[_Pair], List[str]]:
    """The pairs of Environment= and its like in one section, and the files of EnvironmentFile=."""
    found: List[_Pair] = []
    files: List[str] = []
    inside = False
    rows = text.splitlines()
    number = 0
    while number < len(rows):
        first, row = number + 1, rows[number].strip()
        while row.endswith("\\") and number + 1 < len(rows):
            number += 1
            row = row[:-1] + " " + rows[number].strip()
        number += 1
        if row.startswith("["):
            inside = row == section
        key, equals, value = row.partition("=")
        key = key.strip()
        if not inside or not equals or row.startswith(("#", ";")):
            continue
        if key == "EnvironmentFile":
            files = files + [value.strip().lstrip("-")] if value.strip() else []
        elif key in keys:
            if not value.strip():
                found = []
            for word in shell_assignments.words_of(value.replace("$", "\\$")):
                name, given, text_of = word.partition("=")
                if shell_assignments.MENTION.fullmatch(name):
                    # PassEnvironment= hands on what the manager itself was started with.
                    found.append(_Pair(name, text_of if given else None, first))
    return found, files


def parse_job_submit(text: str) -> List[_Pair]:
    """``job_desc.environment.NAME = "VALUE"`` of a job_submit.lua."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _LUA.search(line.partition("--")[0])
        if match:
            literal = re.match(r"([\"'])(.*?)\1\s*;?\s*$", match.group(2))
            found.append(_Pair(match.group(1), literal.group(2) if literal else None, number, True))
    return found


def parse_homes(text: str) -> Dict[str, str]:
    """Home directory -> user, of /etc/passwd, without those of no directory of their own."""
    homes: Dict[str, str] = {}
    for line in text.splitlines():
        words = line.split(":")
        if len(words) == 7 and words[5].startswith("/") and words[5].strip("/"):
            homes.setdefault(words[5].rstrip("/"), words[0])
    return homes


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
                "not read, since it is no local file system (%s): %s; what lies there can set NCCL's variables, too:"
                " busbar lint ~/.nccl.conf ~/.bashrc" % (kind, printable(places_text))
            )
        return Environment(tuple(self._settings), tuple(self._problems), tuple(notes), missing)

    # -- the places -------------------------------------------------------------------------------------------------

    def _of_everybody(self) -> None:
        self._file(ENVIRONMENT, parse_pairs, "logins of all users")
        self._file(_PAM_ENV, parse_pam_env, "logins of all users")
        for folder in _ENVIRONMENT_D:
            for path in self._list(folder, (".conf",)):
                self._file(path, parse_pairs, _OF_USERS)
        for path in _SHELL_FILES:
            self._shell(path, _EVERYBODY)
        for folder, ends in _SHELL_FOLDERS:
            for path in self._list(folder, ends):
                self._shell(path, _EVERYBODY)
        for folder in _ENROOT:
            for path in self._list(folder, (".env",)):
                self._file(path, parse_pairs, "enroot containers")

    def _of_services(self) -> None:
        manager = ("[Manager]", ("DefaultEnvironment", "ManagerEnvironment"), systemd_files.configuration, _MANAGERS)
        named_users = attempt(partial(systemd_files.instances, self._host, _USER), _USER, self._problems) or ()
        units = {**_UNITS, **dict.fromkeys(named_users, _OF_USERS)}
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
                    self._keep(path, pairs, reach)
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
                        waiting += [below] if self._here(below) else []
                    else:
                        # Of a prolog only its effects count, and what it prints nobody takes.
                        parser = parse_task_prolog if key.lower() == "taskprolog" else _parse_prolog
                        for program in self._programs(_below(folder, value)):
                            self._named(program, parser, "Slurm jobs")

    def _programs(self, path: str) -> List[str]:
        above, _slash, pattern = path.rpartition("/")
        if not re.search(r"[*?\[]", pattern):
            return [path]
        found = self._list(above, ("",)) if self._here(above) else []
        return [one for one in found if fnmatch.fnmatchcase(one.rpartition("/")[2], pattern)]

    def _of_homes(self) -> List[str]:
        homes = {"/root": "root"}
        text = self._text("/etc/passwd")
        for home, user in parse_homes(text or "").items():
            homes.setdefault(home, user)
        # Users of a directory service stand in no file.
        there = self._here("/home")
        for path in self._list(there, ("",)) if there else ():
            homes.setdefault(path, path.rpartition("/")[2])
        kept = sorted(homes, key=lambda home: (home != "/root", home))[:MOST_HOMES]
        for named in kept:
            home = self._here(named)
            if home is None:
                continue
            reach = "jobs of %s" % printable(homes[named])[:40]
            self._file("%s/%s" % (home, USER_FILE), parse_nccl_conf, reach)
            for name in _HOME_FILES:
                self._shell("%s/%s" % (home, name), reach)
            for folder, ends in ((".config/environment.d", (".conf",)), (".config/enroot/environ.d", (".env",))):
                there = self._here("%s/%s" % (home, folder))
                for path in self._list(there, ends) if there else ():
                    self._file(path, parse_pairs, reach)
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

    def _keep(self, path: str, pairs: Sequence[_Pair], reach: str, raw: bool = False) -> None:
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

    def _named(self, path: str, parser: _Parser, reach: str) -> None:
        """A file that another one names, and that may lie anywhere."""
        if path.startswith("/") and self._here(path):
            self._file(path, parser, reach)

    def _file(self, path: str, parser: _Parser, reach: str, text: Optional[str] = None) -> None:
        if text is None:
            text = self._text(path, lenient=parser is parse_shell)
        if text is None or not shell_assignments.MENTION.search(text):
            return
        if len(text) > shell_assignments.LONGEST and parser is not parse_nccl_conf:
            self._problems.append(Problem(path, "mentions NCCL's variables and is too long to be gone through"))
            return
        if self._left < len(text):
            self._problems.append(Problem(path, "was not gone through: there is too much before it"))
            return
        self._left -= len(text)
        self._keep(path, parser(text), reach, parser is parse_nccl_conf)

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
        # A comment in Latin-1 is no reason to know nothing of a shell file.
        errors = "replace" if lenient else "strict"
        return attempt(lambda: self._host.read_system(path, errors=errors), path, self._problems)

    def _here(self, path: str) -> Optional[str]:
        """The path without links in it; None where there is none on this machine."""
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
        """Whether the kernel alone answers for a path without links in it; if not, that is noted."""
        place = path
        while place not in self._kinds and place != "/":
            place = place.rpartition("/")[0] or "/"
        kind = self._kinds[place]
        if kind in _LOCAL:
            return True
        # Which homes an automounter has mounted just now is no matter.
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


def _parse_prolog(text: str) -> List[_Pair]:
    """A prolog runs as root before the job, which inherits nothing of it; only what it may write for the job counts."""
    return [_Pair(one.name, None, one.line) for one in shell_assignments.parse(text) if one.scope == "unclear"]


# -- the judgement ---------------------------------------------------------------------------------------------------


def judge(
    environment: Environment,
    meant: Mapping[str, str],
    accepted: Mapping[str, str],
    libraries: Sequence[Library] = (),
    version: Optional[Version] = None,
    hcas: Sequence[str] = (),
) -> Tuple[List[Finding], List[str]]:
    """Findings: settings that keep jobs from what nccl.conf means. Notes: settings that are accepted or cost little.

    meant: the variables of /etc/nccl.conf.   accepted: NAME or NAME=VALUE -> the site's reason.
    """
    findings: List[Finding] = []
    notes: List[str] = []
    places: Dict[str, Set[str]] = {}
    for one in environment.settings:
        places.setdefault(one.variable, set()).add(one.source)
    for one in _first_of_each(environment.settings):
        if one.value is not None and meant.get(one.name) == one.value:
            continue
        reason = accepted.get(one.variable, accepted.get("%s=%s" % (one.name, one.value)))
        if reason is not None:
            notes.append("accepted: %s in %s (%s)" % (one.variable, printable(one.source), reason))
            continue
        found = _judge_one(one, meant, libraries, version, hcas, one in environment.missing)
        if found is None:
            continue
        others = sorted(places[one.variable] - {one.source})
        if others:
            found = replace(found, why="%s %s sets it, too: %s" % (found.why, printable(others[0]), _WINS))
        if found.severity == "minor" and not one.idle:
            notes.append("%s, %s: %s" % (found.source, found.have, found.why))
            continue
        findings.append(found)
    if not findings:
        want, have = "nothing that overrides /etc/nccl.conf", "nothing does"
        where = "the files that set jobs' variables"
        findings.append(OVERRIDES.judge("the environment of jobs", "ok", want, have, where))
    return findings, notes


def _first_of_each(settings: Sequence[Setting]) -> Iterator[Setting]:
    """One setting of each variable and file, for a subject has one finding: a certain value goes before one that is
    not known, or set under a condition."""
    kept: Dict[Tuple[str, str], Setting] = {}
    for one in settings:
        known = kept.setdefault((one.source, one.variable), one)
        if (known.value is None, known.conditional) > (one.value is None, one.conditional):
            kept[(one.source, one.variable)] = one
    return iter(kept.values())


def _judge_one(
    one: Setting,
    meant: Mapping[str, str],
    libraries: Sequence[Library],
    version: Optional[Version],
    hcas: Sequence[str],
    missing: bool,
) -> Optional[Finding]:
    where = "%s:%d" % (one.source, one.line)
    if one.value is None:
        why = "it can be told by running it only, and nothing is run here"
        fix = "look at line %d of %s; if it is meant, say so in nccl_conf_accepted" % (one.line, one.source)
        have = "%s is set or handed on in a form that is not understood" % one.variable
        return _judged(OVERRIDES, one, "unknown", "major", "a plain assignment, or none", have, why, fix)
    found = nccl_lint.conflicts(meant, {one.name: one.value}, one.source)
    if missing:
        why = "NCCL passes over a file that is not there, and over ~/.nccl.conf with it"
        found = [_judged(OVERRIDES, one, "drift", "major", "a file that is there", one.value, why, "remove the line")]
    if not found and one.raw:
        found = nccl_lint.lint("%s=%s\n" % (one.name, one.value), libraries, version, one.source, hcas)
        found = [finding for finding in found if finding.check != nccl_lint.LIBRARY.id]
        found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    elif not found:
        found = nccl_lint.lint_variable(one.name, one.value, where, libraries, version, hcas)
    if not found:
        return None
    worst = found[0]
    have = "%s=%s%s" % (one.name, one.value, " (under a condition)" if one.conditional else "")
    why = "%s It reaches %s." % (worst.why, one.reach)
    check = nccl_lint.CONFLICT if worst.check == nccl_lint.CONFLICT.id else OVERRIDES
    severity = "minor" if one.idle else worst.severity
    want = "not set" if worst.want in (None, "no line") else worst.want
    fix = OVERRIDES.fix % (one.variable, one.line, one.source)
    return _judged(check, one, worst.state, severity, want, have, why, fix)


def _judged(
    check: Check, one: Setting, state: str, severity: str, want: Optional[str], have: str, why: str, fix: str
) -> Finding:
    subject, source = "%s %s" % (one.source, one.variable), "%s:%d" % (one.source, one.line)
    found = check.judge(subject, state, want, have[:200], source, fix, why=printable(why), severity=severity)
    return found.scrubbed(())
