# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Table of NCCL's network plugins: their names, files, variables, and which of NCCL's variables they read.

NCCL_NET_PLUGIN=NAME loads libnccl-net-NAME.so, or a library by its file name or path; without it libnccl-net.so. Where
that fails, NCCL goes on with its own networks, IB and Socket. Sources: NCCL 2.30.7 (src/plugin/plugin_open.cc and
net.cc), HPC-X 2.26 (Spectrum-X NCCL Plugin), nccl-rdma-sharp-plugins 2f5ac02, aws-ofi-nccl 1.21.1, README of
microsoft/mrc-nccl-plugin, Google Cloud's pages on NCCL/gIB.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from functools import partial
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.host import Host, Problem, attempt

NAME, NETWORK = "NCCL_NET_PLUGIN", "NCCL_NET"
# NCCL's own networks.
OWN = ("ib", "socket")
# Value by which jobs use no plugin.
NONE = "none"
_OF_IB = "NCCL_IB_"
_LIBRARY = "libnccl-net"


class NetPlugin(NamedTuple):
    """A network plugin.

    name: as NCCL_NET_PLUGIN has it.   owner: for people.   networks: as NCCL calls its network, in lower case; "*": any
    end.   folder: part of the path by which its libnccl-net.so is recognised.
    prefixes: of the variables that it and its libraries read.
    reads: names of NCCL's own InfiniBand transport (NCCL_IB_...) that it reads, too; None: not published.
    """

    name: str
    owner: str
    networks: Tuple[str, ...]
    folder: str
    places: Tuple[str, ...]
    prefixes: Tuple[str, ...]
    reads: Optional[FrozenSet[str]] = None

    @property
    def setting(self) -> Tuple[str, str]:
        """Return the variable and value by which jobs use it: gIB is libnccl-net.so, and is chosen by its network."""
        return (NETWORK, "gIB") if self.name == "gib" else (NAME, self.name)


SHARP = "nccl-rdma-sharp-plugins"
_SHARP_READS = (
    "GID_INDEX ROUTABLE_FLID_GID_INDEX ROCE_VERSION_NUM IS_GLOBAL TIMEOUT RETRY_CNT PKEY USE_INLINE SL TC AR_THRESHOLD"
    " PCI_RELAXED_ORDERING FIFO_TC RETURN_ASYNC_EVENTS ECE_ENABLE ADDR_FAMILY ADDR_RANGE MERGE_VFS MERGE_NICS"
    " QPS_PER_CONNECTION WARN_RAIL_LOCAL SPLIT_DATA_ON_QPS MQP_RETRY_ALL MQP_RETRY_CNT MQP_RETRY_SLEEP_MSEC"
    " ADAPTIVE_ROUTING DATA_DIRECT HCA"
)
_HPCX = ("/opt/hpcx*/%s/lib", "/usr/local/hpcx*/%s/lib")
PLUGINS = (
    NetPlugin(
        *("spcx", "the Spectrum-X plugin", ("spcx",), "spectrum-x_plugin"),
        tuple(place % "nccl_spectrum-x_plugin" for place in _HPCX),
        ("NCCL_SPCX_",),
    ),
    NetPlugin(
        *("mrc", "the MRC plugin", ("mrc*",), "mrc"),
        (*(place % "nccl_mrc_plugin" for place in _HPCX), "/opt/microsoft/mrc/mrc-nccl-plugin"),
        ("NCCL_MRC_",),
    ),
    NetPlugin(
        *("ibext", SHARP, ("ibext*", "ucx*"), "rdma_sharp_plugin"),
        (*(place % "nccl_rdma_sharp_plugin" for place in _HPCX), "/opt/mellanox/nccl-rdma-sharp-plugin/lib"),
        ("SHARP_COLL_", "UCX_"),
        frozenset(_OF_IB + name for name in _SHARP_READS.split()),
    ),
    NetPlugin(
        *("ofi", "aws-ofi-nccl", ("libfabric", "aws libfabric", "ofi"), "ofi-nccl"),
        ("/opt/amazon/ofi-nccl/lib*", "/opt/amazon/aws-ofi-nccl/lib*", "/opt/aws-ofi-nccl/lib*"),
        ("OFI_NCCL_", "FI_"),
        frozenset(),
    ),
    NetPlugin(
        *("gib", "Google's network plugin (TCPX, FasTrak, gIB)", ("gib",), "/gib/"),
        ("/usr/local/gib/lib64",),
        ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX", "NCCL_SHIMNET_", "NCCL_GIB_", "NCCL_GPUVIZ_", "NCCL_TELEMETRY_")
        + ("NCCL_NET_PLUGIN_TELEMETRY_", "NCCL_DYNAMIC_CHUNK_SIZE", "NCCL_USE_SNAP"),
    ),
)
_SYSTEM = (
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
)
PLACES = (*_SYSTEM, *(place for plugin in PLUGINS for place in plugin.places))


