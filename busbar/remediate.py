# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar remediate``: asks accused nodes again and mends what still stands, by ``playbooks/remediate.yml``.

Exit code 0: nothing is left of what the files say. 1: something is, the table says what. 2: it could not be judged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR, GOOD, LOCKED, of_states

from . import private
from .ansible_process import environment, kept
from .command_line import complain, not_installed
from .drift import inventory, lock, signals
from .drift.inventory import InventoryError

PLAYBOOK = "busbar.fabric.remediate"
RESULTS = "busbar-results"
# Bytes of the findings of the run itself.
LIMIT = 256 << 20
_ABOUT = """\
Takes findings that busbar drift, site.yml, benchmark.yml or localise.yml have written. Of each node that they name it

  1. asks the node again, by the same question; what is not so any more is dropped, and said so
  2. plans: which role mends it, what that costs the node, who is first; --check ends here
  3. takes the node out of Slurm where that is asked for (busbar_drain) and the repair disturbs it or a figure is
     measured; a node that somebody uses is left alone
  4. plays just that role and those that depend on it, within busbar_max_disruption; reboots only where that says so
  5. asks by the very check that failed, and measures again what is a figure
  6. gives the node back, or leaves it drained with the reason, and a record with serial numbers for the vendor

One node first, then the others of its leaf, in batches. It stops at the first node that gets worse. No more than
busbar_remediate_max_share of all nodes is acted on or kept out; no finding of a node is tried more often than
busbar_remediate_max_attempts; what was mended and is back goes to a person. What no role mends is told, or kept out of
jobs where busbar_remediate_quarantine says so.
"""
_MORE = """\
Everything that is done is in actions.jsonl below nccl_benchmark_results_path (busbar-results) before it is done, and
records of nodes that are kept out in rma/ beside it. After a kill run it again: it finishes what was begun.

  busbar drift -i INVENTORY --findings f.json ; busbar remediate f.json -i INVENTORY --check
  busbar remediate f.json -i INVENTORY -e busbar_max_disruption=link
  busbar remediate -i INVENTORY                 only what an earlier run has left

Exit code 0: nothing is left. 1: something is, the table says what and what to do. 2: it could not be judged.
docs/remediate.md has it all.
"""


class RemediateError(RuntimeError):
    """Nothing was done; the message says why."""


def add(command: argparse.ArgumentParser) -> None:
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.description, command.epilog = _ABOUT, _MORE
    text = "file of findings, or record of a localisation; none: only what an earlier run has left"
    command.add_argument("findings", nargs="*", metavar="FINDINGS", type=Path, help=text)
    text = "as for ansible-playbook"
    command.add_argument("-i", "--inventory", required=True, action="append", type=Path, help=text)
    command.add_argument("--limit", metavar="HOSTS", help="only these of the accused; an empty limit is refused")
    command.add_argument("--check", action="store_true", help="ask, print the plan, and touch nothing")
    command.add_argument(
        "-e", "--extra-vars", action="append", default=[], metavar="NAME=VALUE", help="as for ansible-playbook"
    )
    command.add_argument("--findings-path", type=Path, metavar="FILE", help="write what is left there, as JSON")
    command.add_argument("--forks", type=int, metavar="N", help="nodes asked at a time (default: ansible.cfg)")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    missing = not_installed(("ansible",))
    if missing:
        return complain("remediate", missing)
    try:
        with signals.raised():
            return remediate(arguments)
    except lock.Held as error:
        return complain("remediate", str(error), LOCKED)
    except (RemediateError, InventoryError, signals.Interrupted, OSError) as error:
        return complain("remediate", str(error))


def remediate(arguments: argparse.Namespace) -> int:
    """The exit code. Raises RemediateError, InventoryError, lock.Held, signals.Interrupted, OSError."""
    for path in arguments.findings:
        if not path.is_file():
            raise RemediateError(f"{path} is no file: name what busbar drift --findings, or localise.yml, has written")
    manifest = inventory.read(arguments.inventory, arguments.limit)
    results = Path(_given(arguments.extra_vars) or manifest.results or RESULTS)
    with private.directory() as folder, _alone(results, arguments.check):
        file = (arguments.findings_path or folder / "findings.json").absolute()
        # One of an earlier run would be taken for this one's.
        file.unlink(missing_ok=True)
        done = subprocess.run(kept(command(arguments, file)), env=environment(), check=False)
        if not file.exists():
            # Of nobody there is no verdict.
            return ERROR if done.returncode else GOOD
        return exit_code(_read(file), done.returncode)


def command(arguments: argparse.Namespace, file: Path) -> list[str]:
    """The command line of ansible-playbook. file: that takes the findings of the run."""
    findings = [str(path.absolute()) for path in arguments.findings]
    own = {"remediate_findings": findings, "busbar_findings_path": str(file)}
    words = ["ansible-playbook", PLAYBOOK]
    words += [word for path in arguments.inventory for word in ("-i", str(path))]
    words += [word for given in arguments.extra_vars for word in ("-e", given)]
    words += ["-e", json.dumps(own)]
    words += ["--limit", arguments.limit] if arguments.limit is not None else []
    words += ["--forks", str(arguments.forks)] if arguments.forks else []
    return [*words, *(["--check"] if arguments.check else [])]


def _given(extra_vars: Sequence[str]) -> str:
    """Where the command line says that results go; "" where it does not, in so many words."""
    words = [word for given in extra_vars for word in given.split()]
    named = [word.partition("=")[2] for word in words if word.startswith("nccl_benchmark_results_path=")]
    return named[-1] if named else ""


@contextlib.contextmanager
def _alone(results: Path, check: bool) -> Iterator[None]:
    """Two runs at once would each act on the share of nodes that is allowed to one. Raises lock.Held."""
    if check:
        yield
        return
    with lock.held(results / "actions.lock", "busbar remediate"):
        yield


def _read(file: Path) -> Mapping[str, Any]:
    with file.open("rb") as stream:
        data = stream.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise RemediateError(f"{file} has more than {LIMIT >> 20} MiB")
    found: Mapping[str, Any] = json.loads(data)
    return found


def exit_code(data: Mapping[str, Any], ended: int) -> int:
    """data: the findings of the run.   ended: with what ansible-playbook did; not with 0 where anything is not ok."""
    states = [one["state"] for host in data["hosts"].values() for one in host["findings"]]
    if not states:
        # Nobody is accused of anything that still stands; else Ansible says why it failed.
        return GOOD if ended == 0 or not data["hosts"] else ERROR
    return of_states(states)
