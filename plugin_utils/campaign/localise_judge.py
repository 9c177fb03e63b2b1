# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a search for slow nodes: verdicts with their evidence, and a Finding for each host.

One cause, one line: a node's finding is caused by its rail or its rank, where one of them explains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding

from .. import nodeset
from .localise_record import LEAVES, PAIR, Evidence, HostFinding, Node, node_outcome
from .localise_search import Localisation
from .pairwise_search import ACCUSED, FAIL, GOOD, LOST, PASS, SILENT, PairwiseSearch

# Figures in a finding, and characters of host names.
_SHOWN, _ROOM = 4, 60
_SOURCE = "tests between nodes"
SEARCH = "ansible-playbook playbooks/localise.yml -i INVENTORY"

MEMBER = Check(
    "localise.member",
    severity="minor",
    why="a node that was not measured with another is neither accused nor cleared",
    fix="search again when the node is idle and reachable: " + SEARCH,
)
"Could the node be measured with others: idle, reachable, and still there at the end"

ALONE = Check(
    "localise.alone",
    why="a node that is slow alone would make every partner look slow",
    fix="look for GPU clocks, power and temperature, Xid errors and degraded PCIe slots of this node, then measure it"
    " again: ansible-playbook playbooks/benchmark.yml -i INVENTORY -e nccl_benchmark_when=always",
)
"Does the node alone reach its bar"

NODE = Check(
    "localise.node",
    why="one slow node holds up every job that it is part of; the good ones it was measured with are fast with others",
    fix="keep the node out of jobs; run ansible-playbook site.yml -i INVENTORY --limit NODE and repair what that finds;"
    " compare PCIe width, ACS and GPU clocks with a good node; then measure it again: " + SEARCH,
)
"""Is the node as fast with others as its bar:  one good partner clears it, failures with two different ones blame
it"""

RAIL = Check(
    "localise.rail",
    why="a ring is as fast as its slowest rail",
)
"Does each rail of a blamed node alone reach its bar to and from good nodes, and in both directions at once"

RANK = Check(
    "localise.rank",
    why="one slow GPU holds up all others; it is slow with each GPU of its node, too, where no rail is in between",
    fix="look at this GPU's clocks, power cap, temperature and throttle reasons (nvidia-smi -q), at"
    " Xid errors and at what else runs on its CPUs; then measure again: " + SEARCH,
)
"""Is each GPU as fast with another GPU of the node as its bar; checked if the node is slow alone or its rails
explain nothing"""

LEAF = Check(
    "localise.leaf",
    why="nodes that are fast in pairs and slow together have a common cause: usually their switch",
    fix="look on this leaf's switch for discards, pause frames, a degraded port and unlike QoS settings, then measure"
    " again: ansible-playbook playbooks/benchmark.yml -i INVENTORY -e nccl_benchmark_scope=leaf -e"
    " nccl_benchmark_when=always",
)
"Are the good nodes of each leaf, all together, as fast as their bar"

UPLINK = Check(
    "localise.uplink",
    why="slow uplinks delay every node of a leaf, so no single node is the cause",
    fix="look on this leaf's switch for uplinks that are down, slow or have errors, and for unbalanced ECMP or adaptive"
    " routing; then measure again: ansible-playbook playbooks/benchmark.yml -i INVENTORY -e"
    " nccl_benchmark_scope=cluster -e nccl_benchmark_when=always",
)
"Do the good nodes of each leaf reach those of another leaf as fast as their bar"

CLUSTER = Check(
    "localise.cluster",
    why="all pairs and leaves are fast, but not all together: something shared, or a node at scale, is slow",
    fix="look at the spine switches' counters, at routing and at the subnet manager; then measure again:"
    " ansible-playbook playbooks/benchmark.yml -i INVENTORY -e nccl_benchmark_scope=cluster -e"
    " nccl_benchmark_when=always",
)
"Are all good nodes of all good leaves together as fast as their bar"

BAR = Check(
    "localise.bar",
    why="if fewer are good than slow, the majority proves nothing: the bar, or something shared, is wrong",
    fix="compare the bar with what the hardware can (docs/bars.md), then look at what all nodes share: switches, QoS,"
    " versions of driver and NCCL (ansible-playbook playbooks/verify.yml -i INVENTORY)",
)
"Is there a bar, and are more nodes good than slow against it"


