#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_conf
short_description: Write /etc/nccl.conf from the platform profile and the host's devices, linted and proven
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Takes the rails from the profile and the device names from the host. Writes only the variables that follow from
    these, each below a comment with the reason, in the form that every NCCL version parses the same way.
  - Lints the text against the variables that the jobs' own libraries read. Each library's parser reads it in a private
    mount namespace before the file is changed.
  - If a rail has no device, the file is not changed, and the finding names the rail.
  - On a machine of Azure, OCI, AWS or Google Cloud, variables of the image's own file stay if neither profile nor site
    declares them and the linter accepts them; RV(notes) names them.
attributes:
  check_mode:
    support: full
    description: Everything but the write, so the prediction is the same.
  diff_mode:
    support: full
    description: The difference of every file.
options:
  path: {type: path, default: /etc/nccl.conf, description: The file; NCCL itself reads no other place.}
  extra:
    description:
      - The site's own variables, name to value. They are linted like the rest. Without it the file retains those that
        it has.
    type: dict
  accepted:
    description:
      - Variables that jobs may get from other places than O(path), C(NAME) or C(NAME=VALUE) to the site's reason. They
        are named in RV(notes) and are not findings.
    type: dict
    default: {}
  containers:
    description: Runtimes that get a file with which their containers see O(path).
    type: list
    elements: str
    choices: [enroot, docker, kubernetes]
    default: []
  libraries:
    description:
      - Every libnccl.so.2 that jobs on this host use. The text is linted against what these read, and proven with them.
      - If none is listed and O(nccl_version) is not set, the usual install paths are searched.
    type: list
    elements: path
    default: []
  prove:
    description: Load each library and let it read the file. The gate does without, since a library may never return.
    type: bool
    default: true
  nccl_version:
    description: Version to lint against if no library can be listed, for example if jobs bring their own.
    type: str
    default: ""
  gpudirect:
    description: How GPUs and NICs exchange data; V(off) switches GPUDirect RDMA off.
    type: str
    choices: [auto, peermem, dmabuf, "off"]
    default: auto
  dscp:
    description: DSCP of the fabric's lossless queue, for rails on Ethernet; -1 for none, unset leaves what is there.
    type: int
  address_family:
    description: Kind of RoCE v2 address that the rails have.
    type: str
    choices: ["", ipv4, ipv6]
    default: ""
  management_interface:
    description: Interface for NCCL's bootstrap; empty means that of the default route.
    type: str
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.backup
  - busbar.fabric.node.disruption
"""

EXAMPLES = r"""
- name: Write a proven /etc/nccl.conf
  busbar.fabric.nccl_conf:
    profile: "{{ busbar_intent.profile }}"
    profile_name: "{{ busbar_intent.profile_name }}"
    fabric: infiniband
    libraries: [/usr/lib/x86_64-linux-gnu/libnccl.so.2]
  register: nccl_conf_result
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
facts:
  description: Versions of the NCCL libraries, which the control node compares between hosts.
  type: dict
  returned: success
variables: {type: dict, returned: success, description: The variables that the file should hold.}
notes:
  description: Sentences for the verdict, such as that nothing could be proven without a library.
  type: list
  elements: str
  returned: success
