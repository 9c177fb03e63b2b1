# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of a run of nccl-tests that a launcher starts on several hosts, one rank a GPU, each under a rank guard."""

from __future__ import annotations

import hashlib
from typing import Dict, List, Mapping, Tuple

from ..core.host import ParseError
from ..nccl.launch import Launch
from .record import short_names

# Hosts in the command that is shown and compared; of more of them the number and a digest.
_SHOWN = 8


def options(given: Mapping[str, object], job: Launch) -> Tuple[Dict[str, object], List[str]]:
    """Return the options of the module and the launcher's words, as record.wanted takes them. Raises ParseError."""
    if given["gpus"] != 1:
        raise ParseError("gpus is %d; with launch each process has one" % given["gpus"])
    if given["ranks"] != job.ranks:
        raise ParseError("ranks is %d; launch starts %d on %d hosts" % (given["ranks"], job.ranks, len(job.hosts)))
    if given["hosts"] and short_names(given["hosts"]) != short_names(job.hosts):
        raise ParseError("hosts are not those of launch; leave hosts out")
    if len(short_names(job.hosts)) != len(job.hosts):
        raise ParseError("launch.hosts: two of them have the same short name")
    hosts = ",".join(job.addresses[:_SHOWN])
    if len(job.hosts) > _SHOWN:
        digest = hashlib.sha256("\n".join((*job.hosts, *job.addresses)).encode()).hexdigest()
        hosts += ",...(%d hosts, %.8s)" % (len(job.hosts), digest)
    words = {
        "mpirun": ["mpirun", "-H", hosts, "--map-by", "ppr:%d:node" % job.per_node],
        "srun": ["srun", "--nodelist=" + hosts, "--ntasks-per-node=%d" % job.per_node],
    }
    return {**given, "hosts": list(job.hosts)}, [*words[job.kind], *job.options]
