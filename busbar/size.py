# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar size``: what a training step sends, and whether a cluster's network carries it.

Exit code 0: enough, or answered where no step was asked for. 1: not enough. 2: it cannot be said.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile as profiles

from .profile import shipped

if TYPE_CHECKING:
    from ansible_collections.busbar.fabric.plugins.plugin_utils import sizing, training_traffic

ERROR = 2
KINDS = ("tensor", "expert", "data", "pipeline")
# Of a profile's file: the suite's have 1 KB.
_PROFILE = 1 << 20


# One factor of a whole number; with a unit, as of 70B parameters, it is a multiple of 1,000.
_FACTOR = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?([KMBT]?)", re.ASCII)
_UNITS = {"": 0, "K": 3, "M": 6, "B": 9, "T": 12}


def _whole(most: int, least: int = 1) -> Any:
    def parse(text: str) -> int:
        """``512x8192`` is a product, ``4M`` and ``1.5K`` are whole numbers."""
        value = 1
        for part in text.replace("_", "").split("x"):
            match = _FACTOR.fullmatch(part)
            digits = (match[2] or "") if match else ""
            if match is None or len(digits) > _UNITS[match[3]]:
                raise argparse.ArgumentTypeError(
                    f"{text[:40]!r} is no whole number, such as 4194304 or 4M, nor a product such as 512x8192"
                )
            value *= int(match[1] + digits) * 10 ** (_UNITS[match[3]] - len(digits))
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not from {least} to {most}")
        return value

    return parse


def _number(low: float, high: float, unit: str) -> Any:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number of {unit} from {low:g} to {high:g}")
        return value

    return parse


def _parameters(text: str) -> int:
    from ansible_collections.busbar.fabric.plugins.plugin_utils import model_sizes

    try:
        return model_sizes.parameter_count(text)
    except ParseError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _nics(text: str) -> tuple[float, ...]:
    rates: list[float] = []
    for part in text.split(","):
        match = re.fullmatch(r"(?:([0-9]{1,3})x)?([0-9]{1,5}(?:\.[0-9]{1,3})?)", part.strip())
        if match is None or not float(match[2]) or int(match[1] or 1) not in range(1, 65):
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected NICs of a node in Gbit/s, such as 8x400")
        rates += [float(match[2])] * int(match[1] or 1)
    if len(rates) > 64:
        raise argparse.ArgumentTypeError("more than 64 NICs in a node")
    return tuple(rates)


def _ratio(text: str) -> float:
    """``2`` and ``2:1`` are the same."""
    value: float = _number(1, 64, "downlinks to one uplink")(text.removesuffix(":1"))
    return value


def _overlap(text: str) -> tuple[str, float]:
    kind, equals, share = text.partition("=")
    if not equals:
        kind, share = "data", kind
    if kind not in KINDS:
        raise argparse.ArgumentTypeError(f"{kind[:40]!r} is no kind of traffic, which are {', '.join(KINDS)}")
    return kind, _number(0, 100, "percent of the computation")(share) / 100


