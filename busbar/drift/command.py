# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar drift`` and ``busbar report``: run the nightly check, and show any earlier run.

``report`` of a past run ends with GOOD or ERROR only; with ``--merge`` it ends as drift does.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import getpass
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES, printable
from ansible_collections.busbar.fabric.plugins.plugin_utils import screen, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR, LOCKED
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .. import __version__, private_tempdir
from ..command_line import PACKAGES, complain, not_installed
from ..job_files import JobFilesError
from . import (
    ageing,
    compare,
    findings_part,
    inventory,
    job_bandwidth,
    lock,
    merge,
    notify,
    output,
    report,
    runner,
    signals,
    text,
    waivers,
)
from .findings_part import PartError
from .formats import FORMATS, RELATED, RESULTS, emit
from .history import History, HistoryError, is_disk_full
from .inventory import Expected, InventoryError, Manifest
from .progress import Progress
from .run import HostResult, Run
from .waivers import WaiverError

HISTORY = RESULTS / "drift.sqlite"
# Flapping is judged over the last runs; one more is the base of comparison.
LEAST_DAYS = compare.NIGHTS + 1
_EXPECTED = (WaiverError, InventoryError, HistoryError, runner.RunnerError, PartError, signals.Interrupted)
# Seconds from the first query of a merged run to its last result.
WITHIN = 12 * 3600
# Options of report that need --merge.
_OF_MERGE = ("limit", "within", "fail_on", "keep_days", "notify", "webhook", "notify_always")


def stamp(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _now() -> str:
    return stamp(datetime.datetime.now(datetime.UTC))


def drift(arguments: argparse.Namespace) -> int:
    """Run the nightly check. Return the exit code."""
    return _whole("drift", _locked, arguments, PACKAGES)


def _whole(
    command: str, night: Callable[[argparse.Namespace], int], arguments: argparse.Namespace, wanted: Iterable[str]
) -> int:
    """Run a command so that every end has an exit code and a notification. wanted: of PACKAGES."""
    missing = not_installed(wanted)
    if missing:
        return complain(command, missing)
    try:
        with signals.raised():
            return night(arguments)
    except lock.LockedError as error:
        return complain(command, f"{error}; not started", LOCKED)
    except (*_EXPECTED, OSError) as error:
        if isinstance(error, signals.Interrupted) and error.table:
            # After a hangup there is no reader.
            with contextlib.suppress(OSError):
                print(error.table, flush=True)
        complain(command, error)
        _notify_failure(command, arguments)
        return ERROR
    except SystemExit as error:
        complain(command, f"a library ended the run with {error.code}")
        _notify_failure(command, arguments)
        return ERROR
    except BaseException:
        # Notify in any case; Python prints the cause.
        _notify_failure(command, arguments)
        raise


def _locked(arguments: argparse.Namespace) -> int:
    sources = inventory.sources(arguments.inventory)
    inventory.require_protected(arguments.inventory)
    for name in (*FORMATS, "findings"):
        if getattr(arguments, name):
            output.require_folder(getattr(arguments, name))
    commit = _commit(arguments.inventory[0].resolve())
    begun = _begun(arguments, sources, commit, _now())
    expected = Expected()
    collect = functools.partial(_collect, arguments, expected)
    try:
        with _written(arguments.history or HISTORY) as nights:
            return _night("drift", arguments, begun, expected, collect, nights)
    except (HistoryError, OSError) as error:
        if expected.manifest is not None or not is_disk_full(error):
            raise
        again = ["busbar", "drift", *(word for source in sources for word in ("-i", source))]
        # The verdict needs no history.
        with private_tempdir.directory() as folder, History.create(folder / HISTORY.name) as nights:
            _night("drift", arguments, begun, expected, collect, nights, again)
        raise


def _begun(
    arguments: argparse.Namespace,
    sources: Sequence[str],
    commit: str | None,
    started: str,
    ended: str | None = None,
    version: str = __version__,
    simulated: bool = False,
) -> Run:
    """Return a run that has no number yet, and no result."""
    return Run(
        id=0,
        started=started,
        ended=ended,
        state="running",
        inventory="\n".join(sources),
        limit=arguments.limit,
        version=version,
        user=getpass.getuser(),
        commit=commit,
        simulated=simulated,
        fail_on=arguments.fail_on or SEVERITIES[-1],
    )


def _collect(arguments: argparse.Namespace, expected: Expected) -> Mapping[str, HostResult]:
    with Progress() as progress:
        found = runner.run(
            arguments.inventory,
            arguments.limit,
            expected,
            progress,
            arguments.forks,
            arguments.host_timeout,
            arguments.timeout,
            _engine(arguments),
        )
    if arguments.inspector:
        try:
            return job_bandwidth.add(found, arguments.inspector, time.time())
        except (JobFilesError, OSError) as error:
            complain("drift", f"--inspector: {error}", 0)
    return found


@contextlib.contextmanager
def _written(path: Path) -> Iterator[History]:
    note = f"run of {getpass.getuser()}, begun {_now()}"
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
    command: str,
    arguments: argparse.Namespace,
    begun: Run,
    expected: Expected,
    collect: Callable[[], Mapping[str, HostResult]],
    nights: History,
    again: Sequence[str] = (),
) -> int:
    """Process a run from its row in the history to the exit code. again: command that shows an unstored run."""
    number = nights.begin(begun)
    again = again or _report_of(nights, number)
    try:
        hosts = collect()
        manifest = expected.manifest or Manifest((), (), False)
        simulated = begun.simulated or manifest.simulated
        nights.simulated(number, simulated)
        run = Run(**{**begun.__dict__, "id": number, "simulated": simulated})
        data = store(run, hosts, nights, again)
    except InventoryError:
        nights.forget(number)
        raise
    except BaseException as error:
        _fail(nights, number, error, expected.manifest)
        raise
    if arguments.since:
        data = built(nights.run(number), arguments.since, nights, again)
    code = int(data["exit_code"])
    said = text.brief(data, again)
    try:
        more = {"findings": lambda: findings_part.render(nights.run(number), manifest, hosts)}
        emit(arguments, data, nights, manifest, again, more)
    except OSError as error:
        code = complain(command, error)
        said += "a report could not be written; its log has the reason\n"
    if data["news"] or code == ERROR or (code and arguments.notify_always):
        _notify(command, arguments, said, code, data["counts"]["new"])
    if arguments.keep_days:
        _prune(command, arguments, nights)
    return code


