# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Predict the bus bandwidth of a profile's hardware, within a node and between nodes, and derive bars.

A prediction uses the profile alone: a node with nine of eighteen NVLinks, or seven of eight rails, must not
lower its own expected value. It is for large messages. Bandwidths are busbw in GB/s (1e9 bytes), with SHARP algbw.
Sources: NCCL's own constants (src/graph/topo.h), and published and measured figures; docs/bars.md names them.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import PcieLink, Profile, Rail
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.cluster_member import NVLINK_DOMAIN

from .busbw_bars import ALGORITHMS, SCOPES, Bar, Prediction, find_bar, find_latency_bar

# all_reduce in the NVSwitch, over links x constant, by number of GPUs: published runs on H100 and H200 (nccl#1455,
# nccl-tests#272). With four or fewer it gains nothing. Blackwell from NCCL's own constants, not measured.
_NVLS_HOPPER = {5: 1.13, 6: 1.19, 7: 1.24, 8: 1.29}
_NVLS_BLACKWELL = {8: 1.115}
# Published all_reduce of GB300 over NVLink domains: 932 GB/s on 64 GPUs, 937 on 72, of 722 by links x constant.
_NVLS_GB300 = {8: 1.29}
# Over the NVLinks of a rack that gain is held, and none is added: published all_reduce over 8 GPUs of two trays 811,
# over 72 GPUs 835 to 847 (NCCL 2.26.2), of 722 by links x constant.


@dataclass(frozen=True)
class Generation:
    """GPUs by the driver's names of them.

    link: GB/s of one NVLink, one direction, as NCCL counts it (topo.h).   nvls: can reduce in the NVSwitch.
    gains: see _NVLS_HOPPER.   rack: NVLinks also lead to other nodes, which a profile does not describe.
    """

    model: str
    link: float
    nvls: bool
    gains: Mapping[int, float]
    rack: bool = False


_GENERATIONS = (
    Generation(r"Tesla V100\b|V100\b", 20.0, False, {}),
    Generation(r"A100\b|A800\b", 20.0, False, {}),
    Generation(r"H100\b|H200\b|H800\b|GH200\b", 20.6, True, _NVLS_HOPPER),
    # Published on two nodes with NVLS: 343 GB/s (nccl#1244), what a ring reaches: it has 78 SMs of the H100's 132.
    Generation(r"H20\b", 20.6, True, {}),
    Generation(r"B100\b|B200\b|B300\b", 40.1, True, _NVLS_BLACKWELL),
    Generation(r"GB200\b", 40.1, True, _NVLS_BLACKWELL, rack=True),
    Generation(r"GB300\b", 40.1, True, _NVLS_GB300, rack=True),
)
# Share of links x constant that a healthy node reaches at 8 GiB. Measured on eight H200 (all_reduce 366.7, all_gather
# 354.9, reduce_scatter 357.2 GB/s of 370.8) and on four (broadcast 362.9, reduce 367.0, alltoall 353.3, sendrecv
# 365.9), NVLS off. all_reduce is a little below that, to fit two GPUs (350.1), too.
_REACHED = {
    "all_reduce": 0.97,
    "all_gather": 0.95,
    "reduce_scatter": 0.955,
    "broadcast": 0.98,
    "reduce": 0.985,
    "alltoall": 0.95,
    "sendrecv": 0.985,
}
# Two ranks do not fill the links with these: measured on two H200, 311 and 294 GB/s.
_REACHED_BY_TWO = {"all_gather": 0.84, "reduce_scatter": 0.79}

