# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""List the files of a node that set NCCL's variables for jobs, with the parser of each. A new place is one row.

Units, users' own nccl.conf, and what slurm.conf names, are read by environment.
Sources: pam_env(8), environment.d(5), bash(1) INVOCATION, systemd.exec(5), enroot's environ.d.
"""

from __future__ import annotations

import re
import shlex
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

from ..core import ini
from . import grammar, shell_assignments
from .shell_assignments import Assignment

OF_USERS = "users' own services"
_PAIR = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_LUA = re.compile(r"environment\s*(?:\.|\[\s*[\"'])(%s)(?:[\"']\s*\])?\s*=\s*(.*)" % shell_assignments.NAME)


Parser = Callable[[str], List[Assignment]]


# -- parsers ---------------------------------------------------------------------------------------------------------


def parse_pairs(text: str) -> List[Assignment]:
    """NAME=VALUE, an optional ``export``, quotes round the value dropped: /etc/environment, environment.d, files of
    EnvironmentFile= and enroot. The last of a name counts."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _PAIR.fullmatch(line)
        if match is None:
            # In a form that is not certain; behind # it is a comment.
            names = shell_assignments.MENTION.findall(line.partition("#")[0])
            found += [Assignment(name, None, number) for name in names]
        elif shell_assignments.MENTION.fullmatch(match.group(1)):
            value = match.group(2).rstrip(" \t\r")
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            value = value[1:-1] if quoted else value
            found.append(Assignment(match.group(1), None if "${" in value else value, number))
    return found


def parse_nccl_conf(text: str) -> List[Assignment]:
    """Parse as NCCL does, including odd names such as ``export NCCL_DEBUG``. The first of a name counts."""
    found: Dict[str, Assignment] = {}
    for line in grammar.parse(text):
        if line.name is not None and shell_assignments.MENTION.search(line.name) and line.name[0] != "#":
            found.setdefault(line.name, Assignment(line.name, line.value, line.number))
    return list(found.values())


def parse_shell(text: str) -> List[Assignment]:
    """The variables that a shell, when it has read the text, hands on to the programs that it starts."""
    lasting = shell_assignments.last_of_each(shell_assignments.parse(text))
    return [item for item in lasting if item.scope in ("environment", "unclear")]


def parse_task_prolog(text: str) -> List[Assignment]:
    """``export NAME=VALUE`` that a task prolog prints: slurmd puts it into the task's environment. What the prolog
    exports itself ends with it."""
    return [item for item in shell_assignments.parse(text) if item.scope in ("printed", "unclear")]


def parse_unit(text: str, section: str, keys: Sequence[str]) -> Tuple[List[Assignment], List[str]]:
    """The pairs of Environment= and its like in one section, and the files of EnvironmentFile=."""
    found: List[Assignment] = []
    files: List[str] = []
    for setting in ini.settings(text):
        if setting.section != section:
            continue
        if setting.key == "EnvironmentFile":
            files = [*files, setting.value.lstrip("-")] if setting.value else []
        elif setting.key in keys:
            try:
                words = shlex.split(setting.value)
            except ValueError:  # quotes that do not end
                words = shell_assignments.MENTION.findall(setting.value)
            found = found if setting.value else []
            for name, given, value in (word.partition("=") for word in words):
                if shell_assignments.MENTION.fullmatch(name):
                    # PassEnvironment= hands on what the manager itself was started with.
                    found.append(Assignment(name, value if given else None, setting.first + 1))
    return found, files


def parse_job_submit(text: str) -> List[Assignment]:
    """``job_desc.environment.NAME = "VALUE"`` of a job_submit.lua."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _LUA.search(line.partition("--")[0])
        if match:
            literal = re.match(r"([\"'])(.*?)\1\s*;?\s*$", match.group(2))
            found.append(Assignment(match.group(1), literal.group(2) if literal else None, number, conditional=True))
    return found


def parse_homes(text: str) -> Dict[str, str]:
    """Return home directory -> user from /etc/passwd, without system users' shared directories."""
    homes: Dict[str, str] = {}
    for line in text.splitlines():
        words = line.split(":")
        if len(words) == 7 and words[5].startswith("/") and words[5].strip("/"):
            homes.setdefault(words[5].rstrip("/"), words[0])
    return homes


# -- the places ------------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """Files, or folders of files with this ending."""

    paths: Tuple[str, ...]
    parser: Parser
    reach: str
    ending: str = ""


_EVERYBODY = "jobs of all users"
_PROFILES = ("/etc/profile", "/etc/profile.d/sh.local", "/etc/bash.bashrc", "/etc/bashrc")
_ENVIRONMENT_D = ("/etc/environment.d", "/run/environment.d", "/usr/local/lib/environment.d", "/usr/lib/environment.d")
SOURCES = (
    Source(("/etc/environment",), parse_pairs, "logins of all users"),
    Source(_ENVIRONMENT_D, parse_pairs, OF_USERS, ".conf"),
    Source(_PROFILES, parse_shell, _EVERYBODY),
    Source(("/etc/profile.d",), parse_shell, _EVERYBODY, ".sh"),
    Source(("/etc/enroot/environ.d", "/usr/local/etc/enroot/environ.d"), parse_pairs, "enroot containers", ".env"),
)