# Hosts, and the finding that they have.
Judged = tuple[tuple[str, ...], Finding]
# Number of slow directions of a rail, each loaded alone: the usual cause, and what to do about it.
_RAIL_FAULTS = {
    2: (
        "slow in both directions: NIC, cable or switch port",
        "swap the cable of rail {rail} of {host} with that of a good rail: what goes with the cable is the cable,"
        " what stays is the NIC or its PCIe slot, what stays at the switch is its port",
    ),
    1: (
        "slow only where it {end}: one fibre or one end's transceiver",
        "clean and reseat both ends of the cable of rail {rail} of {host}, compare transmit and receive power of"
        " the NIC's and the switch's transceiver (mlxlink -m), then swap the cable",
    ),
    0: (
        "each direction alone is fast, both at once are slow: PCIe or ordering",
        "look at PCIe width and speed, MRRS, ACS and relaxed ordering of rail {rail}'s NIC: run ansible-playbook"
        " site.yml -i INVENTORY --tags pcie_path --limit {host}",
    ),
}


def verdicts(search: Localisation) -> tuple[HostFinding, ...]:
    """Return the verdicts so far; final once ``next_round`` is empty. Nodes that were not tested are ``unknown``."""
    return tuple(HostFinding(hosts=hosts, finding=finding) for hosts, finding in _verdicts(search))


def findings(found: Iterable[HostFinding]) -> dict[str, list[Finding]]:
    """Return host -> its findings."""
    of_host: dict[str, list[Finding]] = {}
    for verdict in found:
        for host in verdict.hosts:
            of_host.setdefault(host, []).append(verdict.finding)
    return of_host


def _verdicts(search: Localisation) -> Iterator[Judged]:
    for host, node in search.nodes.items():
        left_out = [*_left_out(search, node)]
        yield from left_out or _of_node(search, host)
    everybody = tuple(search.screened)
    if not everybody:
        return
    yield everybody, _bar(search, everybody)
    if search.pairs.stopped or search.no_bar:
        return
    places = nodeset.grouped((node.leaf, host) for host, node in search.screened.items())
    for leaf, hosts in places.items():
        if leaf in search.pairs.shut:
            yield tuple(hosts), _shut(search, leaf, hosts)
        else:
            yield from _team(LEAF, _leaf(leaf), search.leaves.get(leaf, ()))
    if search.uplinks is not None:
        yield from _uplinks(search, search.uplinks, places)
    yield from _team(CLUSTER, "cluster", search.cluster)


def _left_out(search: Localisation, node: Node) -> Iterator[Judged]:
    hosts = (node.host,)
    if node.unfit is None and node.host not in search.no_leaf and node_outcome(node) == FAIL:
        want, have = "at least %.4g GB/s" % (node.alone_bar or 0), "%.4g GB/s" % (node.alone or 0)
        ranks = [*_ranks(search, node.host)]
        yield from ((hosts, one) for one in ranks)
        have += "" if ranks else _of_gpus(search, node.host)
        cause = ranks[0] if ranks else None
        yield hosts, ALONE.judge("host", "drift", want, have, "nccl-tests on the node", because=cause)
        return
    if node.unfit is not None:
        have, fix = node.unfit
    elif node.host in search.no_leaf:
        have, fix = "busbar_leaf is set for other nodes, not for this one", "set busbar_leaf for every node"
    elif node_outcome(node) == SILENT:
        have = "it was not measured alone" if node.alone_bar is not None else "it has no bar for itself"
        fix = "see nccl_benchmark and nccl_perf of this node, repair it, and search again: " + SEARCH
    else:
        return
    yield (
        hosts,
        MEMBER.judge("host", "unknown", "measured with others", f"left out: {have}", "inventory and facts", fix),
    )


def _of_node(search: Localisation, host: str) -> Iterator[Judged]:
    item, hosts, evidence = search.pairs.items[host], (host,), search.of_host(host)
    want = "as fast with a good node as the bar"
    if host in search.lost:
        have = f"it was lost while it was measured: {search.lost[host]}"
        yield hosts, MEMBER.judge("host", "unknown", "there to the end", have, _SOURCE)
    if item.state == GOOD:
        yield hosts, NODE.judge("host", "ok", want, _passed(evidence, host), _SOURCE)
    elif item.state == ACCUSED:
        roots = [*_rails(search, host), *_ranks(search, host)]
        yield from ((hosts, one) for one in roots)
        have = _several(evidence, host)
        if not roots:
            have += _of_rails(search, host) + _of_gpus(search, host)
        yield hosts, NODE.judge("host", "drift", want, have, _SOURCE, because=roots[0] if roots else None)
    elif item.state != LOST:
        have = _why_open(search, host)
        fix = "free another node of its leaf, see the output of the tests without a result, and search again: " + SEARCH
        cause = LEAF.finding_id(_leaf(item.place)) if item.place in search.pairs.shut else None
        if search.no_bar or search.pairs.stopped:
            cause = BAR.finding_id("bar")
        yield hosts, NODE.judge("host", "unknown", want, have, _SOURCE, fix, because=cause)