# Share of a NIC's rate: 46-49 GB/s of 50 on NDR, 24 of 25 on HDR (nccl-tests#290, #267, #119). RoCE: 370 GB/s of 400
# (oci-hpc#48).
EFFICIENCY = 0.96
EFFICIENCY_ETHERNET = 0.92
# From one root: four H100 nodes, 286 GB/s where all_gather reached 324 (aigatech/vpbenchmarking). reduce as broadcast.
_ROOTED = {"broadcast": 0.88, "reduce": 0.88}
# Switches that reduce: algbw of 80 and 110 GB/s with four and eight HDR NICs, of 96 and 133 (nccl#320).
_SHARP = 0.83
# GB/s of a PCIe lane, by its speed in GT/s, as NCCL counts them (src/graph/topo.cc).
_LANE = {2.5: 0.1875, 5.0: 0.375, 8.0: 0.75, 16.0: 1.5, 32.0: 3.0, 64.0: 6.0}

# Share of a prediction for a derived bar: noise of pairs, and up to 10 % that large clusters are slower by.
SHARES = {"node": 0.90, "rail": 0.90, "pair": 0.90, "leaf": 0.85, NVLINK_DOMAIN: 0.85, "cluster": 0.85}
# Bytes a rank at which half of the bandwidth is reached: eight H200 need 1 to 2.7 MiB from 16 MiB to 1 GiB.
_HALF = 4 << 20
# all_reduce of 8 bytes over two nodes of eight H20, NDR: 47 us (nccl#1244). More nodes are more levels of a tree. A
# derived bar is twice as much: 65-75 us are healthy on AWS p5, and sockets need several times that.
_LATENCY, _LATENCY_LEVEL, _LATENCY_SHARE = 47.0, 15.0, 2.0
_SMALL = 1024

# -- within a node -----------------------------------------------------------------------------------------------------


def _generation(profile: Profile) -> Generation | None:
    """Return the GPUs' generation; None for an unknown model, or several different ones."""
    found: list[Generation | None] = []
    for model in profile.gpus.models:
        match = next((row for row in _GENERATIONS if re.match(rf"(?:NVIDIA )?(?:{row.model})", model)), None)
        if match not in found:
            found.append(match)
    return found[0] if len(found) == 1 else None


def nvls_expected(profile: Profile, settings: Mapping[str, str]) -> bool:
    """Return whether NCCL should reduce in the NVSwitch on this platform. settings: the site's NCCL variables."""
    generation = _generation(profile)
    possible = profile.gpus.nvlink_fabric and generation is not None and generation.nvls
    return possible and settings.get("NCCL_NVLS_ENABLE", "").strip() != "0"


def predict(profile: Profile, collective: str, nvls: bool, gpus: int | None = None) -> Prediction:
    """Return busbw of a large message within a node. gpus: ranks, where that is not all GPUs of the profile."""
    ranks = profile.gpus.count if gpus is None else gpus
    generation = _generation(profile)
    if not profile.gpus.nvlinks:
        return Prediction(None, "no NVLinks in the profile")
    if generation is None:
        return Prediction(None, "the NVLinks of {} are not known".format(", ".join(profile.gpus.models)))
    if collective not in _REACHED:
        return Prediction(None, f"{collective} is not known")
    links, link, how = profile.gpus.nvlinks, generation.link, ""
    reached = _REACHED_BY_TWO.get(collective, _REACHED[collective]) if ranks == 2 else _REACHED[collective]
    if nvls and collective == "all_reduce" and ranks in generation.gains:
        reached, how = generation.gains[ranks], " with NVLS"
    return Prediction(links * link * reached, f"{links} NVLinks x {link:g} GB/s x {reached:g}{how}")


# -- between nodes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wire:
    """GB/s that leave a node, and the least that one rail takes of it; rule: their derivation."""

    total: float
    slowest: float
    rule: str


def between(
    profile: Profile,
    collective: str,
    nvls: bool,
    nodes: int,
    scope: str,
    algorithm: str = "",
    efficiency: float | None = None,
) -> Prediction:
    """Predict a large message over several nodes like the profile's; with algorithm SHARP, its algbw.

    profile: narrowed to the site's fabric (``for_fabric``), else RoCE is taken for InfiniBand.
    nvls: NCCL may reduce in the NVSwitch.   efficiency: of a NIC's rate; None: EFFICIENCY, or that of RoCE.
    Scope rail is one GPU of each node over its rail, and the slowest of them; node is ``predict``; nvlink_domain goes
    over the NVLinks between trays, and over no network.
    """
    if scope == NVLINK_DOMAIN:
        return _over_nvlink(profile, collective, nvls, nodes, algorithm)
    found = _between(profile, collective, nvls, nodes, scope, algorithm, efficiency)
    if profile.nvlink_domain is None or found.busbw is None or scope == "node":
        return found
    return Prediction(found.busbw, f"{found.rule}; NVLinks between nodes left out")


