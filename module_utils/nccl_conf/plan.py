# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read nccl.conf and what NCCL reads before it, and plan the way to the derived file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import List, Mapping, Optional, Sequence, Tuple

from ..change import written
from ..core.finding import Finding
from ..core.host import Host, Problem, attempt
from ..core.plan import FileChange, Plan
from ..core.trusted import WAY_OUT
from ..machine.profile import Profile
from ..machine.rails import match
from ..machine.topology import Topology
from . import environment as nccl_environment
from . import environment_judge, grammar, known_bad, lint_checks
from . import lint as nccl_lint
from . import topo_file as nccl_topo_file
from .checks import FILE, FILE_MODE, PROOF, READABLE, RELEASE, TOPO_FILE
from .derive import EXTRA, Derivation, effect, render
from .environment import Environment
from .library import Library
from .parser_probe import OVERFLOW_UID
from .proof import Proof
from .version import Version

MODE = 0o644


@dataclass(frozen=True)
class Have:
    """nccl.conf as it is (text and mode None where there is no file), and what NCCL gets before it.

    open_to_all: every user may read it.   problems: findings for the files that cannot be read.
    topo_file: the finding on it, where it counts.   owner: of the file on a cloud's image.
    """

    text: Optional[str]
    mode: Optional[int]
    environment: Environment = field(default_factory=Environment)
    open_to_all: bool = True
    problems: Tuple[Finding, ...] = ()
    topo_file: Optional[Finding] = None
    owner: Tuple[Finding, ...] = ()


# -- what is there ---------------------------------------------------------------------------------------------------


def read(host: Host, path: str) -> Have:
    """nccl.conf at ``path``, its mode, and everything that NCCL gets before it reads nccl.conf."""
    problems: List[Problem] = []
    text = attempt(lambda: host.read_system(path), path, problems)
    mode = attempt(lambda: host.mode_system(path), path, problems)
    environment = nccl_environment.read(host)
    open_to_all = bool(attempt(lambda: mode is None or host.readable_by_others(path), path, problems))
    return Have(text, mode, environment, open_to_all, tuple(map(_unreadable, [*problems, *environment.problems])))


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
            findings.append(
                RELEASE.judge(
                    subject,
                    "drift",
                    known_bad.describe_good_release(release, machine, named),
                    known_bad.describe_effects(release, named),
                    fix=known_bad.describe_fix(release, machine, named),
                    why=known_bad.describe_causes(named),
                    severity=known_bad.worst_severity(met) if met else "minor",
                )
            )
    return findings


# -- the plan --------------------------------------------------------------------------------------------------------


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
    there = nccl_topo_file.read(host, derivation.expected, present, have.environment)
    return replace(have, topo_file=nccl_topo_file.judge(there, topology, profile, rails))


def plan(
    have: Have,
    derivation: Derivation,
    path: str,
    libraries: Sequence[Library] = (),
    version: Optional[Version] = None,
    proofs: Sequence[Tuple[str, Proof]] = (),
    hcas: Sequence[str] = (),
    accepted: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Plan the file, and judge it and what NCCL reads before it.

    libraries, version: what the text is linted against. proofs: (library path, its parser's result).
    hcas: every RDMA device of the host, so that the linter can expand prefixes.
    accepted: variables of jobs that the site accepts, see environment.judge.
    """
    findings = list(have.problems) + list(derivation.blockers)
    judged = environment_judge.judge(have.environment, derivation.expected, accepted, libraries, version, hcas)
    findings += judged[0]
    notes = (*have.environment.notes, *judged[1])
    if derivation.blockers:
        return Plan(tuple(findings), notes=notes)
    text = render(derivation.variables)
    files = written.compare([FileChange(path, have.text, text)], effect)
    findings += [f for f in nccl_lint.lint(text, libraries, version, path, hcas) if not _is_advice(f)]
    findings += [_proof_finding(library, proof, path) for library, proof in proofs]
    findings += [have.topo_file] if have.topo_file is not None else []
    findings += have.owner
    unsafe = [f for f in findings if f.severity == "critical" and f.check.startswith("nccl_conf.lint")]
    unsafe += [f for f in findings if f.check == PROOF.id and f.state == "drift"]
    # A file by the image's maker is replaced only after an administrator has decided so.
    unsafe += [f for f in findings if f.check == TOPO_FILE.id and f.source == nccl_topo_file.CONF]
    names = _difference(have.text or "", text)
    of_site = {one.name for one in derivation.variables if one.reason == EXTRA}
    severity = "major" if have.text is not None and names and of_site.issuperset(names) else files.severity
    differs = "differs in %s" % (", ".join(names) or "comments or layout")
    described = "absent" if have.text is None else "as rendered" if files.state == "ok" else differs
    ours = [FILE.judge(path, files.state, want="as rendered", have=described, severity=severity)]
    if have.mode is not None:
        state = "ok" if have.mode in (MODE, 0o444) and have.open_to_all else "drift"
        mode = "mode %04o%s" % (have.mode, ", not for every user" * (not have.open_to_all and have.mode == MODE))
        ours.append(FILE_MODE.judge(path, state, "mode %04o, in folders that every user may enter" % MODE, mode))
    changes: List[FileChange] = []
    after = files.changes[0].after if files.changes else have.text
    wrong = files.changes or not ours[-1].ok
    if wrong and not unsafe and not any(problem.subject == path for problem in have.problems):
        changes.append(FileChange(path, have.text, after, mode=MODE, mode_before=have.mode))
    return Plan((*findings, *ours), tuple(changes), notes=(*files.notes, *notes))


def _is_advice(finding: Finding) -> bool:
    """Return whether the linter only advises, as against GPUDirect off: here the inventory decides."""
    return finding.check in (lint_checks.ADVICE.id, lint_checks.GDR_OFF.id) and finding.severity != "critical"


def _difference(old: str, new: str) -> List[str]:
    """Return the names of the variables that are not the same in both texts."""
    have, want = (grammar.settings(grammar.parse(text)) for text in (old, new))
    return [name for name in sorted(set(have) | set(want)) if have.get(name) != want.get(name)]


def _proof_finding(library: str, proof: Proof, path: str) -> Finding:
    states = {"proven": "ok", "mismatch": "drift", "not_provable": "unknown"}
    source, have = "%s reading %s" % (library, path), "it does" if proof.outcome == "proven" else proof.message
    fix = None
    if proof.doubt:
        # A user who may write the library decides its output.
        source += ", proven as UID %d and not as root, for %s" % (OVERFLOW_UID, proof.doubt)
        have = "it does, but the library is not trusted: %s" % proof.doubt if proof.outcome == "proven" else have
        fix = "repair what the message names; for a proof as root %s in busbar_nccl_libraries" % WAY_OUT
    severity = "critical" if proof.outcome == "mismatch" else None
    want = "NCCL reads the intended values from it"
    return PROOF.judge(library, states[proof.outcome], want, have, source, fix, severity=severity)


def _unreadable(problem: Problem) -> Finding:
    return READABLE.judge(problem.source, "unknown", want="a readable text file", have=problem.message)
