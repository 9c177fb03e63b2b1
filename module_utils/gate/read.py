# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the gate of a node: its files, its last verdict, and what Slurm starts."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..change import written
from ..core.host import Host, ParseError, Problem, attempt

STAGES = ("health", "prolog", "epilog")
FOLDER = "/usr/local/lib/busbar"
PROGRAM = FOLDER + "/gate.py"
INTENT = "/etc/busbar/gate.json"
STATE = "/var/lib/busbar/gate/state.json"
PYTHON = "/usr/bin/python3"
# The name under which audits look for a node health check (mej/nhc's).
NHC = "/usr/sbin/nhc"
LAUNCHERS = {stage: "%s/gate-%s" % (FOLDER, stage) for stage in STAGES}
VERDICTS = ("pass", "warn", "fail", "unknown")
ACTIONS = ("none", "drained", "resumed", "held_by_breaker", "left_alone")
# Exit code of the program to keep the node out; no other code drains it.
KEEP_OUT = 3
# Only of stage ``command``: no verdict.
UNKNOWN = 2
# What of the budget a job may have to wait for.
OF_A_JOB = 0.5
PARAMETERS = {"health": "HealthCheckProgram", "prolog": "Prolog", "epilog": "Epilog"}
_SHOW = ("show", "config")


@dataclass(frozen=True)
class GateWanted:
    """stages: of STAGES; none: the files go; None: not decided, they stay.   budget: seconds.   scontrol: tool or path.

    sums: path -> ``total`` of each wanted file.   texts: path -> text, if they may be written.
    node: the name in Slurm that the intent must have; "" if not given.
    """

    stages: Optional[Tuple[str, ...]] = None
    budget: float = 10.0
    sums: Mapping[str, str] = field(default_factory=dict)
    scontrol: str = "scontrol"
    texts: Mapping[str, str] = field(default_factory=dict)
    node: str = ""


@dataclass(frozen=True)
class GateState:
    """files, modes: by path of ``own()``, None where there is none.   state: as parse_state gives it, None: never run.

    config: of the running Slurm, key -> value; None if it failed, and problem has the reason.
    calls: stage -> paths that Slurm starts at it and that lead to our launcher.
    """

    files: Mapping[str, Optional[str]]
    modes: Mapping[str, Optional[int]]
    state: Optional[Mapping[str, Any]] = None
    unread: Optional[Problem] = None
    config: Optional[Mapping[str, str]] = None
    problem: Optional[Problem] = None
    calls: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    now: float = 0.0


def owned_files() -> Tuple[str, ...]:
    """Return all files that the role writes; the program writes STATE."""
    return (PROGRAM, INTENT, *LAUNCHERS.values(), NHC)


def is_foreign(path: str, text: Optional[str]) -> bool:
    """Return whether another program's file is at the one path that is not Busbar's alone."""
    return path == NHC and text is not None and written.HEAD not in text


def seconds(stage: str, budget: float) -> float:
    """Return the program's seconds for a stage. A job waits for its Prolog, and the node's next one for the Epilog."""
    return budget * OF_A_JOB if stage in ("prolog", "epilog") else budget


def parse_state(text: str) -> Dict[str, Any]:
    """Raises ParseError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("is not JSON: %.100s" % error) from error
    if not isinstance(data, dict):
        raise ParseError("is not a JSON object")
    kinds = (("at", (int, float)), ("findings", list), ("history", list), ("kept_out", (dict, type(None))))
    for name, kind in kinds:
        if not isinstance(data.get(name), kind) or isinstance(data.get(name), bool):
            raise ParseError("is not what the gate writes: its %s is %.60r" % (name, data.get(name)))
    for name, allowed in (("verdict", VERDICTS), ("action", ACTIONS), ("stage", (*STAGES, "command"))):
        if data.get(name) not in allowed:
            raise ParseError("is not what the gate writes: its %s is %.60r" % (name, data.get(name)))
    return data


def parse_config(text: str) -> Dict[str, str]:
    """Parse ``scontrol show config``. Several programs of one kind (``Prolog[0]``, since 24.05) are one value."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        name, value = re.sub(r"\[\d+\]$", "", name.strip()), value.strip()
        if equals and re.fullmatch(r"[A-Za-z]\w*", name):
            value = "" if value == "(null)" else value
            found[name] = "%s,%s" % (found[name], value) if found.get(name) and name in PARAMETERS.values() else value
    if "SlurmctldPort" not in found:
        raise ParseError("%r is not a configuration of Slurm" % text[:80])
    return found


def read(host: Host, want: GateWanted) -> GateState:
    """Raises ReadError where a file of ours cannot be read."""
    # Another package's program of that name may be no text.
    files = {path: host.read_system(path, errors="replace" if path == NHC else "strict") for path in owned_files()}
    modes = {path: host.mode_system(path) for path in owned_files()}
    if not want.stages:
        return GateState(files, modes)
    unread: List[Problem] = []
    known = attempt(lambda: state(host), STATE, unread)
    problems: List[Problem] = []
    source = " ".join((want.scontrol, *_SHOW))
    config = attempt(lambda: parse_config(host.query((want.scontrol, *_SHOW))), source, problems)
    calls = {} if config is None else {stage: tuple(_calls(host, stage, config)) for stage in want.stages}
    return GateState(
        files,
        modes,
        state=known,
        unread=unread[0] if unread else None,
        config=config,
        problem=problems[0] if problems else None,
        calls=calls,
        now=time.time(),
    )


def state(host: Host) -> Optional[Dict[str, Any]]:
    """Return the program's stored state; None before its first run. Raises ReadError, ParseError."""
    text = host.read_system(STATE)
    return None if text is None else parse_state(text)


def _calls(host: Host, stage: str, config: Mapping[str, str]) -> List[str]:
    """Return the programs that Slurm starts at the stage and that are ours, or call ours."""
    found = []
    for pattern in filter(None, config.get(PARAMETERS[stage], "").split(",")):
        paths = [pattern]
        if re.search(r"[*?\[]", pattern):
            top = host.system("/")
            paths = ["/" + os.path.relpath(one, top) for one in sorted(glob.glob(host.system(pattern)))[:100]]
        for path in paths:
            if path == LAUNCHERS[stage] or _leads(host, path, LAUNCHERS[stage]):
                found.append(path)
    return found


def _leads(host: Host, path: str, target: str) -> bool:
    """A link to it, or a script with a line that names it. A program that cannot be read calls nothing."""
    if os.path.realpath(host.system(path)) == os.path.realpath(host.system(target)):
        return True
    text = attempt(lambda: host.read_system(path, errors="replace"), path, []) or ""
    return any(target in line and not line.lstrip().startswith("#") for line in text.splitlines())


def total(path: str, text: str) -> str:
    """SHA-256 of a file's text; of the intent without the node's name: hosts that are alike share the question."""
    if path == INTENT:
        try:
            data = dict(json.loads(text), node="")
        except (ValueError, TypeError, RecursionError):
            return "none"
        data.pop(written.KEY, None)
        text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def intent_text(data: Mapping[str, object]) -> str:
    """Return the text of file INTENT, sealed."""
    text = json.dumps({written.KEY: written.HEAD, **data}, sort_keys=True, indent=1) + "\n"
    return written.seal(INTENT, text)


def named(text: str) -> object:
    """The node's name in an intent that is one."""
    return json.loads(text).get("node")
