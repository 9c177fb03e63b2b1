# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read what decides whether a node can take part in a benchmark between nodes: phase ``member`` of ``nccl_cluster``."""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, List, Mapping, Union

from . import slurm
from .change import busy
from .core import trusted
from .core.host import Host, ParseError, ReadError
from .health import imex
from .machine import profile, rails, topology
from .nccl import launch
from .nccl_perf import output as perf_output
from .nccl_tests.marker import MARKER, parse_marker

HOSTNAME = "/proc/sys/kernel/hostname"
IDLE = "run it again when the node is idle"
BUILD = "run site.yml --tags nccl_tests for this host"


def read_member(host: Host, given: Mapping[str, Any]) -> Dict[str, Any]:
    """Return ``member`` and ``unfit`` of the module's result. Raises ParseError."""
    own_name = (host.read(HOSTNAME) or socket.gethostname()).strip().partition(".")[0].lower()
    member: Dict[str, object] = {"name": own_name, "build": "", "rails": _rails(host, profile.from_options(given))}
    unfit = users(host, given["slurm_node"])
    try:
        launch.read(host, given["launcher"])
    except ReadError as error:
        unfit.append(_unfit(str(error), "repair that on the node, then run it again"))
    # Another node's nccl_perf has them run here, as root, and checks only its own programs.
    programs = ["%s/%s_perf" % (given["nccl_tests_path"], name) for name in perf_output.COLLECTIVES]
    doubts = [trusted.doubt(program, host.system_root) for program in programs if os.path.lexists(program)]
    unfit += [_unfit("nccl-tests is not run: %s" % doubt, trusted.WAY_OUT) for doubt in doubts if doubt][:1]
    build = _build("%s/%s" % (given["nccl_tests_path"], MARKER))
    if isinstance(build, str):
        member["build"] = build
    else:
        unfit.append(build)
    if given["nvlink_domain"]:
        member["domain"], member["no_domain"] = imex.domain_of(host)
    return {"member": member, "unfit": unfit}


def _rails(host: Host, want: profile.Profile) -> Dict[str, Dict[str, object]]:
    """Return number -> RDMA device and index of the nearest GPU, of the rails that have both."""
    found = rails.match(topology.read(host, ask_nvidia_smi=False), want)
    own: Dict[str, Dict[str, object]] = {}
    for rail in want.rails:
        nic = found.nics.get(rail.number)
        near = [found.gpus[index] for index in sorted(rail.paths) if index in found.gpus] if found.gpus else []
        if nic is not None and nic.rdma is not None and near:
            own[str(rail.number)] = {"device": nic.rdma.name, "gpu": near[0].index}
    return own


def _build(path: str) -> Union[str, Dict[str, str]]:
    """Return what nccl-tests is built of, or why it does not serve. path: of the build's marker."""
    try:
        # Where the programs are, as nccl_perf runs them.
        text = Host().read_system(path)
        if text is None:
            return _unfit("nccl-tests is not built (%s is not there)" % path, BUILD)
        marker = parse_marker(text)
    except (ReadError, ParseError) as error:
        why = str(error) if isinstance(error, ReadError) else "%s %s" % (path, error)
        return _unfit(why, "repair that on the node; " + BUILD)
    inputs = marker.inputs
    if inputs.mpi is None:
        fix = "install Open MPI with its headers, set nccl_tests_mpi: required; " + BUILD
        return _unfit("nccl-tests is built without MPI", fix)
    return "NCCL %s, %s, nccl-tests %.12s" % (inputs.nccl.version, inputs.mpi.version, marker.commit)


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
