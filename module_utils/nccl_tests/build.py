# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""nccl-tests as built on a host: what there is to build it from, what the present build was made of, and the plan.

A build is a directory that holds the programs and ``busbar-build.json``, the marker. The directory is renamed into
place whole, and the marker carries the SHA-256 of every program, so neither can claim what is not there. The marker:

    {"format": 1, "commit": "<40 hex>", "archive_sha256": "<64 hex>" or null,
     "cuda": {"home": "/usr/local/cuda-13.0", "library": ".../libcudart.so.13", "version": "13.0.88"},
     "nccl": {"header": "/usr/include", "library": ".../libnccl.so.2.27.7", "version": "2.27.7"},
     "mpi": {"include": "...", "library": ".../libmpi.so.40.30.4", "version": "Open MPI 4.1.4"} or null,
     "arch": ["9.0"],
     "runtime": {"machine": "x86_64", "release": "ubuntu 24.04", "glibc": "glibc 2.39",
                 "libstdcxx": "libstdc++.so.6.0.33"} or null,
     "library_path": ["directories that LD_LIBRARY_PATH needs: nothing in the programs says which libnccl they mean"],
     "argv": ["make", ...],
     "binaries": {"all_reduce_perf": "<64 hex>", ...}}

Hosts with the same commit, archive, inputs and runtime form a class: what one of them has built runs on the others.
``choose`` says who builds for whom, ``pack`` and ``unpack_build`` carry the build over.

Sources: nccl-tests src/common.mk and src/Makefile (2.10 to 2.19); nccl.md 6.1 and 6.2; os-release(5).
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import lzma
import os
import posixpath
import re
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import tarfile
import zlib
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar

from ..core import os_release, redaction, trusted
from ..core.finding import Finding
from ..core.host import Host, ParseError, Problem, ReadError, ToolMissing, Untrusted, untrusted
from ..core.plan import FileChange, Plan
from ..machine.gpu import parse_query_csv
from ..nccl import library as nccl_library
from ..nccl.variables import format_version

MARKER = "busbar-build.json"
LOG = "build.log"
FORMAT = 1
PACK = "/var/lib/busbar/nccl-tests.pack"
# Every release since 2.10 has these; later ones have more, and what is built beside them is recorded, too.
PROGRAMS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "reduce", "alltoall", "sendrecv")
MPI_MODES = ("auto", "required", "off")
QUERY = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv")
_NAMES = {"cuda": "CUDA", "nccl": "NCCL", "mpi": "MPI", "arch": "arch"}
INPUTS = tuple(_NAMES)
# The sources have some fifteen files to compile: more jobs than that only take memory from the node's own work.
JOBS_LIMIT = 16