def _why_open(search: Localisation, host: str) -> str:
    item, evidence = search.pairs.items[host], search.of_host(host)
    reasons = (
        (bool(search.no_bar), f"there is no bar: {search.no_bar}"),
        (search.pairs.stopped, "too few nodes are good for a verdict"),
        (item.place in search.pairs.shut, "no node of its leaf passes, which blames the leaf"),
        (not evidence, "no other node of its leaf was free"),
        (len(set(item.unheard)) > 1, "no result with two good nodes"),
        (bool(item.across) and not item.against, "slow over uplinks only, with no good node of the same leaf"),
        (True, "neither passed nor failed with two good nodes of its leaf"),
    )
    why = next(text for applies, text in reasons if applies)
    return why if search.no_bar or not evidence else f"{why}: {_several(evidence, host)}"


def _rails(search: Localisation, host: str) -> Iterator[Finding]:
    for rail in search.slow_rails(host):
        of_host = search.rails[host]
        slow = [each for each in of_host.slow() if each[0] == rail]
        evidence = [one for each in slow for one in of_host.evidence[each] if one.outcome == FAIL]
        single = [sends for _rail, sends, both in slow if not both]
        end = "sends" if single and single[0] else "receives"
        why, fix = (text.format(rail=rail, host=host, end=end) for text in _RAIL_FAULTS[len(single)])
        fix += "; then measure again: ansible-playbook playbooks/verify.yml -i INVENTORY"
        want = "%s GB/s each way" % _least(evidence[0])
        yield RAIL.judge(f"rail {rail}", "drift", want, f"{why}; {_several(evidence, host)}", _SOURCE, fix)


def _of_rails(search: Localisation, host: str) -> str:
    rails = search.rails.get(host)
    if rails is None or not rails.rails:
        return ""
    if rails.slow():
        return "; every rail is slow alone"
    if set(rails.directions()) == rails.passed:
        return "; each rail alone is fast, in both directions"
    return "; its rails were not proven one by one"


def _ranks(search: Localisation, host: str) -> Iterator[Finding]:
    gpus = (search.gpus or {}).get(host)
    for gpu in gpus.slow() if gpus else ():
        evidence = gpus.evidence[gpu] if gpus else []
        want = "%s GB/s with another GPU of the node" % _least(evidence[0])
        yield RANK.judge(f"gpu {gpu}", "drift", want, _several(evidence, str(gpu)), "nccl-tests on the node")


def _of_gpus(search: Localisation, host: str) -> str:
    gpus = (search.gpus or {}).get(host)
    if not search.nodes[host].gpus:
        return ""
    if gpus is None or not gpus.evidence:
        return "; its GPUs were not measured in pairs"
    tests = list(dict.fromkeys(one for of_gpu in gpus.evidence.values() for one in of_gpu))
    good = len(gpus.passes.of_state(GOOD))
    if good == len(gpus.passes.items):
        return "; each GPU is fast with another one of the node"
    return "; %d of its %d GPUs are fast with another one: %s" % (good, len(gpus.passes.items), _several(tests))


def _bar(search: Localisation, hosts: Sequence[str]) -> Finding:
    want = "a bar that more nodes reach than miss"
    tests = [one for one in search.evidence if one.test.kind == PAIR]
    good = len(search.pairs.of_state(GOOD))
    if search.no_bar:
        fix = "put a bar for it into bars.yml beside the inventory, as in docs/bars.md"
        return BAR.judge("bar", "unknown", want, search.no_bar, _SOURCE, fix)
    if search.pairs.stopped:
        state = "drift" if any(one.outcome == FAIL for one in tests) else "unknown"
        have = "%d of %d nodes passed with another, and none is blamed: %s" % (good, len(hosts), _several(tests))
        return BAR.judge("bar", state, want, have, _SOURCE)
    if not good:
        return BAR.judge("bar", "unknown", want, "no pair was measured", _SOURCE, MEMBER.fix)
    return BAR.judge("bar", "ok", want, "%d of %d nodes are good" % (good, len(hosts)), _SOURCE)


