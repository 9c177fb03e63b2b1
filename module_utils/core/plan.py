# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A Plan is what a planner returns: the findings, and the changes that would fix them.

Check mode shows a plan, apply executes the same plan: they cannot disagree. A plan of its own result is empty.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from . import fix_command, redaction
from .finding import DISRUPTIONS, Finding

# Characters of value and source in the evidence of a passed check.
EVIDENCE = 300
# Prefix of evidence on what this hardware cannot have.
UNSUPPORTED = "unsupported: "
Result = Dict[str, Any]


class FileChange(NamedTuple):
    """Bring one file to a content and mode. ``before`` is None where there is no file, ``after`` None to remove it.

    backup: keep a dated copy of what was there.
    shown: what a diff shows of both texts of a foreign file, which may hold secrets; None for all of it.
    """

    path: str
    before: Optional[str]
    after: Optional[str]
    mode: int = 0o644
    mode_before: Optional[int] = None
    disruption: str = "none"
    backup: bool = False
    shown: Optional[Tuple[str, str]] = None

    def described(self, how: str = "rendered") -> str:
        """Return how the file differs, for a finding."""
        if self.before is None:
            return "%s is absent" % self.path
        if self.before == self.after:
            return "%s has mode %04o" % (self.path, self.mode_before or 0)
        return "%s is %s" % (self.path, "superfluous" if self.after is None else "not as %s" % how)

    def diff(self) -> Dict[str, str]:
        """Return Ansible's diff structure; the mode is part of it so that a pure chmod shows."""
        before, after = self.shown or (self.before or "", self.after or "")
        found = {"before": redaction.scrub(before, ()), "after": redaction.scrub(after, ())}
        modes = (("before", self.before, self.mode_before), ("after", self.after, self.mode))
        for name, text, mode in modes:
            more = " (absent)" if text is None else "" if mode is None else " (mode %04o)" % mode
            found[name + "_header"] = self.path + more
        return found


@dataclass(frozen=True)
class Command:
    """A tool to run after the files are as they should be. ``why``: the purpose, one line.

    timeout: seconds. Writing boot entries or an initramfs takes minutes on a slow disk.
    """

    argv: Tuple[str, ...]
    why: str
    disruption: str = "none"
    timeout: float = 600.0

    def __str__(self) -> str:
        return " ".join(map(shlex.quote, self.argv))


class Plan(NamedTuple):
    """findings: one per check asked for. changes, then commands: in the order in which they must be executed.

    reboot: reasons why the requested state is not active before a reboot.
    notes: facts for a reader of the result that are not findings.
    """

    findings: Tuple[Finding, ...] = ()
    changes: Tuple[FileChange, ...] = ()
    commands: Tuple[Command, ...] = ()
    reboot: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.changes or self.commands)

    def with_backup(self, backup: bool) -> Plan:
        """Return the plan with a dated copy of every file that it replaces if ``backup`` is set."""
        return self._replace(changes=tuple(change._replace(backup=backup) for change in self.changes))

    def limit(self, max_disruption: str) -> Plan:
        """Return the plan with every change above ``max_disruption`` withheld, and its findings say so."""
        allowed = DISRUPTIONS.index(max_disruption)
        return self._withhold(lambda disruption: DISRUPTIONS.index(disruption) > allowed)

    def block(self, reason: Optional[str]) -> Plan:
        """Return the plan without what disturbs a link or more. reason: why not; None: nothing is withheld.

        This holds whatever the inventory allows: call it before ``limit``, or no finding names the users.
        """
        return self if reason is None else self._withhold(lambda disruption: disruption != "none", reason)

    def _withhold(self, above: Callable[[str], bool], reason: str = "") -> Plan:
        """Leave out changes. Each fix gets its permission, so that following it does not withhold the change again."""
        findings = []
        for f in self.findings:
            if f.state == "drift" and above(f.disruption):
                f = replace(f, state="withheld")
                if reason:
                    have = reason if f.have is None else "%s; %s" % (f.have, reason)
                    f = replace(f, have=have, fix="resolve that first, then " + f.fix)
            allowed = f.state in ("drift", "withheld")
            findings.append(replace(f, fix=fix_command.allow(f.fix, f.disruption)) if allowed else f)
        changes = tuple(change for change in self.changes if not above(change.disruption))
        commands = tuple(command for command in self.commands if not above(command.disruption))
        return self._replace(findings=tuple(findings), changes=changes, commands=commands)

    def result(self) -> Result:
        """Return the result of every module of the suite.

        ``findings`` holds what is not ok. Passed checks have only id, value and source: a thousand hosts with a
        hundred checks each would otherwise send 60 MB to the control node.
        """
        return {
            "changed": self.changed,
            "diff": [change.diff() for change in self.changes],
            **judged(self.findings),
            "commands": [redaction.scrub(str(command), ()) for command in self.commands],
            "reboot_required": list(self.reboot),
            "withheld": [finding.id for finding in self.findings if finding.state == "withheld"],
            "notes": [redaction.scrub(note, ()) for note in self.notes],
        }


def sorted_out(findings: Iterable[Finding]) -> Tuple[List[Finding], List[str], Dict[str, List[str]]]:
    """Return (what is not ok, the ids of what is ok, the value and its source for each of these ids).

    The last has those of what this hardware cannot have, too.
    """
    bad, passed, evidence = [], [], {}
    for finding in findings:
        one = finding.scrubbed(())
        if one.ok or one.inapplicable:
            text = (UNSUPPORTED if one.inapplicable else "") + (one.have or "")
            evidence[one.id] = [_brief(text), _brief(one.source)]
        else:
            bad.append(one)
        if one.ok:
            passed.append(one.id)
    return bad, passed, evidence


def judged(findings: Iterable[Finding]) -> Result:
    """Return a result's keys for these findings."""
    bad, passed, evidence = sorted_out(findings)
    return {"findings": [finding.to_dict() for finding in bad], "passed": passed, "evidence": evidence}


def _brief(text: str) -> str:
    return text if len(text) <= EVIDENCE else text[: EVIDENCE - 3] + "..."


def merge(*plans: Plan) -> Plan:
    """Join plans in their order."""
    joined = ([item for plan in plans for item in getattr(plan, name)] for name in Plan._fields)
    return Plan(*map(tuple, joined))
