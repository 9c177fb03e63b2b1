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
  - Takes the rails from the profile and the device names from the host, and writes only the variables that these
    facts justify, each under a comment that says why, in the form that every NCCL version parses alike.
  - Lints the text against the variables that the jobs' own libraries read, and lets each library's parser read it
    back in a private mount namespace before the file is touched.
  - Leaves the file untouched and names the rail when a rail has no device.
attributes:
  check_mode:
    support: full
    description: Everything but the write, so the prediction is the same.
  diff_mode:
    support: full
    description: The difference of every file.
options:
  profile:
    description: Platform profile as in C(profiles/NAME.yml).
    type: dict
    required: true
  profile_name:
    description: Name of the profile; it stands in the file's comments.
    type: str
    required: true
  fabric:
    description: The site's fabric; needed where the profile exists with both.
    type: str
    choices: ["", infiniband, ethernet]
    default: ""
  path:
    description: The file; NCCL itself reads no other place.
    type: path
    default: /etc/nccl.conf
  backup:
    description: Keep a dated copy beside every file that is replaced.
    type: bool
    default: true
  extra:
    description: The site's own variables, name to value. They are linted like the rest.
    type: dict
    default: {}
  accepted:
    description:
      - Variables that something else than O(path) may set for jobs, C(NAME) or C(NAME=VALUE) to the site's reason. They
        are named in RV(notes) and are no findings.
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
      - Where none is listed and O(nccl_version) is not set, the places where packages put the library are searched.
    type: list
    elements: path
    default: []
  nccl_version:
    description: Version to lint against where no library can be listed, for example where jobs bring their own.
    type: str
    default: ""
  gpudirect:
    description: How GPUs and NICs exchange data; V(off) switches GPUDirect RDMA off.
    type: str
    choices: [auto, peermem, dmabuf, "off"]
    default: auto
  dscp:
    description: DSCP of the fabric's lossless queue, for rails on Ethernet.
    type: int
  address_family:
    description: Kind of RoCE v2 address that the rails have.
    type: str
    choices: [ipv4, ipv6]
    default: ipv4
  management_interface:
    description: Interface for NCCL's bootstrap; where it is empty, that of the default route.
    type: str
    default: ""
  max_disruption:
    description: Most that activating a change may cost the node; changes above it are withheld and reported.
    type: str
    choices: [none, link, driver, reboot]
    default: none
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
variables:
  description: The variables that the file should hold.
  type: dict
  returned: success
notes:
  description: What a reader of the result should know, such as that nothing could be proven for want of a library.
  type: list
  elements: str
  returned: success
backup_files:
  description: Copies of the files that were replaced.
  type: list
  elements: str
  returned: success
commands:
  description: Empty; files are written, no command is run.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Empty; jobs read the file when they start.
  type: list
  elements: str
  returned: success
withheld:
  description: Empty; writing this file disrupts nothing.
  type: list
  elements: str
  returned: success
"""

from dataclasses import replace
from typing import Dict, List, Sequence, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan, merge
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, topology
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import conf as nccl_conf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import containers as nccl_containers
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import environment as nccl_environment
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import library as nccl_library
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import proof as nccl_proof
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import variables as nccl_variables


class Task:
    """One call of the module: what it was asked, and the host it asks."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        given = module.params
        self.host = Host(given["hardware_root"], given["system_root"])
        self.host.require_roots()
        self.path: str = given["path"]
        check_paths("path", [self.path])
        check_paths("libraries", given["libraries"])
        self.profile = profile.for_fabric(
            profile.parse(given["profile"], given["profile_name"]), given["fabric"] or None
        )
        if given["dscp"] is not None and not 0 <= given["dscp"] <= 63:
            raise ParseError("dscp is %d, expected 0 to 63" % given["dscp"])
        errors = nccl_conf.extra_errors(given["extra"])
        if errors:
            raise ParseError("extra: %s" % "; ".join(errors))
        self.accepted: Dict[str, str] = given["accepted"]
        errors = nccl_conf.accepted_errors(self.accepted)
        if errors:
            raise ParseError("accepted: %s" % "; ".join(errors))
        self.environment = nccl_environment.Environment()
        self.want = nccl_conf.Want(
            gpudirect=given["gpudirect"],
            dscp=given["dscp"],
            address_family=given["address_family"],
            management_interface=given["management_interface"],
            extra={name: str(value) for name, value in given["extra"].items()},
        )
        try:
            self.version = nccl_variables.parse_version(given["nccl_version"]) if given["nccl_version"] else None
        except ParseError as error:
            raise ParseError("nccl_version: %s" % error) from error
        self.libraries, self.unreadable = self.scan()

    def scan(self) -> Tuple[List[nccl_library.Library], List[Finding]]:
        """The jobs' libraries; those of the standard places where none is listed and no version is declared."""
        paths = list(self.module.params["libraries"])
        if not paths and self.version is None:
            paths = list(nccl_library.find(self.host))
        libraries: List[nccl_library.Library] = []
        unreadable: List[Finding] = []
        for path in paths:
            try:
                libraries.append(replace(nccl_library.scan(self.host.system(path)), path=path))
            except ReadError as error:
                unreadable.append(nccl_conf.unreadable_library(path, error.problem.message))
        return libraries, unreadable

    def derive(self, machine: topology.Topology) -> nccl_conf.Derivation:
        versions = [library.version for library in self.libraries] or ([self.version] if self.version else [])
        return nccl_conf.derive(machine, self.profile, self.want, versions)

    def prove(self, derivation: nccl_conf.Derivation) -> List[Tuple[str, nccl_proof.Proof]]:
        if derivation.blockers:
            return []
        text = nccl_conf.render(derivation.variables)
        root = self.host.system_root
        return [
            (library.path, nccl_proof.prove(self.host.system(library.path), text, derivation.meant, base=root))
            for library in self.libraries
        ]

    def plan(
        self,
        machine: topology.Topology,
        derivation: nccl_conf.Derivation,
        proofs: Sequence[Tuple[str, nccl_proof.Proof]],
    ) -> Plan:
        hcas = names(machine)
        have = nccl_conf.read(self.host, self.path)
        have = nccl_conf.with_topo_file(have, self.host, machine, self.profile, derivation)
        self.environment = have.environment
        judged = (self.libraries, self.version, proofs, hcas, self.accepted)
        main_plan = nccl_conf.plan(have, derivation, self.path, *judged)
        extra = [
            nccl_conf.plan_file(self.host.read_system(target), target, text)
            for target, text in (
                nccl_containers.render(runtime, self.path) for runtime in self.module.params["containers"]
            )
        ]
        plan = merge(Plan(findings=tuple(self.unreadable)), main_plan, *extra)
        return plan.limit(self.module.params["max_disruption"])