def _between(
    profile: Profile, collective: str, nvls: bool, nodes: int, scope: str, algorithm: str, efficiency: float | None
) -> Prediction:
    if scope == "node":
        return predict(profile, collective, nvls)
    if reason := _unpredictable(profile, collective, nodes, scope, algorithm):
        return _unknown(reason)
    wire = _wire(profile, efficiency)
    one_rail = f"one rail, {wire.slowest:.4g} GB/s"
    gpus = 1 if scope == "rail" else profile.gpus.count
    if scope == "rail":
        wire = _Wire(wire.slowest, wire.slowest, one_rail)
    within = predict(profile, collective, False) if gpus > 1 else Prediction(None, "")
    if within.busbw is None and gpus > 1:
        return _unknown(f"{within.rule}: what the GPUs of a node exchange takes paths that no profile describes")
    if algorithm == "SHARP":
        return _sharp(profile, wire, nvls, gpus)
    ranks, network, rule = nodes * gpus, wire.total, wire.rule
    if collective == "alltoall":
        network *= (ranks - 1) / (ranks - gpus) / gpus
        rule += f" over {gpus} GPUs, of which {(ranks - gpus) / (ranks - 1):.4g} leaves the node"
    elif collective == "sendrecv":
        # Alone a GPU uses all planes of its NIC, which NCCL joins.
        planes = 1 if scope == "rail" else profile.rails[0].planes
        network = wire.slowest * planes
        rule = f"{one_rail}{f' x {planes} planes' if planes > 1 else ''}: one GPU of a node sends to the next node"
    best = _lower(network, rule, within)
    if share := _ROOTED.get(collective):
        best = Prediction((best.busbw or 0) * share, f"{best.rule}; x {share:g} from one root")
    if collective == "all_reduce" and nvls and not algorithm and gpus > 1:
        best = max(best, _nvls_tree(profile, wire, nodes, ranks), key=lambda found: found.busbw or 0)
    return best


def _unknown(reason: str) -> Prediction:
    way_out = "measure a healthy run and put a bar for it into bars.yml beside the inventory (docs/bars.md)"
    return Prediction(None, f"{reason}: {way_out}")


def _over_nvlink(profile: Profile, collective: str, nvls: bool, nodes: int, algorithm: str) -> Prediction:
    """Predict over a domain, whose switches join GPUs by as many NVLinks as those of one tray."""
    reason = ""
    if profile.nvlink_domain is None:
        reason = "the profile has nothing about NVLinks to other nodes (nvlink_domain)"
    elif nodes < 2:
        reason = "one node has no NVLinks to others"
    elif nodes > profile.nvlink_domain.nodes:
        reason = "%d nodes are more than an NVLink domain of the profile has, %d" % (nodes, profile.nvlink_domain.nodes)
    elif algorithm not in ("", "Ring"):
        reason = f"algorithm {algorithm} is not known over NVLinks"
    if reason:
        return _unknown(reason)
    ranks, generation = nodes * profile.gpus.count, _generation(profile)
    counts = generation.gains if generation is not None else {}
    counted = max((count for count in counts if count <= ranks), default=ranks)
    found = predict(profile, collective, nvls and not algorithm, counted)
    if found.busbw is None:
        return _unknown(found.rule)
    return Prediction(found.busbw, f"{found.rule}, over the NVLinks of {nodes} trays: predicted, not measured")


