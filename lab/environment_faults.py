# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What people leave in the places that NCCL gets its variables from before it reads /etc/nccl.conf."""

from __future__ import annotations

from .fault import ALL, Fault, appended, said
from .nccl_tests import TOOLKIT

TASK_PROLOG = "/etc/slurm/task-prolog.sh"
# Below the system root. The Makefile of the toolkit installs the same in the containers' image.
FILES = {f"/etc/slurm/{path.name}": path.read_text() for path in (TOOLKIT / "slurm").iterdir()}
# name, description, file, what is added to it, variable, state
_TABLE = (
    (
        "environment-tcp",
        "/etc/environment chooses TCP for every login",
        "/etc/environment",
        "NCCL_NET=Socket\n",
        "NCCL_NET",
        "drift",
    ),
    (
        "profile-ib-off",
        "a script of /etc/profile.d switches RDMA off",
        "/etc/profile.d/cluster.sh",
        "# from a guide\nexport NCCL_DEBUG=WARN NCCL_IB_DISABLE=1\n",
        "NCCL_IB_DISABLE",
        "drift",
    ),
    (
        "profile-unclear",
        "a script of /etc/profile.d asks a program for NCCL_IB_HCA",
        "/etc/profile.d/site-hcas.sh",
        'eval "export NCCL_IB_HCA=$(/opt/site/hcas)"\n',
        "NCCL_IB_HCA",
        "unknown",
    ),
    (
        "slurmd-shm-off",
        "a drop-in of slurmd takes shared memory from NCCL",
        "/etc/systemd/system/slurmd.service.d/nccl.conf",
        "[Service]\nEnvironment=NCCL_SHM_DISABLE=1\n",
        "NCCL_SHM_DISABLE",
        "drift",
    ),
    (
        "user-manager-p2p-off",
        "a drop-in of users' managers gives their services NCCL_P2P_DISABLE=1",
        "/etc/systemd/system/user@.service.d/nccl.conf",
        "[Service]\nEnvironment=NCCL_P2P_DISABLE=1\n",
        "NCCL_P2P_DISABLE",
        "drift",
    ),
    (
        "task-prolog-ib-off",
        "a task prolog, which a file that slurm.conf includes names, switches RDMA off",
        TASK_PROLOG,
        "echo export NCCL_IB_DISABLE=1\n",
        "NCCL_IB_DISABLE",
        "drift",
    ),
    (
        "submit-nvls-off",
        "job_submit.lua switches NVLink SHARP off in every job",
        "/etc/slurm/job_submit.lua",
        'job_desc.environment["NCCL_NVLS_ENABLE"] = "0"\n',
        "NCCL_NVLS_ENABLE",
        "drift",
    ),
    (
        "enroot-p2p-off",
        "enroot gives its containers NCCL_P2P_DISABLE=1",
        "/etc/enroot/environ.d/50-site.env",
        "NCCL_P2P_DISABLE=1\n",
        "NCCL_P2P_DISABLE",
        "drift",
    ),
)
FOLDERS = sorted({path.rpartition("/")[0] for _name, _description, path, *_rest in _TABLE} - {"/etc"})


def _fault(name: str, description: str, path: str, added: str, variable: str, state: str) -> Fault:
    excludes = ("environment-conf",) if path == "/etc/environment" else ()
    check = "nccl_conf.environment"
    return Fault(name, description, check, said(f"{path} {variable}"), appended(path, added), state, (), ALL, excludes)


CATALOGUE = tuple(_fault(*row) for row in _TABLE)