def _shut(search: Localisation, leaf: str, hosts: Sequence[str]) -> Finding:
    evidence = [one for one in search.evidence if one.test.kind == PAIR and set(hosts) & set(one.test.hosts)]
    state = "drift" if any(one.outcome == FAIL for one in evidence) else "unknown"
    have = "none of its %d nodes passes, with each other or with good nodes of other leaves: %s" % (
        len(hosts),
        _several(evidence),
    )
    return LEAF.judge(_leaf(leaf), state, "nodes that are fast in pairs", have, _SOURCE)


def _team(check: Check, subject: str, tests: Sequence[Evidence]) -> Iterator[Judged]:
    """Judge a team, with a finding on each host. A leaf of two, or a cluster of one leaf, has no test."""
    if not tests:
        return
    hosts, outcomes = tests[-1].test.hosts, {one.outcome for one in tests}
    state = "ok" if PASS in outcomes else "drift" if outcomes == {FAIL} else "unknown"
    have = _passed(tests) if state == "ok" else "%s, over %s" % (_several(tests), nodeset.brief(hosts, _ROOM))
    want = "%s GB/s over %d nodes" % (_least(tests[-1]), len(hosts))
    yield hosts, check.judge(subject, state, want, have, _SOURCE)


def _uplinks(search: Localisation, uplinks: PairwiseSearch, places: Mapping[str, Sequence[str]]) -> Iterator[Judged]:
    for leaf, item in uplinks.items.items() if len(uplinks.items) > 1 else ():
        evidence = [one for one in search.evidence if one.test.kind == LEAVES and leaf in one.test.about]
        shown = _several(evidence)
        if item.state == GOOD:
            state, have = "ok", _passed(evidence)
        elif item.state == ACCUSED:
            state, have = "drift", f"slow with leaves that are fast with others: {shown}"
        elif uplinks.stopped and any(one.outcome == FAIL for one in evidence):
            state, have = "drift", f"no leaf is left to show which uplinks are slow, or whether the spine is: {shown}"
        else:
            state, have = "unknown", f"neither fast nor slow for certain: {shown if evidence else 'not measured'}"
        yield tuple(places[leaf]), UPLINK.judge(_leaf(leaf), state, "as fast to another leaf as the bar", have, _SOURCE)


# -- texts -------------------------------------------------------------------------------------------------------------


def _leaf(name: str) -> str:
    return f"leaf {name}" if name else "all nodes, taken for one leaf"


def _least(one: Evidence) -> str:
    return "at least %.4g" % one.bar.value if one.bar.value is not None else "a bar of"


def _passed(evidence: Sequence[Evidence], host: str = "") -> str:
    return _several([one for one in evidence if one.outcome == PASS][:1], host)


def _several(evidence: Sequence[Evidence], host: str = "") -> str:
    """Format the last figures, those with good partners, and their bars; a disturbed first test proves the least."""
    texts = [_evidence_text(one, host) for one in evidence[-_SHOWN:]]
    if len(evidence) > _SHOWN:
        texts.append("%d earlier" % (len(evidence) - _SHOWN))
    sources = dict.fromkeys(one.bar.source for one in evidence[-_SHOWN:] if one.outcome != SILENT)
    return ("; ".join(texts) or "no test") + (f" (bar: {', '.join(sources)})" if sources else "")


def _evidence_text(one: Evidence, host: str) -> str:
    """Format ``round 2 with n07: 231 of 346 GB/s``, ``round 4 rail 3 to n07: 20 of 43.2 GB/s``."""
    test = one.test
    others = [each for each in test.hosts if each != host]
    if one.pair is not None:
        mates = [gpu for gpu in one.pair if str(gpu) != host]
        where = "with gpu %d" % mates[0] if len(mates) == 1 else "gpu %d with gpu %d" % one.pair
    elif one.way is not None:
        end = "to" if one.way.source == host else "from"
        both = " with both directions full" if one.way.both else ""
        where = f"rail {one.way.rail} {end} {others[0]}{both}"
    elif test.kind == PAIR:
        where = f"with {others[0]}" if host else " with ".join(others)
    else:
        where = (" with ".join(test.about) if len(test.about) < 3 else "%d leaves" % len(test.about)) or "all nodes"
    if one.outcome == SILENT:
        return "round %d %s: %s" % (test.number, where, one.said or "no figure")
    return "round %d %s: %.4g of %.4g GB/s" % (test.number, where, one.figure or 0, one.bar.value or 0)
