# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read nccl.conf and what NCCL reads before it, and plan the way to the derived file.

Containers see the host's file by enroot's mounts.d (fstab(5) with x-create), docker run --volume, Kubernetes hostPath.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..change import written
from ..core.finding import SEVERITIES, Finding, printable
from ..core.host import Host, Problem, attempt
from ..core.plan import FileChange, Plan
from ..core.trusted import WAY_OUT
from ..machine.profile import Profile
from ..machine.rails import match
from ..machine.topology import Topology
from . import checks, grammar, known_bad
from . import environment as nccl_environment
from . import lint as nccl_lint
from . import topo_file as nccl_topo_file
from .derive import EXTRA, Derivation, effect, render
from .environment import Environment, Setting
from .library import Library
from .lint_values import Use
from .proof import Proof
from .version import Version

MODE = 0o644
_HEADER = "# Written by Busbar (role nccl_conf): containers do not see the host's %s by default.\n"
# runtime -> file on the node, text with the path of nccl.conf as {path}, and by field what the topology file adds
_CONTAINERS: Dict[str, Tuple[str, str, Dict[str, str]]] = {
    "enroot": (
        "/etc/enroot/mounts.d/50-busbar-nccl-conf.fstab",
        "{path} /etc/nccl.conf none x-create=file,bind,ro,nosuid,nodev,noexec\n{mount}",
        {"mount": "{topo} {topo} none x-create=file,bind,ro,nosuid,nodev,noexec\n"},
    ),
    "docker": (
        "/etc/busbar/containers/docker-run.args",
        "# Pass this to docker run. A running container retains the file it was started with.\n"
        "--volume={path}:/etc/nccl.conf:ro\n{mount}",
        {"mount": "--volume={topo}:{topo}:ro\n"},
    ),
    "kubernetes": (
        "/etc/busbar/containers/kubernetes-pod.yml",
        "# Merge this into the pod's spec. A running pod retains the file it was started with.\n"
        "spec:\n"
        "  volumes:\n"
        "    - name: nccl-conf\n"
        "      hostPath: {{path: {path}, type: File}}\n{volume}"
        "  containers:\n"
        "    - name: CONTAINER\n"
        "      volumeMounts:\n"
        "        - {{name: nccl-conf, mountPath: /etc/nccl.conf, readOnly: true}}\n{mount}",
        {
            "volume": "    - name: nccl-topo\n      hostPath: {{path: {topo}, type: File}}\n",
            "mount": "        - {{name: nccl-topo, mountPath: {topo}, readOnly: true}}\n",
        },
    ),
}
# A path that means itself in each of these files.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+-]+")


@dataclass(frozen=True)
class Have:
    """nccl.conf as it is (text and mode None where there is no file), and what NCCL gets before it.

    open_to_all: every user may read it.   problems: findings for the files that cannot be read.
    others: findings on the topology file, where it counts, and on the owner of the file on a cloud's image.
    """

    text: Optional[str]
    mode: Optional[int]
    environment: Environment = field(default_factory=Environment)
    open_to_all: bool = True
    problems: Tuple[Finding, ...] = ()
    others: Tuple[Finding, ...] = ()


# -- what is there ---------------------------------------------------------------------------------------------------


def read(host: Host, path: str) -> Have:
    """nccl.conf at ``path``, its mode, and everything that NCCL gets before it reads nccl.conf."""
    problems: List[Problem] = []
    text = attempt(lambda: host.read_system(path), path, problems)
    mode = attempt(lambda: host.mode_system(path), path, problems)
    environment = nccl_environment.read(host)
    open_to_all = bool(attempt(lambda: mode is None or host.readable_by_others(path), path, problems))
    unreadable = [
        checks.READABLE.judge(problem.source, "unknown", want="a readable text file", have=problem.message)
        for problem in (*problems, *environment.problems)
    ]
    return Have(text, mode, environment, open_to_all, tuple(unreadable))


def judge_releases(libraries: Sequence[Library], version: Optional[Version], cpuinfo: Optional[str]) -> List[Finding]:
    """Return findings on releases with known defects.   version: of jobs without a library.   cpuinfo: of the host.

    A defect that needs more than the release and the host is minor, and named only where a vendor says to avoid it.
    """
    found = [(one.path, one.version, one.architecture) for one in libraries]
    found += [("NCCL", version, known_bad.architecture(cpuinfo))] if version is not None and not libraries else []
    findings = []
    for subject, release, machine in found:
        met = known_bad.certain_defects(release, machine)
        named = met or [one for one in known_bad.possible_defects(release, machine) if one.avoid]
        if named:
            severity = known_bad.worst_severity(met) if met else "minor"
            findings.append(known_bad.judge(checks.RELEASE, subject, release, machine, named, severity=severity))
    return findings


