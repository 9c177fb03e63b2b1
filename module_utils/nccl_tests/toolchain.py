# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find what this host needs to build nccl-tests: CUDA, NCCL, MPI, the GPUs' architecture, and tools.

What is compiled, linked or run as root has to belong to root (core/trusted.py); else it is Untrusted.
Sources: nccl-tests src/common.mk and src/Makefile (2.10 to 2.19).
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
from typing import List, Optional, Sequence, Set, Tuple

from ..core.host import Host, ParseError, Problem, ReadError, ToolMissing, Untrusted, untrusted
from ..machine.gpu import parse_query_csv
from ..nccl_conf import library as nccl_library
from ..nccl_conf.version import format_version
from .marker import Cuda, Mpi, Nccl, quote

QUERY = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv")
# make and the shells below it split at blanks and expand much else.
PATH = re.compile(r"(/[A-Za-z0-9_.+@-]+)+")

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
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")
_NVCC = re.compile(r"^Cuda compilation tools, release [0-9.]+, V([0-9]+\.[0-9]+\.[0-9]+)$", re.MULTILINE)


# -- parsers ---------------------------------------------------------------------------------------------------------


def parse_nvcc(text: str) -> str:
    """``13.0.88`` of ``nvcc --version``. Raises ParseError."""
    match = _NVCC.search(text)
    if match is None:
        raise ParseError("%s, expected a line 'Cuda compilation tools, release 13.0, V13.0.88'" % quote(text))
    return match.group(1)


def parse_nccl_header(text: str) -> str:
    """``2.27.7`` of nccl.h. Raises ParseError."""
    return ".".join(_macro(text, "NCCL_" + name) for name in ("MAJOR", "MINOR", "PATCH"))


def parse_mpi_header(text: str) -> str:
    """``Open MPI 4.1.4`` or ``MPICH 4.0.2`` of mpi.h. Raises ParseError."""
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
    """("9.0",) of what QUERY prints: each compute capability once, in order. Raises ParseError."""
    found: Set[str] = set()
    for row in parse_query_csv(text):
        value = row.get("compute_cap")
        if value is None or _CAPABILITY.fullmatch(value) is None:
            raise ParseError("a GPU gives %r for its compute capability, expected a form like 9.0" % value)
        found.add(value)
    return tuple(sorted(found, key=lambda value: [int(part) for part in value.split(".")]))


# -- readers ---------------------------------------------------------------------------------------------------------


def require_trust(host: Host, *paths: str) -> None:
    """Raises Untrusted where others than root may change what is compiled, linked or run as root."""
    for path in paths:
        doubt = host.doubt(path)
        if doubt:
            raise untrusted(path, doubt)


def read_cuda(host: Host, home: str) -> Optional[Cuda]:
    """The toolkit in ``home``, where that is given, else the first in the usual places. Raises ReadError."""
    lacking = []
    for place in [home] if home else _glob_paths(host, _CUDA_HOMES):
        nvcc = "%s/bin/nvcc" % place
        if not os.path.isfile(host.system(nvcc)):
            if home:
                raise ReadError(nvcc, "is not there")
            continue
        library = _cudart(host, place)
        if library is None or not os.path.isfile(host.system("%s/include/cuda_runtime.h" % place)):
            lacking.append(place)
            continue
        # The real directory: with /usr/local/cuda turned to another version this is another toolkit.
        real = _real(host, place)
        if PATH.fullmatch(host.system(real)) is None:
            raise ReadError(real, "is a path that make would split")
        # Of the rest, which is thousands of files, the directories that nvcc takes programs and sources from.
        parts = ["%s/%s" % (real, part) for part in ("bin", "include", "nvvm", "nvvm/bin", "nvvm/libdevice")]
        require_trust(host, *(part for part in parts if os.path.lexists(host.system(part))), library)
        output = host.run(["%s/bin/nvcc" % real, "--version"])
        try:
            return Cuda(real, _cudart(host, real) or library, parse_nvcc(output.stdout))
        except ParseError as error:
            raise ReadError(output.command, str(error)) from error
    if lacking:
        raise ReadError(lacking[0], "has nvcc, but not both cuda_runtime.h and libcudart: the toolkit is incomplete")
    return None


