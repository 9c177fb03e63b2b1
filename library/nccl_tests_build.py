#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_tests_build
short_description: Build nccl-tests at a pinned commit for the host's own GPUs, CUDA, NCCL and MPI
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Builds with the CUDA toolkit, NCCL and MPI that it finds on the host, for the compute capability of its GPUs, and
    again when one of these or the commit has changed or a program is not the one that was built, and never otherwise.
  - The build is made beside O(path), each program is checked to be linked with NCCL (and MPI), and the directory is
    renamed into place whole. A build that fails, is killed or takes too long leaves the old one as it was.
  - Never replaces a directory that it did not make.
  - With O(build=false), O(pack) and O(prebuilt), one host builds for all that are equal to it. The role does that.
attributes:
  check_mode:
    support: full
    description: Reads the same, and returns as RV(commands) what a run would execute.
  diff_mode:
    support: full
    description: What the build is made from, before and after.
options:
  path:
    description: Directory of the build.
    type: path
    default: /opt/nccl-tests
  commit:
    description: The commit, as 40 hex digits. Where it is empty nothing is asked for, checked or built.
    type: str
    required: true
  repository:
    description: What git clones, where O(tarball) is empty.
    type: str
    default: https://github.com/NVIDIA/nccl-tests.git
  tarball:
    description: Archive of the sources on the node, for sites without access to O(repository).
    type: path
    default: ""
  sha256:
    description: SHA-256 of O(tarball).
    type: str
    default: ""
  cuda_home:
    description: Directory of the CUDA toolkit. Where it is empty, the usual places are searched.
    type: path
    default: ""
  libraries:
    description:
      - Every libnccl.so.2 that jobs on this host use. The first with its nccl.h is built with.
      - Where none is listed, the places where packages and wheels put the library are searched.
    type: list
    elements: path
    default: []
  mpi:
    description: Build with MPI where there is MPI, always, or never.
    type: str
    choices: [auto, required, "off"]
    default: auto
  mpi_home:
    description: Directory of the MPI with C(include) and C(lib). Where it is empty, mpicc and the usual places say.
    type: path
    default: ""
  build_timeout:
    description: Seconds for fetching and building.
    type: int
    default: 1800
  build:
    description: Whether to build where it is needed. If not, nothing is changed, and RV(share) says what could be done.
    type: bool
    default: true
  pack:
    description:
      - Whether to write the build to C(/var/lib/busbar/nccl-tests.pack) below O(system_root), for a host of the same
        RV(class_id).
    type: bool
    default: false
  prebuilt:
    description:
      - File on this host, not below O(system_root), with the build of another host. It is put in place instead of
        building, once it is proven whole and made from what is on this host, and is refused otherwise. It is removed.
    type: path
  prebuilt_from:
    description: The host that O(prebuilt) comes from.
    type: str
  prebuilt_sha256:
    description: SHA-256 of O(prebuilt).
    type: str
  hardware_root:
    description: Directory that holds C(/sys) and C(/proc).
    type: path
    default: /
  system_root:
    description: Directory that holds C(/etc), C(/usr), C(/home) and C(/root).
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Build nccl-tests 2.19.6 from an archive that is on the node
  busbar.fabric.nccl_tests_build:
    commit: a0b82b2260cf5152b9f8c061bbf7eaf0ba096432
    tarball: /srv/sources/nccl-tests-a0b82b2.tar.gz
    sha256: "{{ nccl_tests_sha256 }}"
    mpi: required
  register: nccl_tests_result
"""

RETURN = r"""
findings:
  description: What is not ok after this run, as in C(docs/findings.md); in check mode, what is not ok now.
  type: list
  elements: dict
  returned: success
passed:
  description: Ids of the checks that are ok.
  type: list
  elements: str
  returned: success
repaired:
  description: Ids of the findings that this run mended; in check mode, of those that a run would mend.
  type: list
  elements: str
  returned: success
build:
  description: The marker of the build that is there now, see C(module_utils/nccl_tests_build.py); null for none.
  type: dict
  returned: success
path:
  description: Directory of the build.
  type: str
  returned: success
class_id:
  description:
    - The same on hosts of which one may build for the others, for the sources, all that a build is made from, and the
      operating system are equal; null where something of that is missing or unknown.
  type: str
  returned: success
