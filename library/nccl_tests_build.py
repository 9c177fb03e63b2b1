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
  - Builds with the CUDA toolkit, NCCL and MPI of the host, for the compute capability of its GPUs. Builds again only if
    one of these or the commit has changed, or if a program was modified.
  - The build is made beside O(path). Each program is checked to be linked with NCCL (and MPI), and the directory is
    renamed into place. If a build fails, is killed or takes too long, the old one stays.
  - Never replaces a directory that it did not make.
  - With O(build=false), O(pack) and O(prebuilt), one host builds for all equal hosts. The role does that.
attributes:
  check_mode:
    support: full
    description: Reads the same, and returns as RV(commands) what a run would execute.
  diff_mode:
    support: full
    description: What the build is made from, before and after.
options:
  path: {type: path, default: /opt/nccl-tests, description: Directory of the build.}
  commit:
    description: The commit, as 40 hex digits. If it is empty, nothing is checked or built.
    type: str
    required: true
  repository:
    description: Repository that git clones if O(tarball) is empty.
    type: str
    default: https://github.com/NVIDIA/nccl-tests.git
  tarball:
    description: Archive of the sources on the node, for sites without access to O(repository).
    type: path
    default: ""
  sha256: {type: str, default: '', description: SHA-256 of O(tarball).}
  cuda_home:
    description: Directory of the CUDA toolkit. If empty, the usual places are searched.
    type: path
    default: ""
  libraries:
    description:
      - Every libnccl.so.2 that jobs on this host use. The first with its nccl.h is built with.
      - If none is listed, the install paths of packages and wheels are searched.
    type: list
    elements: path
    default: []
  mpi:
    description: Build with MPI if it is installed, always, or never.
    type: str
    choices: [auto, required, "off"]
    default: auto
  mpi_home:
    description: Directory of the MPI with C(include) and C(lib). If empty, mpicc and the usual places are searched.
    type: path
    default: ""
  build_timeout: {type: int, default: 1800, description: Seconds for fetching and building.}
  build:
    description: Whether to build if needed. With V(false) nothing is changed, and RV(share) has what could be done.
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
      - File on this host, not below O(system_root), with the build of another host. It is installed if it is complete
        and made from the same versions as on this host, and refused otherwise. The file is removed.
    type: path
  prebuilt_from: {type: str, description: The host that O(prebuilt) comes from.}
  prebuilt_sha256: {type: str, description: SHA-256 of O(prebuilt).}
extends_documentation_fragment:
  - busbar.fabric.node
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
passed: {type: list, elements: str, returned: success, description: Ids of the checks that are ok.}
repaired:
  description: Ids of the findings that this run repaired; in check mode, that a run would repair.
  type: list
  elements: str
  returned: success
build:
  description: The marker of the build that is there now, see C(module_utils/nccl_tests/marker.py); null for none.
  type: dict
  returned: success
path: {type: str, returned: success, description: Directory of the build.}
class_id:
  description:
    - Id of equal hosts, of which one may build for the others. Sources, toolkits and operating system are equal. Null
      if one of these is missing or unknown.
  type: str
  returned: success
origin:
  description: C(built), C(copied from HOST) or C(unchanged); in check mode, what it would be.
  type: str
  returned: success
current: {type: bool, returned: success, description: Whether the existing build is the configured one.}
share:
  description:
    - With O(build=false), what this host can do in its class, each true or false. C(has) the build, C(can_build) it,
      C(can_copy) it. Otherwise null.
  type: dict
  returned: success
packed: {type: bool, returned: success, description: Whether O(pack) has written it.}
notes: {type: list, elements: str, returned: success, description: 'Why O(pack) has not written it, or empty.'}
commands:
  description: What was executed, in check mode what would be; empty where the build stays.
  type: list
  elements: str
  returned: success