def _cudart(host: Host, home: str) -> Optional[str]:
    for folder in _CUDA_LIBRARIES:
        names = host.listdir_system("%s/%s" % (home, folder))
        found = [name for name in names if re.fullmatch(r"libcudart\.so(\.[0-9]+)*", name)]
        if found:
            return "%s/%s/%s" % (home, folder, min(found, key=len))
    return None


def read_nccl(host: Host, libraries: Sequence[str]) -> Optional[Nccl]:
    """The first library with a header: of ``libraries``, where some are given, else of the usual places.

    Raises ReadError, also where there are libraries and none has its header.
    """
    bare = []
    for path in libraries or _glob_paths(host, _NCCL_LIBRARIES):
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
            require_trust(host, path, source)
        except Untrusted as error:
            # A user's library is for that user's jobs; the build is run by root.
            bare.append(error.problem)
            continue
        version = format_version(nccl_library.scan(full).version)
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


def read_mpi(host: Host, home: str) -> Optional[Mpi]:
    """The MPI in ``home``, where that is given; else mpicc's, which knows where distributions put the parts; else the
    first in the usual places.

    Raises ReadError, also for an MPI without its development files.
    """
    pairs = [] if home else _ask_mpicc(host)
    for place in [home] if home else _glob_paths(host, _MPI_HOMES):
        # EL has the headers of /usr/lib64/openmpi in /usr/include/openmpi-x86_64.
        includes = ["%s/include" % place, *_glob_paths(host, ("/usr/include/%s-*" % posixpath.basename(place),))]
        pairs += [(include, "%s/%s" % (place, lib)) for include in includes for lib in ("lib", "lib64")]
    for include, folder in pairs:
        header, library = "%s/mpi.h" % include, "%s/libmpi.so" % folder
        if os.path.isfile(host.system(header)) and os.path.isfile(host.system(library)):
            try:
                version = parse_mpi_header(host.read_system(header) or "")
            except ParseError as error:
                raise ReadError(header, str(error)) from error
            require_trust(host, header, library)
            # Debian's libmpi.so is a link to another directory, and that one is where the loader has to look.
            return Mpi(_real(host, include), _real(host, library), version)
    if home:
        raise ReadError(home, "has no include/mpi.h with a lib/libmpi.so")
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
        [path for path in answer.stdout.split() if PATH.fullmatch(path) is not None] for answer in answers
    )
    return [(include, library) for include in includes for library in libraries]


def missing_tools(host: Host, names: Sequence[str]) -> Tuple[str, ...]:
    """Return the tools that are not installed and, with the reason, those that others than root may change."""
    missing = []
    for name in names:
        try:
            host.tool(name)
        except Untrusted as error:
            missing.append("%s (%s)" % (name, error))
        except ToolMissing:
            missing.append(name)
    return tuple(missing)


def _glob_paths(host: Host, patterns: Sequence[str]) -> List[str]:
    """Return matching paths, in the patterns' order; of one pattern's matches, the highest number first."""
    root = "" if host.system_root == "/" else host.system_root.rstrip("/")
    found: List[str] = []
    for pattern in patterns:
        matches = [path[len(root) :] for path in glob.glob(glob.escape(root) + pattern)]
        matches.sort(key=lambda path: [int(part) for part in re.findall(r"[0-9]+", path)], reverse=True)
        found += [path for path in matches if PATH.fullmatch(path) is not None]
    return found


def _real(host: Host, path: str) -> str:
    """Return the path with links followed, from the system root. Raises ReadError for a link that leaves it."""
    real, root = os.path.realpath(host.system(path)), os.path.realpath(host.system_root)
    if root == "/":
        return real
    if not real.startswith(root + "/"):
        raise ReadError(path, "is a link that leaves the system root %s" % host.system_root)
    return real[len(root) :]
