# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare the network plugin that a benchmark between nodes used with the one that jobs use. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import net_plugins
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.transport import NVLINK

from ..plain_data import PlainView
from .cluster_record import Record
from .engine import Job

VARIABLE = "busbar_nccl_net_plugin"
NET_PLUGIN = Check(
    "nccl_cluster.net_plugin",
    why="another network plugin has other figures: this job does not show how jobs of this cluster run",
    fix=f"correct {VARIABLE}, if jobs use another plugin; or give it the path of the library, so that the benchmark"
    " loads it, too; then run site.yml --tags nccl_conf",
)
"Did the job use the network plugin that jobs use according to the inventory (`busbar_nccl_net_plugin`)"


def declared(values: PlainView) -> str:
    """Return the plugin of jobs as a host's inventory names it; "" where it names none."""
    return str(values.get(VARIABLE) or (values.get("nccl_conf_extra") or {}).get(net_plugins.NAME) or "")


def judge(job: Job, transport: PlainView, wanted: str, bad: Finding | None) -> Iterator[Finding]:
    """Judge the plugin of a job. transport: as nccl_perf returns it.   bad: its first finding, which explains more."""
    networks = _networks(transport)
    if not wanted or len(job.hosts) < 2 or NVLINK in transport.get("networks", ()):
        return
    state, have = "ok" if _fits(wanted, networks) else "drift", _described(networks)
    if not networks:
        state, have = "unknown", "NCCL's log does not prove which network was used"
    want = f"the plugin {wanted}" if net_plugins.entries(wanted) else "NCCL's own network"
    yield NET_PLUGIN.judge(job.name, state, want, have, "NCCL's log", because=bad)


def sentence(record: Record) -> list[str]:
    """Return one sentence: the plugin that was measured with, and the one that jobs use."""
    of_jobs = [_networks(job.transport) for job in record.jobs if job.rows and len(job.hosts) > 1]
    networks = sorted({name for of_job in of_jobs for name in of_job})
    if not networks:
        return []
    other = any(one.check == NET_PLUGIN.id and one.state == "drift" for one in record.findings)
    uses = f"jobs use {record.net_plugin}" if record.net_plugin else f"that of jobs is not declared ({VARIABLE})"
    return [f"network plugin: measured with {_described(networks)}; {uses}{', which is another one' * other}"]


def _networks(transport: PlainView) -> list[str]:
    return [name for name in transport.get("networks", ()) if name != NVLINK] if transport.get("proven") else []


def _fits(wanted: str, networks: Sequence[str]) -> bool:
    """Return whether every network is one of the plugins; of a plugin that is not known, whether none is NCCL's own."""
    plugins = [net_plugins.of_library(entry) for entry in net_plugins.entries(wanted)]
    own = [name for name in networks if name.lower() in net_plugins.OWN]
    if not plugins:
        return len(own) == len(networks)
    return not own and (None in plugins or all(net_plugins.of_network(name) in plugins for name in networks))


def _described(networks: Sequence[str]) -> str:
    """Return ``Libfabric (aws-ofi-nccl)``, ``IB (NCCL's own)``."""
    texts = []
    for name in networks:
        plugin = net_plugins.of_network(name)
        owner = "NCCL's own" if name.lower() in net_plugins.OWN else plugin.owner if plugin else ""
        texts.append(f"{name} ({owner})" if owner else name)
    return " and ".join(texts)
