# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge what is set for jobs before nccl.conf: it wins over the file."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.finding import SEVERITIES, Finding, printable
from . import lint as nccl_lint
from . import lint_checks
from .checks import OVERRIDES
from .environment import Environment, Setting
from .library import Library
from .version import Version

_WINS = "the environment comes before ~/.nccl.conf; which of several places makes it depends on how the job is started."


def judge(
    environment: Environment,
    meant: Mapping[str, str],
    accepted: Mapping[str, str],
    libraries: Sequence[Library] = (),
    version: Optional[Version] = None,
    hcas: Sequence[str] = (),
) -> Tuple[List[Finding], List[str]]:
    """Return findings on settings that override nccl.conf, and notes on accepted or cheap ones.

    meant: the variables of /etc/nccl.conf.   accepted: NAME or NAME=VALUE -> the site's reason.
    """
    worst: Dict[str, Finding] = {}
    notes: List[str] = []
    places: Dict[str, Set[str]] = {}
    for one in environment.settings:
        places.setdefault(one.variable, set()).add(one.source)
    for one in environment.settings:
        reason = accepted.get(one.variable, accepted.get("%s=%s" % (one.name, one.value)))
        if one.value is not None and meant.get(one.name) == one.value:
            continue
        if reason is not None:
            notes.append("accepted: %s in %s (%s)" % (one.variable, printable(one.source), reason))
            continue
        found = _judge_one(one, meant, libraries, version, hcas)
        if found is None:
            continue
        others = sorted(places[one.variable] - {one.source})
        if others:
            found = replace(found, why="%s %s sets it, too: %s" % (found.why, printable(others[0]), _WINS))
        if found.severity == "minor":
            notes.append("%s, %s: %s" % (found.source, found.have, found.why))
        else:  # a subject has one finding
            worst[found.subject] = min(worst.get(found.subject, found), found, key=_rank)
    notes = list(dict.fromkeys(notes))
    if worst:
        return list(worst.values()), notes
    want, have = "nothing that overrides /etc/nccl.conf", "nothing does"
    where = "/etc/environment, profiles, environment.d, units, Slurm, enroot and ~/.nccl.conf"
    return [OVERRIDES.judge("the environment of jobs", "ok", want, have, where)], notes


def _rank(finding: Finding) -> Tuple[int, bool]:
    return SEVERITIES.index(finding.severity), finding.state != "drift"


def _judge_one(
    one: Setting,
    meant: Mapping[str, str],
    libraries: Sequence[Library],
    version: Optional[Version],
    hcas: Sequence[str],
) -> Optional[Finding]:
    where = "%s:%d" % (one.source, one.line)
    check, state, severity, want = OVERRIDES, "drift", "major", "not set"
    have = "%s=%s%s" % (one.name, one.value, " (under a condition)" if one.conditional else "")
    fix = OVERRIDES.fix % (one.variable, one.line, one.source)
    if one.value is None:
        state, have = "unknown", "%s is set or passed on in a form that Busbar cannot read" % one.variable
        why = "only running the file would show the value, and Busbar does not run it"
        fix = "look at line %d of %s; if it is intended, add it to nccl_conf_accepted" % (one.line, one.source)
    elif one.missing:
        why = "NCCL skips a file that does not exist, and with it ~/.nccl.conf. It reaches %s." % one.reach
    else:
        found = nccl_lint.conflicts(meant, {one.name: one.value}, one.source)
        if not found and one.raw:
            found = nccl_lint.lint("%s=%s\n" % (one.name, one.value), libraries, version, one.source, hcas)
            found = [finding for finding in found if finding.check != lint_checks.LIBRARY.id]
        elif not found:
            found = nccl_lint.lint_variable(one.name, one.value, where, libraries, version, hcas)
        if not found:
            return None
        finding = min(found, key=_rank)
        check = lint_checks.CONFLICT if finding.check == lint_checks.CONFLICT.id else OVERRIDES
        state, severity, why = finding.state, finding.severity, "%s It reaches %s." % (finding.why, one.reach)
        want = "not set" if finding.want in (None, "no line") else finding.want or ""
    subject = "%s %s" % (one.source, one.variable)
    return check.judge(subject, state, want, have[:200], where, fix, why=printable(why), severity=severity).scrubbed(())
