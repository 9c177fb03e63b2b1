# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""/etc/nccl.conf: the variables that a host's rails justify, the canonical file, and the plan to get there.

Rails come from the profile, device names from the host. Only what facts justify is written: every further line may
become wrong. Sources: NCCL src/misc/param.cc (grammar and order), src/transport/net_ib (HCA, GID, TC),
src/graph/paths.cc (GDR level).
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..change import written
from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Problem, attempt
from ..core.plan import FileChange, Plan
from ..core.trusted import WAY_OUT
from ..machine import platform
from ..machine.netdev import ROUTE_FILES
from ..machine.profile import Profile
from ..machine.rails import Rails, match
from ..machine.rdma import rocev2
from ..machine.topology import Topology
from . import environment as nccl_environment
from . import grammar, image_conf, known_bad
from . import lint as nccl_lint
from . import lint_values as values
from . import topo_file as nccl_topo_file
from .environment import Environment
from .image_conf import Image
from .library import Library
from .parser_probe import OVERFLOW_UID
from .proof import Proof

Version = Tuple[int, int, int]
# From here on NCCL finds the right kind of GID, and a fixed index is wrong as soon as one shifts.
DYNAMIC_GID: Version = (2, 21, 0)
MODE = 0o644
# Comment above each of the site's variables.
EXTRA = "Set by the site in nccl_conf_extra."
HEADER = (
    "# Written by Busbar (role nccl_conf) from the platform profile and this host's devices.",
    "# Changes made here are overwritten. The site's own variables go into nccl_conf_extra.",
)
# The kernel allows nearly anything in names. A line break or comma would change the file's meaning.
_DEVICE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_RUN = fix_command.run_tag("nccl_conf")

RAILS = Check(
    "nccl_conf.rails",
    why="a list without this rail would make a broken host look configured, so /etc/nccl.conf is left untouched",
    fix="repair %s first, then run site.yml --tags nccl_conf for this host again" % platform.RAIL_DEVICE.id,
    severity="critical",
)
"Does each rail have a device; if not, nccl.conf is not changed"
DEVICE_NAME = Check(
    "nccl_conf.device_name",
    why="NCCL would read another name, or another variable, out of this one; the file is left untouched",
    fix="find out what gave the device this name, and rename it (rdma dev set OLD name NEW, ip link set OLD name NEW)",
    severity="critical",
)
"Is the name of each device or interface unambiguous for NCCL; if not, nccl.conf is not changed"
SOCKET_INTERFACE = Check(
    "nccl_conf.socket_interface",
    why="NCCL needs one interface that reaches every node for its bootstrap, and would guess",
    fix="set busbar_management_interface in the inventory",
)
"Is the interface for NCCL's bootstrap known; if not, nccl.conf is not changed"
GID_INDEX = Check(
    "nccl_conf.gid_index",
    why="NCCL %s takes one index for all rails, and these differ",
    fix="update NCCL to 2.21 or later, which finds the GID automatically, or give every rail the same addresses",
    severity="critical",
)
"Does the RoCE v2 GID have the same index on all rails, for an NCCL that needs it; if not, nccl.conf is not changed"
READABLE = Check(
    "nccl_conf.readable",
    why="what this file sets cannot be judged",
    fix="look at the file; remove it if it is not needed",
    aspect="persisted",
)
"Could the files that set NCCL's variables be read"
LIBRARY = Check(
    "nccl_conf.library",
    why="without the library that jobs use, the variables that it reads are unknown",
    fix="correct busbar_nccl_libraries, or install NCCL there",
)
"Could the library that jobs use be read"
RELEASE = Check(
    "nccl_conf.release",
    why="this release of NCCL has a defect that jobs meet",
    fix="install another release of NCCL",
)
"Is the NCCL of the jobs a release without a known defect that hangs, crashes or corrupts jobs on this host"
FILE = Check(
    "nccl_conf.file",
    why="without it, or with another list, NCCL chooses interfaces and devices automatically and differently on each"
    " host",
    fix=_RUN,
    severity="critical",
    aspect="persisted",
)
"Is nccl.conf as rendered"
FILE_MODE = Check(
    "nccl_conf.file_mode",
    why="NCCL silently skips a file that the job's user cannot read",
    fix=_RUN,
    severity="critical",
    aspect="persisted",
)
"Can every user read nccl.conf"
PROOF = Check(
    "nccl_conf.proof",
    why="only the library's own parser knows what it takes from the file",
    fix="repair what the message names; without user namespaces run as root; list an existing libnccl.so.2 in"
    " busbar_nccl_libraries",
    aspect="persisted",
)
"Does the library's own parser read the intended values from nccl.conf"
CONTAINERS = Check(
    "nccl_conf.containers",
    why="a container does not see the host's nccl.conf, and its jobs run with NCCL's guesses",
    fix=_RUN,
    aspect="persisted",
)
"Are the files by which containers see nccl.conf as rendered"