_MULTIARCH = ("x86_64-linux-gnu", "aarch64-linux-gnu")
_PYTHON = ("/usr/local/lib/python3*/*-packages", "/usr/lib/python3*/*-packages", "/usr/lib64/python3*/site-packages")
_SDK = "/opt/nvidia/hpc_sdk/Linux_*/*/comm_libs"
# Toolkits in the order in which they are taken; of several that match one pattern, the newest.
_CUDA_HOMES = (
    "/usr/local/cuda",
    "/usr/local/cuda-*",
    "/usr",
    *("%s/nvidia/cu[0-9]*" % folder for folder in _PYTHON),
    *("%s/nvidia/cuda_nvcc" % folder for folder in _PYTHON),
)
_CUDA_LIBRARIES = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib") + tuple(
    "lib/%s" % name for name in _MULTIARCH
)
_NCCL_LIBRARIES = nccl_library.STANDARD_PATHS + (
    "%s/nccl/lib/libnccl.so.2" % _SDK,
    *("%s/nvidia/nccl/lib/libnccl.so.2" % folder for folder in _PYTHON),
)
_MPI_HOMES = (
    "/opt/hpcx*/ompi",
    "%s/hpcx/*/ompi" % _SDK,
    "/usr/local",
    *("/usr/lib/%s/openmpi" % name for name in _MULTIARCH),
    "/usr/lib64/openmpi",
)
_LIBSTDCXX = (*("/usr/lib/%s/libstdc++.so.6" % name for name in _MULTIARCH), "/usr/lib64/libstdc++.so.6")
# make and the shells below it split at blanks and expand much else.
_PATH = re.compile(r"(/[A-Za-z0-9_.+@-]+)+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")
_NVCC = re.compile(r"^Cuda compilation tools, release [0-9.]+, V([0-9]+\.[0-9]+\.[0-9]+)$", re.MULTILINE)
_CHUNK = 1 << 20
# Sources of nccl-tests are about 1 MB in some forty files; what unpacks to more than this is something else.
ARCHIVE_LIMIT = 256 * 1024 * 1024
_ARCHIVE_MEMBERS = 20000
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_DYNAMIC = struct.Struct("<qQ")  # Elf64_Dyn
_SHT_DYNAMIC, _DT_NEEDED = 6, 1
_ELF_LIMIT = 16 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True)
class Want:
    """What the inventory asks for. Empty text: not set.

    path: directory of the build.   commit: 40 hex digits.   repository: what git clones, where tarball is empty.
    tarball: archive of the sources on the node, with its sha256.   libraries: those of the site's jobs, best first.
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
            if (path or name == "path") and (_PATH.fullmatch(path) is None or posixpath.normpath(path) != path):
                raise ParseError(
                    "%s is %r, expected an absolute path without '..' of letters, digits, '_', '.', '+', '@' and '-':"
                    " make takes other characters apart" % (name, path)
                )
        if _COMMIT.fullmatch(self.commit) is None:
            raise ParseError("commit is %r, expected 40 lower-case hex digits (a tag can be moved)" % self.commit)
        if self.tarball and _SHA256.fullmatch(self.sha256) is None:
            raise ParseError("sha256 is %r, expected the 64 lower-case hex digits of the tarball" % self.sha256)
        if not self.tarball and (not self.repository or not self.repository.isprintable()):
            raise ParseError("repository is %r, and there is no tarball either" % self.repository)
        if re.match(r"[^/]*//[^/]*:[^/]*@", self.repository):
            raise ParseError("repository holds a password, which would stand in logs: use a tarball or git's own means")
        if self.mpi == "off" and self.mpi_home:
            raise ParseError("mpi_home is %s, but mpi is off" % self.mpi_home)


@dataclass(frozen=True)
class Cuda:
    home: str
    library: str  # libcudart.so, or libcudart.so.13 where a wheel has no other
    version: str  # 13.0.88, of nvcc


@dataclass(frozen=True)
class Nccl:
    header: str  # directory of nccl.h
    library: str  # the file, links followed
    version: str


@dataclass(frozen=True)
class Mpi:
    include: str  # directory of mpi.h
    library: str  # the file that libmpi.so leads to
    version: str  # "Open MPI 4.1.4"


@dataclass(frozen=True)
class Inputs:
    """All that a build is made from besides the sources. mpi is None for a build without."""

    cuda: Cuda
    nccl: Nccl
    mpi: Optional[Mpi]
    arch: Tuple[str, ...]  # compute capabilities, "9.0"

    @property
    def library_path(self) -> List[str]:
        files = [self.nccl.library, self.cuda.library] + ([self.mpi.library] if self.mpi else [])
        return list(dict.fromkeys(posixpath.dirname(path) for path in files))


@dataclass(frozen=True)
class Runtime:
    """What a program takes from its host besides the libraries in Inputs: where it is equal, the program runs."""

    machine: str  # x86_64
    release: str  # "ubuntu 24.04": ID and VERSION_ID of os-release
    glibc: str  # "glibc 2.39"
    libstdcxx: str  # name of the file that libstdc++.so.6 leads to


@dataclass(frozen=True)
class Marker:
    """runtime is None where it could not be read; such a build is for its own host only."""

    commit: str
    archive_sha256: Optional[str]
    inputs: Inputs
    runtime: Optional[Runtime]
    argv: Tuple[str, ...]
    binaries: Mapping[str, str]  # file name -> SHA-256


@dataclass(frozen=True)
class Have:
    """marker is None where there is none, or where ``damage`` says why it cannot be read.

    occupied: what is there in place of a build of ours; then nothing is built.
    cuda, nccl, mpi, arch: None where there is none. problems: by input; one with a problem is None and unknown.
    runtime: None where a part of it is unknown, and then problems says which.
    wrong: what is not as the marker says: file name -> "missing", "altered", "not executable".
    missing_tools: what a build needs and this host lacks. archive: SHA-256 of the wanted tarball.
    """

    marker: Optional[Marker] = None
    damage: str = ""
    occupied: str = ""
    wrong: Mapping[str, str] = field(default_factory=dict)
    cuda: Optional[Cuda] = None
    nccl: Optional[Nccl] = None
    mpi: Optional[Mpi] = None
    arch: Optional[Tuple[str, ...]] = None
    runtime: Optional[Runtime] = None
    archive: Optional[str] = None
    missing_tools: Tuple[str, ...] = ()
    problems: Mapping[str, Problem] = field(default_factory=dict)


# -- pure parsers ----------------------------------------------------------------------------------------------------


def parse_nvcc(text: str) -> str:
    """``13.0.88`` of ``nvcc --version``."""
    match = _NVCC.search(text)
    if match is None:
        raise ParseError("%s, expected a line 'Cuda compilation tools, release 13.0, V13.0.88'" % _quote(text))
    return match.group(1)


def parse_nccl_header(text: str) -> str:
    """``2.27.7`` of nccl.h."""
    return ".".join(_macro(text, "NCCL_" + name) for name in ("MAJOR", "MINOR", "PATCH"))


def parse_mpi_header(text: str) -> str:
    """``Open MPI 4.1.4`` or ``MPICH 4.0.2`` of mpi.h."""
    if re.search(r"^#\s*define\s+OMPI_MAJOR_VERSION\b", text, re.MULTILINE):
        numbers = [_macro(text, "OMPI_%s_VERSION" % name) for name in ("MAJOR", "MINOR", "RELEASE")]
        return "Open MPI %s" % ".".join(numbers)
    match = re.search(r'^#\s*define\s+MPICH_VERSION\s+"([0-9][0-9A-Za-z.]{0,30})"', text, re.MULTILINE)
    if match is None:
        raise ParseError("no '#define OMPI_MAJOR_VERSION' or '#define MPICH_VERSION' in it")
    return "MPICH %s" % match.group(1)


def _macro(text: str, name: str) -> str:
    match = re.search(r"^#\s*define\s+%s\s+([0-9]{1,4})\s*(?:/[*/].*)?$" % name, text, re.MULTILINE)
    if match is None:
        raise ParseError("no '#define %s <number>' in it" % name)
    return match.group(1)


def parse_capabilities(text: str) -> Tuple[str, ...]:
    """("9.0",) of ``nvidia-smi --query-gpu=compute_cap --format=csv``: each capability once, in order."""
    rows = parse_query_csv(text)
    found: Set[str] = set()
    for row in rows:
        value = row.get("compute_cap")
        if value is None or _CAPABILITY.fullmatch(value) is None:
            raise ParseError("a GPU gives %r for its compute capability, expected a form like 9.0" % value)
        found.add(value)
    return tuple(sorted(found, key=lambda value: [int(part) for part in value.split(".")]))


def distribution(values: Mapping[str, str]) -> str:
    """``ubuntu 24.04``, the ID and VERSION_ID of os-release. Raises ParseError."""
    found = [values.get(name, "") for name in ("ID", "VERSION_ID")]
    if not all(re.fullmatch(r"[A-Za-z0-9._-]+", value) for value in found):
        raise ParseError("has no ID or no VERSION_ID")
    return " ".join(found)


def parse_marker(text: str) -> Marker:
    """The marker of a build. Raises ParseError for anything that ``render_marker`` does not write."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("is not JSON: %s" % error) from error
    try:
        if data["format"] != FORMAT:
            raise ParseError("has format %r, expected %d" % (data["format"], FORMAT))
        marker = Marker(
            commit=data["commit"],
            archive_sha256=data["archive_sha256"],
            inputs=Inputs(
                cuda=Cuda(**data["cuda"]),
                nccl=Nccl(**data["nccl"]),
                mpi=None if data["mpi"] is None else Mpi(**data["mpi"]),
                arch=tuple(data["arch"]),
            ),
            runtime=None if data["runtime"] is None else Runtime(**data["runtime"]),
            argv=tuple(data["argv"]),
            binaries=data["binaries"],
        )
        same = json.loads(render_marker(marker)) == data
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ParseError("is not a marker: %s %s" % (type(error).__name__, error)) from error
    digests = list(marker.binaries.values())
    texts = [marker.commit, *marker.argv, *marker.inputs.arch, *digests]
    for part in (marker.inputs.cuda, marker.inputs.nccl, marker.inputs.mpi, marker.runtime):
        texts += [] if part is None else list(asdict(part).values())
    if any(not isinstance(value, str) for value in texts) or not same:
        raise ParseError("is not a marker: it holds something else than what is written there")
    odd = [name for name in marker.binaries if "/" in name or name in ("", ".", "..") or "\0" in name]
    if odd or not {"%s_perf" % program for program in PROGRAMS} <= set(marker.binaries):
        raise ParseError("lists %s, expected the programs of nccl-tests" % _quote(", ".join(marker.binaries)))
    return marker


