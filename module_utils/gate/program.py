# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gate's program: check its node in seconds, with the suite's modules, and keep a faulty one out of jobs.

``gate.py STAGE [INTENT]``, with STAGE of Slurm's HealthCheckProgram (health), Prolog, Epilog, or ``command``, which
changes nothing in Slurm. Ends with KEEP_OUT if a job must not have the node, and with 0 if it may, or if the gate
does not decide; ``command`` ends with KEEP_OUT for a verdict of fail and with 2 for unknown.
Only an observed fault is ``fail``. What could not be read is ``unknown``, and gate_fail decides what follows.

A child does the check. Whatever hangs in or below it, in a driver or on a disk: the parent ends in time.
Source: slurm.conf(5).
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

from .. import audit
from ..change import apply, written
from ..core import finding as findings
from ..core import locks, orphans
from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.host import BOOT_ID, Host, ParseError, ReadError, attempt
from ..core.plan import FileChange
from . import read as gate
from . import slurm as gate_slurm

# Share of the time for a stage that the modules get (the rest is for Slurm and the state); of it, one module, one tool.
_SHARE, _MODULE, _TOOL = 0.6, 0.5, 0.4
# Seconds for what is written when all else hangs; and where that drains the node.
_LAST, _LAST_CLOSED = 1.0, 3.0
# Of the state before the node is drained.
_ABOUT = "about to drain the node"
_FINDINGS, _HISTORY, _TEXT = 40, 50, 300
_KEPT = ("at", "boot_id", "stage", "verdict", "action", "seconds")

ANSWERED = Check(
    "gate.answered",
    why="the health of a node that did not respond is unknown",
    fix="run busbar gate HOST -i INVENTORY --run, then find what hangs: dmesg, nvidia-smi",
    severity="critical",
)
"Did every query of the gate's state end in time"


@dataclass(frozen=True)
class Intent:
    """Content of gate.INTENT, written by the role as JSON with these keys.

    node: its name in Slurm.   fail: "open" or "closed".   max_share: of a partition's nodes, 0 to 1.
    ignore: ids of checks that keep no node out.
    steps: ``module``, ``arguments``, and ``quick`` if a Prolog and an Epilog run it, too.
    """

    node: str
    scontrol: str
    budget: float
    fail: str
    max_share: float
    ignore: Tuple[str, ...]
    steps: Tuple[Mapping[str, Any], ...]
    hardware_root: str = "/"
    system_root: str = "/"


def parse_intent(text: str) -> Intent:
    """Raises ParseError."""
    try:
        data = dict(json.loads(text))
        data.pop(written.KEY, None)
        intent = Intent(**dict(data, ignore=tuple(data["ignore"]), steps=tuple(data["steps"])))
        right = 0 < float(intent.budget) <= 60 and 0 <= float(intent.max_share) <= 1 and bool(intent.steps)
        right = right and all(isinstance(step["module"], str) for step in intent.steps)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ParseError("is not what the role gate writes: %.200s" % error) from error
    if not right or intent.fail not in ("open", "closed"):
        raise ParseError("is not what the role gate writes")
    return intent


def main(arguments: Sequence[str]) -> NoReturn:
    begun = time.monotonic()
    stage, path = arguments[0], (list(arguments[1:]) or [gate.INTENT])[0]
    if stage not in (*gate.STAGES, "command"):
        _end("busbar gate: %r is not a stage of %s, command" % (stage, ", ".join(gate.STAGES)), gate.UNKNOWN)
    try:
        intent = parse_intent(Host().read_system(path) or "")
        host = Host(intent.hardware_root, intent.system_root)
        host.require_roots()
    except (ReadError, ParseError) as error:
        _end("busbar gate: %s: %s; run site.yml --tags gate for this host" % (path, error), gate.UNKNOWN)
    seconds = gate.seconds(stage, intent.budget)
    # What is started below a child that is killed becomes ours, to be killed, too.
    orphans.prctl()(orphans.PR_SET_CHILD_SUBREAPER, 1)
    alone = _try_lock(host) if stage == "health" else None
    if alone is not None and alone < 0:
        # A machine with too much to do: more of them would give it even more.
        _end("busbar gate: a check is under way", 0)
    last = _LAST_CLOSED if intent.fail == "closed" and stage != "command" else _LAST
    checks = GateRun(host, intent, stage, begun, begun + seconds - last)
    done = _within(checks.check, seconds - last, alone)
    if "verdict" not in done:
        said = "%s: %s" % (stage, done.get("msg"))
        late = replace(checks, end=begun + seconds)
        done = _within(lambda: late.report_hung(said), last, alone)
    if "verdict" not in done:
        # Not even the state could be read or written.
        done = {"verdict": "unknown", "action": "none", "said": "%s; not stored" % said, "findings": []}
    _end(_line(done), _code(stage, done))


