# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build nccl-tests: options and work of the module ``nccl_tests_build``."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ..change import apply, module
from ..core import redaction
from ..core.host import Host, ReadError
from ..core.plan import Plan
from . import build as building
from . import marker, plan

SPEC: module.Spec = {
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
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, object]:
    result: Dict[str, Any] = {"build": None, "path": given["path"], "notes": []}
    if not given["commit"]:
        return {**Plan().result(), **result, "repaired": []}
    task = Task(host, given)
    result.update(
        apply.converge(host, check_mode, task.look, task.make, lambda finding: finding.check == plan.BUILD.id)
    )
    # A replaced build has no backup.
    del result["backup_files"]
    have = task.haves[-1]
    build = None if have.marker is None else marker.to_dict(have.marker)
    return {**result, "build": build, "commands": task.commands() if result["changed"] else []}


class Task:
    """One call. haves: what is there, and after a change what is there then."""

    def __init__(self, host: Host, given: Mapping[str, Any]) -> None:
        names = ("path", "commit", "repository", "tarball", "sha256", "cuda_home", "mpi", "mpi_home")
        self.host = host
        self.want = plan.Want(libraries=tuple(given["libraries"]), **{name: given[name] for name in names})
        self.builder = building.Builder(host, self.want, given["build_timeout"])
        self.haves: List[plan.Have] = []

    def look(self) -> Plan:
        self.haves.append(plan.read(self.host, self.want))
        return plan.plan(self.haves[-1], self.want)

    def commands(self) -> List[str]:
        made_from = plan.inputs(self.haves[0], self.want)
        return [] if made_from is None else self.builder.commands(made_from)

    def make(self, _host: Host, _planned: Plan) -> List[str]:
        builder, made_from = self.builder, plan.inputs(self.haves[0], self.want)
        try:
            if made_from is not None:
                builder.make(made_from)
        except building.CommandFailed as error:
            message = redaction.scrub("%s. %s ends with:\n%s" % (error, builder.failed_log, builder.log_tail()), ())
            argv = [redaction.scrub(word, ()) for word in error.argv]
            raise module.Failed(message, argv=argv, log=builder.failed_log, commands=self.commands()) from error
        except ReadError as error:
            raise module.Failed(str(error), commands=self.commands()) from error
        except OSError as error:
            message = "%s: %s" % (error.filename or self.want.path, error.strerror)
            raise module.Failed(message, commands=self.commands()) from error
        return []
