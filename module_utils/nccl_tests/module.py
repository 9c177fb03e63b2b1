# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build nccl-tests, or take over another host's build: options and work of the module ``nccl_tests_build``."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ..change import apply, module
from ..core import redaction
from ..core.error_text import error_text
from ..core.host import Host, ReadError
from ..core.plan import Plan
from . import build, marker, plan

SPEC: Dict[str, Dict[str, Any]] = {
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
    **module.ROOTS,
}
TOGETHER = [("prebuilt", "prebuilt_from", "prebuilt_sha256")]


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, object]:
    result: Dict[str, Any] = {"build": None, "class_id": None, "share": None, "packed": False, "notes": []}
    if not given["commit"]:
        result.update(path=given["path"], origin="unchanged", current=True, repaired=[])
        return {**Plan().result(), **result}
    task = Task(host, given)
    try:
        result.update(
            apply.converge(host, check_mode, task.look, task.make, lambda finding: finding.check == plan.BUILD.id)
        )
    finally:
        if task.copied and not check_mode:
            build.remove(given["prebuilt"])
    # A replaced build has no backup.
    del result["backup_files"]
    have, changed = task.haves[-1], result["changed"]
    current = plan.current(plan.plan(have, task.want))
    if given["pack"] and current and not check_mode:
        result.update(task.pack())
    return {
        **result,
        "build": None if have.marker is None else marker.to_dict(have.marker),
        "path": task.want.path,
        "class_id": plan.class_id(have, task.want),
        "origin": task.origin if changed else "unchanged",
        "current": current,
        "share": None if given["build"] else plan.share(have, task.want),
        "commands": task.commands() if changed else [],
    }


class Task:
    """One call. haves: what is there, and after a change what is there then.   copied: the build of another host."""

    def __init__(self, host: Host, given: Mapping[str, Any]) -> None:
        names = ("path", "commit", "repository", "tarball", "sha256", "cuda_home", "mpi", "mpi_home")
        self.given = given
        self.host = host
        self.want = plan.Want(libraries=tuple(given["libraries"]), **{name: given[name] for name in names})
        self.builder = build.Builder(host, self.want, given["build_timeout"])
        self.copied = given["prebuilt"] is not None
        self.origin = "copied from %s" % given["prebuilt_from"] if self.copied else "built"
        self.haves: List[plan.Have] = []

    def look(self) -> Plan:
        copied = self.copied and not self.haves
        self.haves.append(plan.read(self.host, self.want))
        found = plan.plan(self.haves[-1], self.want, copied)
        return found if self.given["build"] else Plan(found.findings)

    def commands(self) -> List[str]:
        made_from = plan.inputs(self.haves[0], self.want)
        if self.copied or made_from is None:
            return ["unpack the build of %s" % self.given["prebuilt_from"]]
        return self.builder.commands(made_from)

    def make(self, _host: Host, _planned: Plan) -> List[str]:
        builder, made_from = self.builder, plan.inputs(self.haves[0], self.want)
        try:
            if self.copied:
                builder.adopt(self.given["prebuilt"], self.given["prebuilt_sha256"], self.haves[0])
            elif made_from is not None:
                builder.make(made_from, self.haves[0].runtime)
        except build.CommandFailed as error:
            message = redaction.scrub("%s. %s ends with:\n%s" % (error, builder.failed_log, builder.log_tail()), ())
            argv = [redaction.scrub(word, ()) for word in error.argv]
            raise module.Failed(message, argv=argv, log=builder.failed_log, commands=self.commands()) from error
        except ReadError as error:
            origin = "build of %s: " % self.given["prebuilt_from"] if self.copied else ""
            raise module.Failed("%s%s" % (origin, error), commands=self.commands()) from error
        except OSError as error:
            message = "%s: %s" % (error.filename or self.want.path, error.strerror)
            raise module.Failed(message, commands=self.commands()) from error
        return []

    def pack(self) -> Dict[str, object]:
        """Pack the present build for similar hosts. Return ``packed``, or the note why it is not."""
        present = self.haves[-1].marker
        if present is None:
            return {}
        try:
            self.builder.pack(present)
        except (ReadError, OSError) as error:
            why = error_text(error)
            return {"notes": ["nccl-tests could not be packed for similar hosts, each builds its own: %s" % why]}
        return {"packed": True}