@dataclass(frozen=True)
class Variable:
    name: str
    value: str
    reason: str  # becomes a comment, so it holds no "=" (NCCL before 2.26 would take it for an assignment)


@dataclass(frozen=True)
class Want:
    """The site's part of the intent, beside the profile. Empty text and None: not set."""

    gpudirect: str = "auto"  # auto, peermem, dmabuf, off
    dscp: Optional[int] = None  # of the lossless queue, 0 to 63; Ethernet only; -1 for none
    address_family: str = "ipv4"  # of the rails' RoCE v2 addresses; "": not set
    management_interface: str = ""
    extra: Optional[Mapping[str, str]] = None
    image: Image = field(default_factory=Image)  # what the cloud's image has set


@dataclass(frozen=True)
class Derivation:
    """variables: in the order of the file. blockers: why nothing can be written; then variables is empty."""

    variables: Tuple[Variable, ...]
    blockers: Tuple[Finding, ...] = ()

    @property
    def expected(self) -> Dict[str, str]:
        return {variable.name: variable.value for variable in self.variables}


@dataclass(frozen=True)
class Have:
    """nccl.conf as it is (text and mode None where there is no file), and what NCCL gets before it.

    open_to_all: every user may read it.   problems: findings for the files that cannot be read.
    topo_file: the finding on it, where it counts.   owner: of the file on a cloud's image.
    """

    text: Optional[str]
    mode: Optional[int]
    environment: Environment = nccl_environment.NOTHING
    open_to_all: bool = True
    problems: Tuple[Finding, ...] = ()
    topo_file: Optional[Finding] = None
    owner: Tuple[Finding, ...] = ()


# -- wanted variables ----------------------------------------------------------------------------------------


def derive(topology: Topology, profile: Profile, want: Want, versions: Sequence[Version]) -> Derivation:
    """The variables that profile, facts and site values justify.

    versions: of the libraries that jobs use; empty where none is known.
    """
    rails = match(topology, profile)
    blockers = _missing_rails(topology, profile)
    if blockers:
        return Derivation((), tuple(blockers))
    variables: List[Variable] = []
    numbers = sorted(rails.nics)
    if numbers:
        hcas = [_hca(rails, number) for number in numbers]
        blockers.extend(_odd_names(rails))
        variables.append(
            Variable(
                "NCCL_IB_HCA",
                "=" + ",".join(hcas),
                "The RDMA device of each rail in rail order (profile %s). The leading equals sign makes the names"
                " exact; without it mlx5_1 also takes in mlx5_10." % profile.name,
            )
        )
    interface, reason = _socket_interface(topology, want)
    if interface is None:
        blockers.append(_no_interface(topology))
    elif _DEVICE_NAME.fullmatch(interface) is None:
        blockers.append(_odd_name("NCCL_SOCKET_IFNAME", interface, "the interface's name"))
    else:
        variables.append(Variable("NCCL_SOCKET_IFNAME", "=" + interface, reason))
    if any("Ethernet" in rail.link_layers for rail in profile.rails):
        roce, blocked = _roce(rails, want, versions)
        variables.extend(roce)
        blockers.extend(blocked)
    level = _gdr_level(profile, rails, want)
    if numbers and level is not None:
        variables.append(Variable("NCCL_NET_GDR_LEVEL", *level))
    if numbers and profile.topology_file and topology.virtualization.is_vm:
        variables.append(
            Variable(
                nccl_topo_file.NAME,
                profile.topology_file,
                "This virtual machine does not show which NIC is near which GPU; the cloud's file does (profile %s)."
                % profile.name,
            )
        )
    extra = want.extra or {}
    variables = [variable for variable in variables if variable.name not in extra]
    for name, value in sorted(extra.items()):
        variables.append(Variable(name, value, EXTRA))
    names = {variable.name for variable in variables}
    for name, value in sorted(want.image.kept.items()):
        if name not in names:
            variables.append(Variable(name, value, want.image.reason))
    if blockers:
        return Derivation((), tuple(blockers))
    return Derivation(tuple(variables))