def _unpredictable(profile: Profile, collective: str, nodes: int, scope: str, algorithm: str) -> str:
    generation = _generation(profile)
    if scope not in SCOPES or collective not in _REACHED or algorithm not in ALGORITHMS:
        return f"{collective} by algorithm {algorithm or 'of NCCL'} in scope {scope} is not known"
    if nodes < 2:
        return "one node exchanges nothing over the network"
    if algorithm == "SHARP" and (collective != "all_reduce" or scope == "rail"):
        return "SHARP is predicted for all_reduce over all rails only"
    if not profile.rails or not profile.gpus.count:
        return "the profile has no {}".format("rails" if profile.gpus.count else "GPUs")
    far = [rail.label for rail in profile.rails if not set(rail.paths.values()) & _near(profile)]
    if far:
        return f"the profile gives {far[0]} no path PIX or PXB to a GPU, so whether GPUs reach it directly is open"
    if generation is not None and generation.rack and profile.nvlink_domain is None:
        return f"NVLinks join the nodes of a rack of {profile.gpus.models[0]}, which the profile does not describe"
    return ""


def _near(profile: Profile) -> set[str]:
    """Return paths over which GPUs reach a NIC directly: on Grace also over the CPU, by NVLink-C2C (P2C in NCCL)."""
    return {"PIX", "PXB", "NODE"} if profile.nvlink_domain is not None else {"PIX", "PXB"}


def _slot(link: PcieLink | None) -> float:
    """Return GB/s of a slot; infinite where the profile requires none, or an unknown speed."""
    return math.inf if link is None else _LANE.get(link.speed_gts, math.inf) * link.width


def _of_rail(rail: Rail, efficiency: float | None) -> tuple[float, str]:
    if efficiency is None:
        efficiency = EFFICIENCY_ETHERNET if rail.link_layers == ("Ethernet",) else EFFICIENCY
    rate = rail.rate_gbps / 8 * efficiency
    if _slot(rail.pcie) < rate:
        return _slot(rail.pcie), f"slot {rail.pcie}"
    return rate, f"{rail.rate_gbps:g} Gbit/s x {efficiency:g}"


def _wire(profile: Profile, efficiency: float | None) -> _Wire:
    """Return all rails together. Those of the same GPUs share the bandwidth of the GPUs' own slots."""
    told: dict[tuple[float, str], int] = {}
    shared: dict[tuple[int, ...], float] = {}
    lowest = math.inf
    for rail in profile.rails:
        speed = _of_rail(rail, efficiency)
        told[speed] = told.get(speed, 0) + 1
        near = tuple(sorted(gpu for gpu, path in rail.paths.items() if path in _near(profile)))
        shared[near] = shared.get(near, 0) + speed[0]
        lowest = min(lowest, speed[0], _slot(profile.gpus.pcie))
    total = sum(min(speed, len(near) * _slot(profile.gpus.pcie)) for near, speed in shared.items())
    rule = " + ".join("%d rails x %.4g GB/s (%s)" % (count, speed, why) for (speed, why), count in told.items())
    if total < sum(shared.values()):
        rule += ", %.4g by the slots of the GPUs (%s)" % (total, profile.gpus.pcie)
    return _Wire(total, lowest, rule)


def _lower(network: float, rule: str, within: Prediction) -> Prediction:
    if within.busbw is None:
        return Prediction(network, rule)
    if within.busbw < network:
        return Prediction(within.busbw, f"{within.rule}, less than {rule}")
    return Prediction(network, f"{rule}, less than {within.rule}")


def _nvls_tree(profile: Profile, wire: _Wire, nodes: int, ranks: int) -> Prediction:
    """Predict all_reduce by NVLSTree: in the NVSwitch within nodes. Between two, data cross the network once."""
    crossings = 1 if nodes == 2 else 2
    network = wire.total * 2 * (ranks - 1) / ranks / crossings
    blind = " between two nodes, where several rails may be missing unseen" if nodes == 2 else ""
    rule = f"{wire.rule} = {network:.4g} by NVLSTree{blind}"
    return _lower(network, rule, predict(profile, "all_reduce", True))


