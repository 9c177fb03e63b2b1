# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Checks of role nccl_conf and of the linter."""

from __future__ import annotations

from functools import partial

from ..core import check, fix_command
from ..machine import platform_checks
from .grammar import LIMIT

# Most are about what NCCL reads when a job starts next, which no run of a job changes.
Check = partial(check.Check, aspect="persisted")
_RUN = fix_command.run_tag("nccl_conf")

RAILS = Check(
    "nccl_conf.rails",
    why="a list without this rail would make a broken host look configured, so /etc/nccl.conf is left untouched",
    fix="repair %s first, then run site.yml --tags nccl_conf for this host again" % platform_checks.RAIL_DEVICE.id,
    severity="critical",
    aspect="live",
)
"Does each rail have a device; if not, nccl.conf is not changed"
DEVICE_NAME = Check(
    "nccl_conf.device_name",
    why="NCCL would read another name, or another variable, out of this one; the file is left untouched",
    fix="find out what gave the device this name, and rename it (rdma dev set OLD name NEW, ip link set OLD name NEW)",
    severity="critical",
    aspect="live",
)
"Is the name of each device or interface unambiguous for NCCL; if not, nccl.conf is not changed"
SOCKET_INTERFACE = Check(
    "nccl_conf.socket_interface",
    why="NCCL needs one interface that reaches every node for its bootstrap, and would guess",
    fix="set busbar_management_interface in the inventory",
    aspect="live",
)
"Is the interface for NCCL's bootstrap known; if not, nccl.conf is not changed"
GID_INDEX = Check(
    "nccl_conf.gid_index",
    why="NCCL %s takes one index for all rails, and these differ",
    fix="update NCCL to 2.21 or later, which finds the GID automatically, or give every rail the same addresses",
    severity="critical",
    aspect="live",
)
"Does the RoCE v2 GID have the same index on all rails, for an NCCL that needs it; if not, nccl.conf is not changed"
READABLE = Check(
    "nccl_conf.readable",
    why="what this file sets cannot be judged",
    fix="look at the file; remove it if it is not needed",
)
"Could the files that set NCCL's variables be read"
LIBRARY = Check(
    "nccl_conf.library",
    why="without the library that jobs use, the variables that it reads are unknown",
    fix="correct busbar_nccl_libraries, or install NCCL there",
    aspect="live",
)
"Could the library that jobs use be read"
RELEASE = Check(
    "nccl_conf.release",
    why="this release of NCCL has a defect that jobs meet",
    fix="install another release of NCCL",
    aspect="live",
)
"Is the NCCL of the jobs a release without a known defect that hangs, crashes or corrupts jobs on this host"
FILE = Check(
    "nccl_conf.file",
    why="without it, or with another list, NCCL chooses interfaces and devices automatically and differently on each"
    " host",
    fix=_RUN,
    severity="critical",
)
"Is nccl.conf as rendered"
FILE_MODE = Check(
    "nccl_conf.file_mode",
    why="NCCL silently skips a file that the job's user cannot read; who may write it sets variables of every job",
    fix=_RUN,
    severity="critical",
)
"Can every user read nccl.conf, and only root write it"
PROOF = Check(
    "nccl_conf.proof",
    why="only the library's own parser knows what it takes from the file",
    fix="repair what the message names; without user namespaces run as root; list an existing libnccl.so.2 in"
    " busbar_nccl_libraries",
)
"Does the library's own parser read the intended values from nccl.conf"
CONTAINERS = Check(
    "nccl_conf.containers",
    why="a container does not see the host's nccl.conf, and its jobs run with NCCL's guesses",
    fix=_RUN,
)
"Are the files by which containers see nccl.conf as rendered"
CONTAINER_VIEW = Check(
    "nccl_conf.container_view",
    why="a job whose container has other files, or none, runs with NCCL's guesses",
    fix="set nccl_conf_containers: [enroot], then run site.yml --tags nccl_conf for this host; for another runtime,"
    " mount the file into the container (docs/containers.md)",
    aspect="live",
)
"""Does a container of a job see nccl.conf, and the topology file that it names, as the node has them (`busbar preflight
--container-image`)"""
OVERRIDES = Check(
    "nccl_conf.environment",
    why="NCCL uses the first definition, and the environment and ~/.nccl.conf come before /etc/nccl.conf",
    fix="remove %s from line %d of %s, or accept it with a reason in nccl_conf_accepted",
)
"""Does nothing that jobs get earlier (`~/.nccl.conf`, /etc/environment, shells' profiles, units with `user@.service`,
Slurm's task prolog and job_submit.lua, enroot) switch off a path or set what NCCL does not read; `unknown` where only
running it would show. What costs little is a note. Users' own shell files are not read: `busbar lint` them"""
NET_PLUGIN = Check(
    "nccl_conf.net_plugin",
    why="without the library NCCL goes on with its own network, IB or Socket, and only its log shows that",
    fix="install the plugin, or correct busbar_nccl_net_plugin, which may be the path of its library",
    aspect="live",
)
"""Is the library of the network plugin that jobs use (`busbar_nccl_net_plugin`) on this node; not judged where jobs
bring their own libraries (`busbar_nccl_version`), unless the plugin is a path"""
GIN = Check(
    "nccl_conf.gin",
    why="NCCL's GPU-initiated networking (GIN) does not start with it, or leaves ranks without a connection",
)
"Where jobs use GIN (`busbar_gpu_initiated`): does the release have it, and do variables and NICs leave it possible"
TRAFFIC_CLASS = Check(
    "nccl_conf.traffic_class",
    why="NVSHMEM sends with its own traffic class, 0 by default: outside the lossless queue one lost packet can end the"
    " job",
    fix="put %s into /etc/environment of the node, or let Slurm's task prolog print export of it; where jobs or their"
    " images set it, accept this finding (busbar_accepted)",
)
"""Where jobs use NVSHMEM or DeepEP on RoCE (`busbar_gpu_initiated`): does `NVSHMEM_IB_TRAFFIC_CLASS` of all jobs lead
to the lossless queue of `busbar_roce`"""
OWNER = Check(
    "nccl_conf.owner",
    why="a service of the image rewrites nccl.conf at every boot, without the rails and all else that was put there",
    fix="systemctl disable %s on the node (without --now: to stop it unloads nvidia_peermem and stops the Fabric"
    " Manager); it empties the file again when the node goes down, so run site.yml for this host after its next boot",
    severity="minor",
)
"On a cloud's image: does nothing else write nccl.conf at boot"
TOPO_FILE = Check(
    "nccl_conf.topo_file",
    why="this guest shows no GPU and NIC below one bridge, so NCCL takes them for far apart; without a topology file"
    " that describes the layout, it copies all data through the host's memory; only a measurement shows the speed of"
    " GPUDirect RDMA here: playbooks/verify.yml, with perftest built with CUDA (perftest_memory)",
)
"""Does the `NCCL_TOPO_FILE` exist, with this machine's GPUs and rails, the paths of the profile, and links that are
not too slow; checked if profile or site name one, and in a guest that shows no GPU and NIC below one bridge"""
GDRCOPY = Check(
    "nccl_conf.gdrcopy",
    why="without the driver NCCL ignores NCCL_GDRCOPY_ENABLE=1, and every job prints a warning",
    fix="install GDRCopy with its driver for this kernel (gdrdrv-dkms), then modprobe gdrdrv; or take"
    " NCCL_GDRCOPY_ENABLE out of what sets it",
    severity="minor",
    aspect="live",
)
"Are GDRCopy's driver, device and library there; only where nccl.conf or the environment of jobs switches it on"