def with_topo_file(have: Have, host: Host, topology: Topology, profile: Profile, derivation: Derivation) -> Have:
    """Add the finding on NCCL_TOPO_FILE if it is set or a guest needs one."""
    rails = match(topology, profile)
    # A level that is set is a decision: LOC means no GPUDirect RDMA, and SYS needs no file.
    needed = "NCCL_NET_GDR_LEVEL" not in derivation.expected and nccl_topo_file.is_flat(
        topology, list(rails.nics.values())
    )
    if derivation.blockers or not (needed or nccl_topo_file.NAME in derivation.expected):
        return have
    present = grammar.settings(grammar.parse(have.text or ""))
    found = nccl_topo_file.judge(host, derivation.expected, present, have.environment, topology, profile)
    return replace(have, others=(*have.others, found))


# -- what comes before nccl.conf --------------------------------------------------------------------------------------


def judge_environment(
    environment: Environment,
    meant: Mapping[str, str],
    accepted: Mapping[str, str],
    use: Use,
) -> Tuple[List[Finding], List[str]]:
    """Return findings on settings that override nccl.conf, and notes on accepted or cheap ones.

    meant: the variables of /etc/nccl.conf.   accepted: NAME or NAME=VALUE -> the site's reason.
    """
    worst: Dict[str, Finding] = {}
    notes: List[str] = []
    for one in environment.settings:
        reason = accepted.get(one.variable, accepted.get("%s=%s" % (one.name, one.value)))
        if one.value is not None and meant.get(one.name) == one.value:
            continue
        if reason is not None:
            notes.append("accepted: %s in %s (%s)" % (one.variable, printable(one.source), reason))
            continue
        found = _judge_setting(one, meant, use)
        if found is None:
            continue
        if found.severity == "minor":
            notes.append("%s, %s: %s" % (found.source, found.have, found.why))
        else:  # a subject has one finding
            worst[found.subject] = min(worst.get(found.subject, found), found, key=_rank)
    notes = list(dict.fromkeys(notes))
    if worst:
        return list(worst.values()), notes
    want, have = "nothing that overrides /etc/nccl.conf", "nothing does"
    where = "/etc/environment, profiles, units, Slurm, enroot and ~/.nccl.conf"
    return [checks.OVERRIDES.judge("the environment of jobs", "ok", want, have, where)], notes


def _rank(finding: Finding) -> Tuple[int, bool]:
    return SEVERITIES.index(finding.severity), finding.state != "drift"


