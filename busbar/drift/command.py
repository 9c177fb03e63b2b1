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
import json
import re
import shlex
import sqlite3
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.number import whole
from ansible_collections.busbar.fabric.plugins.plugin_utils import findings_file, screen, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR, LOCKED

from .. import __version__, private_tempdir
from ..command_line import MORE, PACKAGES, add_ansible, complain, not_installed
from . import (
    actions,
    ageing,
    cluster,
    compare,
    fabric,
    findings_part,
    html,
    inventory,
    junit,
    localise_section,
    lock,
    merge,
    notify,
    output,
    prometheus,
    related_results,
    report,
    runner,
    signals,
    text,
    waivers,
)
from .findings_part import PartError
from .history import History, HistoryError, is_disk_full
from .inventory import Expected, InventoryError, Manifest
from .progress import Progress
from .run import HostResult, Plain, Run
from .waivers import WaiverError

RESULTS = Path("busbar-results")
HISTORY = RESULTS / "drift.sqlite"
# Flapping is judged over the last runs; one more is the base of comparison.
LEAST_DAYS = compare.NIGHTS + 1
_EXPECTED = (WaiverError, InventoryError, HistoryError, runner.RunnerError, PartError, signals.Interrupted)
_FORMATS = {
    "json": "everything as JSON",
    "junit": "JUnit XML for CI",
    "prometheus": "metrics for node_exporter's textfile collector",
    "markdown": "Markdown for a chat",
    "html": "one HTML page",
}
# Sections of a report from other runs' records.
_RELATED = ("cluster", "localised", "fabric", "actions")
# Seconds from the first query of a merged run to its last result.
WITHIN = 12 * 3600
# Options of report that need --merge.
_OF_MERGE = ("limit", "within", "fail_on", "keep_days", "notify", "webhook", "notify_always")


def add_drift(command: argparse.ArgumentParser) -> None:
    text = "inventory, as for ansible-playbook"
    command.add_argument("-i", "--inventory", required=True, action="append", type=Path, metavar="PATH", help=text)
    command.add_argument("--limit", metavar="HOSTS", help="only these hosts; an empty limit is refused")
    more = command.add_argument_group(MORE, "FILE: - is standard output; {date} is replaced by the day of the run.")
    _add_verdict(command, more)
    text = "hosts queried in parallel (default: ansible.cfg)"
    more.add_argument("--forks", type=_positive, metavar="N", help=text)
    text = "ssh, or one Slurm step (default: busbar_engine)"
    more.add_argument("--engine", choices=("ssh", "slurm"), help=text)
    text = "with slurm: include nodes with jobs, if Slurm permits"
    more.add_argument("--engine-overlap", action="store_true", help=text)
    text = "timeout of one host in seconds (%(default)s)"
    more.add_argument("--host-timeout", type=_positive, default=300, metavar="S", help=text)
    text = "timeout of the run in seconds (%(default)s)"
    more.add_argument("--timeout", type=_positive, default=7200, metavar="S", help=text)
    command.add_argument("--findings", metavar="FILE", help="write findings for remediate and report --merge")
    _outputs(command, more)
    add_ansible(command)
    command.set_defaults(run=drift)


def _add_verdict(command: argparse._ActionsContainer, more: argparse._ActionsContainer) -> None:
    """Add the options of the exit code and the notification. more: takes the rare ones."""
    text = f"lowest severity that counts ({SEVERITIES[-1]})"
    command.add_argument("--fail-on", choices=SEVERITIES, metavar="SEVERITY", help=text)
    text = "delete older runs, and older files named by {date}"
    more.add_argument("--keep-days", type=_days, metavar="N", help=text)
    text = "command to run, without a shell, when the result changes"
    more.add_argument("--notify", type=_argv, metavar="COMMAND", help=text)
    text = "file with the https address to notify"
    more.add_argument("--webhook", type=Path, metavar="FILE", help=text)
    text = "notify of every run that is not in sync"
    more.add_argument("--notify-always", action="store_true", help=text)


def add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("--run", dest="number", type=_positive, metavar="N", help="run (default: last complete one)")
    command.add_argument("--list", action="store_true", help="list the runs of the history")
    text = "print the nodes of groups A,B, for --limit @FILE"
    command.add_argument("--nodes", metavar="GROUP", help=text)
    text = "FILE: - is standard output; {date} is the day of the run. --limit to --notify-always need --merge."
    more = command.add_argument_group(MORE, text)
    _outputs(command, more)
    text = "inventory: its secrets are removed from the report"
    command.add_argument("-i", "--inventory", action="append", type=Path, metavar="PATH", help=text)
    text = "merge findings files of runs over disjoint hosts"
    command.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help=text)
    more.add_argument("--limit", metavar="HOSTS", help="expect only these hosts of the inventory")
    text = f"time limit over all runs in seconds ({WITHIN})"
    more.add_argument("--within", type=_positive, metavar="S", help=text)
    _add_verdict(more, more)
    add_ansible(command)
    command.set_defaults(run=show)