def add(command: argparse.ArgumentParser) -> None:
    count = _whole(10**7)
    group = command.add_argument_group("the model")
    group.add_argument(
        "--parameters", type=_parameters, required=True, metavar="P", help="350M, 70B, 1.3T: all of them"
    )
    group.add_argument("--active", type=_parameters, metavar="P", help="those that a token passes (with experts)")
    group.add_argument("--layers", type=count, default=0, metavar="N")
    group.add_argument("--hidden", type=count, default=0, metavar="N", help="width between layers")
    group.add_argument("--experts", type=count, default=1, metavar="N", help="of a layer")
    group.add_argument("--top-k", type=count, default=1, metavar="N", help="experts that a token passes")
    group.add_argument("--moe-layers", type=count, default=0, metavar="N", help="layers with experts (default: all)")

    group = command.add_argument_group("how it is split, and its batch")
    group.add_argument("--nodes", type=count, metavar="N", help="of the job; or --dp")
    group.add_argument("--dp", type=count, metavar="N", help="data parallel ranks (default: what is left of the nodes)")
    group.add_argument("--tp", type=count, default=1, metavar="N", help="tensor parallel ranks")
    group.add_argument("--pp", type=count, default=1, metavar="N", help="pipeline stages")
    group.add_argument("--ep", type=count, default=1, metavar="N", help="ranks that share the experts, part of --dp")
    group.add_argument("--zero", type=int, choices=(0, 1, 2, 3), default=0, help="ZeRO stage; 3 is FSDP")
    text = "of a step, all ranks together; 4M, or 512x8192: 512 sequences of 8192"
    group.add_argument("--tokens", type=_whole(10**10), default=0, metavar="N", help=text)
    group.add_argument("--sequence", type=count, default=0, metavar="N", help="tokens of a sequence")
    group.add_argument("--micro-batch", type=count, default=0, metavar="N", help="sequences of a micro batch")
    text = "bytes of a gradient where it is sent (2: BF16)"
    group.add_argument("--gradient-bytes", type=int, choices=(1, 2, 4), default=2, help=text)
    text = "percent of the computation in which traffic can be hidden; KIND: data, or tensor, expert, pipeline"
    group.add_argument("--overlap", type=_overlap, action="append", default=[], metavar="[KIND=]PERCENT", help=text)

    group = command.add_argument_group("the step: one of both; without, the step that the network allows")
    text = "that the GPUs need for a step where they wait for nothing"
    group.add_argument("--step-time", type=_number(1e-6, 1e6, "seconds"), metavar="SECONDS", help=text)
    text = "percent of a GPU's peak that they reach where they wait for nothing"
    group.add_argument("--mfu", type=_number(0.1, 100, "percent"), metavar="PERCENT", help=text)
    text = "a GPU's peak, dense BF16 (default: the profile's GPU)"
    group.add_argument("--peak", type=_number(0.1, 1e6, "TFLOPS"), metavar="TFLOPS", help=text)
    text = "percent of a step that may be waiting for the network (%(default)g)"
    group.add_argument("--loss", type=_number(0, 90, "percent"), default=5.0, metavar="PERCENT", help=text)

    group = command.add_argument_group("the cluster")
    text = "platform profile: a file, or a name in ./profiles or of the suite, such as hgx-h100"
    group.add_argument("--profile", metavar="NAME", help=text)
    text = "NICs of a node in Gbit/s, such as 8x400; in place of the profile's"
    group.add_argument("--nics", type=_nics, metavar="LIST", help=text)
    group.add_argument("--gpus-per-node", type=_whole(1024), metavar="N", help="where there is no profile")
    text = "as measured: busbw of all_reduce over all GPUs of three nodes or more"
    group.add_argument("--busbw", type=_number(0.001, 1e5, "GB/s"), metavar="GBPS", help=text)
    text = "as measured: cluster.json, its directory, or nccl_benchmark_results_path"
    group.add_argument("--record", type=Path, metavar="PATH", help=text)
    text = "of a NIC's rate, what collectives reach (%(default)g)"
    group.add_argument("--efficiency", type=_number(0.05, 1, "of 1"), default=0.92, metavar="PART", help=text)
    text = "downlinks of a leaf to its uplinks, 2 or 2:1"
    group.add_argument("--oversubscription", type=_ratio, default=1.0, metavar="K", help=text)
    text = "nodes of a leaf group (default: a leaf's downlinks, a node each)"
    group.add_argument("--leaf-nodes", type=count, default=0, metavar="N", help=text)
    group.add_argument("--switch-ports", type=_whole(4096, 2), default=64, metavar="N", help="(%(default)s)")

    command.add_argument("--json", action="store_true", help="every figure with its formula, as JSON")
    command.add_argument("--plot", type=Path, metavar="FILE", help="write a picture, .svg or .png")
    command.set_defaults(run=run, error_code=ERROR)