def _sharp(profile: Profile, wire: _Wire, nvls: bool, gpus: int) -> Prediction:
    """Predict algbw where the switches reduce: every byte crosses the wire once."""
    within = predict(profile, "all_reduce", nvls)
    factor = 2 * (gpus - 1) / gpus if gpus > 1 else 1.0
    algbw = None if within.busbw is None or gpus == 1 else within.busbw / factor
    least = _lower(wire.total, wire.rule, Prediction(algbw, f"{within.rule} / {factor:g}"))
    return Prediction((least.busbw or 0) * _SHARP, f"algbw, not busbw: {least.rule}; x {_SHARP:g} by SHARP")


# -- derived bars ------------------------------------------------------------------------------------------------------


def bar_or_prediction(
    files: Sequence[Sequence[Bar]],
    platform: str,
    profile: Profile,
    nvls: bool,
    nodes: int,
    scope: str,
    collective: str,
    size: int,
    algorithm: str = "",
) -> tuple[float | None, str]:
    """Return the bar in GB/s of a run between nodes, and its source; None, and why, without a bar.

    Without a bar in a file it is derived from the prediction; the source then begins with "derived:". In scope node
    nothing is derived. With algorithm SHARP all of it is algbw.
    """
    bar = find_bar(files, platform, nvls, scope, collective, size, algorithm)
    if bar is not None:
        return bar.busbw, bar.source
    if scope == "node":
        return None, _unknown(f"no bar for {platform} in scope node").rule
    predicted = between(profile, collective, nvls, nodes, scope, algorithm)
    if predicted.busbw is None:
        return None, predicted.rule
    ranks = nodes * (1 if scope == "rail" else profile.gpus.count)
    half = _HALF * _in_turn(profile, collective, algorithm == "SHARP" or (nvls and not algorithm), nodes, scope)
    if size < half:
        why = f"its latency counts more than the links; from {size_text(half)} on there is one"
        return None, f"no bar for {size_text(size)} over {ranks} ranks: {why}"
    share, reached = SHARES[scope], size / (size + half)
    source = f"derived: {share:g} of the prediction {predicted.busbw:.4g} GB/s ({predicted.rule})"
    if reached < 0.995:
        source += f", x {reached:.2g} for {size_text(size)} over {ranks} ranks"
    return round(predicted.busbw * share * reached, 1), source


def _in_turn(profile: Profile, collective: str, tree: bool, nodes: int, scope: str) -> int:
    """Return how many ranks a message passes in sequence, each of which counts as _HALF bytes."""
    gpus = 1 if scope == "rail" else profile.gpus.count
    if collective == "sendrecv":
        return 2
    if collective == "all_reduce" and tree:
        # NVLSTree and SHARP go along a tree over the nodes, and not from rank to rank.
        return gpus * (1 + math.ceil(math.log2(nodes)))
    return gpus * nodes


def latency_or_derived(
    files: Sequence[Sequence[Bar]], platform: str, nodes: int, scope: str, collective: str, size: int
) -> tuple[float | None, str]:
    """Return the bar in microseconds of a small message between nodes, and its source; None, and why, without one."""
    bar = find_latency_bar(files, platform, scope, collective, size)
    if bar is not None:
        return bar.latency_us, bar.source
    if scope == NVLINK_DOMAIN:
        return None, "no bar of latency over NVLinks is derived: put one of a healthy run into bars.yml"
    if scope == "node" or nodes < 2 or collective != "all_reduce" or size > _SMALL:
        way = f"all_reduce of up to {size_text(_SMALL)} between nodes, or by a bar in bars.yml"
        return None, f"latency is judged by {way}"
    expected = _LATENCY + _LATENCY_LEVEL * (math.ceil(math.log2(nodes)) - 1)
    rule = f"{_LATENCY_SHARE:g} x {expected:g} us (47 published for two nodes, nccl#1244)"
    return _LATENCY_SHARE * expected, f"derived: {rule}"
