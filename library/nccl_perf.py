#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_perf
short_description: Run one nccl-tests program and judge its result; anything missing counts as failed
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Runs one program of nccl-tests on this host or, with O(launch), on several, under a time limit, and ends every
    process that it started.
  - Judges exit code, sizes, ranks, hosts, correctness and, with O(bar_busbw), the bus bandwidth of the largest size.
    Exit code 0 alone proves nothing.
  - Runs nothing on a node in use, see O(require_idle).
  - A run over more than one host has no verdict on its bandwidth without the proof of its transport. NCCL's own log of
    that very run (C(NCCL_DEBUG=INFO), which is set for it) has to show every rank, the network and the HCAs that were
    used, and GPUDirect RDMA of each connection. A run over sockets is a finding, whatever its bandwidth.
  - With O(when=changed) nothing is run, either, if the stored result is good, recent, and of the node as it is
    now. A result is stored with what it depends on - driver, NCCL, the program's build, C(nccl.conf), kernel and its
    arguments, firmware of the NICs, GPUs, and a digest of O(environment).
  - Changes nothing on the host but its files below O(result_directory).
attributes:
  check_mode:
    support: full
    description: Runs nothing and returns what it would run, and why; judges O(stored_result) where that is given.
options:
  binary:
    description:
      - Absolute path of the program, for example C(/opt/nccl-tests/build/all_reduce_perf). Its name is that of the
        collective before C(_perf).
    type: path
    required: true
  min_bytes: {type: str, default: '8', description: 'Smallest size, such as V(8) or V(1M).'}
  max_bytes: {type: str, default: 8G, description: 'Largest size, such as V(8G).'}
  step_factor: {type: int, default: 2, description: Each size is this many times the one before.}
  gpus: {type: int, default: 1, description: GPUs per process.}
  launch:
    description:
      - Starts the program on several hosts, one process for each GPU (O(gpus) is 1).
      - C(kind) is V(mpirun) (Open MPI 4 or later, by ssh) or V(srun). C(hosts) are the hosts as they call themselves,
        this one first; C(addresses) those by which the launcher reaches them, where these are others; C(per_node) is
        the number of processes on each. C(options) are further words for the launcher, C(python) is the interpreter on
        the hosts.
      - Each process is started by a guard, which binds it to the CPUs of its GPU, reports what it found, and ends it at
        O(timeout), and when its parent process has ended.
      - Variables of O(environment) reach all hosts, by name.
    type: dict
  iterations: {type: int, default: 20, description: Measured iterations of each size.}
  warmup: {type: int, default: 5, description: Iterations before these.}
  repeats:
    description:
      - How often the program is run. Its bandwidth is judged by the median, all else by the worst of them.
      - After a run that failed there is no other.
    type: int
    default: 1
  algorithm:
    description: C(NCCL_ALGO), such as V(Ring); or V(SHARP), reduction in the switches. Empty - NCCL's choice.
    type: str
    default: ""
  rails:
    description:
      - How many HCAs of each host have to carry data between hosts. Where it is not given, as many as NCCL finds on the
        host that has most of them.
    type: int
  way:
    description:
      - Path of the data between hosts. With V(nvlink), between trays of one NVLink domain, NCCL's log has to
        show NVLink between all hosts (MNNVL) and no connection over the network, and the rails' counters must not
        have carried the data.
    type: str
    choices: [network, nvlink]
    default: network
  timeout: {type: float, default: 900, description: Time limit of each run of the program in seconds.}
  environment:
    description:
      - The run's environment, beside C(PATH), C(HOME) and C(LC_ALL). Nothing else is handed on, but that
        C(LD_LIBRARY_PATH) comes from the marker of M(busbar.fabric.nccl_tests_build) beside the program, where there
        is one and it is not set here.
      - The values are neither logged nor returned. Where C(NCCL_DEBUG) is set, NCCL writes into the run's directory;
        over several hosts into stdout, at level INFO.
    type: dict
    default: {}
  result_directory:
    description: Each run makes its own directory below, of which five stay; the link C(latest) leads to the last one.
    type: path
    default: /var/lib/busbar/nccl_perf
  bar_busbw: {type: float, description: 'Minimum bus bandwidth in GB/s, out of place, of the largest size.'}
  when:
    description:
      - When the program is run. V(always); V(never), O(stored_result) is judged then.
      - V(changed) - only where O(stored_result) is not good, not there, older than O(max_age_days), or where something
        that it depends on has changed; else it is judged.
    type: str
    choices: [changed, always, never]
    default: always
  stored_result:
    description: Where nothing is run, judge this record of an earlier run, for example C(latest/record.json).
    type: path
    default: ""
  max_age_days: {type: float, default: 30, description: How old a stored result may be.}
  require_idle:
    description: Run only if no process uses a GPU, no Slurm job is on the node and no pod has a GPU.
    type: bool
    default: true
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Measure all-reduce within the node
  busbar.fabric.nccl_perf:
    binary: /opt/nccl-tests/build/all_reduce_perf
    gpus: 8
    min_bytes: 1M
    bar_busbw: 350
    environment:
      LD_LIBRARY_PATH: /usr/local/cuda/lib64
  register: node_result