def render(variables: Sequence[Variable]) -> str:
    """The canonical form that every NCCL version parses alike: NAME=VALUE, LF, no blanks, comments in column 0."""
    lines = list(HEADER)
    for variable in variables:
        lines += ["#"] + textwrap.wrap(_comment(variable.reason), 110, initial_indent="# ", subsequent_indent="# ")
        lines.append("%s=%s" % (variable.name, variable.value))
    text = "\n".join(lines) + "\n"
    return written.seal("", text, _effect("", text))


def _comment(text: str) -> str:
    """Names of profiles and devices stand in reasons. NCCL before 2.26 takes a comment with "=" for an assignment."""
    return "".join(char if " " <= char <= "~" and char != "=" else "?" for char in text)


def accepted_errors(accepted: Mapping[str, object]) -> List[str]:
    """Return errors in the variables that a site accepts from elsewhere, a sentence each."""
    errors: List[str] = []
    for name, reason in accepted.items():
        if not isinstance(name, str) or _VARIABLE_NAME.fullmatch(name.partition("=")[0]) is None:
            errors.append("%r is neither NAME nor NAME=VALUE" % (name,))
        elif not isinstance(reason, str) or not reason.strip() or not reason.isprintable():
            errors.append("%s has the reason %r, expected one line of text" % (name, reason))
    return errors


def extra_errors(extra: Mapping[str, object]) -> List[str]:
    """Return errors in the site's variables, a sentence each. An odd character in one would make another line."""
    errors: List[str] = []
    for name, value in extra.items():
        if not isinstance(name, str) or _VARIABLE_NAME.fullmatch(name) is None:
            errors.append("%r is not a variable's name" % (name,))
        elif isinstance(value, bool) or not isinstance(value, (str, int)):
            errors.append("%s is %r, expected text or a whole number" % (name, value))
        elif not str(value).isprintable():
            errors.append("%s is %r, expected one line of printable text" % (name, value))
    return errors


def with_unset(want: Want, text: Optional[str]) -> Tuple[Want, List[str]]:
    """Take what the inventory does not set from our present file. Return notes, too.

    text: of nccl.conf.
    """
    ours = text if text and written.HEAD in text else ""
    there = grammar.settings(grammar.parse(ours))
    dscps = {str(traffic_class(dscp)): dscp for dscp in range(64)}
    extra = image_conf.marked(ours, EXTRA) if want.extra is None else want.extra
    dscp = dscps.get(there.get("NCCL_IB_TC", "")) if want.dscp is None else want.dscp if want.dscp >= 0 else None
    family = want.address_family or ("ipv6" if "NCCL_IB_ADDR_FAMILY" in there else "ipv4")
    names = [*(extra if want.extra is None else ()), *(["NCCL_IB_TC"] if dscp not in (None, want.dscp) else ())]
    names += ["NCCL_IB_ADDR_FAMILY"] if family == "ipv6" and not want.address_family else []
    said = "nccl.conf retains %s, not set in the inventory: not judged; nccl_conf_extra: {}, busbar_roce: {} remove it"
    return replace(want, extra=extra, dscp=dscp, address_family=family), [said % ", ".join(names)] if names else []