backup_files: {type: list, elements: str, returned: success, description: Copies of the files that were replaced.}
commands: {type: list, elements: str, returned: success, description: 'Empty; files are written, no command is run.'}
reboot_required: {type: list, elements: str, returned: success, description: Empty; jobs read the file when they start.}
withheld: {type: list, elements: str, returned: success, description: Empty; writing this file disrupts nothing.}
"""

from dataclasses import replace
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply, module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem, attempt
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan, merge
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, topology, virtualization
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import containers, environment, image_conf, proof
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import library as nccl_library
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import plan as conf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.version import (
    Version,
    format_version,
    parse_version,
)

SPEC = {
    **module.PROFILE,
    "path": {"type": "path", "default": "/etc/nccl.conf"},
    "extra": {"type": "dict"},
    "accepted": {"type": "dict", "default": {}},
    "containers": {"type": "list", "elements": "str", "choices": ["enroot", "docker", "kubernetes"], "default": []},
    "libraries": {"type": "list", "elements": "path", "default": []},
    "nccl_version": {"type": "str", "default": ""},
    "prove": {"type": "bool", "default": True},
    "gpudirect": {"type": "str", "choices": ["auto", "peermem", "dmabuf", "off"], "default": "auto"},
    "dscp": {"type": "int"},
    "address_family": {"type": "str", "choices": ["", "ipv4", "ipv6"], "default": ""},
    "management_interface": {"type": "str", "default": ""},
    **module.BACKUP,
    **module.DISRUPTION,
    **module.ROOTS,
}


def main() -> None:
    module.run(AnsibleModule(SPEC, supports_check_mode=True), work)


def work(host: Host, given: Mapping[str, object], check_mode: bool) -> Dict[str, Any]:
    task = Task(host, given)
    result = apply.converge(host, check_mode, task.look, mends=lambda finding: finding.subject in task.files)
    versions = sorted({format_version(library.version) for library in task.libraries})
    facts = {"nccl": ", ".join(versions)}
    return dict(result, variables=task.derivation.expected, notes=[*result["notes"], *task.notes()], facts=facts)


class Task:
    """Options of one call, and the state of the host that does not change with the files.

    files: paths of all changed files.
    """

    def __init__(self, host: Host, given: Mapping[str, Any]) -> None:
        """Raises ParseError, ReadError."""
        self.host = host
        self.given = given
        check_paths("path", [given["path"]])
        check_paths("libraries", given["libraries"])
        self.profile = profile.for_fabric(
            profile.parse(given["profile"], given["profile_name"]), given["fabric"] or None
        )
        if given["dscp"] is not None and not -1 <= given["dscp"] <= 63:
            raise ParseError("dscp is %d, expected 0 to 63, or -1 for none" % given["dscp"])
        for name, errors in (
            ("extra", conf.extra_errors(given["extra"] or {})),
            ("accepted", conf.accepted_errors(given["accepted"])),
        ):
            if errors:
                raise ParseError("%s: %s" % (name, "; ".join(errors)))
        self.version: Optional[Version] = None
        if given["nccl_version"]:
            try:
                self.version = parse_version(given["nccl_version"])
            except ParseError as error:
                raise ParseError("nccl_version: %s" % error) from error
        self.libraries: List[nccl_library.Library] = []
        self.unreadable = Plan()
        self.scan()
        cpuinfo = attempt(partial(host.read, virtualization.CPUINFO), virtualization.CPUINFO, [])
        self.releases = Plan(tuple(conf.judge_releases(self.libraries, self.version, cpuinfo)))
        # Rails, paths and routes are all in sysfs and procfs.
        self.machine = topology.read(host, ask_nvidia_smi=False)
        self.hcas = [nic.rdma.name for nic in self.machine.nics if nic.rdma is not None]
        self.environment = environment.NOTHING
        self.files: Set[str] = set()
        text = attempt(lambda: host.read_system(given["path"]), given["path"], [])
        want = conf.Want(
            gpudirect=given["gpudirect"],
            dscp=given["dscp"],
            address_family=given["address_family"],
            management_interface=given["management_interface"],
            extra=None if given["extra"] is None else {name: str(value) for name, value in given["extra"].items()},
            image=self.image(text),
        )
        want, self.unset = conf.with_unset(want, text)
        self.want = want
        versions = [library.version for library in self.libraries] or ([self.version] if self.version else [])
        self.derivation = conf.derive(self.machine, self.profile, want, versions)
        proves = given["prove"] and not self.derivation.blockers
        self.proofs = [(one.path, self.prove(one)) for one in self.libraries] if proves else []

    def image(self, text: Optional[str]) -> image_conf.Image:
        """Return what stays of the present file if it is not the suite's. Raises ReadError."""
        cloud = self.machine.virtualization.cloud
        return image_conf.read(text, cloud, self.libraries, self.version, self.hcas)

    def scan(self) -> None:
        """Scan the jobs' libraries, or those in the standard places if neither libraries nor a version are given."""
        paths: Sequence[str] = self.given["libraries"]
        if not paths and self.version is None:
            paths = nccl_library.find(self.host)
        for path in paths:
            problems: List[Problem] = []
            library = attempt(partial(nccl_library.scan, self.host.system(path)), path, problems)
            if library is not None:
                self.libraries.append(replace(library, path=path))
            for problem in problems:
                found = conf.LIBRARY.judge(path, "unknown", want="a libnccl.so.2", have=problem.message)
                self.unreadable = merge(self.unreadable, Plan((found,)))

    def prove(self, library: nccl_library.Library) -> proof.Proof:
        text = conf.render(self.derivation.variables)
        return proof.prove(self.host.system(library.path), text, self.derivation.expected, base=self.host.system_root)

    def look(self) -> Plan:
        path = self.given["path"]
        have = conf.read(self.host, path)
        owner = image_conf.judge_owner(self.host, path, self.machine.virtualization.cloud)
        have = conf.with_topo_file(replace(have, owner=owner), self.host, self.machine, self.profile, self.derivation)
        self.environment = have.environment
        judged = (self.libraries, self.version, self.proofs, self.hcas, self.given["accepted"])
        plans = [self.unreadable, self.releases, conf.plan(have, self.derivation, path, *judged)]
        for runtime in self.given["containers"]:
            target, text = containers.render(runtime, path)
            plans.append(conf.plan_file(self.host.read_system(target), target, text))
        found = merge(*plans).with_backup(self.given["backup"]).limit(self.given["max_disruption"])
        self.files.update(change.path for change in found.changes)
        return found

    def notes(self) -> List[str]:
        """Return notes of the last read."""
        judged = (self.derivation.expected, self.given["accepted"], self.libraries, self.version, self.hcas)
        said = [*self.unset, *self.environment.notes, *environment.judge(self.environment, *judged)[1]]
        said += image_conf.notes(self.want.image, self.want.extra or {}, self.derivation.expected)
        if self.version is None or self.libraries or self.unreadable.findings or self.derivation.blockers:
            return said
        unproven = (
            "nccl.conf was linted against the table of NCCL %s and not proven: list the libraries that jobs use in"
            " busbar_nccl_libraries"
        )
        return [unproven % self.given["nccl_version"], *said]


def check_paths(name: str, paths: Sequence[str]) -> None:
    """Raises ParseError. Paths get into files for containers: a line break in one would become another line there."""
    for path in paths:
        if not path.startswith("/") or not path.isprintable():
            raise ParseError("%s: %r is not an absolute path" % (name, path))


if __name__ == "__main__":
    main()
