# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge whether the present build of nccl-tests is of the wanted commit and of this host's present inputs."""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, Optional, Tuple, TypeVar, Union

from ..core import trusted
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError, Problem, ReadError, attempt, untrusted
from ..core.plan import FileChange, Plan
from . import programs, toolchain
from .marker import MARKER, Cuda, Inputs, Marker, Mpi, Nccl, parse_marker

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
T = TypeVar("T")

CUDA = Check("nccl_tests.cuda", why="nvcc compiles the programs", fix="install CUDA, or set nccl_tests_cuda_home")
"Is there a CUDA toolkit to build nccl-tests with"

NCCL = Check(
    "nccl_tests.nccl",
    why="the programs measure the NCCL that they are built and run with",
    fix="install NCCL's development package, or list the jobs' own library in busbar_nccl_libraries",
)
"Is there an NCCL to build nccl-tests with, with the header of the same version"

MPI = Check(
    "nccl_tests.mpi",
    why="without MPI a run over several nodes silently becomes one separate run on each node",
    fix="install MPI's development files and set nccl_tests_mpi_home, or set nccl_tests_mpi to 'off'",
)
"Is there an MPI to build nccl-tests with, where it is configured"

ARCH = Check(
    "nccl_tests.arch",
    why="the programs are compiled for these GPUs and no others",
    fix="make nvidia-smi work: see platform.gpu_tool and platform.gpu_driver",
)
"Is it known which GPUs nccl-tests are to be built for"

SOURCE = Check(
    "nccl_tests.source",
    why="only reviewed sources are compiled and run as root",
    fix="put the right archive there, or correct nccl_tests_tarball and nccl_tests_sha256",
)
"Is the archive of the sources the configured one"

TOOLS = Check("nccl_tests.tools", why="the build needs them")
"Are the tools installed that nccl-tests are built with"

BUILD = Check(
    "nccl_tests.build",
    why="a stale or half build measures something else than the jobs use, or nothing",
    fix="run site.yml --tags nccl_tests for this host",
    aspect="persisted",
)
"Are the programs unmodified, and built with the current tools and libraries"

# Of each input: its check, its name for people, what is wanted of it, and where it was looked for.
_INPUTS = {
    "cuda": (CUDA, "CUDA", "a CUDA toolkit", "/usr/local/cuda*"),
    "nccl": (NCCL, "NCCL", "libnccl.so.2 with the nccl.h of the same version", "packages, wheels"),
    "mpi": (MPI, "MPI", "MPI with its development files", "mpicc"),
    "arch": (ARCH, "arch", "the GPUs' compute capability", " ".join(toolchain.QUERY)),
}


@dataclass(frozen=True)
class Want:
    """Wanted build by the inventory. Empty text: not set.

    path: directory of the build.   commit: 40 hex digits.   repository: what git clones, where tarball is empty.
    tarball: archive of the sources on the node, with its sha256.   libraries: those of the site's jobs, best first.
    mpi: auto, required or off.
    """

    path: str
    commit: str
    repository: str = ""
    tarball: str = ""
    sha256: str = ""
    cuda_home: str = ""
    libraries: Tuple[str, ...] = ()
    mpi: str = "auto"
    mpi_home: str = ""

    def __post_init__(self) -> None:
        paths = {"path": self.path, "tarball": self.tarball, "cuda_home": self.cuda_home, "mpi_home": self.mpi_home}
        for name, path in [*paths.items(), *(("libraries", path) for path in self.libraries)]:
            if (path or name == "path") and (
                toolchain.PATH.fullmatch(path) is None or posixpath.normpath(path) != path
            ):
                raise ParseError(
                    "%s is %r, expected an absolute path without '..' of letters, digits, '_', '.', '+', '@' and '-':"
                    " make splits a path at other characters" % (name, path)
                )
        if _COMMIT.fullmatch(self.commit) is None:
            raise ParseError("commit is %r, expected 40 lower-case hex digits (a tag can be moved)" % self.commit)
        if self.tarball and _SHA256.fullmatch(self.sha256) is None:
            raise ParseError("sha256 is %r, expected the 64 lower-case hex digits of the tarball" % self.sha256)
        if not self.tarball and (not self.repository or not self.repository.isprintable()):
            raise ParseError("repository is %r, and there is no tarball either" % self.repository)
        if re.match(r"[^/]*//[^/]*:[^/]*@", self.repository):
            raise ParseError("repository holds a password, which logs would show: use a tarball or git's own means")
        if self.mpi == "off" and self.mpi_home:
            raise ParseError("mpi_home is %s, but mpi is off" % self.mpi_home)

    @property
    def needs_mpi(self) -> bool:
        return self.mpi == "required" or bool(self.mpi_home)