reboot_required: {type: list, elements: str, returned: success, description: Empty; a build needs no reboot.}
withheld: {type: list, elements: str, returned: success, description: Empty; a build disrupts nothing.}
argv: {type: list, elements: str, returned: failure of a command, description: The command that failed.}
log:
  description: File with all that the commands printed. That of a successful build is C(build.log) in its directory.
  type: str
  returned: failure of a command
"""

from typing import Any, Dict, List, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply, module
from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests import build, marker, plan

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


class Failed(Exception):
    """The build did not come about. more: what is returned beside the message."""

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message)
        self.more = more


def main() -> None:
    ansible = AnsibleModule(SPEC, required_together=TOGETHER, supports_check_mode=True)
    try:
        module.run(ansible, work)
    except Failed as error:
        ansible.fail_json(msg=str(error), **error.more)


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    result: Dict[str, Any] = {"build": None, "class_id": None, "share": None, "packed": False, "notes": []}
    if not given["commit"]:
        result.update(path=given["path"], origin="unchanged", current=True, repaired=[])
        return {**Plan().result(), **result}
    names = ("path", "commit", "repository", "tarball", "sha256", "cuda_home", "mpi", "mpi_home")
    want = plan.Want(libraries=tuple(given["libraries"]), **{name: given[name] for name in names})
    builder = build.Builder(host, want, given["build_timeout"])
    prebuilt, source = given["prebuilt"], given["prebuilt_from"]
    # What is there, and after a change what is there then.
    haves: List[plan.Have] = []

    def look() -> Plan:
        copied = prebuilt is not None and not haves
        haves.append(plan.read(host, want))
        found = plan.plan(haves[-1], want, copied)
        return found if given["build"] else Plan(found.findings)

    def commands() -> List[str]:
        made_from = plan.inputs(haves[0], want)
        if prebuilt is not None or made_from is None:
            return ["unpack the build of %s" % source]
        return builder.commands(made_from)

    def make(_host: Host, _planned: Plan) -> List[str]:
        made_from = plan.inputs(haves[0], want)
        try:
            if prebuilt is not None:
                builder.adopt(prebuilt, given["prebuilt_sha256"], haves[0])
            elif made_from is not None:
                builder.make(made_from, haves[0].runtime)
        except build.CommandFailed as error:
            message = "%s. %s ends with:\n%s" % (error, builder.failed_log, builder.log_tail())
            argv = [redaction.scrub(word, ()) for word in error.argv]
            raise Failed(
                redaction.scrub(message, ()), argv=argv, log=builder.failed_log, commands=commands()
            ) from error
        except ReadError as error:
            origin = "" if prebuilt is None else "build of %s: " % source
            raise Failed("%s%s" % (origin, error), commands=commands()) from error
        except OSError as error:
            raise Failed("%s: %s" % (error.filename or want.path, error.strerror), commands=commands()) from error
        return []

    try:
        result.update(apply.converge(host, check_mode, look, make, lambda finding: finding.check == plan.BUILD.id))
    finally:
        if prebuilt is not None and not check_mode:
            build.remove(prebuilt)
    # A replaced build has no backup.
    del result["backup_files"]
    have, changed = haves[-1], result["changed"]
    current = plan.current(plan.plan(have, want))
    if given["pack"] and have.marker is not None and current and not check_mode:
        try:
            builder.pack(have.marker)
            result["packed"] = True
        except (ReadError, OSError) as error:
            why = error_text(error)
            result["notes"] = ["nccl-tests could not be packed for similar hosts, each builds its own: %s" % why]
    return {
        **result,
        "build": None if have.marker is None else marker.to_dict(have.marker),
        "path": want.path,
        "class_id": plan.class_id(have, want),
        "origin": "unchanged" if not changed else "built" if prebuilt is None else "copied from %s" % source,
        "current": current,
        "share": None if given["build"] else plan.share(have, want),
        "commands": commands() if changed else [],
    }


if __name__ == "__main__":
    main()