def _missing_rails(topology: Topology, profile: Profile) -> List[Finding]:
    return [
        RAILS.judge(
            found.subject, "unknown", "a device for %s" % found.subject, found.have, found.source, because=found
        )
        for found in platform.all_missing(topology, profile, platform.RAIL_DEVICE)
    ]


def _hca(rails: Rails, number: int) -> str:
    nic = rails.nics[number]
    if nic.rdma is None:
        raise AssertionError("rails.match returned a NIC without an RDMA device")
    port = nic.port
    if port is not None and len(nic.rdma.ports) > 1:
        return "%s:%d" % (nic.rdma.name, port.number)
    return nic.rdma.name


def _odd_names(rails: Rails) -> List[Finding]:
    return [
        _odd_name("rail %d" % number, nic.rdma.name, nic.rdma.source)
        for number, nic in sorted(rails.nics.items())
        if nic.rdma is not None and _DEVICE_NAME.fullmatch(nic.rdma.name) is None
    ]


def _odd_name(subject: str, name: str, source: str) -> Finding:
    want = "a name of letters, digits, '_', '.' and '-'"
    return DEVICE_NAME.judge(subject, "unknown", want, repr(name[:80]), source)


def _socket_interface(topology: Topology, want: Want) -> Tuple[Optional[str], str]:
    if want.management_interface:
        return (
            want.management_interface,
            "Bootstrap traffic uses the interface named in busbar_management_interface, and no other.",
        )
    # Where one family's routes cannot be read, the other's default route may not be the one that wins.
    if not topology.routes or _route_problems(topology):
        return None, ""
    route = topology.routes[0]
    return (
        route.netdev,
        "Bootstrap traffic uses the interface of the default route (%s), and no other: docker0 or a storage"
        " network would do for NCCL, too." % route.source,
    )


def _route_problems(topology: Topology) -> List[str]:
    return [str(problem) for problem in topology.problems if problem.source in ROUTE_FILES]


def _no_interface(topology: Topology) -> Finding:
    have = "; ".join(_route_problems(topology)) or "no default route"
    name, want = "NCCL_SOCKET_IFNAME", "the management interface"
    return SOCKET_INTERFACE.judge(name, "unknown", want, have, ", ".join(ROUTE_FILES))


def _roce(rails: Rails, want: Want, versions: Sequence[Version]) -> Tuple[List[Variable], List[Finding]]:
    variables: List[Variable] = []
    blockers: List[Finding] = []
    if any(version < DYNAMIC_GID for version in versions):
        found, blocked = _gid_index(rails, want.address_family, versions)
        variables.extend(found)
        blockers.extend(blocked)
    elif want.address_family == "ipv6":
        variables.append(
            Variable("NCCL_IB_ADDR_FAMILY", "AF_INET6", "The rails' addresses are IPv6 (busbar_roce.address_family).")
        )
    if want.dscp is not None:
        variables.append(
            Variable(
                "NCCL_IB_TC",
                str(traffic_class(want.dscp)),
                "Traffic class of the fabric's lossless queue: DSCP %d (busbar_roce.dscp) shifted left by two."
                % want.dscp,
            )
        )
    return variables, blockers


def traffic_class(dscp: int) -> int:
    """Return NCCL_IB_TC for a DSCP; the device sets the two bits of ECN."""
    return dscp << 2


