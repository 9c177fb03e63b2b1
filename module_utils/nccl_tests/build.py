# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build nccl-tests beside the present build, and swap the two atomically.

Sources: nccl-tests src/common.mk and src/Makefile (2.10 to 2.19).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import Collection, Dict, Iterator, List, Sequence

from ..core import locks, redaction
from ..core.child import kill_group
from ..core.host import Host, ParseError, ReadError, search_path
from . import programs
from .marker import LOG, MARKER, Inputs, Marker, render_marker
from .plan import Want
from .toolchain import PATH

# The sources have some fifteen files to compile: more jobs only take memory from the node's work.
JOBS_LIMIT = 16
# Lines of a log in a message: nvcc's last error and make's.
TAIL_LINES = 15
# Sites that reach their git host through a proxy set it in the task's environment.
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY")


def make_argv(made_from: Inputs, cuda_home: str, scratch: str, jobs: int) -> List[str]:
    """Return the command line, in a scratch directory that holds ``source`` and, as ``link_layout`` has it, ``links``.

    The defaults of NVCC_GENCODE differ between releases and cost four times the time; these are the host's own GPUs.
    """
    gencode = ["-gencode=arch=compute_{0},code=sm_{0}".format(value.replace(".", "")) for value in made_from.arch]
    # Jobs may be running on the node.
    argv = ["nice", "-n", "19", "make", "-C", "%s/source" % scratch, "-j%d" % jobs, "BUILDDIR=%s/build" % scratch]
    argv += ["CUDA_HOME=%s" % cuda_home, "CUDA_LIB=%s/links/cuda" % scratch, "NCCL_HOME=%s/links/nccl" % scratch]
    argv.append("NVCC_GENCODE=%s" % " ".join(gencode))
    return argv + (["MPI=0"] if made_from.mpi is None else ["MPI=1", "MPI_HOME=%s/links/mpi" % scratch])


def link_layout(made_from: Inputs, header_names: Sequence[str]) -> Dict[str, str]:
    """Link -> target, for the compiler to find exactly these libraries and nothing that lies beside them.

    A wheel has libnccl.so.2 and no libnccl.so; EL keeps mpi.h apart from the library; -I/usr/include reorders headers.
    header_names: what the directory of nccl.h holds.
    """
    layout = {"cuda/libcudart.so": made_from.cuda.library, "nccl/lib/libnccl.so": made_from.nccl.library}
    for name in header_names:
        if name.startswith("nccl"):
            layout["nccl/include/%s" % name] = "%s/%s" % (made_from.nccl.header, name)
    if made_from.mpi is not None:
        layout["mpi/include"] = made_from.mpi.include
        layout["mpi/lib/libmpi.so"] = made_from.mpi.library
    return layout


class CommandFailed(Exception):
    """A command did not end well. ``reason`` is a sentence without its subject."""

    def __init__(self, argv: Sequence[str], reason: str) -> None:
        super().__init__("%s %s" % (" ".join(argv[:4]), reason))
        self.argv = list(argv)