def render_marker(marker: Marker) -> str:
    data = {
        "format": FORMAT,
        "commit": marker.commit,
        "archive_sha256": marker.archive_sha256,
        "cuda": asdict(marker.inputs.cuda),
        "nccl": asdict(marker.inputs.nccl),
        "mpi": None if marker.inputs.mpi is None else asdict(marker.inputs.mpi),
        "arch": list(marker.inputs.arch),
        "runtime": None if marker.runtime is None else asdict(marker.runtime),
        "library_path": marker.inputs.library_path,
        "argv": list(marker.argv),
        "binaries": dict(sorted(marker.binaries.items())),
    }
    return json.dumps(data, indent=2) + "\n"


def make_argv(
    make: str, source: str, build: str, links: str, cuda_home: str, arch: Sequence[str], mpi: bool, jobs: int
) -> List[str]:
    """The build's command line. links: directory with ``cuda``, ``nccl`` and ``mpi`` as ``link_layout`` gives them.

    The defaults of NVCC_GENCODE differ between releases and cost four times the time; these are the host's own GPUs.
    """
    gencode = ["-gencode=arch=compute_{0},code=sm_{0}".format(value.replace(".", "")) for value in arch]
    argv = [make, "-C", source, "-j%d" % jobs, "BUILDDIR=%s" % build, "CUDA_HOME=%s" % cuda_home]
    argv += ["CUDA_LIB=%s/cuda" % links, "NCCL_HOME=%s/nccl" % links, "NVCC_GENCODE=%s" % " ".join(gencode)]
    return argv + (["MPI=1", "MPI_HOME=%s/mpi" % links] if mpi else ["MPI=0"])


def link_layout(inputs: Inputs, header_names: Sequence[str]) -> Dict[str, str]:
    """Link -> target, for the compiler to find exactly these libraries and nothing that lies beside them.

    A wheel has libnccl.so.2 and no libnccl.so; EL keeps mpi.h apart from the library; -I/usr/include reorders headers.
    header_names: what the directory of nccl.h holds.
    """
    layout = {"cuda/libcudart.so": inputs.cuda.library, "nccl/lib/libnccl.so": inputs.nccl.library}
    for name in header_names:
        if name.startswith("nccl"):
            layout["nccl/include/%s" % name] = "%s/%s" % (inputs.nccl.header, name)
    if inputs.mpi is not None:
        layout["mpi/include"] = inputs.mpi.include
        layout["mpi/lib/libmpi.so"] = inputs.mpi.library
    return layout


# -- files -----------------------------------------------------------------------------------------------------------


def sha256(path: str) -> str:
    """Of a regular file. Raises ReadError."""
    digest = hashlib.sha256()
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ReadError(path, "is not a regular file")
        with open(path, "rb") as stream:
            for chunk in iter(lambda: stream.read(_CHUNK), b""):
                digest.update(chunk)
    except OSError as error:
        raise ReadError(path, "cannot be read: %s" % error.strerror) from error
    return digest.hexdigest()


def needed_libraries(path: str) -> List[str]:
    """Names of the libraries that an ELF program asks the loader for (DT_NEEDED). Raises ReadError."""
    try:
        with open(path, "rb") as stream:
            return _needed(path, stream)
    except OSError as error:
        raise ReadError(path, "cannot be read: %s" % error.strerror) from error
    except (struct.error, IndexError, ValueError) as error:
        raise ReadError(path, "is a damaged ELF file: %s" % error) from error