def run(arguments: argparse.Namespace) -> int:
    """The other commands start without what is imported here."""
    from ansible_collections.busbar.fabric.plugins.plugin_utils import sizing, sizing_report, terminal

    if arguments.plot is not None and arguments.plot.suffix not in sizing_report.SUFFIXES:
        return _fail(f"--plot {arguments.plot}: name a file that ends with {' or '.join(sizing_report.SUFFIXES)}")
    try:
        title, model, training, cluster, compute = _asked(arguments)
    except ParseError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}")
    found = sizing.size(model, training, cluster, compute, arguments.loss / 100)
    if arguments.json:
        print(json.dumps(sizing_report.to_dict(title, found), indent=1, allow_nan=False))
    else:
        print(sizing_report.render(title, found, min(terminal.COLUMNS, 120)))
    if arguments.plot is not None:
        problem = sizing_report.plot(arguments.plot, title, found, cluster)
        print(problem or f"plot: {arguments.plot}", file=sys.stderr)
    return found.exit_code


def _asked(
    given: argparse.Namespace,
) -> tuple[str, training_traffic.Model, training_traffic.Training, sizing.Cluster, tuple[float, str] | None]:
    """Raises ParseError, OSError."""
    from ansible_collections.busbar.fabric.plugins.plugin_utils import sizing, training_traffic

    profile = _profile(given.profile) if given.profile else None
    gpus = profile.gpus.count if profile is not None else given.gpus_per_node
    if not gpus:
        raise ParseError("say how many GPUs a node has: --profile, or --gpus-per-node with --nics")
    if profile is not None and given.gpus_per_node not in (None, gpus):
        raise ParseError(f"profile {profile.name} has {gpus} GPUs, --gpus-per-node says {given.gpus_per_node}")
    nics = given.nics or (tuple(rail.rate_gbps for rail in profile.rails) if profile is not None else ())
    if not nics:
        raise ParseError("say which NICs a node has: --nics 8x400, or a --profile that has rails")
    if profile is not None and given.nics:
        profile = sizing.with_nics(profile, given.nics)
    model = training_traffic.Model(
        parameters=given.parameters,
        active=given.active or given.parameters,
        layers=given.layers,
        hidden=given.hidden,
        experts=given.experts,
        top_k=given.top_k,
        moe_layers=given.moe_layers,
    )
    training = training_traffic.Training(
        data=_data(given, gpus),
        tensor=given.tp,
        pipeline=given.pp,
        expert=given.ep,
        zero=given.zero,
        tokens=given.tokens,
        sequence=given.sequence,
        micro_batch=given.micro_batch,
        gradient=given.gradient_bytes,
        overlap=dict(given.overlap),
    )
    wrong = training_traffic.errors(model, training, gpus)
    if wrong:
        raise ParseError("; ".join(wrong))
    nodes = -(-training.gpus // gpus)
    peaks = {sizing.PEAKS.get(name, 0.0) for name in profile.gpus.models} if profile is not None else set()
    network, unknown = _network(given, profile, nics, nodes)
    cluster = sizing.Cluster(
        gpus=gpus,
        nics=nics,
        profile=profile,
        network=network,
        unknown=unknown,
        peak=given.peak or (peaks.pop() if len(peaks) == 1 else 0.0),
        efficiency=given.efficiency,
        oversubscription=given.oversubscription,
        leaf_nodes=given.leaf_nodes,
        switch_ports=given.switch_ports,
    )
    title = (
        f"{training_traffic.count_text(given.parameters)} parameters on {training.gpus}"
        f" GPU{'s' * (training.gpus != 1)} of {nodes} node{'s' * (nodes != 1)}"
        f"{f' ({profile.name})' if profile is not None else ''}: dp {training.data} x tp {training.tensor}"
        f" x pp {training.pipeline}{f', ep {training.expert}' if training.expert > 1 else ''}, ZeRO-{training.zero}"
    )
    return title, model, training, cluster, _compute(given, model, training, cluster)


def _data(given: argparse.Namespace, gpus: int) -> int:
    """Ranks of data parallelism: as given, or what is left of the nodes."""
    inner: int = given.tp * given.pp
    if given.nodes is None:
        if given.dp is None:
            raise ParseError("say how large the job is: --nodes, or --dp")
        if given.dp * inner > 10**7:
            raise ParseError(f"--dp {given.dp} x --tp {given.tp} x --pp {given.pp} are more than 10000000 GPUs")
        return int(given.dp)
    total: int = given.nodes * gpus
    if total > 10**7:
        raise ParseError(f"--nodes {given.nodes} have more than 10000000 GPUs")
    if total % inner:
        raise ParseError(
            f"--nodes {given.nodes} have {total} GPUs, no multiple of --tp {given.tp} x --pp {given.pp} = {inner}"
        )
    if given.dp not in (None, total // inner):
        raise ParseError(
            f"--nodes {given.nodes} have {total} GPUs: with --tp {given.tp} and --pp {given.pp} that is --dp"
            f" {total // inner}, not {given.dp}; leave one of both out"
        )
    return total // inner


def _compute(
    given: argparse.Namespace,
    model: training_traffic.Model,
    training: training_traffic.Training,
    cluster: sizing.Cluster,
) -> tuple[float, str] | None:
    from ansible_collections.busbar.fabric.plugins.plugin_utils import sizing

    if given.step_time is not None and given.mfu is not None:
        raise ParseError("--step-time and --mfu both say how long a step is: leave one out")
    if given.step_time is not None:
        return given.step_time, "as --step-time says"
    if given.mfu is None:
        return None
    if not training.tokens:
        raise ParseError("--mfu needs --tokens, the tokens of a step")
    if not cluster.peak:
        raise ParseError("--mfu needs the GPU's peak: --peak TFLOPS, dense BF16 (989 for H100 SXM, 312 for A100)")
    return sizing.compute_time(model, training, cluster.peak, given.mfu / 100)


def _network(
    given: argparse.Namespace, profile: profiles.Profile | None, nics: tuple[float, ...], nodes: int
) -> tuple[sizing.Network | None, str]:
    from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_record, sizing

    if given.busbw is not None and given.record is not None:
        raise ParseError("--busbw and --record both say what was measured: leave one out")
    if given.busbw is not None:
        return sizing.as_measured(given.busbw, f"--busbw {given.busbw:g}"), ""
    if given.record is not None:
        return sizing.of_record(cluster_record.read(given.record), printable(str(given.record))), ""
    if profile is None:
        return sizing.by_nics(nics, given.efficiency), ""
    return sizing.predicted(profile, nodes, given.efficiency)


def _profile(name: str) -> profiles.Profile:
    """The profile of a file, or by its name: of ./profiles, else of the suite. Raises ParseError, OSError."""
    path = Path(name)
    if path.suffix not in (".yml", ".yaml"):
        path = Path("profiles") / f"{name}.yml"
        if "/" in name or not path.is_file():
            known = shipped()
            if name not in known:
                raise ParseError(f"no profile {name[:60]!r}: name a file (.yml), or one of {', '.join(sorted(known))}")
            return profiles.parse(known[name], name)
    if path.stat().st_size > _PROFILE:
        raise ParseError(f"{path} is larger than 1 MiB, which no profile is")
    try:
        return profiles.parse(yaml.safe_load(path.read_text(encoding="utf-8")), path.stem)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParseError(f"{path}: {' '.join(str(error).split())[:300]}") from None
    except ParseError as error:
        raise ParseError(f"{path}: {error}") from None


def _fail(message: str) -> int:
    print(f"busbar size: {printable(message)}", file=sys.stderr)
    return ERROR