def _outputs(command: argparse.ArgumentParser, more: argparse._ActionsContainer) -> None:
    command.add_argument("-v", "--verbose", action="store_true", help="print everything, not one screen")
    command.add_argument("--history", type=Path, metavar="FILE", help=f"SQLite file ({HISTORY})")
    text = "compare with the last run up to YYYY-MM-DD"
    command.add_argument("--since", type=_moment, metavar="DAY", help=text)
    more.add_argument("--mode", type=_mode, default=0o600, metavar="BITS", help="permissions of the reports (600)")
    text = f"benchmark results (default: {RESULTS})"
    more.add_argument("--results", type=Path, metavar="DIRECTORY", help=text)
    for name, content in _FORMATS.items():
        text = f"write {content}{' (-: standard output)' if name == 'json' else ''}"
        command.add_argument(f"--{name}", metavar="FILE", help=text)


def _positive(text: str) -> int:
    number = whole(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of 1 or more")
    return number


def _days(text: str) -> int:
    if _positive(text) < LEAST_DAYS:
        raise argparse.ArgumentTypeError(f"{text} is less than {LEAST_DAYS}, the days that a run is compared with")
    return int(text)


def _mode(text: str) -> int:
    if not re.fullmatch("0?[0-7]{3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a file mode such as 640")
    return int(text, 8)


def _argv(text: str) -> list[str]:
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a command: {error}") from error
    if not argv:
        raise argparse.ArgumentTypeError("is empty")
    return argv


def _moment(text: str) -> str:
    """Return a day, which means its end, or a moment; in UTC, as runs are dated."""
    try:
        day = len(text) == len("YYYY-MM-DD")
        moment = datetime.datetime.fromisoformat(text + "T23:59:59" if day else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a day like 2026-11-21, nor a time like 2026-11-21T02:00"
        ) from error
    return _stamp(moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC))


def _stamp(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _now() -> str:
    return _stamp(datetime.datetime.now(datetime.UTC))


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
    for name in (*_FORMATS, "findings"):
        if getattr(arguments, name):
            output.require_folder(getattr(arguments, name))
    begun = Run(
        id=0,
        started=_now(),
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


def _collect(arguments: argparse.Namespace, expected: Expected) -> Mapping[str, HostResult]:
    with Progress() as progress:
        return runner.run(
            arguments.inventory,
            arguments.limit,
            expected,
            progress,
            arguments.forks,
            arguments.host_timeout,
            arguments.timeout,
            _engine(arguments),
        )


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
        _emit(arguments, data, nights, manifest, again, more)
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
    for name in (*_FORMATS, "findings"):
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
        print(text.rendered({**dict.fromkeys(_RELATED), **data}, again), end="", flush=True)
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
                _emit(arguments, data, nights, manifest, _report_of(nights, data["run"]["id"]))
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
    begun = Run(
        id=0,
        started=merged.started,
        ended=merged.ended,
        state="running",
        inventory="\n".join(merged.inventory),
        limit=arguments.limit,
        version=merged.version,
        user=getpass.getuser(),
        commit=merged.commit,
        simulated=merged.simulated,
        fail_on=arguments.fail_on or SEVERITIES[-1],
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


def _emit(
    arguments: argparse.Namespace,
    data: Plain,
    nights: History,
    manifest: Manifest | None,
    again: Sequence[str],
    more: Mapping[str, Callable[[], str]] | None = None,
) -> None:
    """Write every output; the verdict goes to standard output where nothing else goes there.

    manifest: of the inventory, None where none is named. again: shows the run. more: outputs of a run.
    """
    day = datetime.date.fromisoformat(data["run"]["started"][:10])
    known = manifest or Manifest((), (), False)
    results = arguments.results or Path(known.results or RESULTS)
    found = related_results.RelatedResults(results, data["run"]["ended"], known.secrets, known.max_age_days)
    data = {
        **data,
        "cluster": cluster.latest(found),
        "localised": localise_section.latest(found),
        "fabric": fabric.latest(found),
        "actions": actions.latest(found),
    }
    makers: dict[str, Callable[[], str]] = {
        "json": lambda: json.dumps(_with_evidence(data), indent=1, sort_keys=True) + "\n",
        "junit": lambda: junit.render(data),
        "prometheus": lambda: prometheus.render(data, nights.complete(data["run"]["id"])),
        "markdown": lambda: text.markdown(data, again),
        "html": lambda: html.render(data),
        **(more or {}),
    }
    targets = {name: output.dated(getattr(arguments, name), day) for name in makers if getattr(arguments, name, None)}
    failed = _write(arguments, targets, makers)
    if "-" not in targets.values():
        print(text.rendered(data, again, verbose=arguments.verbose), end="", flush=True)
    if failed:
        # The verdict comes first.
        raise failed


def _write(
    arguments: argparse.Namespace, targets: Mapping[str, str], makers: Mapping[str, Callable[[], str]]
) -> OSError | None:
    failed = None
    for name, target in targets.items():
        try:
            # node_exporter is another user, and its file holds no value of a node.
            output.write(target, makers[name](), 0o644 if name == "prometheus" else arguments.mode)
        except OSError as error:
            failed = error
    return failed


def _with_evidence(data: Plain) -> dict[str, object]:
    hosts = {
        name: {**host, "evidence": findings_file.unpacked(host["evidence"])} for name, host in data["hosts"].items()
    }
    return {**data, "hosts": hosts}


def _commit(path: Path) -> str | None:
    argv = ["git", "-C", str(path if path.is_dir() else path.parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
