# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge the gate of a node: files by the role ``gate``, and Slurm's configuration.

The program is program.py; the control node builds it, with the intent, and an audit gets only the hashes of both.
slurm.conf belongs to the site: it is never written, findings name the missing line.
Source: slurm.conf(5).
"""

from __future__ import annotations

import fnmatch
import re
import time
from typing import List, Mapping, Optional, Tuple

from ..change import apply, written
from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Problem, ReadError
from ..core.plan import Command, FileChange, Plan
from . import read as gate

# Age of a verdict in hours from which on it has nothing about the node.
OLD = 48
INTERVAL, NODE_STATE = "HealthCheckInterval", "HealthCheckNodeState"
_RUN = fix_command.run_tag("gate")
_UNDECIDED = "gate_stages is not set: the gate's files are not judged, and stay; an empty list removes them"
_WHY = "between two jobs only the gate checks a node, and a job that starts on a faulty node fails"
FILES = Check("gate.program", why=_WHY, fix=_RUN, aspect="persisted")
"Are the gate's program and its start scripts as written"
NHC = Check(
    "gate.nhc",
    why="audits look for a node health check by this name, and Busbar replaces no program of another package",
    fix="remove the package that has put %s there (dpkg -S or rpm -qf names it), or set gate_nhc: false" % gate.NHC,
    severity="minor",
    aspect="persisted",
)
"If `gate_nhc` requests it: is there no other program's `/usr/sbin/nhc`, which is left alone"
STALE = Check(
    "gate.intent",
    why="a gate with another intent than the inventory's keeps healthy nodes out of service, or lets faulty ones in",
    fix=_RUN,
    aspect="persisted",
)
"Is the gate's intent equal to the current inventory"
WIRED = Check("gate.wired", why="Slurm runs only programs named in slurm.conf, and Busbar does not edit that file")
"Does the running Slurm start the gate at the stages of `gate_stages`; the remedy has the line for slurm.conf"
LIMITS = Check(
    "gate.limits",
    why="Slurm kills a Prolog or Epilog that exceeds its time limit; it then counts as failed, and the node is drained",
)
"Does the gate end within the time limits of the running Slurm"
VERDICT = Check("gate.verdict", why=_WHY, fix="run busbar gate HOST -i INVENTORY --run, and read its output")
"Has the gate given a verdict on the node in the last 48 hours"
KEPT_OUT = Check(
    "gate.kept_out",
    why="a node stays out of service until its fault is repaired",
    fix="repair the findings in %s: the next passed check returns the node; busbar gate HOST -i INVENTORY --run shows"
    " it" % gate.STATE,
)
"Has the gate not taken the node out of service"
HELD = Check(
    "gate.held",
    why="a node with critical findings in service is where the next job fails",
    fix="read %s, here and on other nodes: many at once indicate a wrong intent, a driver or a switch; drain the node"
    " by hand if it has to leave service" % gate.STATE,
    severity="critical",
)
"Has the gate drained every node with a critical finding; the breaker, or another reason in Slurm, can prevent it"


def run(host: Host) -> str:
    """Let the program check the node, without changes in Slurm. Return the command.

    Raises ReadError without a verdict.
    """
    # With the machine's Python, wherever the node's files are.
    done = Host().run(
        (gate.PYTHON, "-I", "-S", host.system(gate.PROGRAM), "command", host.system(gate.INTENT)), timeout=60.0
    )
    if done.rc not in (0, gate.UNKNOWN, gate.KEEP_OUT):
        raise ReadError(done.command, "exited with %d: %s" % (done.rc, done.last_words))
    return done.command


def execute(host: Host, planned: Plan) -> List[str]:
    """Make the changes. Raises ReadError if a file cannot be written, or the program has no verdict."""
    for change in planned.changes:
        apply.write(host, change)
    if planned.commands:
        run(host)
    return []


def plan(have: gate.GateState, want: gate.GateWanted) -> Plan:
    ours = [path for path, text in have.files.items() if not gate.is_foreign(path, text)]
    if not want.stages:
        texts = [(path, have.files[path]) for path in ours]
        changes = tuple(FileChange(path, text, None) for path, text in texts if text is not None)
        if not changes or want.stages is None:
            return Plan(notes=(_UNDECIDED,) if changes else ())
        said = ", ".join(change.described() for change in changes)
        still = "no stage is configured; slurm.conf must no longer name them"
        return Plan((FILES.judge(gate.FOLDER, "drift", still, said, gate.PROGRAM),), changes)
    judged = [_compared(path, have, want) for path in ours]
    program, intent = (
        written.collect(one for one in judged if (one[0].path == gate.INTENT) == is_it) for is_it in (0, 1)
    )
    changes = (*program.changes, *intent.changes)
    findings = [
        check.judge(
            subject, files.state, "as the inventory has it", files.wrong or "as written", severity=files.severity
        )
        for check, subject, files in ((FILES, gate.FOLDER, program), (STALE, gate.INTENT, intent))
    ]
    if gate.NHC in want.sums and gate.NHC not in ours:
        findings.append(NHC.judge(gate.NHC, "not_owned", "the gate's wrapper", "a program that Busbar has not written"))
    findings += _wired(have, want)
    first = not changes and have.state is None and have.unread is None
    findings += _seen(have)
    # The proof that it runs here, and its first word on the node.
    argv = (gate.PYTHON, "-I", "-S", gate.PROGRAM, "command")
    again = (Command(argv, "whether it runs here", timeout=60.0),) if changes or first else ()
    return Plan(tuple(findings), changes, again, notes=(*program.notes, *intent.notes))


def _compared(path: str, have: gate.GateState, want: gate.GateWanted) -> Tuple[FileChange, str]:
    """A change of a file of ours, and its status. Of what has to be there only the sum may be known."""
    mode = 0o600 if path == gate.INTENT else 0o755
    before, wanted = have.files[path], want.sums.get(path)
    if wanted is None:
        return FileChange(path, before, None), written.SAME if before is None else written.DIFFERENT
    found = written.seal_of(before)
    same = before is not None and gate.total(path, before) == wanted
    status = written.SAME if same else written.OLDER if found and path != gate.INTENT else written.DIFFERENT
    if same and path == gate.INTENT:
        status = written.EDITED if found is None else written.OLDER if found[0] != written.RELEASE else status
        status = written.DIFFERENT if want.node and gate.named(before or "") != want.node else status
    after = before if status == written.SAME else want.texts.get(path, "")
    # Only the sums are shown: the program has 400 KB, the intent is the inventory's.
    shown = ("" if before is None else "sha256 %s\n" % gate.total(path, before), "sha256 %s\n" % wanted)
    change = FileChange(path, before, after, mode, have.modes[path], shown=shown)
    return change, status if have.modes[path] in (None, mode) else written.DIFFERENT


def _seen(have: gate.GateState) -> List[Finding]:
    """Judge the gate's last verdict."""
    if have.unread is not None:
        return [VERDICT.unreadable(have.unread)]
    state, want = have.state, "a verdict of the last %d hours" % OLD
    if state is None:
        if have.files[gate.PROGRAM] is None:
            return []
        return [VERDICT.judge("the node", "unknown", want, "it has not run yet", gate.STATE)]
    hours = (have.now - float(state["at"])) / 3600
    said = "%s, at stage %s, %.0f h ago" % (state["verdict"], state["stage"], hours)
    old = not -1 <= hours <= OLD
    if state["verdict"] == "unknown" and state["findings"] and isinstance(state["findings"][0], dict):
        said += ": %s: %s" % (state["findings"][0].get("check"), state["findings"][0].get("have"))
    good = not old and state["verdict"] != "unknown"
    findings = [VERDICT.judge("the node", "ok" if good else "unknown", want, said[:400], gate.STATE)]
    out = state["kept_out"]
    text = "in service" if out is None else "out since %s: %s" % (_when(out.get("at")), out.get("reason"))
    findings.append(KEPT_OUT.judge("the node", "ok" if out is None else "drift", "in service", text[:400], gate.STATE))
    held = state["action"] in ("held_by_breaker", "left_alone") and state["verdict"] in ("fail", "unknown")
    text = "%s: %s" % (state["action"], state.get("said")) if held else "none"
    if out is None:
        findings.append(HELD.judge("the node", "drift" if held else "ok", "none", text[:400], gate.STATE))
    return findings