def _needed(path: str, stream: BinaryIO) -> List[str]:
    header = stream.read(_HEADER.size)
    if header[:6] != b"\x7fELF\x02\x01":
        raise ReadError(path, "is not a 64-bit little-endian ELF file")
    fields = _HEADER.unpack(header)
    table, size, count = fields[6], fields[11], fields[12]
    if size != _SECTION.size:
        raise ReadError(path, "has no usable ELF section headers")
    data = _part(path, stream, table, size * count)
    sections = [_SECTION.unpack_from(data, index * size) for index in range(count)]
    for section in sections:
        if section[1] == _SHT_DYNAMIC:
            names = _part(path, stream, *sections[section[6]][4:6])
            dynamic = _part(path, stream, *section[4:6])
            entries = _DYNAMIC.iter_unpack(dynamic[: len(dynamic) // _DYNAMIC.size * _DYNAMIC.size])
            offsets = [value for tag, value in entries if tag == _DT_NEEDED]
            return [names[offset : names.index(b"\0", offset)].decode("ascii") for offset in offsets]
    return []


def _part(path: str, stream: BinaryIO, offset: int, size: int) -> bytes:
    if size > _ELF_LIMIT or offset + size > os.fstat(stream.fileno()).st_size:
        raise ReadError(path, "is cut off or damaged: a part should end at byte %d" % (offset + size))
    stream.seek(offset)
    return stream.read(size)


def verify(directory: str, mpi: bool) -> Dict[str, str]:
    """File name -> SHA-256 of the programs in a directory. Raises ReadError for one that is missing or not right."""
    names = {"%s_perf" % program for program in PROGRAMS} | {
        name for name in _entries(directory) if name.endswith("_perf")
    }
    found = {}
    for name in sorted(names):
        path = "%s/%s" % (directory, name)
        needed = needed_libraries(path)
        for wanted in ["libnccl.so.2"] + (["libmpi"] if mpi else []):
            if not any(library == wanted or library.startswith(wanted + ".") for library in needed):
                raise ReadError(path, "is not linked with %s, only with %s" % (wanted, ", ".join(needed) or "nothing"))
        if not os.access(path, os.X_OK):
            raise ReadError(path, "is not executable")
        found[name] = sha256(path)
    return found


def _entries(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError as error:
        raise ReadError(directory, "cannot be listed: %s" % error.strerror) from error


def safe_members(archive: tarfile.TarFile) -> List[tarfile.TarInfo]:
    """The members of an archive of sources. Raises ParseError for one that could end up outside its directory."""
    members: List[tarfile.TarInfo] = []
    links: Set[str] = set()
    total = 0
    for member in archive:
        name = posixpath.normpath(member.name)
        total += member.size
        if len(members) >= _ARCHIVE_MEMBERS or total > ARCHIVE_LIMIT:
            raise ParseError("holds more than %d MiB, or %d files" % (ARCHIVE_LIMIT >> 20, _ARCHIVE_MEMBERS))
        if _leaves(member.name) or "\0" in member.name:
            raise ParseError("holds %r, which would lie outside" % member.name[:80])
        if not (member.isfile() or member.isdir() or member.issym()):
            raise ParseError("holds %r, which is no file, directory or symbolic link" % member.name[:80])
        parents = name.split("/")
        if any("/".join(parents[:depth]) in links for depth in range(1, len(parents) + 1)):
            raise ParseError("holds %r, which would be written through a link" % member.name[:80])
        if member.issym():
            # A target without ".." cannot lead up, whatever lies on its way.
            if _leaves(member.linkname) or "\0" in member.linkname:
                raise ParseError("holds %r, a link to %r outside" % (member.name[:80], member.linkname[:80]))
            links.add(name)
        members.append(member)
    return members


def _leaves(path: str) -> bool:
    return path.startswith("/") or ".." in path.split("/") or not path


def unpack(path: str, digest: str, commit: str, directory: str) -> None:
    """Bring the sources in an archive to ``directory``, which must not exist. Raises ReadError.

    The archive must have this SHA-256, and where ``git archive`` has left its commit in it, that one.
    """
    with _archive_errors(path):
        with open(path, "rb") as stream:
            found = hashlib.sha256()
            for chunk in iter(lambda: stream.read(_CHUNK), b""):
                found.update(chunk)
            if found.hexdigest() != digest:
                raise ReadError(path, "has sha256 %s, expected %s" % (found.hexdigest(), digest))
            # The same open file: a name can be given to another one meanwhile.
            stream.seek(0)
            with tarfile.open(fileobj=stream, mode="r:*") as archive:
                members = safe_members(archive)
                comment = archive.pax_headers.get("comment", "")
                if _COMMIT.fullmatch(comment) and comment != commit:
                    raise ParseError("is of commit %s, expected %s" % (comment, commit))
                _extract(archive, members, directory + ".unpacked")
        top = os.listdir(directory + ".unpacked")
        os.rename(os.path.join(directory + ".unpacked", *(top if len(top) == 1 else ())), directory)


@contextmanager
def _archive_errors(path: str) -> Iterator[None]:
    """What a damaged or hostile archive raises, as ReadError."""
    try:
        yield
    except OSError as error:
        raise ReadError(path, "cannot be unpacked: %s" % (error.strerror or error)) from error
    except (tarfile.TarError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise ReadError(path, str(error) or "is cut off") from error


def _extract(archive: tarfile.TarFile, members: Sequence[tarfile.TarInfo], directory: str) -> None:
    os.mkdir(directory)
    for member in members:
        target = os.path.join(directory, posixpath.normpath(member.name))
        if member.isdir():
            os.makedirs(target, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if member.issym():
            os.symlink(member.linkname, target)
            continue
        source = archive.extractfile(member)
        if source is None:
            raise ParseError("holds %r without its content" % member.name[:80])
        mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
        with source, open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            shutil.copyfileobj(source, stream)


# -- a build on its way ----------------------------------------------------------------------------------------------


def pack(directory: str, marker: Marker, path: str) -> None:
    """Write a build to the archive ``path``: the same build, the same bytes. Raises OSError and ReadError.

    xz: the programs are mostly the same code, and its window is wide enough to see that.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with suppress(FileNotFoundError):
        os.unlink(path)
    names = [MARKER, *sorted(marker.binaries)]
    if os.path.isfile(os.path.join(directory, LOG)):
        names.append(LOG)
    if sum(os.path.getsize(os.path.join(directory, name)) for name in names) > ARCHIVE_LIMIT:
        raise ReadError(directory, "holds more than %d MiB, which no host would take" % (ARCHIVE_LIMIT >> 20))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as stream, tarfile.open(None, "w:xz", stream, format=tarfile.USTAR_FORMAT) as archive:
        for name in names:
            with open(os.path.join(directory, name), "rb") as source:
                member = tarfile.TarInfo(name)
                member.size = os.fstat(source.fileno()).st_size
                member.mode = 0o755 if name in marker.binaries else 0o644
                archive.addfile(member, source)


def unpack_build(path: str, digest: str, directory: str, have: Have, want: Want) -> Marker:
    """Bring the build in an archive to ``directory``, which must not exist. Raises ReadError.

    Only one that is whole, and that this host would have made in the same way.   digest: SHA-256 of the archive, as
    the control node has it.
    """
    found = sha256(path)
    if found != digest:
        raise ReadError(path, "has sha256 %s, expected %s: it is not what the control node has sent" % (found, digest))
    with _archive_errors(path):
        with tarfile.open(path, mode="r:xz") as archive:
            members = safe_members(archive)
            odd = [member.name for member in members if not member.isfile() or "/" in member.name]
            if odd:
                raise ParseError("holds %r, which is no part of a build" % odd[0][:80])
            _extract(archive, members, directory)
        text = Host().read_system(os.path.join(directory, MARKER))
        if text is None:
            raise ParseError("holds no %s" % MARKER)
        try:
            marker = parse_marker(text)
        except ParseError as error:
            raise ParseError("is refused: its marker %s" % error) from error
    more = {member.name for member in members} - set(marker.binaries) - {MARKER, LOG}
    if more:
        raise ReadError(path, "holds %r, which its marker does not name" % min(more)[:80])
    differences = _differences(replace(have, marker=marker, wrong=_wrong(directory, marker)), want)
    if have.runtime is None or marker.runtime != have.runtime:
        differences["runtime"] = "%s -> %s" % (_runtime(marker.runtime), _runtime(have.runtime))
    if differences:
        said = ", ".join("%s %s" % item for item in differences.items())
        raise ReadError(path, "is not a build for this host (there -> here): %s" % said)
    return marker


def _runtime(runtime: Optional[Runtime]) -> str:
    return "unknown" if runtime is None else " ".join(asdict(runtime).values())


# -- what is there ---------------------------------------------------------------------------------------------------


class _Toolchain(Host):
    """Compilers lie outside the usual places, and are asked by their path."""

    def tool(self, name: str) -> str:
        if not name.startswith("/"):
            return super().tool(name)
        path = self.system(name)
        if not (os.path.isfile(path) and os.access(path, os.X_OK)):
            raise ToolMissing(name, "is not an executable file")
        _require_trust(self, name)
        return path


def _require_trust(host: Host, *paths: str) -> None:
    """Raises Untrusted where others than root may change what is compiled, linked or run as root."""
    for path in paths:
        doubt = host.doubt(path)
        if doubt:
            raise untrusted(path, doubt)


def read(host: Host, want: Want) -> Have:
    """The present build, and what this host has to make one from."""
    tools = _Toolchain(host.hardware_root, host.system_root, host.timeout)
    problems: Dict[str, Problem] = {}

    def attempt(name: str, reader: Callable[[Host, Want], Optional[T]]) -> Optional[T]:
        try:
            return reader(tools, want)
        except ReadError as error:
            problems[name] = error.problem
            return None

    marker, damage, occupied = None, "", ""
    try:
        above = _above(host, want)
        doubt = trusted.doubt(above, os.path.realpath(host.system_root))
        # Whoever may rename the build may put another in its place.
        doubt = doubt or (host.doubt(want.path) if os.path.lexists(host.system(want.path)) else "")
        if doubt:
            raise untrusted(want.path, doubt)
        occupied = _occupied(host, want.path)
        marker = _read_marker(host, want.path)
    except ReadError as error:
        problems["build"] = error.problem
    except ParseError as error:
        damage = "the marker %s" % error
    return Have(
        marker=marker,
        damage=damage,
        occupied=occupied,
        wrong={} if marker is None else _wrong(host.system(want.path), marker),
        cuda=attempt("cuda", _read_cuda),
        nccl=attempt("nccl", _read_nccl),
        mpi=None if want.mpi == "off" else attempt("mpi", _read_mpi),
        arch=attempt("arch", _read_arch),
        runtime=attempt("runtime", _read_runtime),
        archive=attempt("source", _read_archive),
        missing_tools=tuple(_missing_tools(host, want)),
        problems=problems,
    )


def _above(host: Host, want: Want) -> str:
    """The first directory above the build that is there."""
    folder = os.path.dirname(os.path.realpath(host.system(want.path)))
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _occupied(host: Host, path: str) -> str:
    """What is there in place of a build. A build has a marker, damaged or not, since it was renamed into place."""
    full = host.system(path)
    if not os.path.exists(full):
        return ""
    if not os.path.isdir(full):
        return "something that is not a directory"
    names = host.listdir_system(path)
    if not names or MARKER in names:
        return ""
    return "a directory that Busbar did not make, with %s" % ", ".join(names[:3])


def _read_marker(host: Host, path: str) -> Optional[Marker]:
    try:
        text = host.read_system("%s/%s" % (path, MARKER))
    except ReadError as error:
        # After a power cut it can be there without its content, and that is mended like any other damage.
        raise ParseError(error.problem.message) from error
    return None if text is None else parse_marker(text)


def _wrong(directory: str, marker: Marker) -> Dict[str, str]:
    wrong = {}
    for name, digest in marker.binaries.items():
        path = "%s/%s" % (directory, name)
        try:
            if sha256(path) != digest:
                wrong[name] = "altered"
            elif not os.stat(path).st_mode & stat.S_IXUSR:
                wrong[name] = "not executable"
        except (ReadError, OSError):
            wrong[name] = "missing" if not os.path.lexists(path) else "unreadable"
    return wrong


def _read_cuda(host: Host, want: Want) -> Optional[Cuda]:
    lacking = []
    for home in [want.cuda_home] if want.cuda_home else _found(host, _CUDA_HOMES):
        nvcc = "%s/bin/nvcc" % home
        if not os.path.isfile(host.system(nvcc)):
            if want.cuda_home:
                raise ReadError(nvcc, "is not there")
            continue
        library = _cudart(host, home)
        if library is None or not os.path.isfile(host.system("%s/include/cuda_runtime.h" % home)):
            lacking.append(home)
            continue
        # The real directory: with /usr/local/cuda turned to another version this is another toolkit.
        home = _real(host, home)
        if _PATH.fullmatch(host.system(home)) is None:
            raise ReadError(home, "is a path that make would take apart")
        # Of the rest, which is thousands of files, the directories that nvcc takes programs and sources from.
        parts = ["%s/%s" % (home, part) for part in ("bin", "include", "nvvm", "nvvm/bin", "nvvm/libdevice")]
        _require_trust(host, *(part for part in parts if os.path.lexists(host.system(part))), library)
        output = host.run(["%s/bin/nvcc" % home, "--version"])
        try:
            return Cuda(home, _cudart(host, home) or library, parse_nvcc(output.stdout))
        except ParseError as error:
            raise ReadError(output.command, str(error)) from error
    if lacking:
        raise ReadError(lacking[0], "has nvcc, but not both cuda_runtime.h and libcudart: the toolkit is incomplete")
    return None


def _cudart(host: Host, home: str) -> Optional[str]:
    for folder in _CUDA_LIBRARIES:
        found = [
            name
            for name in host.listdir_system("%s/%s" % (home, folder))
            if re.fullmatch(r"libcudart\.so(\.[0-9]+)*", name)
        ]
        if found:
            return "%s/%s/%s" % (home, folder, min(found, key=len))
    return None


def _read_nccl(host: Host, want: Want) -> Optional[Nccl]:
    """The first library with a header: of the jobs' own where the site lists them, else of the usual places."""
    bare = []
    for path in want.libraries or _found(host, _NCCL_LIBRARIES):
        full = host.system(path)
        if not os.path.isfile(full):
            bare.append(Problem(path, "is not there"))
            continue
        header = next((folder for folder in _headers(path) if os.path.isfile(host.system(folder + "/nccl.h"))), None)
        if header is None:
            bare.append(Problem(path, "has no nccl.h that belongs to it (looked in %s)" % ", ".join(_headers(path))))
            continue
        source = "%s/nccl.h" % header
        try:
            _require_trust(host, path, source)
        except Untrusted as error:
            # One of a user's is for that user's jobs; the build is run by root.
            bare.append(error.problem)
            continue
        library = nccl_library.scan(full)
        version = format_version(library.version)
        try:
            said = parse_nccl_header(host.read_system(source) or "")
        except ParseError as error:
            raise ReadError(source, str(error)) from error
        if said != version:
            raise ReadError(source, "is of NCCL %s, but %s is NCCL %s" % (said, path, version))
        return Nccl(_real(host, header), _real(host, path), version)
    if bare:
        raise ReadError(bare[0].source, bare[0].message)
    return None


def _headers(library: str) -> List[str]:
    folder = posixpath.dirname(library)
    return [posixpath.normpath("%s/%s/include" % (folder, up)) for up in ("..", "../..")]


def _read_mpi(host: Host, want: Want) -> Optional[Mpi]:
    """From mpicc, which knows where distributions have put the parts; else from the homes that are known."""
    pairs = [] if want.mpi_home else _ask_mpicc(host)
    for home in [want.mpi_home] if want.mpi_home else _found(host, _MPI_HOMES):
        # EL has the headers of /usr/lib64/openmpi in /usr/include/openmpi-x86_64.
        includes = ["%s/include" % home, *_found(host, ("/usr/include/%s-*" % posixpath.basename(home),))]
        pairs += [(include, "%s/%s" % (home, lib)) for include in includes for lib in ("lib", "lib64")]
    for include, folder in pairs:
        header, library = "%s/mpi.h" % include, "%s/libmpi.so" % folder
        if os.path.isfile(host.system(header)) and os.path.isfile(host.system(library)):
            try:
                version = parse_mpi_header(host.read_system(header) or "")
            except ParseError as error:
                raise ReadError(header, str(error)) from error
            _require_trust(host, header, library)
            # Debian's libmpi.so is a link to another directory, and that one is where the loader has to look.
            return Mpi(_real(host, include), _real(host, library), version)
    if want.mpi_home:
        raise ReadError(want.mpi_home, "has no include/mpi.h with a lib/libmpi.so")
    try:
        mpicc = host.tool("mpicc")
    except ToolMissing:
        return None
    raise ReadError("mpicc", "is installed (%s), but no mpi.h with a libmpi.so was found" % mpicc)


def _ask_mpicc(host: Host) -> List[Tuple[str, str]]:
    """(directory of headers, of libraries), as Open MPI's mpicc names them; [] where another MPI does not."""
    try:
        answers = [host.run(["mpicc", "--showme:%s" % what]) for what in ("incdirs", "libdirs")]
    except ToolMissing:
        return []
    if any(answer.rc != 0 for answer in answers):
        return []
    includes, libraries = (
        [path for path in answer.stdout.split() if _PATH.fullmatch(path) is not None] for answer in answers
    )
    return [(include, library) for include in includes for library in libraries]


def _read_arch(host: Host, want: Want) -> Optional[Tuple[str, ...]]:
    try:
        return parse_capabilities(host.ask(QUERY))
    except ParseError as error:
        raise ReadError(" ".join(QUERY), str(error)) from error


def _read_runtime(host: Host, want: Want) -> Runtime:
    source, values = os_release.read(host)
    try:
        release = distribution(values)
    except ParseError as error:
        raise ReadError(source, str(error)) from error
    glibc = None
    # Another C library does not know the name.
    with suppress(ValueError, OSError):
        glibc = os.confstr("CS_GNU_LIBC_VERSION")
    if not glibc:
        raise ReadError("CS_GNU_LIBC_VERSION", "is not known here: the C library is not glibc")
    found = _found(host, _LIBSTDCXX)
    if not found:
        raise ReadError("libstdc++.so.6", "is in none of the usual places: %s" % ", ".join(_LIBSTDCXX))
    return Runtime(os.uname().machine, release, glibc, posixpath.basename(_real(host, found[0])))


def _read_archive(host: Host, want: Want) -> Optional[str]:
    if not want.tarball:
        return None
    if os.path.lexists(host.system(want.tarball)):
        # Between the sum and the unpacking its owner could write into it.
        _require_trust(host, want.tarball)
    return sha256(host.system(want.tarball))


def _missing_tools(host: Host, want: Want) -> List[str]:
    missing = []
    for name in ("make", "g++") if want.tarball else ("make", "g++", "git"):
        try:
            host.tool(name)
        except Untrusted as error:
            missing.append("%s (%s)" % (name, error))
        except ToolMissing:
            missing.append(name)
    return missing


def _found(host: Host, patterns: Sequence[str]) -> List[str]:
    """What matches on this host, in the patterns' order; of what matches one of them, the highest number first."""
    root = "" if host.system_root == "/" else host.system_root.rstrip("/")
    found: List[str] = []
    for pattern in patterns:
        matches = [path[len(root) :] for path in glob.glob(glob.escape(root) + pattern)]
        matches.sort(key=lambda path: [int(part) for part in re.findall(r"[0-9]+", path)], reverse=True)
        found += [path for path in matches if _PATH.fullmatch(path) is not None]
    return found


def _real(host: Host, path: str) -> str:
    """With links followed, as seen from the system root. Raises ReadError for a link that leaves it."""
    real, root = os.path.realpath(host.system(path)), os.path.realpath(host.system_root)
    if root == "/":
        return real
    if not real.startswith(root + "/"):
        raise ReadError(path, "is a link that leaves the system root %s" % host.system_root)
    return real[len(root) :]


# -- the plan --------------------------------------------------------------------------------------------------------


def inputs(have: Have, want: Want) -> Optional[Inputs]:
    """What a build on this host is made from; None while something is missing or unknown."""
    if any(name in have.problems for name in INPUTS):
        return None
    if have.cuda is None or have.nccl is None or not have.arch or (have.mpi is None and needs_mpi(want)):
        return None
    return Inputs(have.cuda, have.nccl, have.mpi, have.arch)


def needs_mpi(want: Want) -> bool:
    return want.mpi == "required" or bool(want.mpi_home)


def plan(have: Have, want: Want, copied: bool = False) -> Plan:
    """Findings on each input and on the build; one change where the build is to be made.

    copied: it comes from another host, and takes neither sources nor tools.
    """
    findings = [_input_finding(name, have, want) for name in INPUTS if name != "mpi" or want.mpi != "off"]
    made_from = inputs(have, want)
    differences = _differences(have, want)
    if differences and want.tarball and not copied:
        findings.append(_source_finding(have, want))
    if differences and have.missing_tools and not copied:
        findings.append(_tools_finding(have))
    blocker = next((finding for finding in findings if not finding.ok), None)
    build = _build_finding(have, want, differences, blocker)
    findings.append(build)
    if build.state != "drift" or blocker is not None or made_from is None:
        return Plan(tuple(findings))
    change = FileChange(
        want.path,
        None if have.marker is None else _describe(have.marker.commit, have.marker.inputs, have.wrong),
        _describe(want.commit, made_from, {}),
        mode=0o755,
    )
    return Plan(tuple(findings), (change,))


def current(planned: Plan) -> bool:
    """Whether the build that is there is the one that was asked for."""
    return any(finding.check == "nccl_tests.build" and finding.ok for finding in planned.findings)


def class_id(have: Have, want: Want) -> Optional[str]:
    """The same on hosts of which one may build for the others; None where this host cannot be compared."""
    made_from = inputs(have, want)
    if made_from is None or have.runtime is None:
        return None
    source = [want.commit, want.sha256 if want.tarball else None]
    key = json.dumps([source, asdict(made_from), asdict(have.runtime)], sort_keys=True)
    return hashlib.sha256(key.encode()).hexdigest()


def share(have: Have, want: Want) -> Dict[str, bool]:
    """What ``choose`` has to know of a host."""
    planned = plan(have, want)
    return {
        # A build from before an upgrade of the system goes on here, and may not run elsewhere.
        "has": current(planned) and have.marker is not None and have.marker.runtime == have.runtime,
        "can_build": planned.changed,
        "can_copy": plan(have, want, copied=True).changed,
    }


def choose(results: Mapping[str, Mapping[str, Any]]) -> Dict[str, Dict[str, Any]]:
    """Host -> what it has to do: {"source": host to copy from, or "" to build, "pack": for others}; no entry: nothing.

    results: in the inventory's order, what each host's module returned: ``class_id`` and ``share``. A host without,
    lost or failed, has no part in it.
    """
    classes: Dict[str, List[str]] = {}
    for host, result in results.items():
        if result.get("share"):
            # One that cannot be compared is alone.
            classes.setdefault(result.get("class_id") or "host %s" % host, []).append(host)
    steps: Dict[str, Dict[str, Any]] = {}
    for hosts in classes.values():
        able = [host for way in ("has", "can_build") for host in hosts if results[host]["share"][way]]
        if not able:
            continue
        source = able[0]
        copies = [host for host in hosts if host != source and results[host]["share"]["can_copy"]]
        if copies or results[source]["share"]["can_build"]:
            steps[source] = {"source": "", "pack": bool(copies)}
        steps.update((host, {"source": source, "pack": False}) for host in copies)
    return steps


def _differences(have: Have, want: Want) -> Dict[str, str]:
    """Input or file -> in what the present build differs from one made now. Unknown inputs are not compared."""
    marker = have.marker
    if marker is None:
        return {"build": "none"}
    result: Dict[str, str] = {}
    if marker.commit != want.commit:
        result["commit"] = "%.12s -> %.12s" % (marker.commit, want.commit)
    elif want.tarball and marker.archive_sha256 not in (None, want.sha256):
        result["commit"] = "archive %.12s -> %.12s" % (marker.archive_sha256, want.sha256)
    for name in INPUTS:
        old, new = getattr(marker.inputs, name), getattr(have, name)
        unknown = name in have.problems or (new is None and (name != "mpi" or needs_mpi(want)))
        if not unknown and old != new:
            result[_NAMES[name]] = _change(old, new)
    result.update(have.wrong)
    return result


def _change(old: Any, new: Any) -> str:
    was, now = _version(old), _version(new)
    # The same version in another place.
    return "%s -> %s" % ((was, now) if was != now else (old.library, new.library))


def _version(value: Any) -> str:
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
        "programs: %s" % (", ".join("%s %s" % item for item in sorted(wrong.items())) or "as built"),
    ]
    return "\n".join(lines) + "\n"


_LABELS = {
    "cuda": ("a CUDA toolkit", "/usr/local/cuda*", "the programs are compiled by its nvcc", "set nccl_tests_cuda_home"),
    "nccl": (
        "libnccl.so.2 with the nccl.h of the same version",
        "packages, wheels",
        "the programs measure the NCCL that they are built and run with",
        "install NCCL's development package, or list the jobs' own library in busbar_nccl_libraries",
    ),
    "mpi": (
        "MPI with its development files",
        "mpicc",
        "without MPI a run over several nodes is as many runs on one node each, and nothing says so",
        "install MPI's development files and set nccl_tests_mpi_home, or set nccl_tests_mpi to 'off'",
    ),
    "arch": (
        "the GPUs' compute capability",
        " ".join(QUERY),
        "the programs are compiled for these GPUs and no others",
        "make nvidia-smi answer: platform.gpu_tool and platform.gpu_driver say what is wrong",
    ),
}


def _input_finding(name: str, have: Have, want: Want) -> Finding:
    value, problem = getattr(have, name), have.problems.get(name)
    label, source, why, fix = _LABELS[name]
    absent_is_right = name == "mpi" and not needs_mpi(want)
    state = "unknown" if problem else "ok" if value or absent_is_right else "drift"
    found = _version(value)
    if problem is not None:
        found, source = problem.message, problem.source
    elif name != "arch" and value is not None:
        source = value.library
    if state == "ok" and absent_is_right:
        label = "as found"
    return _finding("nccl_tests.%s" % name, _NAMES[name], state, label, found, source, why, fix)


def _source_finding(have: Have, want: Want) -> Finding:
    problem = have.problems.get("source")
    return _finding(
        "nccl_tests.source",
        want.tarball,
        "unknown" if problem else "ok" if have.archive == want.sha256 else "drift",
        "sha256 %s" % want.sha256,
        problem.message if problem else "sha256 %s" % have.archive,
        want.tarball,
        "what is compiled and run as root is what somebody has looked at, and nothing else",
        "put the right archive there, or correct nccl_tests_tarball and nccl_tests_sha256",
    )


def _tools_finding(have: Have) -> Finding:
    return _finding(
        "nccl_tests.tools",
        "build tools",
        "drift",
        "all installed",
        "no %s" % ", ".join(have.missing_tools),
        "the usual places for tools",
        "the build needs them",
        "install %s" % ", ".join(have.missing_tools),
    )


def _build_finding(have: Have, want: Want, differences: Mapping[str, str], blocker: Optional[Finding]) -> Finding:
    problem = have.problems.get("build")
    state, found = "drift", ", ".join("%s %s" % item for item in differences.items())
    fix = "run site.yml --tags nccl_tests for this host"
    if problem is not None:
        state, found = "unknown", str(problem)
        fix = "look at %s, and move it away" % want.path
    elif have.occupied:
        state, found = "not_owned", have.occupied
        fix = "move %s away, or set nccl_tests_path to another directory" % want.path
    elif have.marker is None:
        found = have.damage or "none"
    elif not differences:
        # With an input unknown, nobody can say that the build is of it.
        state, found = ("ok", "built from these") if blocker is None else ("unknown", "cannot be compared")
    return _finding(
        "nccl_tests.build",
        want.path,
        state,
        "built from commit %.12s with the CUDA, NCCL and MPI found, for these GPUs" % want.commit,
        found,
        "%s/%s" % (want.path, MARKER),
        "a stale or half build measures something else than the jobs use, or nothing",
        fix,
        because=blocker.id if blocker is not None and state in ("drift", "unknown") and problem is None else None,
        aspect="persisted",
    )


def commands(host: Host, want: Want, made_from: Inputs, jobs: int) -> List[str]:
    """What a run of this plan executes, in order."""
    scratch = scratch_directory(host, want)
    argvs = [] if want.tarball else git_argvs(want, scratch + "/source")
    lines = ["unpack %s" % host.system(want.tarball)] if want.tarball else []
    argvs.append(build_argv(host, made_from, scratch, jobs))
    return lines + [" ".join(map(shlex.quote, argv)) for argv in argvs]


def check_path(host: Host, want: Want) -> None:
    """Raises ParseError where a link puts the build below a path that make would take apart."""
    scratch = scratch_directory(host, want)
    if _PATH.fullmatch(scratch) is None:
        raise ParseError("path leads to %r, which make would take apart" % scratch)


def scratch_directory(host: Host, want: Want) -> str:
    """Beside the build, so that a rename puts it in place; the name is fixed, and whoever has the lock may empty it."""
    folder, name = os.path.split(os.path.realpath(host.system(want.path)))
    return os.path.join(folder, ".%s.build" % name)


def pack_path(host: Host) -> str:
    """Where a build lies on its way to or from another host. The control node knows it without being told."""
    return host.system(PACK)


def git_argvs(want: Want, directory: str) -> List[List[str]]:
    return [
        ["git", "clone", "--quiet", "--no-checkout", "--", want.repository, directory],
        ["git", "-C", directory, "checkout", "--quiet", "--detach", want.commit],
        ["git", "-C", directory, "rev-parse", "HEAD"],
    ]


def build_argv(host: Host, made_from: Inputs, scratch: str, jobs: int) -> List[str]:
    cuda_home = host.system(made_from.cuda.home)
    argv = make_argv(
        "make",
        scratch + "/source",
        scratch + "/build",
        scratch + "/links",
        cuda_home,
        made_from.arch,
        made_from.mpi is not None,
        jobs,
    )
    # Jobs may be running on the node.
    return ["nice", "-n", "19"] + argv


def _quote(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 120 else line[:120] + "...")


def _finding(
    check: str,
    subject: str,
    state: str,
    want: str,
    have: str,
    source: str,
    why: str,
    fix: str,
    because: Optional[str] = None,
    aspect: str = "live",
) -> Finding:
    return Finding(
        check=check,
        subject=subject,
        state=state,
        severity="major",
        want=want,
        have=have,
        source=source,
        why=why,
        fix="" if state == "ok" else fix,
        because=because,
        aspect=aspect,
    )


# -- commands --------------------------------------------------------------------------------------------------------


class CommandFailed(Exception):
    """A command did not end well. ``reason`` is a sentence without its subject."""

    def __init__(self, argv: Sequence[str], reason: str) -> None:
        super().__init__("%s %s" % (" ".join(argv[:4]), reason))
        self.argv = list(argv)


class TooLong(Exception):
    """The command did not end in its time and was killed."""


def execute(argv: Sequence[str], log_path: str, environment: Mapping[str, str], seconds: float, lock: int) -> str:
    """Run a command with the end of a log for its output; returns what it printed there.

    lock: a descriptor that the command inherits, so that what is left of a killed run still holds it.
    Raises TooLong, after all of it was killed, and CommandFailed.
    """
    with open(log_path, "ab") as log:
        log.write(("$ %s\n" % redaction.scrub(" ".join(argv), ())).encode())
        log.flush()
        start = log.tell()
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=[lock],
                start_new_session=True,
            )
        except OSError as error:
            raise CommandFailed(argv, "could not be started: %s" % error.strerror) from error
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise TooLong from error
        finally:
            if process.returncode is None:
                _kill_group(process.pid)
                # One that waits for a dead file server does not die; it goes on holding the lock.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
    if process.returncode != 0:
        raise CommandFailed(argv, "ended with %d" % process.returncode)
    with open(log_path, "rb") as log:
        log.seek(start)
        return log.read(1 << 16).decode("utf-8", "replace")


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EPERM):
            raise