def names(machine: topology.Topology) -> List[str]:
    """Of the host's RDMA devices."""
    return [nic.rdma.name for nic in machine.nics if nic.rdma is not None]


def check_paths(name: str, paths: Sequence[str]) -> None:
    """Raises ParseError. Paths get into files for containers: a line break in one would become another line there."""
    for path in paths:
        if not path.startswith("/") or not path.isprintable():
            raise ParseError("%s: %r is not an absolute path" % (name, path))


def notes(task: Task, derivation: nccl_conf.Derivation, hcas: Sequence[str]) -> List[str]:
    judged = (task.environment, derivation.meant, task.accepted, task.libraries, task.version, hcas)
    return [*_about_proof(task, derivation), *task.environment.notes, *nccl_environment.judge(*judged)[1]]


def _about_proof(task: Task, derivation: nccl_conf.Derivation) -> List[str]:
    if task.libraries or task.unreadable or derivation.blockers:
        return []
    if task.version is not None:
        return [
            "nccl.conf was linted against the table of NCCL %s and not proven: list the libraries that jobs use in"
            " busbar_nccl_libraries" % task.module.params["nccl_version"]
        ]
    return []


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "profile": {"type": "dict", "required": True},
            "profile_name": {"type": "str", "required": True},
            "fabric": {"type": "str", "choices": ["", "infiniband", "ethernet"], "default": ""},
            "path": {"type": "path", "default": "/etc/nccl.conf"},
            "backup": {"type": "bool", "default": True},
            "extra": {"type": "dict", "default": {}},
            "accepted": {"type": "dict", "default": {}},
            "containers": {
                "type": "list",
                "elements": "str",
                "choices": ["enroot", "docker", "kubernetes"],
                "default": [],
            },
            "libraries": {"type": "list", "elements": "path", "default": []},
            "nccl_version": {"type": "str", "default": ""},
            "gpudirect": {"type": "str", "choices": ["auto", "peermem", "dmabuf", "off"], "default": "auto"},
            "dscp": {"type": "int"},
            "address_family": {"type": "str", "choices": ["ipv4", "ipv6"], "default": "ipv4"},
            "management_interface": {"type": "str", "default": ""},
            "max_disruption": {"type": "str", "choices": ["none", "link", "driver", "reboot"], "default": "none"},
            "hardware_root": {"type": "path", "default": "/"},
            "system_root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        task = Task(module)
    except (ParseError, ReadError) as error:
        module.fail_json(msg=str(error))
    # Rails, paths and routes are all in sysfs and procfs.
    machine = topology.read(task.host, ask_nvidia_smi=False)
    derivation = task.derive(machine)
    proofs = task.prove(derivation)
    try:
        planned = task.plan(machine, derivation, proofs)
        after = planned
        backups = []
        if planned.changed and not module.check_mode:
            backups = apply.execute(task.host, planned.kept(module.params["backup"]))
            # Positive proof: what counts is what is there now, not what was meant to be.
            after = task.plan(machine, derivation, proofs)
    except ReadError as error:
        module.fail_json(msg=str(error))
    result = planned.result()
    files = {change.path for change in planned.changes}
    still = {finding.id for finding in after.findings if not finding.ok} if after is not planned else set()
    result.update(
        findings=after.result()["findings"],
        passed=after.result()["passed"],
        repaired=[f.id for f in planned.findings if f.state == "drift" and f.subject in files and f.id not in still],
        variables=derivation.meant,
        notes=notes(task, derivation, names(machine)),
        backup_files=backups,
    )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
