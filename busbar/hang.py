# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar hang``: query the RAS of running jobs which rank holds up the others. Changes nothing."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from . import ansible_process, private_tempdir
from .command_line import ANSIBLE, add_ansible, complain, not_installed, number
from .drift import inventory, signals
from .drift.inventory import InventoryError
from .drift.runner import clean, tail

PLAYBOOK = "busbar.fabric.hang"
# Bytes of the report. A job of 10,000 ranks in ten communicators has some 20 MB.
LIMIT = 256 << 20
# Characters of a host pattern that are in no plain name.
_PATTERN = re.compile(r"[*?\[\]!&:,~@]")


class HangError(RuntimeError):
    """No host was queried; the message has the reason."""


def add(command: argparse.ArgumentParser) -> None:
    text = "host on which the job runs, or a pattern; one host of the job suffices"
    command.add_argument("hosts", nargs="+", metavar="HOST", help=text)
    text = "inventory, as for ansible-playbook"
    command.add_argument("-i", "--inventory", action="append", default=[], type=Path, metavar="PATH", help=text)
    text = "seconds between the two samples (%(default)g); longer than a training step"
    seconds = number(0, 3600, "number of seconds")
    command.add_argument("--interval", type=seconds, default=10.0, metavar="S", help=text)
    command.add_argument("--forks", type=int, metavar="N", help="hosts queried in parallel (default: ansible.cfg)")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.add_argument("-v", "--verbose", action="store_true", help="print everything, not one screen")
    add_ansible(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    missing = not_installed(ANSIBLE)
    if missing:
        return complain("hang", missing)
    try:
        with signals.raised():
            report = query(arguments.hosts, arguments.inventory, arguments.interval, arguments.forks)
    except (HangError, InventoryError, signals.Interrupted, OSError) as error:
        return complain("hang", error)
    from ansible_collections.busbar.fabric.plugins.plugin_utils import hang  # here: the other commands do without it

    text = json.dumps(report, indent=1) + "\n" if arguments.json else hang.text(report, verbose=arguments.verbose)
    print(text, end="")
    return int(report["exit_code"])


def query(hosts: Sequence[str], paths: Sequence[Path], interval: float, forks: int | None = None) -> Plain:
    """Return the report of plugin_utils/hang.py. Raises HangError, InventoryError, signals.Interrupted."""
    limit = ",".join(hosts)
    manifest = inventory.read(paths, limit)
    for host in hosts:
        # Ansible ignores unknown ones of several names.
        if host not in manifest.group and not _PATTERN.search(host):
            inventory.read(paths, host)
    with private_tempdir.directory() as folder, signals.collected() as ended:
        file = folder / "hang.json"
        done = ansible_process.run(
            private_data_dir=str(folder),
            inventory=inventory.sources(paths) if paths else None,
            playbook=PLAYBOOK,
            limit=limit,
            extravars={"hang_report_path": str(file), "hang_interval": interval},
            envvars={"ANSIBLE_FORKS": str(forks)} if forks else {},
            # No file per event: the report has their data.
            event_handler=lambda _event: False,
            cancel_callback=lambda: bool(ended),
        )
        if ended:
            raise signals.Interrupted(ended[0])
        if not file.exists():
            said = clean(tail(done.stdout.read(), PLAYBOOK), manifest.secrets)
            raise HangError(f"ansible-playbook {done.status}, rc {done.rc}: {said}")
        if file.stat().st_size > LIMIT:
            raise HangError(
                f"the report has more than {LIMIT >> 20} MiB: name fewer hosts; one reports on the whole job"
            )
        report: Plain = json.loads(file.read_text(encoding="utf-8"))
        return report