def _when(at: object) -> str:
    known = isinstance(at, (int, float)) and 0 <= at < 1 << 33
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at)) if known else "?"  # type: ignore[arg-type]


def _wired(have: gate.GateState, want: gate.GateWanted) -> List[Finding]:
    if have.config is None:
        problem = have.problem or Problem("scontrol", "was not queried")
        fix = "make scontrol work on the node (gate_scontrol), or set gate_stages: []"
        return [WIRED.judge("slurm.conf", "unknown", "the running configuration", problem.message, problem.source, fix)]
    found = []
    for stage in want.stages or ():
        found.append(_wired_stage(have, stage, have.config))
        found += _limits(stage, want.budget, have.config)
    return found


def _wired_stage(have: gate.GateState, stage: str, config: Mapping[str, str]) -> Finding:
    parameter, path = gate.PARAMETERS[stage], gate.LAUNCHERS[stage]
    given = config.get(parameter, "")
    lines = ["%s=%s" % (parameter, path)]
    if stage == "health":
        lines += ["%s=300" % INTERVAL, "%s=IDLE,CYCLE" % NODE_STATE]
    fix = "put into slurm.conf: %s ; then: scontrol reconfigure" % " ; ".join(lines)
    state, text = "drift", "%s=%s" % (parameter, given) if given else "%s is not set" % parameter
    if given and not have.calls.get(stage):
        text += ", which does not call it"
        fix = "begin the program %s with this line: %s || exit 1" % (given, path)
        if fnmatch.fnmatch(path, given) or re.search(r"[*?\[]", given):
            fix = "ln -s %s %s/" % (path, given.rpartition("/")[0])
    elif given and stage == "health":
        states, interval = config.get(NODE_STATE), config.get(INTERVAL)
        text += "; %s=%s; %s=%s" % (INTERVAL, interval, NODE_STATE, states)
        # A node that is drained is IDLE to Slurm: NONDRAINED_IDLE would never give it back.
        names = {*(states or "").upper().split(",")}
        idle = names & {"ANY", "IDLE"} and "START_ONLY" not in names
        state = "ok" if number(interval or "") and idle else "drift"
    elif given:
        state = "ok"
    return WIRED.judge(parameter, state, "; ".join(lines), text, "scontrol show config", fix)


