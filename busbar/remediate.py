# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar remediate``: audit accused nodes again and repair confirmed faults, by ``playbooks/remediate.yml``.

The remaining findings decide the exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR, GOOD, LOCKED, of_states
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import PlainView

from . import private_tempdir
from .ansible_process import environment, passed, reaped
from .command_line import add_ansible, complain, not_installed
from .drift import inventory, lock, output, runner, signals
from .drift.inventory import InventoryError

PLAYBOOK = "busbar.fabric.remediate"
RESULTS = "busbar-results"
_WAY_OUT = ": write one with busbar drift -i INVENTORY --findings FILE"


class RemediateError(RuntimeError):
    """Nothing was done; the message has the reason."""


def add(command: argparse.ArgumentParser) -> None:
    text = "findings file (default: what an earlier run left)"
    command.add_argument("findings", nargs="*", metavar="FINDINGS", type=Path, help=text)
    text = "inventory, as for ansible-playbook"
    command.add_argument("-i", "--inventory", required=True, action="append", type=Path, metavar="PATH", help=text)
    command.add_argument("--limit", metavar="HOSTS", help="only these hosts; an empty limit is refused")
    command.add_argument("--check", action="store_true", help="audit, print the plan, change nothing")
    add_ansible(command)
    command.add_argument("--findings-path", type=Path, metavar="FILE", help="write the remaining findings as JSON")
    command.add_argument("--forks", type=int, metavar="N", help="nodes queried in parallel (default: ansible.cfg)")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    missing = not_installed(("ansible",))
    if missing:
        return complain("remediate", missing)
    try:
        with signals.raised():
            return remediate(arguments)
    except lock.LockedError as error:
        return complain("remediate", error, LOCKED)
    except (RemediateError, InventoryError, runner.RunnerError, signals.Interrupted, OSError) as error:
        return complain("remediate", error)


def remediate(arguments: argparse.Namespace) -> int:
    """Return the exit code. Raises the errors that ``run`` reports."""
    for path in arguments.findings:
        if not path.is_file():
            raise RemediateError(f"{path} is not a file{_WAY_OUT}")
        with path.open("rb") as stream:
            if not stream.read(64).lstrip().startswith(b"{"):
                raise RemediateError(f"{path} is not a findings file{_WAY_OUT}")
    if arguments.findings_path:
        output.require_folder(str(arguments.findings_path))
    manifest = inventory.read(arguments.inventory, arguments.limit)
    results = Path(_given(arguments.extra_vars) or manifest.results or RESULTS)
    with private_tempdir.directory() as folder, _exclusive(results, arguments.check):
        file = (arguments.findings_path or folder / "findings.json").absolute()
        # A file of an earlier run would be taken for this one's.
        file.unlink(missing_ok=True)
        done = subprocess.run(reaped(command(arguments, file)), env=environment(), check=False)
        if not file.exists():
            # Without nodes there is no verdict.
            return ERROR if done.returncode else GOOD
        return exit_code(runner.read_findings(file, len(manifest.hosts)), done.returncode)


def command(arguments: argparse.Namespace, file: Path) -> list[str]:
    """Return the command line of ansible-playbook. file: the findings file that the run writes."""
    findings = [str(path.absolute()) for path in arguments.findings]
    own = {"remediate_findings": findings, "busbar_findings_path": str(file)}
    words = ["ansible-playbook", PLAYBOOK]
    words += [word for path in arguments.inventory for word in ("-i", str(path))]
    words += passed()
    words += ["-e", json.dumps(own)]
    words += ["--limit", arguments.limit] if arguments.limit is not None else []
    words += ["--forks", str(arguments.forks)] if arguments.forks else []
    return [*words, *(["--check"] if arguments.check else [])]


def _given(extra_vars: Sequence[str]) -> str:
    """Return the results path that the command line sets literally; "" where it sets none."""
    words = [word for given in extra_vars for word in given.split()]
    named = [word.partition("=")[2] for word in words if word.startswith("nccl_benchmark_results_path=")]
    return named[-1] if named else ""


@contextlib.contextmanager
def _exclusive(results: Path, check: bool) -> Iterator[None]:
    """Hold the lock: two runs would each use the share of nodes allowed for one. Raises lock.LockedError."""
    if check:
        yield
        return
    with lock.held(results / "actions.lock", "busbar remediate"):
        yield


def exit_code(data: PlainView, ended: int) -> int:
    """Return the exit code. data: findings.   ended: exit code of ansible-playbook; not 0 where anything is not ok."""
    states = [one["state"] for host in data["hosts"].values() for one in host["findings"]]
    if not states:
        # No node has a finding that still stands; otherwise Ansible prints why it failed.
        return GOOD if ended == 0 or not data["hosts"] else ERROR
    return of_states(states)