@dataclass(frozen=True)
class Have:
    """The present build, and what this host has to make one from. None: there is none, or ``problems`` says why not.

    damage: why the marker that is there cannot be read.   occupied: what is there in place of a build of ours.
    wrong: as ``programs.wrong`` says of the present build.   archive: SHA-256 of the wanted tarball.
    missing_tools: what a build needs and this host lacks.
    problems: by "build", "source" or the name of an input.
    """

    marker: Optional[Marker] = None
    damage: str = ""
    occupied: str = ""
    wrong: Mapping[str, str] = field(default_factory=dict)
    cuda: Optional[Cuda] = None
    nccl: Optional[Nccl] = None
    mpi: Optional[Mpi] = None
    arch: Optional[Tuple[str, ...]] = None
    archive: Optional[str] = None
    missing_tools: Tuple[str, ...] = ()
    problems: Mapping[str, Problem] = field(default_factory=dict)


# -- what is there ---------------------------------------------------------------------------------------------------


def read(host: Host, want: Want) -> Have:
    """The present build, and what this host has to make one from."""
    problems: Dict[str, Problem] = {}

    def part(name: str, step: Callable[[], T], source: str = "") -> Optional[T]:
        found: List[Problem] = []
        value = attempt(step, source, found)
        problems.update((name, problem) for problem in found)
        return value

    occupied = part("build", lambda: _occupied(host, want.path)) or ""
    marker, damage = (None, "") if "build" in problems else _read_marker(host, want.path)
    query = " ".join(toolchain.QUERY)
    return Have(
        marker=marker,
        damage=damage,
        occupied=occupied,
        wrong={} if marker is None else programs.wrong(host.system(want.path), marker.binaries),
        cuda=part("cuda", lambda: toolchain.read_cuda(host, want.cuda_home)),
        nccl=part("nccl", lambda: toolchain.read_nccl(host, want.libraries)),
        mpi=None if want.mpi == "off" else part("mpi", lambda: toolchain.read_mpi(host, want.mpi_home)),
        arch=part("arch", lambda: toolchain.parse_capabilities(host.query(toolchain.QUERY)), query),
        archive=part("source", lambda: programs.sha256(host.system(want.tarball)) if want.tarball else None),
        missing_tools=toolchain.missing_tools(host, ("make", "g++") if want.tarball else ("make", "g++", "git")),
        problems=problems,
    )


def _occupied(host: Host, path: str) -> str:
    """Return what occupies the build's path and is not a build of ours; "" for nothing.

    A build of ours was renamed into place with its marker, which may be damaged by now.
    Raises ReadError, also where others than root may put something in the build's place.
    """
    full = host.system(path)
    above = os.path.dirname(os.path.realpath(full))
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    # A user who may rename the build may replace it.
    doubt = trusted.doubt(above, os.path.realpath(host.system_root))
    inside = [path, *("%s/%s" % (path, name) for name in (os.listdir(full) if os.path.isdir(full) else ()))]
    doubt = doubt or next(filter(None, map(host.doubt, inside if os.path.lexists(full) else ())), "")
    if doubt:
        raise untrusted(path, doubt)
    if not os.path.exists(full):
        return ""
    if not os.path.isdir(full):
        return "something that is not a directory"
    names = host.listdir_system(path)
    if not names or MARKER in names:
        return ""
    return "a directory that Busbar did not make, with %s" % ", ".join(names[:3])


def _read_marker(host: Host, path: str) -> Tuple[Optional[Marker], str]:
    """(the marker, why it cannot be read). After a power cut it can be without its content: that is mended, too."""
    try:
        text = host.read_system("%s/%s" % (path, MARKER))
        return None if text is None else parse_marker(text), ""
    except ReadError as error:
        return None, "the marker %s" % error.problem.message
    except ParseError as error:
        return None, "the marker %s" % error


# -- the plan --------------------------------------------------------------------------------------------------------


def inputs(have: Have, want: Want) -> Optional[Inputs]:
    """Return the inputs of a build on this host; None if one is missing or unknown."""
    if any(name in have.problems for name in _INPUTS):
        return None
    if have.cuda is None or have.nccl is None or not have.arch or (have.mpi is None and want.needs_mpi):
        return None
    return Inputs(have.cuda, have.nccl, have.mpi, have.arch)


