# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide which nodes of a play can be measured together, and query them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.nccl.cluster_member import NVLINK_DOMAIN

from .. import host_variables, result_schema
from ..intent import ADDRESS
from ..plain_data import Plain, PlainView
from .engine import Call, Result, Run, roots

AGAIN = "run it again for this host with -vvv"
# Characters of reasons.
REASONS = 300


@dataclass(frozen=True)
class Settings:
    """The inventory's values of a host; only hosts with equal ones are measured together.

    kind: profile and fabric.   sizes: the smallest and the largest message in bytes.   gpus: of each node.
    rails: numbers of the profile's.   extra: other values that have to be equal, such as options of the launcher.
    apart: NVLinks also lead to other nodes, and are excluded from measurements between nodes, except in scope
        nvlink_domain.
    """

    kind: str
    scope: str
    collectives: tuple[str, ...]
    sizes: tuple[int, int]
    gpus: int
    rails: tuple[int, ...] = ()
    extra: tuple[str, ...] = ()
    apart: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """Return variables of every job between nodes: it measures either the network or the NVLinks."""
        if self.scope == NVLINK_DOMAIN:
            return {"NCCL_MNNVL_ENABLE": "1"}
        return {"NCCL_MNNVL_ENABLE": "0"} if self.apart else {}


@dataclass(frozen=True)
class Member:
    """One host.

    host: its name in the inventory.   name: its own host name, "" where unknown.   address: how a launcher
    reaches it.   leaf: "" where the inventory says none.   build: NCCL, MPI and commit of its programs.
    rails: number -> RDMA device and index of the nearest GPU.   unfit: why it cannot take part, and what to do.
    domain: in scope nvlink_domain its UUID and clique; "" where it is in none, no_domain has the reason.
    """

    host: str
    settings: Settings
    name: str = ""
    address: str = ""
    leaf: str = ""
    build: str = ""
    rails: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    unfit: tuple[str, str] | None = None
    domain: str = ""
    no_domain: str = ""


def ambiguous(members: Sequence[Member]) -> dict[str, tuple[str, str]]:
    """Return hosts that share a name or address with another: their results could not be distinguished."""
    left: dict[str, tuple[str, str]] = {}
    for what, fix in (
        ("name", "give each node a unique host name (hostnamectl set-hostname)"),
        ("address", "give each node a unique nccl_benchmark_address"),
    ):
        holders: dict[str, list[str]] = {}
        for one in members:
            holders.setdefault(getattr(one, what), []).append(one.host)
        for value, hosts in holders.items():
            for host in hosts if len(hosts) > 1 else ():
                other = next(each for each in hosts if each != host)
                more = " and %d more" % (len(hosts) - 2) if len(hosts) > 2 else ""
                said = "calls itself" if what == "name" else "is reached by"
                left.setdefault(host, (f"it {said} {value}, and so does {other}{more}", fix))
    return left


def unlike(group: Sequence[Member]) -> dict[str, tuple[str, str]]:
    """Return hosts whose programs are of another build than most: NCCL refuses, or hangs with, mixed versions."""
    ranked = Counter(one.build for one in group).most_common(2)
    if len(ranked) < 2:
        return {}
    fix = "run site.yml --tags nccl_tests for all of gpu_nodes, so that all have one NCCL, MPI and nccl-tests"
    most = None if ranked[0][1] == ranked[1][1] else ranked[0][0]
    other = "%d nodes have %s" % (ranked[0][1], ranked[0][0])
    if most is None:
        other = "as many nodes have %s as %s" % tuple(sorted(build for build, _count in ranked))
    return {one.host: (f"it has {one.build}; {other}", fix) for one in group if one.build != most}


def sort_out(
    members: Sequence[Member], kind_of: Callable[[Member], Settings]
) -> tuple[dict[Settings, list[Member]], dict[str, tuple[str, str]]]:
    """Return the hosts of each kind that can be measured together, and why others are left out, and what to do."""
    left = {one.host: one.unfit for one in members if one.unfit is not None}
    left.update(ambiguous([one for one in members if one.unfit is None]))
    groups: dict[Settings, list[Member]] = {}
    for one in members:
        if one.host not in left:
            groups.setdefault(kind_of(one), []).append(one)
    for kind, group in groups.items():
        left.update(unlike(group))
        groups[kind] = [one for one in group if one.host not in left]
    return groups, left


