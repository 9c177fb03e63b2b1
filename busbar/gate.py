# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar gate``: print the gate's last or current verdict on some nodes. Changes nothing in Slurm."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import from_dict, printable
from ansible_collections.busbar.fabric.plugins.plugin_utils import finding_groups, nodeset, screen, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import FINDINGS, GOOD, UNKNOWN, WORDS, worst
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from . import ansible_process, private_tempdir
from .command_line import ANSIBLE, add_ansible, complain, not_installed
from .drift import inventory, signals
from .drift.inventory import InventoryError

MODULE = "busbar.fabric.gate"
# States of nodes that are printed.
KINDS = 5
ARGUMENTS = " ".join(
    [
        "report={{ 'new' if busbar_gate_run else 'stored' }}",
        "hardware_root={{ busbar_hardware_root | default('/') }}",
        "system_root={{ busbar_system_root | default('/') }}",
    ]
)


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("hosts", nargs="*", metavar="HOST", help="host or pattern (default: all)")
    text = "inventory, as for ansible-playbook"
    command.add_argument("-i", "--inventory", action="append", default=[], type=Path, metavar="PATH", help=text)
    text = "check the nodes now, without draining or resuming any"
    command.add_argument("--run", dest="now", action="store_true", help=text)
    command.add_argument("--forks", type=int, metavar="N", help="hosts queried in parallel (default: ansible.cfg)")
    command.add_argument("--json", action="store_true", help="print the state of each host as JSON")
    add_ansible(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    missing = not_installed(ANSIBLE)
    if missing:
        return complain("gate", missing)
    try:
        with signals.raised():
            found = query(arguments.hosts, arguments.inventory, arguments.now, arguments.forks)
    except (InventoryError, signals.Interrupted, OSError) as error:
        return complain("gate", error)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        print(text(found, terminal.WIDTH))
    return worst(map(code, found.values()))


def query(hosts: Sequence[str], paths: Sequence[Path], now: bool, forks: int | None = None) -> Plain:
    """Return host -> its state, None where the gate has not run yet, a text where it is unknown, with the reason.

    Raises InventoryError and signals.Interrupted.
    """
    limit = ",".join(hosts)
    manifest = inventory.read(paths, limit or None)
    with private_tempdir.directory() as folder, signals.collected() as ended:
        found, _done = ansible_process.run_module(
            private_data_dir=str(folder),
            **({"inventory": inventory.sources(paths)} if paths else {}),
            **({"limit": limit} if limit else {}),
            module=MODULE,
            module_args=ARGUMENTS,
            extravars={"busbar_gate_run": now},
            envvars={"ANSIBLE_FORKS": str(forks)} if forks else {},
            cancel_callback=lambda: bool(ended),
        )
        if ended:
            raise signals.Interrupted(ended[0])
    return {host: of_answer(found.get(host, {})) for host in manifest.hosts}


def of_answer(result: Mapping[str, object]) -> object:
    """Return the module's result on a host, checked by its action plugin; a text where that is not a state."""
    if "state" in result and not result.get("failed"):
        return result["state"]
    return " ".join(str(result.get("msg") or "no response").split())[:500]


def code(state: object) -> int:
    """Return the exit code of one host's state."""
    if not isinstance(state, Mapping) or state["verdict"] == "unknown":
        return UNKNOWN
    return FINDINGS if state["verdict"] == "fail" or state["kept_out"] is not None else GOOD


def text(found: Mapping[str, object], width: int) -> str:
    """Return one screen: the verdict, the findings, and the hosts of each state. found: host -> its state."""
    states = {host: state for host, state in found.items() if isinstance(state, Mapping)}
    findings = {host: [from_dict(finding) for finding in state["findings"]] for host, state in states.items()}
    alike = nodeset.grouped((_kind(found[host]), host) for host in sorted(found))
    kinds = sorted(alike.items(), key=lambda item: (not isinstance(found[item[1][0]], Mapping), -len(item[1]), item[0]))
    rest = []
    for kind, hosts in kinds[:KINDS]:
        line = f"{nodeset.brief(hosts, screen.CELL)}: {kind}"
        of = [states[host] for host in hosts if host in states]
        if of:
            minutes = sorted({f"{(time.time() - state['at']) / 60:.0f}" for state in of}, key=int)
            line += (
                f"; {', '.join(sorted({state['stage'] for state in of}))}, {'-'.join(minutes[:1] + minutes[1:][-1:])}"
            )
            line += f" min ago, {max(state['seconds'] for state in of)} s"
        rest += screen.wrapped(line, width, 0, screen.LINES)
    others = [host for _kind, hosts in kinds[KINDS:] for host in hosts]
    rest += [f"{len(others):,} hosts of {len(kinds) - KINDS:,} other states: --json"] if others else []
    good = sum(code(state) == GOOD for state in found.values())
    word = WORDS[worst(map(code, found.values()))]
    rows = screen.rows(finding_groups.fold(finding_groups.rows_of(findings)))
    head = f"GATE {word}: {good:,} of {len(found):,} hosts ok"
    return screen.render(head, "nothing was changed", rows, rest, lambda *_: "", width, "--json", False)


def _kind(state: object) -> str:
    """Return the verdict and whether the node is in service, or why neither is known."""
    if not isinstance(state, Mapping):
        return printable(f"{state or 'the gate has not run on it yet: busbar gate --run'}")
    out = state["kept_out"]
    service = f"out: {out['reason']}" if out else "in service"
    if state["action"] in ("held_by_breaker", "left_alone"):
        service += f", {state['action']}: {state['said']}"
    return f"{state['verdict']}, {service}"
