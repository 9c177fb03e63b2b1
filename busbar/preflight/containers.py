# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare NCCL's files on each node of a job with what a container of the job sees: one step each, as the job's user.

Sources: pyxis (srun's --container-image); POSIX cksum, which every image has.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, attempt
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import grammar, topo_file
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.checks import CONTAINER_VIEW
from ansible_collections.busbar.fabric.plugins.plugin_utils import findings_file, slurm_engine

from .steps import Steps

CONF = topo_file.CONF
# The node's name is in no option of srun's; cksum ends with 1 where a file is missing.
_SCRIPT = 'echo "busbar-node $SLURMD_NODENAME"; cksum "$@"; exit 0'
_NODE = re.compile(r"busbar-node ([!-~]{1,255})")
_SUM = re.compile(r"([0-9]{1,10}) ([0-9]{1,19}) (/.*)")
# Node -> path -> checksum and size.
Sums = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Views:
    """Files of each node, and in its container.   message: of srun, if the step in containers failed, else ""."""

    node: Sums
    container: Sums
    message: str = ""


def files(host: Host, environment: Mapping[str, str]) -> list[str]:
    """Return the paths to compare: nccl.conf, and the topology file that it or the job's environment names."""
    text = attempt(partial(host.read_system, CONF), CONF, []) or ""
    named = environment.get(topo_file.NAME) or grammar.settings(grammar.parse(text)).get(topo_file.NAME, "")
    return [CONF, named] if named.startswith("/") and named.isprintable() else [CONF]


def read(runs: Steps, image: str, paths: Sequence[str], options: Sequence[str], limit: float) -> Views:
    """Run both steps. options: of srun, for the container.   limit: seconds of each. Raises SlurmError."""
    argv = ("/bin/sh", "-c", _SCRIPT, "sh", *paths)
    nodes = runs.allocation.nodes
    node, _message = runs.print_on_all((), argv, limit)
    container, message = runs.print_on_all((f"--container-image={image}", *options), argv, limit)
    return Views(parse(node, nodes), parse(container, nodes), message)


def parse(text: str, nodes: Collection[str]) -> Sums:
    """Parse labelled output of the script. A node that was not queried, or that two tasks claim, is left out."""
    of_task: dict[int, str] = {}
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        label = slurm_engine.label_of(line.encode())
        if label is None:
            continue
        task, printed = label
        if head := _NODE.fullmatch(printed):
            if task not in of_task and head[1] in nodes:
                of_task[task] = head[1]
                found[head[1]] = {}
        elif (one := _SUM.fullmatch(printed)) and task in of_task:
            found[of_task[task]][one[3]] = f"{one[1]} {one[2]}"
    claimed = [*of_task.values()]
    return {node: sums for node, sums in found.items() if claimed.count(node) == 1}


def judge(views: Views, nodes: Sequence[str], paths: Sequence[str]) -> dict[str, list[Finding]]:
    """Return the findings of each node, one for each file."""
    return {node: [*_of_node(views, node, paths)] for node in nodes}


def _of_node(views: Views, node: str, paths: Sequence[str]) -> Iterator[Finding]:
    here, inside = views.node.get(node), views.container.get(node)
    for path in paths:
        want = here.get(path) if here is not None else None
        have = inside.get(path) if inside is not None else None
        fix, state = None, "unknown"
        if inside is None or here is None:
            text = f"no result of {'the node' if here is None else 'a container'}: {views.message or 'no message'}"
            fix = "run srun --container-image=IMAGE true in the job, and repair what it reports (Pyxis, the image)"
        elif want is None:
            text = "the node has no such file"
            fix = "run site.yml --tags nccl_conf for this host, or correct NCCL_TOPO_FILE"
        elif have is None:
            state, text = "drift", "absent in the container"
        else:
            state = "ok" if have == want else "drift"
            text = f"{'as on the node' if have == want else 'another file'}, cksum {have}"
        wanted = "as on the node" + (f", cksum {want}" if want else "")
        yield CONTAINER_VIEW.judge(path, state, wanted, text, "srun --container-image", fix)


def findings(found: Mapping[str, Sequence[Finding]], names: Mapping[str, str], job: str, started: str) -> str:
    """Return a findings file for busbar certify. names: node -> its name in the inventory, where that differs."""
    hosts = {names.get(node, node): of_node for node, of_node in found.items()}
    where = ([f"Slurm job {job}"], None, sorted(hosts), False)
    data = {
        "run": findings_file.of_run(started, findings_file.now(), *where),
        "hosts": {
            host: {
                "findings": [one.to_dict() for one in of_host if not one.ok],
                "accepted": [],
                "passed_ids": [one.id for one in of_host if one.ok],
            }
            for host, of_host in hosts.items()
        },
    }
    return "".join(
        findings_file.text(data, lambda host: {one.id: [one.have or "", one.source] for one in hosts[host] if one.ok})
    )
