#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_cluster_member
short_description: (internal) Read what decides whether a node can take part in a benchmark between nodes
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Reads the node's own short name, who uses it, its build of nccl-tests and the RDMA
    devices of its rails. M(busbar.fabric.nccl_campaign) makes jobs of it.
  - Changes nothing.
options:
  nccl_tests_path:
    description: Directory of the build.
    type: path
    required: true
  launcher:
    description: What is to start programs on several nodes.
    type: str
    choices: [mpirun, srun]
    default: mpirun
  slurm_node:
    description: The node's name in Slurm, to query whether it is drained; empty if Slurm is not to be queried.
    type: str
    default: ""
  nvlink_domain:
    description: Query the NVLink domain of the GPUs.
    type: bool
    default: false
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: See whether the node can take part
  busbar.fabric.nccl_cluster_member:
    nccl_tests_path: /opt/nccl-tests
    profile: "{{ busbar_intent.profile }}"
  register: member
"""

RETURN = r"""
member:
  description: Its C(name) as in C(hostname -s), C(build) (NCCL, MPI and commit that the programs are made with)
    and C(rails), number to C(device) and C(gpu). With O(nvlink_domain) C(domain), UUID and clique, and C(no_domain),
    why there is none.
  type: dict
  returned: success
unfit:
  description: Why it cannot take part, each with C(have) and C(fix); empty where it can.
  type: list
  elements: dict
  returned: success
"""

import os
import socket
from typing import Any, Dict, List, Mapping

from ansible_collections.busbar.fabric.plugins.module_utils import slurm
from ansible_collections.busbar.fabric.plugins.module_utils.change import busy, module
from ansible_collections.busbar.fabric.plugins.module_utils.core import trusted
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.health import imex
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, rails, topology
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import launch
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import output as perf_output
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.marker import MARKER, parse_marker

SPEC: Dict[str, Dict[str, Any]] = {
    "nccl_tests_path": {"type": "path", "required": True},
    "launcher": {"type": "str", "choices": ["mpirun", "srun"], "default": "mpirun"},
    "slurm_node": {"type": "str", "default": ""},
    "nvlink_domain": {"type": "bool", "default": False},
    **module.PROFILE,
    **module.ROOTS,
}
HOSTNAME = "/proc/sys/kernel/hostname"
IDLE = "run it again when the node is idle"
BUILD = "run site.yml --tags nccl_tests for this host"


def main() -> None:
    module.main(SPEC, work)


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, Any]:
    want = profile.from_options(given)
    found = rails.match(topology.read(host, ask_nvidia_smi=False), want)
    own: Dict[str, Dict[str, Any]] = {}
    for rail in want.rails:
        nic = found.nics.get(rail.number)
        near = [found.gpus[index] for index in sorted(rail.paths) if index in found.gpus] if found.gpus else []
        if nic is not None and nic.rdma is not None and near:
            own[str(rail.number)] = {"device": nic.rdma.name, "gpu": near[0].index}
    own_name = (host.read(HOSTNAME) or socket.gethostname()).strip().partition(".")[0].lower()
    build = ""
    unfit = users(host, given["slurm_node"])
    path = "%s/%s" % (given["nccl_tests_path"], MARKER)
    try:
        launch.read(host, given["launcher"])
    except ReadError as error:
        unfit.append(_unfit(str(error), "repair that on the node, then run it again"))
    # Another node's nccl_perf has them run here, as root, and checks only its own programs.
    programs = ["%s/%s_perf" % (given["nccl_tests_path"], name) for name in perf_output.COLLECTIVES]
    doubts = [trusted.doubt(program, host.system_root) for program in programs if os.path.lexists(program)]
    unfit += [_unfit("nccl-tests is not run: %s" % doubt, trusted.WAY_OUT) for doubt in doubts if doubt][:1]
    try:
        # Where the programs are, as nccl_perf runs them.
        text = Host().read_system(path)
        if text is None:
            unfit.append(_unfit("nccl-tests is not built (%s is not there)" % path, BUILD))
        else:
            inputs, commit = parse_marker(text).inputs, parse_marker(text).commit
            if inputs.mpi is None:
                fix = "install Open MPI with its headers, set nccl_tests_mpi: required; " + BUILD
                unfit.append(_unfit("nccl-tests is built without MPI", fix))
            else:
                build = "NCCL %s, %s, nccl-tests %.12s" % (inputs.nccl.version, inputs.mpi.version, commit)
    except (ReadError, ParseError) as error:
        said = str(error) if isinstance(error, ReadError) else "%s %s" % (path, error)
        unfit.append(_unfit(said, "repair that on the node; " + BUILD))
    member: Dict[str, Any] = {"name": own_name, "build": build, "rails": own}
    if given["nvlink_domain"]:
        member["domain"], member["no_domain"] = imex.domain_of(host)
    return dict(Plan().result(), member=member, unfit=unfit)


def users(host: Host, slurm_node: str) -> List[Dict[str, str]]:
    """Why the node is left alone: who uses it, or whether that is not known."""
    found = busy.read(host)
    said = [_unfit("busy: %s" % reason, IDLE) for reason in found.reasons]
    said += [_unfit("not known to be idle: %s" % problem, IDLE) for problem in found.problems]
    if slurm_node:
        have = slurm.read(host, slurm_node)
        said += [_unfit("busy: %s" % job, IDLE) for job in have.jobs]
        if have.node is None:
            said.append(_unfit("Slurm does not report it: %s" % have.problem, "repair Slurm: see docs/scale.md#slurm"))
        elif have.node.drained:
            said.append(_unfit("drained: %s" % have.node, "scontrol update nodename=%s state=resume" % slurm_node))
    return said


def _unfit(have: str, fix: str) -> Dict[str, str]:
    return {"have": have, "fix": fix}


if __name__ == "__main__":
    main()