def _limits(stage: str, budget: float, config: Mapping[str, str]) -> List[Finding]:
    if stage == "health":
        return []
    needs = gate.seconds(stage, budget)
    # Newer releases have a limit for each of the two instead of the common one.
    both, own = "PrologEpilogTimeout", "%sTimeout" % gate.PARAMETERS[stage]
    of_stage = [name for name in (both, own) if name in config] or [both]
    # srun reports "Prolog hung" two seconds before MessageTimeout.
    limits = {"MessageTimeout": 2.0, "BatchStartTimeout": 0.0, **dict.fromkeys(of_stage, 0.0)}
    missing = ["%s is not in the output" % name for name in limits if name not in config]
    short = []
    for name, before in limits.items():
        value = number(config.get(name, ""))
        # 65534 is "no limit" to Slurm, and 0 is none.
        if value and value < 65534 and value - before < needs:
            short.append("%s is %d s" % (name, value))
    want = "%g s for the gate at stage %s" % (needs, stage)
    fix = "raise the value in slurm.conf, then scontrol reconfigure; or lower gate_budget (half of it counts)"
    state, text = "drift" if short else "unknown" if missing else "ok", ", ".join(short or missing) or "enough"
    return [LIMITS.judge(gate.PARAMETERS[stage], state, want, text, "scontrol show config", fix)]


def number(value: str) -> Optional[int]:
    """Return the number of ``10 sec``; None without one."""
    found = re.match(r"\d+", value)
    return int(found.group()) if found else None