def _fail(nights: History, number: int, error: BaseException, manifest: Manifest | None) -> None:
    state = "interrupted" if isinstance(error, signals.Interrupted) else "failed"
    name = type(error).__name__
    # Without the manifest its secrets are unknown.
    said = str(error) if isinstance(error, _EXPECTED) else f"{name}: {error}" if manifest else name
    with signals.collected():
        nights.fail(number, state, _now(), runner.clean(said, manifest.secrets if manifest else ()))


def _engine(arguments: argparse.Namespace) -> Plain:
    """Return variables for Ansible; without the options the inventory decides."""
    given: Plain = {"busbar_engine": arguments.engine} if arguments.engine else {}
    return given | ({"busbar_engine_overlap": True} if arguments.engine_overlap else {})


def _notify_failure(command: str, arguments: argparse.Namespace) -> None:
    # The reason may quote a line of the inventory.
    with signals.collected():
        _notify(command, arguments, f"busbar {command} failed; its log has the reason\n", ERROR, 0)


def _notify(command: str, arguments: argparse.Namespace, said: str, code: int, new: int) -> None:
    """Send the notifications; a failure changes nothing in the result."""
    if arguments.notify:
        _attempt(command, lambda: notify.run(arguments.notify, said, code, new))
    if arguments.webhook:
        _attempt(command, lambda: notify.post(arguments.webhook, said, code, new))


def _attempt(command: str, step: Callable[[], None]) -> None:
    try:
        step()
    except notify.NotifyError as error:
        complain(command, f"the notification failed: {error}", 0)


def _prune(command: str, arguments: argparse.Namespace, nights: History) -> None:
    moments = nights.moments()
    odd = ageing.odd(moments)
    if odd:
        complain(command, f"{odd}: no old run is deleted; check this machine's clock", 0)
        return
    newest = ageing.forgotten(moments, arguments.keep_days)
    if newest is None:
        return
    nights.prune(newest)
    kept = min(moment for number, moment in moments if number > newest)
    for name in (*FORMATS, "findings"):
        if getattr(arguments, name, None):
            output.prune(getattr(arguments, name), kept.date())


def _report_of(nights: History, number: int) -> tuple[str, ...]:
    return ("busbar", "report", "--history", str(nights.path.resolve()), "--run", str(number))


def store(run: Run, hosts: Mapping[str, HostResult], nights: History, again: Sequence[str] = ()) -> Plain:
    """Store the run in the history and return its report. It ends now, unless it has an end."""
    earlier = nights.nights(run)
    past = {host: earlier.get(host, []) for host in hosts}
    marks = {host: compare.marks(run.id, hosts[host], past[host]) for host in hosts}
    ended = run.ended or _now()
    run = Run(**{**run.__dict__, "ended": ended, "state": "done", "waivers": (*run.waivers, *waivers.of_hosts(hosts))})
    again = again or _report_of(nights, run.id)
    data = report.build(_assemble(run, hosts, marks, past, past, None, nights, again))
    classes = {host: said["class"] for host, said in data["hosts"].items()}
    try:
        nights.finish(run.id, ended, hosts, marks, classes, data["history"][-1], run.waivers)
    except sqlite3.Error:
        # Print the result, though no later command can show it.
        print(text.rendered({**dict.fromkeys(RELATED), **data}, again), end="", flush=True)
        raise
    return data


def built(run: Run, since: str | None, nights: History, again: Sequence[str] = ()) -> Plain:
    """Return the report of a run of the history."""
    hosts, marks = nights.hosts(run.id)
    past = nights.nights(run)
    before = past
    base = None
    if since:
        base = nights.before(since, run)
        if base is None:
            raise HistoryError(
                f"there is no earlier run of this inventory up to {since}; busbar report --list names them"
            )
        before = nights.nights(run, count=1, until=base)
    again = again or _report_of(nights, run.id)
    return report.build(_assemble(run, hosts, marks, past, before, base, nights, again))


