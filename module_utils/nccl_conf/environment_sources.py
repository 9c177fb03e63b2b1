# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""List the files of a node that set NCCL's variables for jobs, with the parser of each. A new place is one row.

Units, and what slurm.conf names, are read by environment. sshd's AcceptEnv sets nothing: the client does.
Sources: pam_env.conf(5), environment.d(5), bash(1) INVOCATION, sshd_config(5), modulefile(4), Lmod's guide for users,
containers.conf(5), Container Device Interface (SPEC.md), Open MPI's mpirun(1) (mca_base_env_list), enroot's environ.d.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import grammar, shell_assignments

SSH_FILE = ".ssh/environment"  # read where sshd_config has PermitUserEnvironment
OF_USERS = "users' own services"
_PAIR = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_PAM_PAIR = re.compile(r"[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]+(.*)")
_LUA = re.compile(r"environment\s*(?:\.|\[\s*[\"'])(%s)(?:[\"']\s*\])?\s*=\s*(.*)" % shell_assignments.NAME)
_LMOD = re.compile(r"\b(?:setenv|pushenv)\s*\(?\s*[\"']?(%s)[\"']?[\s,]+(.*?)\)?\s*$" % shell_assignments.NAME)
_LISTED = re.compile(r"(?<![A-Za-z0-9_])(%s)=([^\"',;\]\s]*)" % shell_assignments.NAME)


class Pair(NamedTuple):
    name: str
    value: Optional[str]
    line: int
    conditional: bool = False


Parser = Callable[[str], List[Pair]]


# -- parsers ---------------------------------------------------------------------------------------------------------


def parse_pairs(text: str) -> List[Pair]:
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
        found.append(Pair(match.group(1), None if "${" in value else value, number))
    return found


def parse_nccl_conf(text: str) -> List[Pair]:
    """Parse as NCCL does, including odd names such as ``export NCCL_DEBUG``. The first of a name counts."""
    found: Dict[str, Pair] = {}
    for line in grammar.parse(text):
        if line.name is not None and shell_assignments.MENTION.search(line.name) and line.name[0] != "#":
            found.setdefault(line.name, Pair(line.name, line.value, line.number))
    return list(found.values())


def parse_pam_env(text: str) -> List[Pair]:
    """``NAME DEFAULT=value OVERRIDE=value``: where the override is empty, the default counts."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _PAM_PAIR.fullmatch(line)
        if match and shell_assignments.MENTION.fullmatch(match.group(1)):
            given = dict(word.partition("=")[::2] for word in shell_assignments.words_of(match.group(2)))
            value = given.get("OVERRIDE") or given.get("DEFAULT", "")
            found.append(Pair(match.group(1), None if re.search(r"[$@]\{", value) else value, number))
    return found


def parse_shell(text: str) -> List[Pair]:
    """The variables that a shell, when it has read the text, hands on to the programs that it starts."""
    kept = shell_assignments.last_of_each(shell_assignments.parse(text))
    return [
        Pair(one.name, one.value if one.scope == "environment" else None, one.line, one.conditional)
        for one in kept
        if one.scope in ("environment", "unclear")
    ]


def parse_task_prolog(text: str) -> List[Pair]:
    """``export NAME=VALUE`` that a task prolog prints: slurmd puts it into the task's environment. What the prolog
    exports itself ends with it."""
    return [
        Pair(one.name, one.value if one.scope == "printed" else None, one.line, one.conditional)
        for one in shell_assignments.parse(text)
        if one.scope in ("printed", "unclear")
    ]


def parse_unit(text: str, section: str, keys: Sequence[str]) -> Tuple[List[Pair], List[str]]:
    """The pairs of Environment= and its like in one section, and the files of EnvironmentFile=."""
    found: List[Pair] = []
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
                    found.append(Pair(name, text_of if given else None, first))
    return found, files


def parse_job_submit(text: str) -> List[Pair]:
    """``job_desc.environment.NAME = "VALUE"`` of a job_submit.lua."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _LUA.search(line.partition("--")[0])
        if match:
            literal = re.match(r"([\"'])(.*?)\1\s*;?\s*$", match.group(2))
            found.append(Pair(match.group(1), literal.group(2) if literal else None, number, True))
    return found


def parse_homes(text: str) -> Dict[str, str]:
    """Return home directory -> user from /etc/passwd, without system users' shared directories."""
    homes: Dict[str, str] = {}
    for line in text.splitlines():
        words = line.split(":")
        if len(words) == 7 and words[5].startswith("/") and words[5].strip("/"):
            homes.setdefault(words[5].rstrip("/"), words[0])
    return homes