class Builder:
    """One build: a scratch directory beside the destination, a log, a deadline and the lock.

    timeout: seconds for fetching and building. Raises ParseError where a link puts the build below a path that make
    would take apart.
    """

    def __init__(self, host: Host, want: Want, timeout: float) -> None:
        self.host = host
        self.want = want
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.destination = os.path.realpath(host.system(want.path))
        # Beside the build, so that a rename installs it; the name is fixed, and the lock's holder may empty it.
        folder, name = os.path.split(self.destination)
        self.scratch = os.path.join(folder, ".%s.build" % name)
        if PATH.fullmatch(self.scratch) is None:
            raise ParseError("path leads to %r, which make would split" % self.scratch)
        self.log = os.path.join(self.scratch, LOG)
        self.failed_log = self.destination + ".failed.log"
        self.lock = -1
        self.environment = {
            "PATH": search_path(),
            "LC_ALL": "C",
            "HOME": "/",
            # nvcc's intermediate files go when the scratch directory goes.
            "TMPDIR": self.scratch,
            "GIT_TERMINAL_PROMPT": "0",
            **{name: os.environ[name] for name in PROXIES if name in os.environ},
        }

    def commands(self, made_from: Inputs) -> List[str]:
        """Return a build's commands, in order, as lines. The repository's address may hold a token: it is masked."""
        tarball = self.want.tarball
        lines = ["unpack %s" % self.host.system(tarball)] if tarball else []
        argvs = ([] if tarball else self._git_argvs()) + [self._make_argv(made_from)]
        return [redaction.scrub(line, ()) for line in lines + [" ".join(map(shlex.quote, argv)) for argv in argvs]]

    def make(self, made_from: Inputs) -> None:
        """Build from the sources. Raises ReadError and CommandFailed; then the destination is as it was."""
        with self._workspace():
            try:
                self._fetch()
                self._link(made_from)
                if made_from.mpi is not None:
                    # The linker searches libmpi's dependencies here, not in -L.
                    folder = os.path.dirname(self.host.system(made_from.mpi.library))
                    self.environment["LD_LIBRARY_PATH"] = folder
                argv = self._make_argv(made_from)
                self._execute(argv)
                self._install(self._stage(made_from, argv))
            except (CommandFailed, ReadError):
                if os.path.exists(self.log):
                    os.chmod(self.log, 0o600)
                    os.replace(self.log, self.failed_log)
                raise
            remove(self.failed_log)

    def log_tail(self) -> str:
        """The end of the log of the build that failed."""
        try:
            with open(self.failed_log, encoding="utf-8", errors="replace") as stream:
                return "\n".join(stream.read().splitlines()[-TAIL_LINES:])
        except FileNotFoundError:
            return ""

    @contextmanager
    def _workspace(self) -> Iterator[None]:
        """Holds the lock, and makes and removes an empty scratch directory."""
        os.makedirs(os.path.dirname(self.destination), exist_ok=True)
        with self._locked() as self.lock:
            remove(self.scratch)
            os.mkdir(self.scratch, 0o755)
            try:
                yield
            finally:
                remove(self.scratch)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Holds the lock beside the destination; yields its descriptor. Raises ReadError where another run has it.

        The commands hold it, too: those of a run that was killed go on, and would write into our scratch directory.
        """
        folder, name = os.path.split(self.destination)
        path = os.path.join(folder, ".%s.lock" % name)
        descriptor = locks.open_file(path)
        try:
            try:
                locks.take(descriptor)
            except BlockingIOError as error:
                raise ReadError(path, "is held: another run still builds there, or what a killed one left") from error
            yield descriptor
        finally:
            os.close(descriptor)

    def _git_argvs(self) -> List[List[str]]:
        directory = self.scratch + "/source"
        return [
            ["git", "clone", "--quiet", "--no-checkout", "--", self.want.repository, directory],
            ["git", "-C", directory, "checkout", "--quiet", "--detach", self.want.commit],
            ["git", "-C", directory, "rev-parse", "HEAD"],
        ]

    def _make_argv(self, made_from: Inputs) -> List[str]:
        jobs = min(len(os.sched_getaffinity(0)), JOBS_LIMIT)
        return make_argv(made_from, self.host.system(made_from.cuda.home), self.scratch, jobs)

    def _fetch(self) -> None:
        if self.want.tarball:
            # Not sent with the audit, which unpacks nothing.
            from . import archive

            tarball = self.host.system(self.want.tarball)
            archive.unpack_sources(tarball, self.want.sha256, self.want.commit, self.scratch + "/source")
            return
        for argv in self._git_argvs():
            said = self._execute(argv)
        if said.strip() != self.want.commit:
            raise CommandFailed(argv, "prints %r, expected %s" % (said[:80], self.want.commit))

    def _link(self, made_from: Inputs) -> None:
        names = self.host.listdir_system(made_from.nccl.header)
        for link, target in link_layout(made_from, names).items():
            path = os.path.join(self.scratch, "links", link)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(self.host.system(target), path)

    def _execute(self, argv: Sequence[str]) -> str:
        """Run a command with the end of the log for its output, and kill all of it at the deadline.

        Returns what it printed there. It inherits the lock, so that what is left of a killed run still holds it.
        Raises CommandFailed.
        """
        with open(self.log, "ab") as log:
            log.write(("$ %s\n" % redaction.scrub(" ".join(argv), ())).encode())
            log.flush()
            start = log.tell()
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.environment,
                    pass_fds=[self.lock],
                    start_new_session=True,
                )
            except OSError as error:
                raise CommandFailed(argv, "could not be started: %s" % error.strerror) from error
            try:
                process.wait(max(0.0, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise CommandFailed(argv, "took longer than build_timeout, %g s" % self.timeout) from error
            finally:
                if process.returncode is None:
                    kill_group(process.pid)
                    # A process that waits for a dead file server does not die; it goes on holding the lock.
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(10)
        if process.returncode != 0:
            raise CommandFailed(argv, "ended with %d" % process.returncode)
        with open(self.log, "rb") as log:
            log.seek(start)
            return log.read(1 << 16).decode("utf-8", "replace")

    def _stage(self, made_from: Inputs, argv: Sequence[str]) -> str:
        """Puts the programs, the log and the marker of what was built into a new directory, and returns its path."""
        build, stage = os.path.join(self.scratch, "build"), os.path.join(self.scratch, "stage")
        binaries = programs.verify(build, made_from.mpi is not None)
        os.mkdir(stage)
        for name in binaries:
            os.rename(os.path.join(build, name), os.path.join(stage, name))
        os.rename(self.log, os.path.join(stage, LOG))
        sha256 = self.want.sha256 if self.want.tarball else None
        marker = Marker(self.want.commit, sha256, made_from, tuple(argv), binaries)
        with open(os.path.join(stage, MARKER), "w", encoding="utf-8") as stream:
            stream.write(render_marker(marker))
        publish(stage, binaries)
        return stage

    def _install(self, stage: str) -> None:
        """Renames a directory into place. Programs that run from the old one go on: their files live until they end."""
        old = os.path.join(self.scratch, "old")
        if os.path.lexists(self.destination):
            os.rename(self.destination, old)
        try:
            os.rename(stage, self.destination)
        except OSError:
            if os.path.lexists(old):
                os.rename(old, self.destination)
            raise


def publish(directory: str, binaries: Collection[str]) -> None:
    """Sets the modes of a build's files: programs are for everybody, whatever the umask; the log may hold a token."""
    modes = {**dict.fromkeys(binaries, 0o755), LOG: 0o600}
    for name in os.listdir(directory):
        os.chmod(os.path.join(directory, name), modes.get(name, 0o644))
    os.chmod(directory, 0o755)


def remove(path: str) -> None:
    """A file or a whole directory, where it is there; of a link, the link."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
