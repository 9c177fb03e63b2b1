# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the arguments of ``busbar preflight``, print the names of bad nodes, return an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core import trusted
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    findings_file,
    nodeset,
    results_folder,
    screen,
    slurm_step,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.preflight import Outcome
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import (
    ERROR,
    FINDINGS,
    GOOD,
    UNKNOWN,
    of_states,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.slurm_engine import SlurmError

from .. import private_tempdir
from ..command_line import MORE, complain, number
from ..drift import signals
from ..drift.inventory import InventoryError
from . import containers, steps
from . import site as sites
from .search import Preflight

LIMIT, LEAST = 120.0, 20.0
WORDS = {GOOD: "ok", FINDINGS: "bad", UNKNOWN: "unknown", ERROR: "unknown"}
_PROGRAMS = ("srun", "scontrol")
_ROOM, _REASONS = 40, 300
# Lines of the table.
_TABLE = 10


def add(command: argparse.ArgumentParser) -> None:
    bars = command.add_argument_group("yardstick, one of these")
    text = "site inventory: profiles, bars.yml, leaves, values"
    bars.add_argument("-i", "--inventory", action="append", default=[], type=Path, metavar="PATH", help=text)
    bars.add_argument("--platform", metavar="NAME", help="shipped profile, such as hgx-h100")
    more = command.add_argument_group(MORE)
    text = "infiniband or roce, with --platform"
    command.add_argument("--fabric", choices=("infiniband", "roce"), default="", metavar="NAME", help=text)
    seconds = number(LEAST, 86400, "number of seconds")
    command.add_argument("--limit", type=seconds, default=LIMIT, metavar="S", help="time limit in s (%(default)g)")
    text = "nccl-tests (default: nccl_tests_path)"
    more.add_argument("--nccl-tests", type=_absolute, metavar="DIR", help=text)
    text = "message size (default: nccl_benchmark_max_bytes, 8G)"
    more.add_argument("--size", metavar="BYTES", help=text)
    text = "write the nodes to exclude there, one a line"
    command.add_argument("--exclude-file", type=Path, metavar="FILE", help=text)
    text = "store the record in DIR/localise, for busbar drift"
    command.add_argument("--record", type=Path, metavar="DIR", help=text)
    more.add_argument("--python", default="python3", metavar="NAME", help="Python 3.6+ on the nodes (%(default)s)")
    text = "compare only what a container of this image sees of nccl.conf and the topology file (Pyxis)"
    more.add_argument("--container-image", metavar="IMAGE", help=text)
    text = "with --container-image: write the result there, for busbar certify"
    more.add_argument("--findings", type=Path, metavar="FILE", help=text)
    text = "options of srun, such as -- --gpu-bind=none"
    command.add_argument("options", nargs="*", metavar="-- SRUN OPTION", help=text)
    command.set_defaults(run=run)


def _absolute(text: str) -> str:
    if not text.startswith("/") or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is not an absolute path, which it has to be on the nodes")
    return text


def run(arguments: argparse.Namespace) -> int:
    try:
        with signals.raised():
            return _run(arguments)
    except (InventoryError, ParseError, SlurmError, signals.Interrupted, OSError) as error:
        complain("preflight", error)
        print(f"PREFLIGHT={WORDS[ERROR]}")
        return ERROR


def _run(arguments: argparse.Namespace) -> int:
    programs = slurm_step.programs(_PROGRAMS)
    job = steps.allocation(os.environ, programs)
    if arguments.container_image:
        return _compare_containers(arguments, job, programs["srun"])
    if arguments.findings:
        raise ParseError("--findings needs --container-image")
    site = _site(arguments, job.nodes)
    if os.geteuid() == 0:
        _trusted(site.program)
    with private_tempdir.directory() as folder:
        options = (*site.options, *arguments.options)
        runs = steps.Steps(
            job, programs["srun"], folder, options, arguments.python, site.kind.values["busbar_hardware_root"]
        )
        nodes = f"{len(job.nodes)} nodes ({nodeset.brief(job.nodes, 60)})"
        print_progress(f"busbar preflight: job {job.job}, {nodes}, {site.kind.settings.kind}")
        preflight = Preflight(job.nodes, site.leaves or job.leaves, site, runs, arguments.limit, print_progress)
        ended: signals.Interrupted | None = None
        try:
            outcome = preflight.run()
        except signals.Interrupted as error:
            ended = error
            preflight.seen.cut = str(error)
            outcome = preflight.judge()
        if preflight.simulated:
            print_progress("simulated: no figure here is a measurement")
        print_outcome(outcome, job.nodes)
        if arguments.exclude_file is not None:
            results_folder.replace_file(arguments.exclude_file, (f"{node}\n" for node in outcome.exclude), 0o644)
        if arguments.record is not None:
            where = localise_record.write(arguments.record, preflight.record(ended is None))
            print_progress(f"record: {where / localise_record.NAME}")
        return outcome.code


def _compare_containers(arguments: argparse.Namespace, job: steps.Allocation, srun: str) -> int:
    """Compare NCCL's files on the nodes with those in a container of the job."""
    known = sites.inventory_hosts(arguments.inventory, job.nodes) if arguments.inventory else {}
    names = {node: host for node, (host, _variables) in known.items()}
    paths, started = containers.files(Host(), os.environ), findings_file.now()
    with private_tempdir.directory() as folder:
        runs = steps.Steps(job, srun, folder, arguments.options, arguments.python)
        views = containers.read(runs, arguments.container_image, paths, arguments.options, arguments.limit / 2)
    found = containers.judge(views, job.nodes, paths)
    code = of_states(one.state for of_node in found.values() for one in of_node)
    groups = nodeset.grouped((_describe(one), node) for node, of_node in found.items() for one in of_node)
    blocks = [f"  {nodeset.brief(nodes, _ROOM)}: {text}".split("\n") for text, nodes in groups.items()]
    head = [f"busbar preflight: job {job.job}, a container of {arguments.container_image}"]
    for line in screen.page(head, blocks, (), 1 << 20, "--findings FILE", "line", height=_TABLE):
        print_progress(line)
    if arguments.findings:
        results_folder.replace_file(arguments.findings, [containers.findings(found, names, job.job, started)], 0o600)
    print(f"PREFLIGHT={WORDS[code]}")
    return code


def _describe(one: Finding) -> str:
    head = f"{one.check} {one.subject}: {one.state}: {(one.have or '')[:_REASONS]}"
    return f"{head}\n    {one.fix}" if one.fix else head


def print_progress(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def print_outcome(outcome: Outcome, nodes: Sequence[str]) -> None:
    """Print the table for people, and the lines for scripts."""
    rows = [(nodeset.brief([node], _ROOM), "EXCLUDE", why) for node, why in outcome.exclude.items()]
    silent = nodeset.grouped((why, node) for node, why in outcome.unknown.items())
    rows += [(nodeset.brief(nodes, _ROOM), "unknown", why) for why, nodes in silent.items()]
    width = max((len(name) for name, _verdict, _why in rows), default=0)
    blocks = [[f"  {name:{width}}  {verdict:7}  {why[:_REASONS]}"] for name, verdict, why in rows]
    blocks += [f"  {_describe(finding)}".split("\n") for finding in outcome.shared()]
    good = [node for node in nodes if node not in outcome.exclude and node not in outcome.unknown]
    tail = [f"  {nodeset.brief(good, _ROOM)}  good  {len(good)} of {len(nodes)}"] if good else []
    if outcome.code == FINDINGS and not outcome.exclude:
        tail.append("  no single node is the cause: every combination of nodes is slow or does not respond")
    # In a job's log no line is wrapped.
    for line in screen.page((), blocks, tail, 1 << 20, "--exclude-file FILE, --record DIR", "line", height=_TABLE):
        print_progress(line)
    for name, found in (("EXCLUDE", outcome.exclude), ("UNKNOWN", outcome.unknown)):
        if found:
            print(f"{name}={','.join(found)}")
    print(f"PREFLIGHT={WORDS[outcome.code]}")


def _site(arguments: argparse.Namespace, nodes: Sequence[str]) -> sites.Site:
    if bool(arguments.inventory) == bool(arguments.platform):
        raise ParseError(
            "choose the yardstick by one of -i INVENTORY; or --platform hgx-h100 --fabric infiniband (or roce)"
        )
    if arguments.inventory:
        return sites.of_inventory(arguments.inventory, nodes, arguments.size, arguments.nccl_tests)
    return sites.of_platform(arguments.platform, arguments.fabric, arguments.size, arguments.nccl_tests)


def _trusted(program: str) -> None:
    """Raise ParseError where root would run a program of another user: a job's user runs their own."""
    doubt = trusted.doubt(program, "/") if os.path.exists(program) else ""
    if doubt:
        raise ParseError(f"{program}: {doubt}, so root does not run it: run preflight as the job's user")
