# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar drift`` and ``busbar report``: run the nightly check, and show any earlier run.

``report`` ends with GOOD or ERROR only.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import getpass
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES, printable
from ansible_collections.busbar.fabric.plugins.plugin_utils import findings_file, screen, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR, LOCKED
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .. import __version__, private_tempdir
from ..command_line import PACKAGES, complain, not_installed
from ..job_files import JobFilesError
from . import ageing, compare, formats, inventory, job_bandwidth, lock, notify, output, report, runner, signals, text
from .formats import FORMATS, RESULTS, emit
from .history import History, HistoryError, is_disk_full
from .inventory import Expected, InventoryError, Manifest
from .run import HostResult, Run, WaiverError, waivers_of

HISTORY = RESULTS / "drift.sqlite"
# Flapping is judged over the last runs; one more is the base of comparison.
LEAST_DAYS = compare.NIGHTS + 1
_EXPECTED = (WaiverError, InventoryError, HistoryError, runner.RunnerError, signals.Interrupted)


def drift(arguments: argparse.Namespace) -> int:
    """Run the nightly check so that every end has an exit code and a notification. Return the exit code."""
    if missing := not_installed(PACKAGES):
        return complain("drift", missing)
    try:
        with signals.raised():
            return _locked(arguments)
    except lock.LockedError as error:
        return complain("drift", f"{error}; not started", LOCKED)
    except (*_EXPECTED, OSError, SystemExit) as error:
        if isinstance(error, signals.Interrupted) and error.table:
            # After a hangup there is no reader.
            with contextlib.suppress(OSError):
                print(error.table, flush=True)
        complain("drift", f"a library ended the run with {error.code}" if isinstance(error, SystemExit) else error)
        _notify_failure(arguments)
        return ERROR
    except BaseException:
        # Notify in any case; Python prints the cause.
        _notify_failure(arguments)
        raise


def _locked(arguments: argparse.Namespace) -> int:
    sources = inventory.sources(arguments.inventory)
    inventory.require_protected(arguments.inventory)
    for name in (*FORMATS, "findings"):
        if getattr(arguments, name):
            output.require_folder(getattr(arguments, name))
    begun = _begun(arguments, sources)
    expected = Expected()
    try:
        with _written(arguments.history or HISTORY) as nights:
            return _night(arguments, begun, expected, nights)
    except (HistoryError, OSError) as error:
        if expected.manifest is not None or not is_disk_full(error):
            raise
        again = ["busbar", "drift", *(word for source in sources for word in ("-i", source))]
        # The verdict needs no history.
        with private_tempdir.directory() as folder, History.create(folder / HISTORY.name) as nights:
            _night(arguments, begun, expected, nights, again)
        raise


def _begun(arguments: argparse.Namespace, sources: Sequence[str]) -> Run:
    """Return a run that begins now, and has no number yet and no result."""
    return Run(
        id=0,
        started=findings_file.now(),
        ended=None,
        state="running",
        inventory="\n".join(sources),
        limit=arguments.limit,
        version=__version__,
        user=getpass.getuser(),
        commit=_commit(arguments.inventory[0].resolve()),
        simulated=False,
        fail_on=arguments.fail_on or SEVERITIES[-1],
    )


def _collect(arguments: argparse.Namespace, expected: Expected) -> Mapping[str, HostResult]:
    # Without the options the inventory decides.
    engine: Plain = {"busbar_engine": arguments.engine} if arguments.engine else {}
    limits = (arguments.forks, arguments.host_timeout, arguments.timeout)
    found = runner.run(arguments.inventory, arguments.limit, expected, *limits, engine)
    if arguments.inspector:
        try:
            return job_bandwidth.add(found, arguments.inspector, time.time())
        except (JobFilesError, OSError) as error:
            complain("drift", f"--inspector: {error}", 0)
    return found


@contextlib.contextmanager
def _written(path: Path) -> Iterator[History]:
    note = f"run of {getpass.getuser()}, begun {findings_file.now()}"
    is_new = not path.exists()
    with lock.held(lock.lock_file(path), note), History.create(path) as nights:
        try:
            yield nights
        except InventoryError:
            # No host was queried: this is not a run.
            if is_new:
                path.unlink()
            raise


def _night(
    arguments: argparse.Namespace, begun: Run, expected: Expected, nights: History, again: Sequence[str] = ()
) -> int:
    """Process a run from its row in the history to the exit code. again: command that shows an unstored run."""
    number = nights.begin(begun)
    again = again or _report_of(nights, number)
    try:
        hosts = _collect(arguments, expected)
        manifest = expected.manifest or Manifest((), (), False)
        nights.simulated(number, manifest.simulated)
        run = replace(begun, id=number, simulated=manifest.simulated)
        data = store(run, hosts, nights, again)
    except InventoryError:
        nights.forget(number)
        raise
    except BaseException as error:
        _fail(nights, number, error, expected.manifest)
        raise
    code = int(data["exit_code"])
    said = text.brief(data, again)
    try:
        more = {"findings": lambda: formats.findings(nights.run(number), manifest, hosts)}
        emit(arguments, data, nights, manifest, again, more)
    except OSError as error:
        code = complain("drift", error)
        said += "a report could not be written; its log has the reason\n"
    if data["news"] or code == ERROR or (code and arguments.notify_always):
        _notify(arguments, said, code, data["counts"]["new"])
    if arguments.keep_days:
        _prune(arguments, nights)
    return code