def parse_modulefile(text: str) -> List[Pair]:
    """Parse `setenv NAME VALUE` of Tcl and `setenv("NAME", "VALUE")` of Lua, which act where a job loads the module."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = None if line.lstrip().startswith(("#", "--")) else _LMOD.search(line)
        if match:
            value = match.group(2).strip().strip("\"'{}")
            found.append(Pair(match.group(1), None if re.search(r"[$\[(]", value) else value, number, True))
    return found


def parse_listed(text: str) -> List[Pair]:
    """Parse NAME=VALUE that stands in a list or behind a keyword: `env = ["NAME=VALUE"]`, `mca_base_env_list = ...`."""
    lines = enumerate(text.splitlines(), 1)
    return [Pair(*pair, number) for number, line in lines for pair in _LISTED.findall(line.partition("#")[0])]


def parse_sshd(text: str) -> List[Pair]:
    """Parse SetEnv of sshd_config; behind Match it holds for some logins."""
    found, matched = [], False
    for number, line in enumerate(text.splitlines(), 1):
        keyword, *words = shell_assignments.words_of(line) or [""]
        matched = matched or keyword.lower() == "match"
        pairs = [word.partition("=")[::2] for word in words if keyword.lower() == "setenv"]
        found += [Pair(*pair, number, matched) for pair in pairs if shell_assignments.MENTION.fullmatch(pair[0])]
    return found


# -- the places ------------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """Files, or folders of files with one of these ends and of the folders below them, down to depth."""

    paths: Tuple[str, ...]
    parser: Parser
    reach: str = ""
    ends: Tuple[str, ...] = ()
    depth: int = 0


_LOGINS, _EVERYBODY, _SSH = "logins of all users", "jobs of all users", "logins by ssh, and so launches by mpirun"
_ETC_PROFILES = ("/etc/profile", "/etc/bash.bashrc", "/etc/bashrc", "/etc/zshenv", "/etc/zsh/zshenv")
_CSH_PROFILES = ("/etc/zsh/zprofile", "/etc/zsh/zshrc", "/etc/csh.cshrc", "/etc/csh.login")
_ENVIRONMENT_D = ("/etc/environment.d", "/run/environment.d", "/usr/local/lib/environment.d", "/usr/lib/environment.d")
_OPEN_MPI = ("/etc/openmpi", "/usr/lib/x86_64-linux-gnu/openmpi/etc", "/usr/mpi/gcc/openmpi/etc", "/opt/hpcx/ompi/etc")
_MODULES = ("/etc/modulefiles", "/usr/share/modulefiles", "/usr/local/modulefiles", "/opt/modulefiles")
_MODULES += ("/etc/lmod/modules", "/usr/share/modules/modulefiles")
MODULES = Source(_MODULES, parse_modulefile, "jobs that load the module", ("",), 2)
# Files that name further such folders.
MODULES_PATHS = ("/etc/lmod/modulespath", "/etc/lmod/.modulespath", "/usr/share/lmod/lmod/init/.modulespath")
MODULES_PATHS += ("/etc/environment-modules/modulespath", "/usr/share/modules/init/.modulespath")
SOURCES = (
    Source(("/etc/environment",), parse_pairs, _LOGINS),
    Source(("/etc/security/pam_env.conf",), parse_pam_env, _LOGINS),
    Source(_ENVIRONMENT_D, parse_pairs, OF_USERS, (".conf",)),
    Source((*_ETC_PROFILES, *_CSH_PROFILES), parse_shell, _EVERYBODY),
    Source(("/etc/profile.d",), parse_shell, _EVERYBODY, (".sh", ".csh", "sh.local")),
    Source(("/etc/ssh/sshd_config",), parse_sshd, _SSH),
    Source(("/etc/ssh/sshd_config.d",), parse_sshd, _SSH, (".conf",)),
    Source(("/etc/enroot/environ.d", "/usr/local/etc/enroot/environ.d"), parse_pairs, "enroot containers", (".env",)),
    Source(
        ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf"),
        parse_listed,
        "podman's containers",
    ),
    Source(("/etc/containers/containers.conf.d",), parse_listed, "podman's containers", (".conf",)),
    Source(("/etc/cdi", "/var/run/cdi"), parse_listed, "containers with a device of CDI", (".yaml", ".json")),
    Source((*_OPEN_MPI, "/usr/local/etc", "/etc"), parse_listed, "jobs that mpirun starts", ("-mca-params.conf",)),
    MODULES,
)
# Below a user's home: they reach that user's jobs.
HOME_SOURCES = (
    Source((grammar.USER_FILE,), parse_nccl_conf),
    Source((".bashrc", ".bash_profile", ".bash_login", ".profile", ".zshenv", ".zprofile", ".zshrc"), parse_shell),
    Source((".cshrc", ".tcshrc", ".login"), parse_shell),
    Source((".openmpi/mca-params.conf", ".config/containers/containers.conf"), parse_listed),
    Source((SSH_FILE,), parse_pairs),
    Source((".config/environment.d",), parse_pairs, ends=(".conf",)),
    Source((".config/enroot/environ.d",), parse_pairs, ends=(".env",)),
)