def plan(have: Have, want: Want) -> Plan:
    """Findings on each input and on the build; one change where the build is to be made."""
    findings = [_input(name, have, want) for name in _INPUTS if name != "mpi" or want.mpi != "off"]
    made_from = inputs(have, want)
    differing = differences(have, want)
    if differing and want.tarball:
        findings.append(_source(have, want))
    if differing and have.missing_tools:
        lacking = ", ".join(have.missing_tools)
        where = "the usual places for tools"
        findings.append(
            TOOLS.judge("build tools", "drift", "all installed", "no %s" % lacking, where, fix="install %s" % lacking)
        )
    blocker = next((finding for finding in findings if not finding.ok), None)
    build = _build(have, want, differing, blocker)
    findings.append(build)
    if build.state != "drift" or blocker is not None or made_from is None:
        return Plan(tuple(findings))
    before = None if have.marker is None else _describe(have.marker.commit, have.marker.inputs, have.wrong)
    return Plan(tuple(findings), (FileChange(want.path, before, _describe(want.commit, made_from, {}), mode=0o755),))


def differences(have: Have, want: Want) -> Dict[str, str]:
    """Return input or file -> how the present build differs from a build made now. Unknown inputs are not compared."""
    marker = have.marker
    if marker is None:
        return {"build": "none"}
    result: Dict[str, str] = {}
    if marker.commit != want.commit:
        result["commit"] = "%.12s -> %.12s" % (marker.commit, want.commit)
    elif want.tarball and marker.archive_sha256 not in (None, want.sha256):
        result["commit"] = "archive %.12s -> %.12s" % (marker.archive_sha256, want.sha256)
    for name, (_check, label, _want, _where) in _INPUTS.items():
        old, new = getattr(marker.inputs, name), getattr(have, name)
        unknown = name in have.problems or (new is None and (name != "mpi" or want.needs_mpi))
        if not unknown and old != new:
            was, now = _version(old), _version(new)
            # Where the version is the same, it is in another place.
            result[label] = "%s -> %s" % ((was, now) if was != now else (old.library, new.library))
    result.update(have.wrong)
    return result


def _listed(items: Mapping[str, str]) -> str:
    return ", ".join("%s %s" % item for item in items.items())


def _version(value: Union[Cuda, Nccl, Mpi, Tuple[str, ...], None]) -> str:
    if value is None:
        return "none"
    return " ".join(value) if isinstance(value, tuple) else str(value.version)


def _describe(commit: str, made_from: Inputs, wrong: Mapping[str, str]) -> str:
    mpi = made_from.mpi
    lines = [
        "commit: %s" % commit,
        "CUDA: %s, %s" % (made_from.cuda.version, made_from.cuda.library),
        "NCCL: %s, %s" % (made_from.nccl.version, made_from.nccl.library),
        "MPI: none" if mpi is None else "MPI: %s, %s" % (mpi.version, mpi.library),
        "arch: %s" % " ".join(made_from.arch),
        "programs: %s" % (_listed(dict(sorted(wrong.items()))) or "as built"),
    ]
    return "\n".join(lines) + "\n"


def _input(name: str, have: Have, want: Want) -> Finding:
    check, subject, label, source = _INPUTS[name]
    value, problem = getattr(have, name), have.problems.get(name)
    if problem is not None:
        return check.judge(subject, "unknown", label, problem.message, problem.source)
    absent_is_right = name == "mpi" and not want.needs_mpi
    if name != "arch" and value is not None:
        source = value.library
    state = "ok" if value or absent_is_right else "drift"
    return check.judge(subject, state, "as found" if absent_is_right else label, _version(value), source)


def _source(have: Have, want: Want) -> Finding:
    problem, expected = have.problems.get("source"), "sha256 %s" % want.sha256
    if problem is not None:
        return SOURCE.judge(want.tarball, "unknown", expected, problem.message)
    state = "ok" if have.archive == want.sha256 else "drift"
    return SOURCE.judge(want.tarball, state, expected, "sha256 %s" % have.archive)


def _build(have: Have, want: Want, differing: Mapping[str, str], blocker: Optional[Finding]) -> Finding:
    problem = have.problems.get("build")
    state, found, fix, because = "drift", _listed(differing), BUILD.fix, blocker
    if problem is not None:
        state, found, because = "unknown", str(problem), None
        fix = "look at %s, and move it away" % want.path
    elif have.occupied:
        state, found, because = "not_owned", have.occupied, None
        fix = "move %s away, or set nccl_tests_path to another directory" % want.path
    elif have.marker is None:
        found = have.damage or "none"
    elif not differing:
        # With an unknown input the build cannot be compared.
        state, found = ("ok", "built from these") if blocker is None else ("unknown", "cannot be compared")
    wanted = "built from commit %.12s with the CUDA, NCCL and MPI found, for these GPUs" % want.commit
    return BUILD.judge(want.path, state, wanted, found, "%s/%s" % (want.path, MARKER), fix, because)