def _gid_index(rails: Rails, address_family: str, versions: Sequence[Version]) -> Tuple[List[Variable], List[Finding]]:
    kind = "IPv4" if address_family == "ipv4" else "IPv6"
    oldest = ".".join(map(str, min(versions)))
    seen: Dict[str, Optional[int]] = {}
    for number, nic in sorted(rails.nics.items()):
        port = nic.port
        gid = rocev2(port, address_family) if port is not None else None
        seen["rail %d" % number] = gid.index if gid is not None else None
    indexes = set(seen.values())
    if len(indexes) == 1 and None not in indexes:
        reason = "NCCL %s does not find the RoCE v2 %s GID automatically; it has this index on every rail." % (
            oldest,
            kind,
        )
        return [Variable("NCCL_IB_GID_INDEX", str(indexes.pop()), reason)], []
    have = ", ".join("%s: %s" % (rail, "none" if index is None else index) for rail, index in sorted(seen.items()))
    return [], [
        GID_INDEX.judge(
            "NCCL_IB_GID_INDEX",
            "unknown",
            want="one index of the RoCE v2 %s GID for all rails" % kind,
            have=have,
            source="/sys/class/infiniband/*/ports/*/gid_attrs/types",
            why=GID_INDEX.why % oldest,
        )
    ]


def _gdr_level(profile: Profile, rails: Rails, want: Want) -> Optional[Tuple[str, str]]:
    """NCCL_NET_GDR_LEVEL and its reason; None where NCCL's default (PXB) is right."""
    mode = want.gpudirect
    if mode == "off":
        return "LOC", "GPUDirect RDMA is switched off by the site (busbar_gpudirect)."
    # A guest hides the distance of a virtual function from a GPU: NCCL needs a topology file.
    if mode == "auto" and any(nic.role == "vf" for nic in rails.nics.values()):
        return None
    paths = {path for rail in profile.rails for path in rail.paths.values()}
    if "SYS" in paths and mode != "auto":
        return "SYS", "The profile puts rails across sockets from their GPUs, and busbar_gpudirect requires GPUDirect."
    if paths & {"PHB", "NODE"}:
        return "PHB", "The profile puts rails behind the host bridge (PHB or NODE); NCCL's default ends at PXB."
    return None


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
    findings += nccl_environment.judge(have.environment, derivation.expected, accepted, libraries, version, hcas)[0]
    if derivation.blockers:
        return Plan(tuple(findings))
    text = render(derivation.variables)
    files = written.compare([FileChange(path, have.text, text)], _effect)
    findings += [f for f in nccl_lint.lint(text, libraries, version, path, hcas) if not _is_advice(f)]
    findings += [_proof_finding(library, proof, path) for library, proof in proofs]
    findings += [have.topo_file] if have.topo_file is not None else []
    findings += have.owner
    unsafe = [f for f in findings if f.severity == "critical" and f.check.startswith("nccl_conf.lint")]
    unsafe += [f for f in findings if f.check == PROOF.id and f.state == "drift"]
    # A file by the image's maker is replaced only after an administrator has decided so.
    unsafe += [f for f in findings if f.check == nccl_topo_file.TOPO_FILE.id and f.source == nccl_topo_file.CONF]
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
    return Plan((*findings, *ours), tuple(changes), notes=files.notes)


def _is_advice(finding: Finding) -> bool:
    """Return whether the linter only advises, as against GPUDirect off: here the inventory decides."""
    return finding.check in (values.ADVICE.id, values.GDR_OFF.id) and finding.severity != "critical"


def _effect(path: str, text: str) -> object:
    """Return the lines as NCCL reads them: before 2.26 a comment with "=" is an assignment, and blanks count."""
    return sorted(line for line in set(text.split("\n")) if line.strip() and (line[0] != "#" or "=" in line))


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


def plan_file(before: Optional[str], target: str, text: str) -> Plan:
    """A file for a container runtime, beside nccl.conf itself."""
    files = written.compare([FileChange(target, before, text, mode=MODE)])
    said = files.wrong or "as rendered"
    finding = CONTAINERS.judge(target, files.state, want="as rendered", have=said, severity=files.severity)
    return Plan((finding,), files.changes, notes=files.notes)
