# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A run of nccl-tests that a launcher starts on several hosts, one rank a GPU, each under a rank guard."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Mapping

from ..core.host import ParseError
from ..nccl.launch import Launch
from . import record
from .record import Wanted, short_names

# Hosts in the command that is shown and compared; of more of them the number and a digest.
_SHOWN = 8


def wanted(given: Mapping[str, Any], job: Launch) -> Wanted:
    """Return the run of the module's options. Raises ParseError."""
    if given["gpus"] != 1:
        raise ParseError("gpus is %d; with launch each process has one" % given["gpus"])
    if len(short_names(job.hosts)) != len(job.hosts):
        raise ParseError("launch.hosts: two of them have the same short name")
    for host in job.hosts:
        if re.fullmatch(r"[0-9.]+", host):
            raise ParseError("launch.hosts: %r is not a host name; nccl-tests prints names, not addresses" % host)
    hosts = ",".join(job.addresses[:_SHOWN])
    if len(job.hosts) > _SHOWN:
        digest = hashlib.sha256("\n".join((*job.hosts, *job.addresses)).encode()).hexdigest()
        hosts += ",...(%d hosts, %.8s)" % (len(job.hosts), digest)
    words = {
        "mpirun": ["mpirun", "-H", hosts, "--map-by", "ppr:%d:node" % job.per_node],
        "srun": ["srun", "--nodelist=" + hosts, "--ntasks-per-node=%d" % job.per_node],
    }
    return record.wanted(given, job.hosts, job.ranks, [*words[job.kind], *job.options])