def address_of(host: str, wanted: PlainView) -> str:
    """Return the host's address for the launcher, from the inventory alone: a node's own result is not trusted."""
    if wanted.get("nccl_benchmark_address"):
        return str(wanted["nccl_benchmark_address"])
    if wanted.get("nccl_benchmark_launcher") == "srun":
        return str(wanted.get("drain_slurm_node") or host.partition(".")[0])
    return host


class Site:
    """The hosts of a play and the way to their nodes.

    variables: host -> its variables: its intent, its lock and results of earlier roles are read.   there: hosts that
    are still in the play.   say: prints a line.   name_of: host -> how others reach it where a rail has no address.
    drained: hosts whose drain in Slurm is the run's own.
    """

    def __init__(
        self,
        variables: Mapping[str, PlainView],
        there: Collection[str],
        run: Run,
        say: Callable[[str], object],
        name_of: Callable[[str], str] = str,
        drained: Collection[str] = (),
    ) -> None:
        self.variables = variables
        self.there = there
        self.run = run
        self.say = say
        self.name_of = name_of
        self._drained = drained
        # Hosts whose inventory was read and that no other run works on.
        self.ready = [host for host in variables if host in there and "profile" in self.intent(host)]

    def intent(self, host: str) -> PlainView:
        found: PlainView = self.variables[host].get("busbar_intent") or {}
        return found

    def values(self, host: str) -> PlainView:
        return host_variables.values(self.variables[host])

    def query(
        self, module: str, hosts: Collection[str], options: Callable[[str], PlainView], profile: bool = True
    ) -> dict[str, Result]:
        """Run a module that reads on those of the hosts that are ready. options: of a host.

        profile: it also has the options of the platform. Return host -> result.
        """
        there = [host for host in self.ready if host in hosts]
        calls = [Call(host, module, {**self._common(host, profile), **options(host)}) for host in there]
        return dict(zip(there, self.run(calls), strict=True))

    def query_members(self, hosts: Collection[str]) -> dict[str, Result]:
        """Query what decides whether a node can take part."""
        return self.query("nccl_cluster", hosts, self._member_options)

    def query_rails(self) -> dict[str, Result]:
        """Query the rails of all hosts that are ready."""
        return self.query("topology_info", self.ready, self._rail_options)

    def _rail_options(self, host: str) -> Plain:
        roce = self.values(host)["busbar_roce"] or {}
        return {
            "subset": "rails",
            "address_family": roce.get("address_family", "ipv4"),
            "dscp": roce.get("dscp", -1),
        }

    def _common(self, host: str, profile: bool) -> Plain:
        intent, values = self.intent(host), self.values(host)
        of_platform = {name: intent[name] for name in ("profile", "profile_name")} if profile else {}
        return {**of_platform, **({"fabric": values["busbar_fabric"]} if profile else {}), **roots(values)}

    def _member_options(self, host: str) -> Plain:
        values = self.values(host)
        slurm = "srun" in (values["nccl_benchmark_launcher"], {"slurm": "srun"}.get(values["busbar_drain"]))
        # Where Slurm is queried from one host for all, that host knows nothing of this node's state.
        queried = slurm and values["drain_slurm_host"] in ("", host) and host not in self._drained
        return {
            "phase": "member",
            "nccl_tests_path": values["nccl_tests_path"],
            "launcher": values["nccl_benchmark_launcher"],
            "slurm_node": (values["drain_slurm_node"] or host.partition(".")[0]) if queried else "",
            "nvlink_domain": values["nccl_benchmark_scope"] == NVLINK_DOMAIN,
        }

    def unfit(self, host: str, read: Result) -> tuple[str, str] | None:
        """Return why a host cannot take part, and what to do; None where it can. read: of phase ``member``."""
        lock = result_schema.given(self.variables[host].get("node_lock_result"), "node_lock")
        there, address = host in self.there, address_of(host, self.values(host))
        if lock.get("held") is False:
            return "another run works on it", "run it again when that run has ended"
        if read.get("unreachable") or lock.get("unreachable"):
            return "unreachable", "check that the node is up and that ssh to it works"
        if read.get("failed"):
            return " ".join(str(read.get("msg")).split())[:REASONS], AGAIN
        if there and "profile" not in self.intent(host):
            return "its inventory was not read", AGAIN
        if "member" not in read or not there:
            return "it was lost before it could be queried", AGAIN
        if found := read.get("unfit"):
            more = " (and %d more)" % (len(found) - 1) if len(found) > 1 else ""
            return found[0]["have"][:REASONS] + more, found[0]["fix"] or AGAIN
        if ADDRESS.fullmatch(address) is None:
            return f"{address!r} is not an address for a launcher", "set nccl_benchmark_address for this host"
        return None