def _judge_setting(one: Setting, meant: Mapping[str, str], use: Use) -> Optional[Finding]:
    check, state, severity, want = checks.OVERRIDES, "drift", "major", "not set"
    have = "%s=%s%s" % (one.name, one.value, " (under a condition)" if one.conditional else "")
    fix = check.fix % (one.variable, one.line, one.source)
    if one.value is None:
        state, have = "unknown", "%s is set or passed on in a form that Busbar cannot read" % one.variable
        why = "only running the file would show the value, and Busbar does not run it"
        fix = "look at line %d of %s; if it is intended, add it to nccl_conf_accepted" % (one.line, one.source)
    elif one.missing:
        why = "NCCL skips a file that does not exist, and with it ~/.nccl.conf. It reaches %s." % one.reach
    else:
        found = nccl_lint.conflicts(meant, {one.name: one.value}, one.source)
        if not found and one.raw:
            found = nccl_lint.lint("%s=%s\n" % (one.name, one.value), use, one.source)
            found = [finding for finding in found if finding.check != checks.LINT_LIBRARY.id]
        elif not found:
            found = nccl_lint.lint_variable(one.name, one.value, one.place, use._replace(place="environment"))
        if not found:
            return None
        finding = min(found, key=_rank)
        check = checks.CONFLICT if finding.check == checks.CONFLICT.id else check
        state, severity, why = finding.state, finding.severity, "%s It reaches %s." % (finding.why, one.reach)
        want = "not set" if finding.want in (None, "no line") else finding.want or ""
    subject = "%s %s" % (one.source, one.variable)
    judged = check.judge(subject, state, want, have[:200], one.place, fix, why=printable(why), severity=severity)
    return judged.scrubbed(())


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(
    have: Have,
    derivation: Derivation,
    path: str,
    use: Use,
    proofs: Sequence[Tuple[str, Proof]] = (),
    accepted: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Plan the file, and judge it and what NCCL reads before it.

    use: what the text is linted against. proofs: (library path, its parser's result).
    accepted: variables of jobs that the site accepts, see judge_environment.
    """
    early, notes = judge_environment(have.environment, derivation.expected, accepted, use)
    findings = [*have.problems, *derivation.blockers, *early]
    notes = [*have.environment.notes, *notes]
    if derivation.blockers:
        return Plan(tuple(findings), notes=tuple(notes))
    text = render(derivation.variables)
    files = written.compare([FileChange(path, have.text, text)], effect)
    findings += [f for f in nccl_lint.lint(text, use, path) if not _is_advice(f)]
    findings += [_proof_finding(library, proof, path) for library, proof in proofs]
    findings += have.others
    unsafe = any(
        (f.severity == "critical" and f.check.startswith("nccl_conf.lint"))
        or (f.check == checks.PROOF.id and f.state == "drift")
        # A file by the image's maker is replaced only after an administrator has decided so.
        or (f.check == checks.TOPO_FILE.id and f.source == nccl_topo_file.CONF)
        for f in findings
    )
    names = _difference(have.text or "", text)
    of_site = {one.name for one in derivation.variables if one.reason == EXTRA}
    severity = "major" if have.text is not None and names and of_site.issuperset(names) else files.severity
    differs = "differs in %s" % (", ".join(names) or "comments or layout")
    described = "absent" if have.text is None else "as rendered" if files.state == "ok" else differs
    findings.append(checks.FILE.judge(path, files.state, want="as rendered", have=described, severity=severity))
    wrong = bool(files.changes)
    if have.mode is not None:
        readable, writable = have.mode & 0o004 and have.open_to_all, have.mode & 0o022
        good = readable and not writable
        wrong = wrong or not good
        closed = ", not for every user" if have.mode & 0o004 and not have.open_to_all else ""
        mode = "mode %04o%s" % (have.mode, closed or ", others than root may write it" * bool(writable))
        want = "mode %04o, in folders that every user may enter" % MODE
        severity = "major" if readable and writable else None
        findings.append(checks.FILE_MODE.judge(path, "ok" if good else "drift", want, mode, severity=severity))
    changes: List[FileChange] = []
    if wrong and not unsafe and not any(problem.subject == path for problem in have.problems):
        after = files.changes[0].after if files.changes else have.text
        changes.append(FileChange(path, have.text, after, mode=MODE, mode_before=have.mode))
    return Plan(tuple(findings), tuple(changes), notes=(*files.notes, *notes))


def plan_container(host: Host, runtime: str, path: str, topo: str = "") -> Plan:
    """Plan the file by which containers of a runtime see nccl.conf, which is at ``path``. Raises ReadError.

    topo: the topology file that nccl.conf names, which they have to see, too; "" for none. One that is not there is
    left out: containers would not start.
    """
    target, template, more = _CONTAINERS[runtime]
    shown = topo if _PLAIN_PATH.fullmatch(topo) and host.is_file_system(topo) else ""
    fields = {name: part.format(topo=shown) if shown else "" for name, part in more.items()}
    text = written.seal(target, _HEADER % path + template.format(path=path, **fields))
    files = written.compare([FileChange(target, host.read_system(target), text, mode=0o644)])
    have = files.wrong or "as rendered"
    finding = checks.CONTAINERS.judge(target, files.state, want="as rendered", have=have, severity=files.severity)
    return Plan((finding,), files.changes, notes=files.notes)


def _is_advice(finding: Finding) -> bool:
    """Return whether the linter only advises, as against GPUDirect off: here the inventory decides."""
    return finding.check in (checks.ADVICE.id, checks.GDR_OFF.id) and finding.severity != "critical"


def _difference(old: str, new: str) -> List[str]:
    """Return the names of the variables that are not the same in both texts."""
    have, want = (grammar.settings(grammar.parse(text)) for text in (old, new))
    return [name for name in sorted(set(have) | set(want)) if have.get(name) != want.get(name)]


def _proof_finding(library: str, proof: Proof, path: str) -> Finding:
    states = {"proven": "ok", "mismatch": "drift", "not_provable": "unknown"}
    source, have = "%s reading %s" % (library, path), "it does" if proof.outcome == "proven" else proof.message
    fix = "%s in busbar_nccl_libraries" % WAY_OUT if proof.doubt else None
    severity = "critical" if proof.outcome == "mismatch" else None
    want = "NCCL reads the intended values from it"
    return checks.PROOF.judge(library, states[proof.outcome], want, have, source, fix, severity=severity)