origin:
  description: C(built), C(copied from HOST) or C(unchanged); in check mode, what it would be.
  type: str
  returned: success
current:
  description: Whether the build that is there is the one that was asked for.
  type: bool
  returned: success
share:
  description:
    - With O(build=false), what this host can do in its class, each true or false. C(has) the build, C(can_build) it,
      C(can_copy) it. Otherwise null.
  type: dict
  returned: success
packed:
  description: Whether O(pack) has written it.
  type: bool
  returned: success
notes:
  description: Why O(pack) has not written it, or nothing.
  type: list
  elements: str
  returned: success
commands:
  description: What was executed, in check mode what would be; empty where the build stays.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Empty; a build needs no reboot.
  type: list
  elements: str
  returned: success
withheld:
  description: Empty; a build disrupts nothing.
  type: list
  elements: str
  returned: success
argv:
  description: The command that failed.
  type: list
  elements: str
  returned: failure of a command
log:
  description: File with all that the commands printed. That of a successful build is C(build.log) in its directory.
  type: str
  returned: failure of a command
"""

import json
import os
import shutil
import time
from contextlib import contextmanager, suppress
from typing import Any, Collection, Dict, Iterator, List, Optional, Sequence

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.core import locks, redaction, trusted
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import (
    Host,
    ParseError,
    ReadError,
    search_path,
    untrusted,
)
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests import build as nccl_tests_build
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.build import CommandFailed

# The part of a log that goes into a message: nvcc's last error and what make says of it.
TAIL_LINES = 15
# Sites that reach their git host through a proxy say so in the task's environment.
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY")


class Builder:
    """One build: a scratch directory beside the destination, a log, a deadline and the lock."""

    def __init__(
        self, host: Host, want: nccl_tests_build.Want, timeout: float, runtime: Optional[nccl_tests_build.Runtime]
    ) -> None:
        self.host = host
        self.want = want
        self.timeout = timeout
        self.runtime = runtime
        self.deadline = time.monotonic() + timeout
        self.destination = os.path.realpath(host.system(want.path))
        self.scratch = nccl_tests_build.scratch_directory(host, want)
        self.log = os.path.join(self.scratch, nccl_tests_build.LOG)
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

    def make(self, made_from: nccl_tests_build.Inputs, jobs: int) -> None:
        """Raises ReadError and CommandFailed; then the destination is as it was."""
        with self.workspace():
            try:
                self.fetch()
                self.link(made_from)
                if made_from.mpi is not None:
                    # The linker looks for what libmpi itself needs here, and not where -L says.
                    folder = os.path.dirname(self.host.system(made_from.mpi.library))
                    self.environment["LD_LIBRARY_PATH"] = folder
                argv = nccl_tests_build.build_argv(self.host, made_from, self.scratch, jobs)
                self.execute(argv)
                self.install(self.stage(made_from, argv))
            except (CommandFailed, ReadError):
                if os.path.exists(self.log):
                    os.chmod(self.log, 0o600)
                    os.replace(self.log, self.failed_log)
                raise
            remove(self.failed_log)

    def adopt(self, prebuilt: str, digest: str, have: nccl_tests_build.Have) -> None:
        """Put another host's build in place. Raises ReadError; then the destination is as it was."""
        try:
            doubt = trusted.doubt(prebuilt, os.path.realpath(self.host.system_root))
            if doubt and os.path.lexists(prebuilt):
                raise untrusted(prebuilt, doubt)
            with self.workspace():
                stage = os.path.join(self.scratch, "stage")
                publish(stage, nccl_tests_build.unpack_build(prebuilt, digest, stage, have, self.want).binaries)
                self.install(stage)
                remove(self.failed_log)
        finally:
            remove(prebuilt)

    def pack(self, path: str, marker: nccl_tests_build.Marker) -> None:
        """Raises ReadError and OSError; then there is no such file."""
        try:
            with self.locked():
                nccl_tests_build.pack(self.destination, marker, path)
        except OSError:
            with suppress(OSError):
                os.unlink(path)
            raise

    @contextmanager
    def workspace(self) -> Iterator[None]:
        """The lock, and under it an empty scratch directory."""
        os.makedirs(os.path.dirname(self.destination), exist_ok=True)
        with self.locked() as self.lock:
            remove(self.scratch)
            os.mkdir(self.scratch, 0o755)
            try:
                yield
            finally:
                remove(self.scratch)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Held by the commands, too: those of a run that was killed go on, and would write into our scratch."""
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

    def fetch(self) -> None:
        source = os.path.join(self.scratch, "source")
        if self.want.tarball:
            archive = self.host.system(self.want.tarball)
            nccl_tests_build.unpack(archive, self.want.sha256, self.want.commit, source)
            return
        for argv in nccl_tests_build.git_argvs(self.want, source):
            said = self.execute(argv)
        if said.strip() != self.want.commit:
            raise CommandFailed(argv, "says %r, expected %s" % (said[:80], self.want.commit))

    def link(self, made_from: nccl_tests_build.Inputs) -> None:
        names = self.host.listdir_system(made_from.nccl.header)
        for link, target in nccl_tests_build.link_layout(made_from, names).items():
            path = os.path.join(self.scratch, "links", link)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(self.host.system(target), path)

    def execute(self, argv: Sequence[str]) -> str:
        """Run a command with the log for its output, and kill all of it at the deadline. Returns what it printed."""
        left = max(0.0, self.deadline - time.monotonic())
        try:
            return nccl_tests_build.execute(argv, self.log, self.environment, left, self.lock)
        except nccl_tests_build.TooLong as error:
            raise CommandFailed(argv, "took longer than build_timeout, %g s" % self.timeout) from error

    def stage(self, made_from: nccl_tests_build.Inputs, argv: Sequence[str]) -> str:
        """The directory as it shall be. The marker is its last file: of what was built, not of what was meant."""
        build, stage = os.path.join(self.scratch, "build"), os.path.join(self.scratch, "stage")
        binaries = nccl_tests_build.verify(build, made_from.mpi is not None)
        os.mkdir(stage)
        for name in binaries:
            os.rename(os.path.join(build, name), os.path.join(stage, name))
        os.rename(self.log, os.path.join(stage, nccl_tests_build.LOG))
        archive = self.want.sha256 if self.want.tarball else None
        marker = nccl_tests_build.Marker(self.want.commit, archive, made_from, self.runtime, tuple(argv), binaries)
        with open(os.path.join(stage, nccl_tests_build.MARKER), "w", encoding="utf-8") as stream:
            stream.write(nccl_tests_build.render_marker(marker))
        publish(stage, binaries)
        return stage

    def install(self, stage: str) -> None:
        """Programs that run from the old directory go on: their files live until they end."""
        old = os.path.join(self.scratch, "old")
        if os.path.lexists(self.destination):
            os.rename(self.destination, old)
        try:
            os.rename(stage, self.destination)
        except OSError:
            if os.path.lexists(old):
                os.rename(old, self.destination)
            raise


def publish(directory: str, programs: Collection[str]) -> None:
    """Jobs run the programs as their own users, whatever the umask here. The log, which may hold a token, is root's."""
    modes = {**dict.fromkeys(programs, 0o755), nccl_tests_build.LOG: 0o600}
    for name in os.listdir(directory):
        os.chmod(os.path.join(directory, name), modes.get(name, 0o644))
    os.chmod(directory, 0o755)


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def tail(path: str) -> List[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().splitlines()[-TAIL_LINES:]
    except FileNotFoundError:
        return []


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/opt/nccl-tests"},
            "commit": {"type": "str", "required": True},
            "repository": {"type": "str", "default": "https://github.com/NVIDIA/nccl-tests.git"},
            "tarball": {"type": "path", "default": ""},
            "sha256": {"type": "str", "default": ""},
            "cuda_home": {"type": "path", "default": ""},
            "libraries": {"type": "list", "elements": "path", "default": []},
            "mpi": {"type": "str", "choices": ["auto", "required", "off"], "default": "auto"},
            "mpi_home": {"type": "path", "default": ""},
            "build_timeout": {"type": "int", "default": 1800},
            "build": {"type": "bool", "default": True},
            "pack": {"type": "bool", "default": False},
            "prebuilt": {"type": "path"},
            "prebuilt_from": {"type": "str"},
            "prebuilt_sha256": {"type": "str"},
            "hardware_root": {"type": "path", "default": "/"},
            "system_root": {"type": "path", "default": "/"},
        },
        required_together=[("prebuilt", "prebuilt_from", "prebuilt_sha256")],
        supports_check_mode=True,
    )
    given = module.params
    prebuilt, source = given["prebuilt"], given["prebuilt_from"]
    if not given["commit"]:
        nothing: Dict[str, Any] = {"build": None, "class_id": None, "share": None, "packed": False}
        nothing.update(path=given["path"], origin="unchanged", current=True, notes=[], repaired=[])
        module.exit_json(**Plan().result(), **nothing)
    host = Host(given["hardware_root"], given["system_root"])
    try:
        host.require_roots()
        want = nccl_tests_build.Want(
            **{name: given[name] for name in ("path", "commit", "repository", "tarball", "sha256")},
            **{name: given[name] for name in ("cuda_home", "mpi", "mpi_home")},
            libraries=tuple(given["libraries"]),
        )
        nccl_tests_build.check_path(host, want)
    except (ParseError, ReadError) as error:
        module.fail_json(msg=str(error))
    have = nccl_tests_build.read(host, want)
    planned = nccl_tests_build.plan(have, want, copied=prebuilt is not None)
    if not given["build"]:
        planned = Plan(planned.findings)
    after = planned
    made_from = nccl_tests_build.inputs(have, want)
    builder = Builder(host, want, given["build_timeout"], have.runtime)
    commands: List[str] = []
    if planned.changed and made_from is not None:
        jobs = min(len(os.sched_getaffinity(0)), nccl_tests_build.JOBS_LIMIT)
        commands = ["unpack the build of %s" % source]
        if prebuilt is None:
            lines = nccl_tests_build.commands(host, want, made_from, jobs)
            # The repository's address may hold a token.
            commands = [redaction.scrub(line, ()) for line in lines]
        if not module.check_mode:
            try:
                if prebuilt is None:
                    builder.make(made_from, jobs)
                else:
                    builder.adopt(prebuilt, given["prebuilt_sha256"], have)
            except CommandFailed as error:
                end = "\n".join(tail(builder.failed_log))
                msg = redaction.scrub("%s. %s ends with:\n%s" % (error, builder.failed_log, end), ())
                argv = [redaction.scrub(word, ()) for word in error.argv]
                module.fail_json(msg=msg, argv=argv, log=builder.failed_log, commands=commands)
            except ReadError as error:
                origin = "" if prebuilt is None else "build of %s: " % source
                module.fail_json(msg="%s%s" % (origin, error), commands=commands)
            except OSError as error:
                module.fail_json(msg="%s: %s" % (error.filename or want.path, error.strerror), commands=commands)
            # Positive proof: what counts is what is there now, not what was meant to be.
            have = nccl_tests_build.read(host, want)
            after = nccl_tests_build.plan(have, want)
    elif prebuilt is not None and not module.check_mode:
        remove(prebuilt)
    packed = False
    notes: List[str] = []
    if given["pack"] and have.marker is not None and nccl_tests_build.current(after) and not module.check_mode:
        try:
            builder.pack(nccl_tests_build.pack_path(host), have.marker)
            packed = True
        except (ReadError, OSError) as error:
            notes = ["nccl-tests could not be packed for the hosts like this one, each builds for itself: %s" % error]
    result = planned.result()
    still = {finding.id for finding in after.findings if not finding.ok} if after is not planned else set()
    result.update(
        findings=after.result()["findings"],
        passed=after.result()["passed"],
        repaired=[
            f.id for f in planned.findings if planned.changed and f.check == "nccl_tests.build" and f.id not in still
        ],
        build=None if have.marker is None else json.loads(nccl_tests_build.render_marker(have.marker)),
        path=want.path,
        class_id=nccl_tests_build.class_id(have, want),
        origin="unchanged" if not planned.changed else "built" if prebuilt is None else "copied from %s" % source,
        current=nccl_tests_build.current(after),
        share=None if given["build"] else nccl_tests_build.share(have, want),
        packed=packed,
        notes=notes,
        commands=commands,
    )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