def _fail(nights: History, number: int, error: BaseException, manifest: Manifest | None) -> None:
    state = "interrupted" if isinstance(error, signals.Interrupted) else "failed"
    name = type(error).__name__
    # Without the manifest its secrets are unknown.
    said = str(error) if isinstance(error, _EXPECTED) else f"{name}: {error}" if manifest else name
    with signals.collected():
        nights.fail(number, state, findings_file.now(), runner.clean(said, manifest.secrets if manifest else ()))


def _notify_failure(arguments: argparse.Namespace) -> None:
    # The reason may quote a line of the inventory.
    with signals.collected():
        _notify(arguments, "busbar drift failed; its log has the reason\n", ERROR, 0)


def _notify(arguments: argparse.Namespace, said: str, code: int, new: int) -> None:
    """Send the notifications; a failure changes nothing in the result."""
    for send, target in ((notify.run, arguments.notify), (notify.post, arguments.webhook)):
        try:
            if target:
                send(target, said, code, new)
        except notify.NotifyError as error:
            complain("drift", f"the notification failed: {error}", 0)


def _prune(arguments: argparse.Namespace, nights: History) -> None:
    moments = [(number, datetime.datetime.fromisoformat(started)) for number, started in nights.started().items()]
    odd = ageing.odd(moments)
    if odd:
        complain("drift", f"{odd}: no old run is deleted; check this machine's clock", 0)
        return
    newest = ageing.forgotten(moments, arguments.keep_days)
    if newest is None:
        return
    nights.prune(newest)
    kept = min(moment for number, moment in moments if number > newest)
    for name in (*FORMATS, "findings"):
        if getattr(arguments, name):
            output.prune(getattr(arguments, name), kept.date())


def _report_of(nights: History, number: int) -> tuple[str, ...]:
    return ("busbar", "report", "--history", str(nights.path.resolve()), "--run", str(number))


def store(run: Run, hosts: Mapping[str, HostResult], nights: History, again: Sequence[str] = ()) -> Plain:
    """Store the run, which ends now, in the history and return its report."""
    past = nights.nights(run)
    marks = {name: compare.marks(run.id, host, past.get(name, ())) for name, host in hosts.items()}
    ended = findings_file.now()
    run = replace(run, ended=ended, state="done", waivers=(*run.waivers, *waivers_of(hosts)))
    again = again or _report_of(nights, run.id)
    data = _report(run, hosts, marks, past, nights, again)
    classes = {name: host["class"] for name, host in data["hosts"].items()}
    try:
        nights.finish(run.id, ended, hosts, marks, classes, data["history"][-1], run.waivers)
    except sqlite3.Error:
        # Print the result, though no later command can show it.
        print(text.rendered(data, again), end="", flush=True)
        raise
    return data


def built(run: Run, nights: History) -> Plain:
    """Return the report of a run of the history."""
    hosts, marks = nights.hosts(run.id)
    return _report(run, hosts, marks, nights.nights(run), nights, _report_of(nights, run.id))


def _report(
    run: Run,
    hosts: Mapping[str, HostResult],
    marks: Mapping[str, Mapping[str, compare.Mark]],
    past: Mapping[str, Sequence[compare.EarlierRun]],
    nights: History,
    again: Sequence[str],
) -> Plain:
    changes = {name: compare.compare(host, past.get(name, ())) for name, host in hosts.items()}
    trail = nights.trail(run, report.STRIP - 1)
    return report.build(report.ReportInput(run, hosts, marks, changes, trail, nights.started(), tuple(again)))


def show(arguments: argparse.Namespace) -> int:
    """Show a past run."""
    missing = not_installed(("ansible",) if arguments.inventory else ())
    if missing:
        return complain("report", missing)
    try:
        manifest = inventory.read(arguments.inventory, None) if arguments.inventory else None
        with History.open(arguments.history or HISTORY) as nights:
            if arguments.list:
                lines = [printable(_line(run, summary)) for run, summary in nights.runs()]
                groups = [[line] for line in lines]
                shown = screen.page((), groups, (), terminal.COLUMNS, "busbar report --list -v", "run")
                for line in lines if arguments.verbose else shown:
                    print(line)
                return 0
            data = built(nights.run(arguments.number), nights)
            if arguments.nodes is None:
                emit(arguments, data, nights, manifest, _report_of(nights, data["run"]["id"]))
            else:
                _print_nodes(data, arguments.nodes)
            return 0
    except (HistoryError, WaiverError, InventoryError) as error:
        return complain("report", error)


def _print_nodes(data: Plain, group: str) -> None:
    groups, hosts = {*group.split(",")}, data["hosts"].items()
    names = [host for host, found in hosts if groups & {finding["group"] for finding in found["findings"]}]
    if not names:
        raise HistoryError(f"run {data['run']['id']} has no group {group!r}")
    print("\n".join(names))


def _line(run: Run, summary: Plain) -> str:
    said = run.message
    if run.state == "done":
        counts = [f"{number} {name.replace('_', ' ')}" for name, number in summary["hosts"].items() if number]
        said = f"exit {summary['exit_code']}, {', '.join(counts)}"
    limit = f" limit {run.limit}" if run.limit else ""
    return f"{run.id:5}  {run.started}  {run.state:11}  {run.inventory.replace(chr(10), ' ')}{limit}  {said}"


def _commit(path: Path) -> str | None:
    argv = ["git", "-C", str(path if path.is_dir() else path.parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