def _line(done: Mapping[str, object]) -> str:
    found = done["findings"]
    worst = [one for one in found[:3] if isinstance(one, dict)] if isinstance(found, list) else []
    told = [
        "%s of %s: %s, wanted %s" % tuple(one.get(key) for key in ("check", "subject", "have", "want")) for one in worst
    ]
    said = [str(done["said"])] if done["said"] else []
    return "; ".join(["busbar gate: %s, %s" % (done["verdict"], done["action"]), *said, *told])


def _code(stage: str, done: Mapping[str, object]) -> int:
    if stage == "command":
        return {"fail": gate.KEEP_OUT, "unknown": gate.UNKNOWN}.get(str(done["verdict"]), 0)
    return gate.KEEP_OUT if stage != "health" and done.get("out") else 0


def _end(said: str, code: int) -> NoReturn:
    with suppress(OSError):
        os.write(2 if code else 1, printable(said)[:4000].encode("utf-8", "replace") + b"\n")
    # A child in uninterruptible sleep would hold an orderly end up.
    os._exit(code)


def _try_lock(host: Host) -> Optional[int]:
    """Return a descriptor with the stage's lock for our lifetime; -1: another has it, None: it cannot be opened."""
    try:
        descriptor = locks.open_lock(host, "gate-health.lock")
        locks.take(descriptor)
    except BlockingIOError:
        return -1
    except (ReadError, OSError):
        return None
    return descriptor


def _within(work: Callable[[], Mapping[str, Any]], seconds: float, lock: Optional[int] = None) -> Dict[str, Any]:
    """Return the result of the work; ``msg`` with the reason if it takes longer or fails.

    lock: a descriptor that a child which does not end must not hold.
    """

    def inside(stream: int) -> None:
        if lock is not None:
            os.close(lock)
        audit.send_result(stream, work())

    child = audit.Child(inside, 1, seconds)
    done: Dict[str, Any] = json.loads(child.lines()[0][0])
    for pid in orphans.below(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return done


# -- the check ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GateRun:
    """One run of the program.   begun, end: of the available time, by time.monotonic."""

    host: Host
    intent: Intent
    stage: str
    begun: float
    end: float

    def check(self) -> Dict[str, Any]:
        """Check, act and store. Return what is stored, with ``out`` if a job must not have the node."""
        steps = [step for step in self.intent.steps if step.get("quick") or self.stage in ("health", "command")]
        left = (self.end - time.monotonic()) * _SHARE
        asked = [{"module": step["module"], "arguments": step["arguments"]} for step in steps]
        results = audit.run(asked, left * _MODULE, left, left * _TOOL)
        return self._finish(*judge(asked, results, self.intent.ignore))

    def report_hung(self, reason: str) -> Dict[str, Any]:
        """Do as ``check`` for a check that did not respond."""
        found = ANSWERED.judge("the node", "unknown", "a response", reason, "the gate's program")
        return self._finish("unknown", [found])

    def _finish(self, verdict: str, found: Sequence[Finding]) -> Dict[str, Any]:
        before = _before(self.host)

        def save(done: gate_slurm.Done) -> Dict[str, Any]:
            run = {"at": round(time.time(), 3), "boot_id": _boot_id(self.host), "stage": self.stage, "verdict": verdict}
            run.update(action=done.action, said=done.said, seconds=round(time.monotonic() - self.begun, 3))
            return store(self.host, run, found, done)

        try:
            done = self._act(verdict, found, before, lambda reason: save(gate_slurm.Done("none", _ABOUT, reason)))
        except (ReadError, ParseError) as error:
            # What was noted before the node was drained counts.
            done = gate_slurm.Done("none", "Slurm: %s" % error, _reason(_before(self.host)))
        return dict(save(done), out=done.out)

    def _act(
        self,
        verdict: str,
        found: Sequence[Finding],
        before: Mapping[str, object],
        note: Callable[[str], object],
    ) -> gate_slurm.Done:
        """Raises ReadError and ParseError, of Slurm's tools."""
        reason, intent = _reason(before), self.intent
        if self.stage == "command":
            return gate_slurm.Done("none", "", reason)
        name = os.environ.get("SLURMD_NODENAME", intent.node)
        if name != intent.node:
            text = "this node is %s, the gate's intent is for %s; set drain_slurm_node, then run site.yml --tags gate"
            raise ReadError("slurmd", text % (name, intent.node))
        slurmctld = gate_slurm.Slurm(self.host, intent.scontrol, intent.node, self.end)
        if verdict == "fail" or (verdict == "unknown" and intent.fail == "closed"):
            return gate_slurm.keep_out(slurmctld, _why(found[0], verdict), intent.max_share, note)
        # In a Prolog and an Epilog Slurm's tools should not be used; where a node is sick that is worth it.
        if self.stage != "health" or verdict == "unknown":
            return gate_slurm.Done("none", "", reason)
        # No query is needed: by this boot's state the gate has not drained the node.
        if not reason and before and before.get("boot_id") == _boot_id(self.host):
            return gate_slurm.Done("none")
        return gate_slurm.give_back(slurmctld)


def judge(
    steps: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]], ignore: Sequence[str]
) -> Tuple[str, List[Finding]]:
    """The verdict, and what is not ok, worst first.   results: one for each step, as audit.run gives them."""
    found: List[Finding] = []
    passed = 0
    for step, result in zip(steps, results):
        if result.get("failed"):
            said = str(result.get("msg"))
            found.append(ANSWERED.judge(str(step["module"]), "unknown", "a response", said, "the gate's program"))
            continue
        found += [findings.from_dict(one) for one in result["findings"]]
        passed += len(result["passed"])
    if not passed and not found:
        found.append(ANSWERED.judge("the node", "unknown", "a response", "nothing was checked", gate.INTENT))
    # A consequence of an ignored finding does not keep a node out, either.
    ignored = {one.id for one in found if one.check in ignore}
    critical = [
        one for one in found if one.severity == "critical" and one.id not in ignored and one.because not in ignored
    ]
    states = {one.state for one in critical}
    verdict = "warn" if found else "pass"
    if "unknown" in states:
        verdict = "unknown"
    if states & {"drift", "withheld", "unsupported"}:
        verdict = "fail"
    # Deciding findings come first, before other critical ones.
    first = {"fail": ("drift", "withheld", "unsupported"), "unknown": ("unknown",)}.get(verdict, ())
    decides = [one for one in findings.worst_first(critical) if one.state in first]
    rest = [one for one in findings.worst_first(found) if one not in decides]
    return verdict, decides + rest


