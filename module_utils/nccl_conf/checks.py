# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Checks of role nccl_conf; those of the linter are in lint_checks."""

from __future__ import annotations

from ..core import fix_command
from ..core.check import Check
from ..machine import platform_checks

_RUN = fix_command.run_tag("nccl_conf")

RAILS = Check(
    "nccl_conf.rails",
    why="a list without this rail would make a broken host look configured, so /etc/nccl.conf is left untouched",
    fix="repair %s first, then run site.yml --tags nccl_conf for this host again" % platform_checks.RAIL_DEVICE.id,
    severity="critical",
)
"Does each rail have a device; if not, nccl.conf is not changed"
DEVICE_NAME = Check(
    "nccl_conf.device_name",
    why="NCCL would read another name, or another variable, out of this one; the file is left untouched",
    fix="find out what gave the device this name, and rename it (rdma dev set OLD name NEW, ip link set OLD name NEW)",
    severity="critical",
)
"Is the name of each device or interface unambiguous for NCCL; if not, nccl.conf is not changed"
SOCKET_INTERFACE = Check(
    "nccl_conf.socket_interface",
    why="NCCL needs one interface that reaches every node for its bootstrap, and would guess",
    fix="set busbar_management_interface in the inventory",
)
"Is the interface for NCCL's bootstrap known; if not, nccl.conf is not changed"
GID_INDEX = Check(
    "nccl_conf.gid_index",
    why="NCCL %s takes one index for all rails, and these differ",
    fix="update NCCL to 2.21 or later, which finds the GID automatically, or give every rail the same addresses",
    severity="critical",
)
"Does the RoCE v2 GID have the same index on all rails, for an NCCL that needs it; if not, nccl.conf is not changed"
READABLE = Check(
    "nccl_conf.readable",
    why="what this file sets cannot be judged",
    fix="look at the file; remove it if it is not needed",
    aspect="persisted",
)
"Could the files that set NCCL's variables be read"
LIBRARY = Check(
    "nccl_conf.library",
    why="without the library that jobs use, the variables that it reads are unknown",
    fix="correct busbar_nccl_libraries, or install NCCL there",
)
"Could the library that jobs use be read"
RELEASE = Check(
    "nccl_conf.release",
    why="this release of NCCL has a defect that jobs meet",
    fix="install another release of NCCL",
)
"Is the NCCL of the jobs a release without a known defect that hangs, crashes or corrupts jobs on this host"
FILE = Check(
    "nccl_conf.file",
    why="without it, or with another list, NCCL chooses interfaces and devices automatically and differently on each"
    " host",
    fix=_RUN,
    severity="critical",
    aspect="persisted",
)
"Is nccl.conf as rendered"
FILE_MODE = Check(
    "nccl_conf.file_mode",
    why="NCCL silently skips a file that the job's user cannot read",
    fix=_RUN,
    severity="critical",
    aspect="persisted",
)
"Can every user read nccl.conf"
PROOF = Check(
    "nccl_conf.proof",
    why="only the library's own parser knows what it takes from the file",
    fix="repair what the message names; without user namespaces run as root; list an existing libnccl.so.2 in"
    " busbar_nccl_libraries",
    aspect="persisted",
)
"Does the library's own parser read the intended values from nccl.conf"
CONTAINERS = Check(
    "nccl_conf.containers",
    why="a container does not see the host's nccl.conf, and its jobs run with NCCL's guesses",
    fix=_RUN,
    aspect="persisted",
)
"Are the files by which containers see nccl.conf as rendered"
OVERRIDES = Check(
    "nccl_conf.environment",
    why="NCCL uses the first definition, and the environment and ~/.nccl.conf come before /etc/nccl.conf",
    fix="remove %s from line %d of %s, or accept it with a reason in nccl_conf_accepted",
    aspect="persisted",
)
"""Does nothing that jobs get earlier (`~/.nccl.conf`, /etc/environment, shells' profiles, units with `user@.service`,
Slurm's task prolog and job_submit.lua, enroot) switch off a path or set what NCCL does not read; `unknown` where only
running it would show. What costs little is a note. Users' own shell files are not read: `busbar lint` them"""
OWNER = Check(
    "nccl_conf.owner",
    why="a service of the image rewrites nccl.conf at every boot, without the rails and all else that was put there",
    fix="systemctl disable %s on the node (without --now: to stop it unloads nvidia_peermem and stops the Fabric"
    " Manager); it empties the file again when the node goes down, so run site.yml for this host after its next boot",
    severity="minor",
    aspect="persisted",
)
"On a cloud's image: does nothing else write nccl.conf at boot"
TOPO_FILE = Check(
    "nccl_conf.topo_file",
    why="this guest shows no GPU and NIC below one bridge, so NCCL takes them for far apart; without a topology file"
    " that describes the layout, it copies all data through the host's memory; only a measurement shows the speed of"
    " GPUDirect RDMA here: playbooks/verify.yml, with perftest built with CUDA (perftest_memory)",
    aspect="persisted",
)
"""Does the `NCCL_TOPO_FILE` exist, with this machine's GPUs and rails, the paths of the profile, and links that are
not too slow; checked if profile or site name one, and in a guest that shows no GPU and NIC below one bridge"""
