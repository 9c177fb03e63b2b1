# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Records of sweeps of simulated InfiniBand fabrics, for tests of the reports. Nothing was measured."""

from __future__ import annotations

from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Node, Port, SubnetManager, Sweep
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import cabling, links, tree
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Host, Line, Rail
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.record import Record

from tests.report.records import FINISHED


def guid(plane: int, kind: int, number: int) -> str:
    return f"{0x0C42A10300000000 + (plane << 24) + (kind << 20) + 16 * number:016x}"


def swept(
    hosts: int = 600, leaves: int = 30, spines: int = 10, planes: int = 1, faulty: bool = True, name: str = "n{:04}"
) -> Record:
    """Host i is on leaf i of the leaves, in turn; two cables from each leaf to each spine.

    faulty: in the first plane one rail is slow, one is lost, one uplink has errors, and one is lost.
    """
    names = [name.format(i) for i in range(hosts)]
    rails: dict[str, list[Rail]] = {host: [] for host in names}
    sweeps, findings = [], []
    for plane in range(planes):
        ports: dict[str, list[Port]] = {}
        tops = [guid(plane, 8, i) for i in range(spines)]
        bottoms = [guid(plane, 4, i) for i in range(leaves)]
        nodes = []

        def connect(one: tuple[str, int], two: tuple[str, int], ports: dict[str, list[Port]] = ports) -> None:
            for end, other in ((one, two), (two, one)):
                ports.setdefault(end[0], []).append(Port(end[1], "active", "LinkUp", 4, "NDR", peer=other))

        for i, host in enumerate(names):
            own = guid(plane, 0, i + 1)
            rails[host].append(Rail(plane, f"0000:{0x10 + plane:02x}:00.0", own, None, 1, 400.0, f"mlx5_{plane}"))
            if not (faulty and plane == 0 and i == 7):
                connect((own, 1), (bottoms[i % leaves], 1 + i // leaves))
        for i, leaf in enumerate(bottoms):
            for j, top in enumerate(tops):
                for cable in range(2):
                    if not (faulty and plane == 0 and (i, j, cable) == (3, 1, 1)):
                        connect((leaf, 64 + 2 * j + cable), (top, 1 + 2 * i + cable))
        for i, host in enumerate(names):
            own = guid(plane, 0, i + 1)
            if own in ports:
                nodes.append(Node(own, "ca", f"{host} mlx5_{plane}", ports=tuple(ports[own])))
        for kind, group in (("leaf", bottoms), ("spine", tops)):
            for i, one in enumerate(group):
                name_of = f"MF0;p{plane}-{kind}{i + 1:02}:MQM9700/U1"
                nodes.append(Node(one, "switch", name_of, ports=tuple(ports.get(one, ()))))
        manager = f"{int(guid(plane, 0, 1), 16) + 1:016x}"
        swept_by = (manager, names[0], f"mlx5_{plane}", 1, FINISHED, 1.5)
        master = (SubnetManager(manager, "master"),)
        sweeps.append(Sweep(*swept_by, managers=master, nodes=tuple(nodes), complete=True))
        if faulty and plane == 0:
            bad = (
                ("n0042", links.WIDTH, "n0042 rail 0", "1x NDR"),
                ("n0007", cabling.DOWN, "n0007 rail 0", "no cable"),
                ("n0000", links.SYMBOLS, f"switch 0x{bottoms[1]} port 64", "12 in 125 min"),
                ("n0000", tree.UPLINKS, f"switch 0x{bottoms[3]}", "19 uplinks"),
            )
            for host, check, subject, have in bad:
                findings.append(Line((host,), check.judge(subject, "drift", "better", have, "a test", "repair it")))
    hosts_of = {host: Host(tuple(own)) for host, own in rails.items()}
    times: dict[str, Any] = {"begun": FINISHED, "finished": FINISHED, "taken": (FINISHED,) * planes}
    seen: dict[str, Any] = {"hosts": hosts_of, "sweeps": tuple(sweeps), "findings": tuple(findings)}
    return Record(asked=tuple(names[:2]), before="20261120T000000Z-abcdefgh", complete=True, **times, **seen)