- name: Measure all-reduce over two nodes
  busbar.fabric.nccl_perf:
    binary: /opt/nccl-tests/build/all_reduce_perf_mpi
    launch: {kind: mpirun, hosts: [node01, node02], per_node: 8}
    min_bytes: 8G
    max_bytes: 8G
    algorithm: Ring
    repeats: 3
    bar_busbw: 330
    stored_result: /var/lib/busbar/nccl_perf/latest/record.json
  register: pair_result
"""

RETURN = r"""
# What every module returns: see the notes.
measured:
  description:
    - What the program printed - ranks, rows with their figures, release, errors. Empty where there is nothing.
    - With O(repeats) the run that is nearest to the median. Over several hosts C(ranks) is empty, see RV(transport).
  type: dict
  returned: success
busbw:
  description:
    - GB/s, out of place, at the largest size, median of the repeats; null where one of them did not measure it.
  type: float
  returned: success
repeats:
  description:
    - Each run of the program - C(rc), C(busbw) as above, C(finished) in seconds since 1970, and C(ending), why it was
      ended.
  type: list
  elements: dict
  returned: success
statistics:
  description:
    - Of each size over the repeats, out of place - C(size) in bytes; C(time_us), C(algbw) and C(busbw), medians;
      C(time_p99_us); C(spread), (highest - lowest) / median of busbw, and C(max_over_mean), longest
      time / mean of the others, both null for one run; C(repeats), how many have figures. Empty for one run on one
      node.
  type: list
  elements: dict
  returned: success
transport:
  description:
    - What NCCL's log of a run over several hosts proves - C(networks) (C(NVLink) where all went over that), C(nodes)
      and C(expected) ranks as NCCL counts,
      C(proven), C(missing), C(gdr), and by host C(ranks), C(devices), C(without_gdr) and C(found).
    - With O(repeats) of the run that proves least. Empty within a node.
  type: dict
  returned: success
rails: {type: dict, returned: success, description: By host and HCA the bytes C(sent) and C(received) during that run.}
nccl_version:
  description: The NCCL that ran; more than one where hosts differ. Empty where it is not known.
  type: str
  returned: success
stored: {type: bool, returned: success, description: 'Whether an earlier run is judged, and nothing was measured now.'}
due:
  description: Why it was measured, or in check mode would be; empty if the stored result is still valid.
  type: str
  returned: success
changed_since:
  description: What has changed since the stored result was measured, such as V(NVIDIA driver) or V(nccl.conf).
  type: list
  elements: str
  returned: success
finished_at:
  description: When the run that is judged ended, in seconds since 1970; null where there is none.
  type: float
  returned: success
simulated: {type: bool, returned: success, description: Whether the figures are simulated.}
run_directory:
  description: Directory with the output of the run; empty where nothing was run.
  type: str
  returned: success
record:
  description: The run as one file, for O(stored_result); empty where nothing was run.
  type: str
  returned: success
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