# -- of the linter ----------------------------------------------------------------------------------------------------

LINT_LIBRARY = Check(
    "nccl_conf.lint.library",
    why="Which variables are read depends on the release; only the rules that hold for all were checked.",
    fix="Set busbar_nccl_libraries to the files that jobs load, or busbar_nccl_version.",
)
"Is it known which release of NCCL will read the file"
BOM = Check(
    "nccl_conf.lint.bom",
    why="The file starts with a byte order mark, which NCCL takes for a part of the first line's name.",
    fix="Save the file as plain ASCII.",
)
"Does the file start with its first line, and not with a byte order mark"
CARRIAGE_RETURN = Check(
    "nccl_conf.lint.carriage_return",
    why="NCCL before 2.30.3 reads the carriage return as the last character of each value.",
    fix="Save the file with Unix line ends.",
    severity="minor",
)
"Do the lines end in a line feed alone"
CHARACTER = Check(
    "nccl_conf.lint.character",
    why="The line holds characters that are not printable ASCII; NCCL takes them into the name or value.",
    fix="Type the line again in plain ASCII.",
)
"Is the line printable ASCII"
COMMENT_ASSIGNMENT = Check(
    "nccl_conf.lint.comment_assignment",
    why="NCCL before 2.26 knows no comments: %s sets a variable whose name starts with #.",
    fix="Reword the comment so that it holds no equals sign.",
    severity="minor",
)
"Does the oldest release in use also read the comment as a comment"
INDENTED_COMMENT = Check(
    "nccl_conf.lint.indented_comment",
    why="A comment is one only when # is the first character of the line.",
    fix="Move # to the first column.",
    severity="minor",
)
"Does the comment start in the first column"
INLINE_COMMENT = Check(
    "nccl_conf.lint.inline_comment",
    why="NCCL has no comments behind a value: the comment becomes a part of it.",
    fix="Put the comment on a separate line.",
)
"Is the value free of a comment behind it"
NO_ASSIGNMENT = Check(
    "nccl_conf.lint.no_assignment",
    why="The line is not NAME=VALUE, so NCCL ignores it.",
    fix="Write it as NAME=VALUE, or as a comment that starts with #.",
)
"Is the line NAME=VALUE, a comment or empty"
EMPTY_VALUE = Check(
    "nccl_conf.lint.empty_value",
    why="The variable is set to nothing, which hides a value that another file would give it.",
    fix="Give it a value, or remove the line.",
    severity="minor",
)
"Has the variable a value"
TOO_LONG = Check(
    "nccl_conf.lint.too_long",
    why="NCCL cuts names and values after %d bytes." % LIMIT,
    fix="Shorten the line.",
)
"Are name and value short enough for every release"
EXPORT = Check(
    "nccl_conf.lint.export",
    why="NCCL is not a shell: it sets a variable called %r, and %s stays unset.",
    fix="Remove the word before the name.",
)
"Does the line start with the name, and not with export or the like"
BLANK = Check(
    "nccl_conf.lint.blank",
    why="NCCL trims nothing: the blank becomes a part of the %s.",
    fix="Remove the blanks around the name and the value.",
)
"Are name and value free of blanks around them"
QUOTES = Check(
    "nccl_conf.lint.quotes",
    why="NCCL does not remove the quotes: %s.",
    fix="Remove the quotes.",
)
"Is the value free of quotes around it"
DUPLICATE = Check(
    "nccl_conf.lint.duplicate",
    why="NCCL uses the first definition, in line %d; this one has no effect.",
    fix="Keep one of the two lines.",
)
"Is each variable set once in the file"
CONFLICT = Check(
    "nccl_conf.conflict",
    why="NCCL uses the first definition that it reads, and this one comes before /etc/nccl.conf: "
    "the value there has no effect.",
    fix="Remove the variable from %s.",
)
"Does nothing that NCCL gets earlier set a variable of nccl.conf to something else; names file and line"
NEVER_EXISTED = Check(
    "nccl_conf.lint.never_existed",
    why="No release of NCCL has ever read %s: the line has no effect.",
)
"Does some release of NCCL read the variable (widely copied names are read by none)"
DEAD_VARIABLE = Check(
    "nccl_conf.lint.dead_variable",
    why="%s is not read any more since NCCL %s, so not by %s.",
    fix="Remove the line.",
)
"Is the variable still read by the releases in use"
UNKNOWN_VARIABLE = Check(
    "nccl_conf.lint.unknown_variable",
    why="%s is not read by %s: the line has no effect there.",
    fix="Remove the line.",
)
"Is the variable read by the libraries, or the release, that jobs use"
FOREIGN_VARIABLE = Check(
    "nccl_conf.lint.foreign_variable",
    why="%s is not a variable of NCCL. The line sets it in every process that uses NCCL, from then on.",
    fix="Set it where the program that reads it is started.",
    severity="minor",
)
"Is the variable NCCL's, or its plugins'"
PLUGIN_VARIABLE = Check(
    "nccl_conf.lint.plugin_variable",
    why="Jobs use %s, which does not read %s: the line has no effect.",
    fix="Remove the line.",
    severity="minor",
)
"Does the network plugin that is chosen read the variable"
PLUGIN_LIBRARY = Check(
    "nccl_conf.lint.plugin_library",
    why="%s is in none of the usual places: without it NCCL goes on with its own network and only logs that.",
    fix="Install the plugin, or write the path of its library; `ldconfig -p` and LD_LIBRARY_PATH of jobs show where.",
)
"Is the library of the network plugin that is chosen where jobs load it from"
WRONG_PLACE = Check(
    "nccl_conf.lint.wrong_place",
    why="It belongs to one job, not to a file that every job reads.",
    fix="Set it in the job that needs it.",
    severity="minor",
)
"Is the variable useful in a file that every job reads"
BAD_VALUE = Check(
    "nccl_conf.lint.bad_value",
    why="NCCL takes the value for another, or ends the job.",
)
"Does NCCL read the value as intended"
ADVICE = Check(
    "nccl_conf.lint.advice",
    why="The value is accepted, and of no use or harmful on every machine.",
    fix="Remove the line.",
)
"Does the line have an effect, without switching a path off"
GDR_OFF = Check(
    "nccl_conf.lint.gdr_off",
    why="No NIC is that near to a GPU: %s switches GPUDirect RDMA off.",
    fix="Remove the line.",
)
"Does the level of NCCL_NET_GDR_LEVEL leave GPUDirect RDMA on"
LINT_GDRCOPY = Check(
    "nccl_conf.lint.gdrcopy",
    why="On this machine %s: NCCL ignores the line, and every job prints a warning.",
    fix="Install GDRCopy with its driver (gdrdrv-dkms) and load gdrdrv, or remove the line.",
    severity="minor",
)
"Has this machine, if it is a GPU node, the driver that NCCL_GDRCOPY_ENABLE=1 needs (busbar lint alone)"
LEGACY_LEVEL = Check(
    "nccl_conf.lint.legacy_level",
    why="%s is a legacy number that means %s.",
    fix="Remove the line, or write %s if that was meant.",
    severity="minor",
)
"Is the level of a path written as a name, and not as a number"
LINT_GID_INDEX = Check(
    "nccl_conf.lint.gid_index",
    why="NCCL %s finds the RoCE GID of each port itself; a fixed index is wrong where the table differs.",
    fix="Remove the line.",
)
"Is the RoCE GID left to NCCL, if NCCL finds it for each port"
PREFIX_MATCH = Check(
    "nccl_conf.lint.prefix_match",
    why="Without = each name is a prefix: %s.",
    fix="Put = before the list, so that the names are exact.",
)
"Are the names of a list exact, not prefixes of others"
UNKNOWN_HCA = Check(
    "nccl_conf.lint.unknown_hca",
    why="%s matches no RDMA device: that rail is not used. The host has %s.",
    fix="Name the devices of the compute rails.",
)
"Is every device of NCCL_IB_HCA one of the host's"