def _why(worst: Finding, verdict: str) -> str:
    what = "not known: " if verdict == "unknown" else ""
    return "%s%s of %s: %s, wanted %s" % (what, worst.check, worst.subject, worst.have, worst.want)


# -- the state ---------------------------------------------------------------------------------------------------------


def _boot_id(host: Host) -> str:
    return attempt(lambda: host.read(BOOT_ID), BOOT_ID, []) or ""


def _before(host: Host) -> Dict[str, Any]:
    """The state as it was left; {} where there is none that can be read."""
    return attempt(lambda: gate.state(host), gate.STATE, []) or {}


def _reason(before: Mapping[str, object]) -> Optional[str]:
    out = before.get("kept_out")
    reason = out.get("reason") if isinstance(out, dict) else None
    return reason if isinstance(reason, str) else None


def store(host: Host, now: Mapping[str, object], found: Sequence[Finding], done: gate_slurm.Done) -> Dict[str, Any]:
    """Write the state and return it. A failure is reported, and does not change the verdict."""
    state = dict(now, findings=[_brief(one) for one in found[:_FINDINGS]])
    try:
        with locks.hold(host, "gate.lock", _LAST / 2):
            before = _before(host)
            out = before.get("kept_out") if done.reason else None
            if done.reason and (not out or out.get("reason") != done.reason):
                out = {"reason": done.reason, "at": now["at"]}
            last = [{key: before.get(key) for key in _KEPT}] if before and before.get("said") != _ABOUT else []
            state.update(kept_out=out, history=[*last, *before.get("history", [])][:_HISTORY])
            text = json.dumps(state, sort_keys=True, indent=1) + "\n"
            apply.write(host, FileChange(gate.STATE, None, text))
    except BlockingIOError:
        state["said"] = "%s; not stored: another run of the gate holds its lock" % state["said"]
    except ReadError as error:
        state["said"] = "%s; not stored: %s" % (state["said"], error)
    return state


def _brief(one: Finding) -> Dict[str, Any]:
    data = one.scrubbed(()).to_dict()
    # The rest is the finding's identity.
    data.update({name: str(data[name])[:_TEXT] for name in ("want", "have", "source", "fix", "why") if data[name]})
    return data
