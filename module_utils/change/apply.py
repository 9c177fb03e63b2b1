# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Execute a plan. A reader, also after this process was killed, finds either the old file or the new one."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any, Callable, Dict, List, Optional, Sequence

from ..core import temp_files, trusted
from ..core.finding import Finding
from ..core.host import Host, ReadError
from ..core.plan import Command, FileChange, Plan
from . import busy, guard

# What a file is called before it has its name.
_TEMPORARY = ".%s.busbar-"


def persisted(finding: Finding) -> bool:
    return finding.aspect == "persisted"


def either(finding: Finding) -> bool:
    """Accept live and persisted findings."""
    return True


def converge(
    host: Host,
    check_mode: bool,
    look: Callable[[], Plan],
    make: Optional[Callable[[Host, Plan], List[str]]] = None,
    mends: Callable[[Finding], bool] = persisted,
) -> Dict[str, Any]:
    """Bring the machine to what a plan asks for, unless in check mode, and read it again. Return a module's result.

    look: reads the machine and plans, without what is not permitted. Called again after a change: the result
        reports what is there then.
    make: makes the plan's changes and returns the paths of the backups; ``execute`` by default.
    mends: as in ``result``.
    Raises what these raise.
    """
    planned = after = look()
    backups: List[str] = []
    if planned.changed and not check_mode:
        backups = (make or execute)(host, planned)
        after = look()
    return dict(result(planned, after, mends), backup_files=backups)


def execute(host: Host, plan: Plan) -> List[str]:
    """Make all changes, then run all commands. Return the backups' paths. Raises ReadError at the first failure."""
    backups = [write(host, change) for change in plan.changes]
    for command in plan.commands:
        run(host, command)
    return [path for path in backups if path]


def execute_service(host: Host, plan: Plan) -> List[str]:
    """Make the plan of a unit of systemd as ``execute`` does, but disable first: without its file it cannot be."""
    first = [command for command in plan.commands if "disable" in command.argv]
    for command in first:
        run(host, command)
    return execute(host, plan._replace(commands=tuple(one for one in plan.commands if one not in first)))


class Permission:
    """Limit plans: nothing above ``most``, and nothing that disturbs processes that use ``devices``.

    Users are read once, and only if a plan would disturb them.
    """

    def __init__(self, host: Host, devices: Sequence[str], most: str) -> None:
        self._host = host
        self._devices = devices
        self._most = most
        self._users: Optional[busy.Busy] = None

    def __call__(self, found: Plan) -> Plan:
        allowed = found.limit(self._most)
        if all(command.disruption == "none" for command in allowed.commands):
            return allowed
        if self._users is None:
            self._users = busy.read(self._host, self._devices, guard.connection())
        return found.block(self._users.against).limit(self._most)


def result(planned: Plan, after: Plan, mends: Callable[[Finding], bool] = persisted) -> Dict[str, Any]:
    """Return a module's result: the changes of the plan, and the findings that are there after it.

    after: the plan of the state afterwards; in check mode, and if nothing had to be done, the same plan.
    mends: whether a run of this module removes a finding in drift.
    """
    found = after.result()
    found.update({name: planned.result()[name] for name in ("changed", "diff", "commands")})
    still = {finding.id for finding in after.findings if not finding.ok} if after is not planned else set()
    # Without a change nothing is mended, whatever a finding may advise.
    mended = [f for f in planned.findings if f.state == "drift" and mends(f) and f.id not in still]
    found["repaired"] = [finding.id for finding in mended] if planned.changed else []
    return found


def run(host: Host, command: Command) -> None:
    """Run one command. Raises ReadError with the last line that the tool printed if it does not exit with 0."""
    done = host.run(command.argv, timeout=command.timeout, leaves=True)
    if done.rc != 0:
        raise ReadError(str(command), "exited with %d: %s" % (done.rc, done.last_words))


def write(host: Host, change: FileChange) -> Optional[str]:
    """Write a file below the system root. Return the backup's path, None without a backup.

    Raises ReadError and leaves the file as it was. Ansible's atomic_move would take over the old mode.
    """
    target = host.system(change.path)
    try:
        if change.after is not None:
            _require_trust(host, change.path)
            return _replace(target, change)
        temp_files.sweep(os.path.dirname(target), _TEMPORARY % os.path.basename(target))
        backup = _backup(target) if change.backup else None
        os.unlink(target)
        return backup
    except OSError as error:
        raise ReadError(change.path, "cannot be written: %s" % error.strerror) from error


def _require_trust(host: Host, path: str) -> None:
    """Raise ReadError if others than root may change what root's programs will read or run at this path."""
    folder = os.path.dirname(path)
    while not os.path.lexists(host.system(folder)):
        folder = os.path.dirname(folder)
    doubt = host.doubt(folder)
    if doubt:
        raise ReadError(path, "is not written, because %s; %s" % (doubt, trusted.WAY_OUT))


def _replace(target: str, change: FileChange) -> Optional[str]:
    folder, name = os.path.split(target)
    os.makedirs(folder, exist_ok=True)
    descriptor, new = temp_files.new_file(folder, _TEMPORARY % name)
    # Open, and so locked, until it has its name.
    with open(descriptor, "w", encoding="utf-8") as stream:
        try:
            stream.write(change.after or "")
            os.fchmod(descriptor, change.mode)
            stream.flush()
            os.fsync(descriptor)
            backup = _backup(target) if change.before is not None and change.backup else None
            os.replace(new, target)
        except OSError:
            os.unlink(new)
            raise
    return backup


def _backup(target: str) -> str:
    # A second name for the old file, which is replaced and not overwritten: it needs no space.
    name = "%s.%d.%s~" % (target, os.getpid(), datetime.now().strftime("%Y-%m-%d@%H:%M:%S.%f"))
    os.link(target, name)
    return name