def entries(value: str) -> List[str]:
    """Return the plugins of a value of NCCL_NET_PLUGIN; [] where it names none. A list is read from NCCL 2.27.3 on."""
    found = [entry for entry in value.split(",") if entry]
    return [] if value.lower() == NONE else found


def library(entry: str) -> str:
    """Return the file that NCCL loads for an entry: a path, the name of a library, or the end of one."""
    whole = entry.startswith("lib") and entry.endswith(".so")
    return entry if "/" in entry or whole else "%s-%s.so" % (_LIBRARY, entry)


def of_library(entry: str) -> Optional[NetPlugin]:
    """Return the plugin that an entry of NCCL_NET_PLUGIN names; None for one that is not known."""
    file = library(entry).rpartition("/")[2].lower()
    named = (one for one in PLUGINS if file == library(one.name))
    placed = (one for one in PLUGINS if "/" in entry and one.folder in entry.lower())
    return next(named, None) or next(placed, None)


def of_network(name: str) -> Optional[NetPlugin]:
    """Return the plugin of a network as NCCL calls it: ``IBext_v11``, ``AWS Libfabric``; None for NCCL's own."""
    return next((one for one in PLUGINS if any(fnmatchcase(name.lower(), form) for form in one.networks)), None)


def of_settings(settings: Mapping[str, str]) -> Optional[NetPlugin]:
    """Return the plugin that variables choose; None for none, or one that is not known."""
    network = settings.get(NETWORK, "")
    first = next(iter(entries(settings.get(NAME, ""))), "")
    return None if network.lower() in OWN else of_library(first) if first else of_network(network)


def ignores(plugin: Optional[NetPlugin], variable: str) -> bool:
    """Return whether it is known that the plugin does not read this variable of NCCL's InfiniBand transport."""
    reads = None if plugin is None else plugin.reads
    return reads is not None and variable.startswith(_OF_IB) and variable not in reads


def folders(host: Host, places: Sequence[str], problems: List[Problem]) -> List[str]:
    """Return folders that exist, each once, however many links lead there. places: paths; "*" is one name."""
    found: Dict[str, str] = {}
    for place in places:
        top, star, rest = place.partition("*")
        here = [place]
        if star:
            above, begin = top.rsplit("/", 1)
            names = attempt(partial(host.listdir_system, above), above, problems) or ()
            here = ["%s/%s%s" % (above, name, rest) for name in names if name.startswith(begin)]
        for folder in here:
            full = host.system(folder)
            if os.path.isdir(full):
                found.setdefault(os.path.realpath(full), folder)
    return list(found.values())


def find(host: Host, problems: List[Problem]) -> Tuple[str, ...]:
    """Return the network plugins in the usual places, as paths below the system root."""
    found = []
    for folder in folders(host, PLACES, problems):
        for name in attempt(partial(host.listdir_system, folder), folder, problems) or ():
            if name.startswith(_LIBRARY) and ".so" in name:
                found.append("%s/%s" % (folder, name))
    return tuple(found)


def among(entry: str, files: Sequence[str]) -> Optional[str]:
    """Return the file that an entry of NCCL_NET_PLUGIN loads, of those that were found; None for none."""
    wanted, plugin = library(entry), of_library(entry)
    if plugin is not None and plugin.setting[0] == NETWORK and "/" not in entry:
        return next((path for path in files if plugin.folder in path), None)
    return next((path for path in files if wanted in (path, path.rpartition("/")[2])), None)