def _assemble(
    run: Run,
    hosts: Mapping[str, HostResult],
    marks: Mapping[str, Mapping[str, compare.Mark]],
    past: Mapping[str, Sequence[compare.EarlierRun]],
    before: Mapping[str, Sequence[compare.EarlierRun]],
    since: int | None,
    nights: History,
    again: Sequence[str],
) -> report.ReportInput:
    changes = {}
    for name, host in hosts.items():
        last = [*before.get(name, ())]
        changes[name] = compare.compare(host, last[-1] if last else None, past.get(name, ()))
    return report.ReportInput(
        run=run,
        hosts=hosts,
        marks=marks,
        changes=changes,
        trail=nights.trail(run, report.STRIP - 1),
        started=nights.started(),
        again=tuple(again),
        since=since,
    )


def show(arguments: argparse.Namespace) -> int:
    """Show a past run, or several findings files as one run."""
    if arguments.merge:
        # Only an inventory is read by Ansible.
        return _whole("report", _merged, arguments, ("ansible",) if arguments.inventory else ())
    idle = [f"--{name.replace('_', '-')}" for name in _OF_MERGE if getattr(arguments, name)]
    if idle:
        return complain("report", f"{', '.join(idle)}: only with --merge; a past run cannot be changed")
    missing = not_installed(("ansible",) if arguments.inventory else ())
    if missing:
        return complain("report", missing)
    try:
        manifest = inventory.read(arguments.inventory, None) if arguments.inventory else None
        with History.open(arguments.history or HISTORY) as nights:
            if arguments.list:
                lines = [[printable(_line(run, summary))] for run, summary in nights.runs()]
                whole = [line for [line] in lines]
                shown = screen.page((), lines, (), terminal.COLUMNS, "busbar report --list -v", "run")
                for line in whole if arguments.verbose else shown:
                    print(line)
                return 0
            data = built(nights.run(arguments.number), arguments.since, nights)
            if arguments.nodes is None:
                emit(arguments, data, nights, manifest, _report_of(nights, data["run"]["id"]))
                return 0
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


def _merged(arguments: argparse.Namespace) -> int:
    wrong = {"--run": arguments.number, "--list": arguments.list, "--nodes": arguments.nodes and arguments.history}
    if any(wrong.values()):
        named = " and ".join(name for name, value in wrong.items() if value)
        raise PartError(f"--merge shows the run of its files, and {named} a past run: leave one out")
    if arguments.limit is not None and not arguments.inventory:
        raise PartError("--limit selects hosts of an inventory: add -i INVENTORY")
    manifest = inventory.read(arguments.inventory, arguments.limit) if arguments.inventory else None
    paths = [str(path.resolve()) for path in arguments.inventory or ()]
    merged = merge.join(findings_part.read(arguments.merge), manifest, paths, arguments.within or WITHIN)
    begun = _begun(
        arguments, merged.inventory, merged.commit, merged.started, merged.ended, merged.version, merged.simulated
    )
    manifest = manifest or Manifest(tuple(merged.hosts), (), merged.simulated)
    if arguments.history:
        with _written(arguments.history) as nights:
            _newer(begun, nights)
            return _night("report", arguments, begun, Expected(manifest), lambda: merged.hosts, nights)
    again = ["busbar", "report", "--merge", *(str(path.resolve()) for path in arguments.merge)]
    again += [word for path in paths for word in ("-i", path)]
    again += ["--limit", arguments.limit] if arguments.limit else []
    again += ["--within", str(arguments.within)] if arguments.within else []
    with private_tempdir.directory() as folder, History.create(folder / HISTORY.name) as nights:
        if arguments.nodes is None:
            return _night("report", arguments, begun, Expected(manifest), lambda: merged.hosts, nights, again)
        run = Run(**{**begun.__dict__, "id": nights.begin(begun)})
        _print_nodes(store(run, merged.hosts, nights, again), arguments.nodes)
        return 0


def _newer(begun: Run, nights: History) -> None:
    """Raise HistoryError if later runs of the inventory exist: they were compared without this one."""
    for run, _summary in nights.runs():
        if run.inventory == begun.inventory and run.state == "done" and run.started >= begun.started:
            raise HistoryError(
                f"history {nights.path} has run {run.id} of this inventory, begun {run.started}; these parts were begun"
                f" {begun.started}, so they are in it already, or are older than its last run: leave --history out"
            )


def _line(run: Run, summary: Plain) -> str:
    said = run.message
    if run.state == "done":
        counts = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in summary["hosts"].items() if number)
        said = f"exit {summary['exit_code']}, {counts}"
    limit = f" limit {run.limit}" if run.limit else ""
    return f"{run.id:5}  {run.started}  {run.state:11}  {run.inventory.replace(chr(10), ' ')}{limit}  {said}"


def _commit(path: Path) -> str | None:
    argv = ["git", "-C", str(path if path.is_dir() else path.parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
