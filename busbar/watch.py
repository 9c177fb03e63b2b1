# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar watch``: report jobs that stall, late ranks and links that flap on this machine, while they run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.watch import history, program, ring
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import GOOD

from .command_line import complain, number
from .drift import signals

DAY = 86400.0


def add(command: argparse.ArgumentParser) -> None:
    default = program.Settings()
    seconds = number(5, 86400, "number of seconds")
    text = "seconds without a working GPU after which a job is stalled (%(default)g)"
    command.add_argument("--patience", type=seconds, default=default.patience, metavar="S", help=text)
    between = number(1, 60, "number of seconds")
    text = "seconds between samples (%(default)g)"
    command.add_argument("--interval", type=between, default=default.interval, metavar="S", help=text)
    text = "directory with one day of samples and events (%(default)s)"
    command.add_argument("--store", type=Path, default=Path(default.folder), metavar="DIR", help=text)
    text = "directory with the records of NCCL's Inspector, read when a job stalls"
    command.add_argument("--inspector", type=Path, metavar="DIR", help=text)
    command.add_argument("--last", action="store_true", help="print the last day's events, and watch nothing")
    command.add_argument("--json", action="store_true", help="print each event as a line of JSON")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.last:
            return _last(arguments.store, arguments.json)
        inspector = str(arguments.inspector.absolute()) if arguments.inspector else ""
        settings = program.Settings(
            arguments.interval, arguments.patience, folder=str(arguments.store), inspector=inspector
        )
        watch = program.Watch(settings, lambda event: _print(event, arguments.json))
        print(f"busbar watch: every {settings.interval:g} s, Ctrl-C ends it", file=sys.stderr, flush=True)
        with signals.collected() as ended:
            watch.run(lambda: bool(ended))
    except (ReadError, OSError) as error:
        return complain("watch", error)
    return GOOD


def _print(event: program.Event, as_json: bool) -> None:
    text = f"{history.utc(event.at)}  {event.kind}: {event.text}"
    data = {"kind": event.kind, "at": event.at, "since": event.since, "text": event.text, **event.details}
    print(json.dumps(data) if as_json else printable(text), flush=True)


def _last(folder: Path, as_json: bool) -> int:
    if not folder.is_dir():
        return complain("watch", f"{folder} is not a directory: busbar watch has not run here")
    events = [record for record in ring.read(Host(), time.time() - DAY, str(folder)) if "kind" in record]
    for record in events:
        text = f"{history.utc(float(str(record['at'])))}  {record['kind']}: {record.get('text')}"
        print(json.dumps(record) if as_json else printable(text))
    if not events and not as_json:
        print("no event in the last day")
    return GOOD
