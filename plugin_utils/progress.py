# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report a run of Ansible while it runs: one line a role, failures at once, hosts folded.

Fed by events, without Ansible, a clock or a terminal: each event returns the lines to print.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable

from . import nodeset
from .terminal import counted

# Seconds between two lines of a role that still runs.
PACE = 30.0
# Tasks outside of roles have a line if they take this many seconds, or changed something.
LONG = 5.0
# Seconds without a result, after which a line names the hosts that are waited for.
SILENT = 10.0
# How a task ended on a host, the worst last: a section counts a host once.
ENDS = ("skipped", "ok", "changed", "ignored", "rescued", "failed", "unreachable")
# Keys of a result besides its message that are not printed: differences between equal failures, repetitions, values in
# the verdict's table.
_UNSAID = frozenset(
    ("msg", "changed", "failed", "unreachable", "skipped", "attempts", "ansible_facts", "item", "censored", "timedout")
    + ("ansible_loop_var", "ansible_index_var", "start", "end", "delta", "stdout_lines", "stderr_lines", "invocation")
    + ("findings", "diff", "commands", "results", "exception", "warnings", "deprecations", "failed_when_result")
)


@dataclass(frozen=True)
class Line:
    """kind: one of ENDS, ``diff``, ``says``, ``warn`` or ``plain``: selects the colour."""

    text: str
    kind: str = "plain"


@dataclass
class _Fold:
    """Hosts with equal messages. rest: those that were not named yet."""

    head: str
    kind: str
    rest: list[str] = field(default_factory=list)


@dataclass
class _Section:
    """A role in a play, or a play's tasks outside of roles. ends: host -> the worst end of a task on it."""

    name: str
    role: bool
    since: float
    spent: float = 0.0
    ends: dict[str, str] = field(default_factory=dict)
    folds: dict[tuple[str, str, str], _Fold] = field(default_factory=dict)
    printed: tuple[int, ...] | None = None
    printed_at: float = 0.0

    def hosts(self, end: str) -> list[str]:
        return [host for host, got in self.ends.items() if got == end]

    def worked_on(self) -> int:
        return sum(end != "skipped" for end in self.ends.values())

    def counts(self) -> tuple[int, ...]:
        """Return the counts that an operator sees, in the order of ENDS."""
        return tuple(len(self.hosts(end)) for end in ENDS[2:])


class Run:
    """A run of ansible-playbook. clock: seconds, any zero. check: nothing is changed. judged: a verdict follows."""

    def __init__(self, clock: Callable[[], float], check: bool = False, judged: bool = False) -> None:
        self._clock = clock
        self._begun = clock()
        self._check = check
        self._judged = judged
        self._ends: dict[str, str] = {}
        self._ordered = True
        self._play = ""
        self._batch = 1
        self._hosts = 0
        self._most = 0
        self._verdict = ""
        # Whether the verdict was printed.
        self.verdict_printed = False
        self._once = False
        self._sections: dict[str, _Section] = {}
        self._current: _Section | None = None
        self._task = ""
        self._waiting: set[str] = set()
        # Hosts of the play to which its next task does not come.
        self._gone: set[str] = set()
        self._answered = 0
        self._total = 0
        self._moved = self._begun

    # Events. Each returns the lines to print.

    def play(self, name: str, hosts: int, ordered: bool = True, batch: bool = False) -> list[Line]:
        """Begin a play. hosts: how many take part. ordered: all do one task at a time. batch: they are some of the
        play's.
        """
        lines = self.close()
        name = printable(name)
        self._batch = self._batch + 1 if batch and name == self._play else 1
        self._play, self._hosts, self._ordered = name, hosts, ordered
        self._most = max(self._most, hosts)
        self._task, self._waiting, self._gone = "", set(), set()
        return lines

    def task(self, name: str, role: str, once: bool = False) -> list[Line]:
        """Begin a task. role: "" outside of roles. once: on one host, for all of them."""
        section = self._section(role)
        lines = []
        if section is not self._current:
            lines = self._closed(self._current) if self._ordered else []
            section.since = self._clock()
            self._current = section
        self._task, self._once = printable(name), once
        if self._ordered:
            self._waiting = set()
            self._answered, self._total = 0, 1 if once else max(1, self._hosts - len(self._gone))
        self._moved = self._clock()
        return lines

    def started(self, host: str) -> None:
        self._waiting.add(host)

    def ended(self, host: str, end: str, role: str, counts: bool = True) -> None:
        """Note the end of a task on a host, one of ENDS. counts: it is the host's, and not the verdict's on all."""
        self._waiting.discard(host)
        self._answered += 1
        self._moved = self._clock()
        if end in ("failed", "unreachable", "rescued"):
            self._gone.add(host)
        elif end != "skipped":
            self._gone.discard(host)
        self.verdict_printed = self.verdict_printed or not counts
        if counts:
            for ends in (self._section(role).ends, self._ends):
                ends[host] = max(end, ends.get(host, end), key=ENDS.index)

    def unreached(self, host: str) -> None:
        """Note a host that a task for all of them could not reach."""
        for ends in (self._section("").ends, self._ends):
            ends[host] = "unreachable"

    def message(
        self, kind: str, host: str, role: str, task: str, text: str, where: str = "", address: str = ""
    ) -> list[Line] | None:
        """Return a message about a host: in full of the first, of others as they are folded; None for these.

        kind: an end that is not good, ``diff`` or ``says``. text: of the node; a diff is escaped and coloured.
        where: file and line of the task. address: of the host, which its messages name where others name theirs.
        """
        section = self._section(role)
        head = f"{kind.upper()}  {_titled(role, task)}"
        alike = text
        for name in filter(None, (host, address)):
            alike = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "{host}", alike)
        # Also unchanged: a host's name may be a word of the common message.
        keys = [(head, where, alike), (head, where, text)]
        for key in keys:
            if key in section.folds:
                section.folds[key].rest.append(host)
                return None
        section.folds.update(dict.fromkeys(keys, _Fold(head, kind)))
        note = "counted by the verdict" if self._judged and kind in ("rescued", "unreachable") else ""
        body = [where] if where else []
        body += (text if kind == "diff" else printable_lines(text)).splitlines()
        first = "  ".join(filter(None, (head, printable(host), f"({note})" if note else "")))
        # A diff's lines have their meaning in the first column.
        indent = "" if kind == "diff" else "  "
        return [Line(first, kind), *(Line(indent + line, kind) for line in body)]

    def not_ok(self, verdict: str) -> list[Line]:
        """Note that the verdict is not ok. Its table is above, and its failure belongs to all hosts."""
        self._verdict = "; the verdict is not ok"
        return [Line(printable_lines(verdict), "failed")]

    def lost(self) -> list[Line]:
        return [Line(f"no host is left in {self._play or 'the play'}", "warn")]

    def tick(self) -> list[Line]:
        """Return the line of a role that still runs, where it is due."""
        now, section = self._clock(), self._current
        if section is None or now - max(section.printed_at, section.since) < PACE:
            return []
        section.printed_at = now
        spent = clock_text(section.spent + now - section.since)
        words = (section.name, self._position(), self._counted(section), spent, self._doing())
        return [Line("  ".join(filter(None, words)))]

    def finished(self, hosts: Iterable[str]) -> list[Line]:
        """End the run. hosts: all that took part, also those with nothing to do."""
        lines = self.close()
        count = max(self._most, len({*hosts, *self._ends}))
        return lines + self._summary(count, f"in {clock_text(self._clock() - self._begun)}")

    def ended_early(self, why: str) -> list[Line]:
        """End the run before its end: return where it was, and what it has done."""
        lines = [Line(why, "failed")]
        if self._current is not None:
            done = f" ({self._position()} had done it)" if self._total > 1 else ""
            lines = [Line(f"{why} in {_titled(self._current.name, self._task)}{done}", "failed")]
            if self._waiting and not self._once:
                waiting = nodeset.brief(map(printable, self._waiting), 400)
                lines.append(Line(f"  no response yet from: {waiting}", "failed"))
        when = f"until {clock_text(self._clock() - self._begun)}"
        return [*lines, *self.close(), *self._summary(max(self._most, len(self._ends)), when)]

    # Texts of the lines.

    def _section(self, role: str) -> _Section:
        name = printable(role) or self._play
        key = f"role {name}" if role else ""
        if key not in self._sections:
            batch = f" batch {self._batch}" if self._batch > 1 else ""
            self._sections[key] = _Section((name or "play") + batch, bool(role), self._clock())
        return self._sections[key]

    def close(self) -> list[Line]:
        """Close all sections: the play has ended, or the user is prompted between two plays."""
        current, lines = self._current, []
        # Sections of roles first; a play's tasks outside of them are reported last.
        for section in sorted(self._sections.values(), key=lambda section: not section.role):
            if section is not current:
                section.since = self._clock()
            lines += self._closed(section, last=True)
        self._sections, self._current = {}, None
        return lines

    def _closed(self, section: _Section | None, last: bool = False) -> list[Line]:
        """Return the line of a section that ends, and other hosts of its messages. last: the play does not return."""
        if section is None:
            return []
        now = self._clock()
        section.spent += now - section.since
        section.since = now
        lines = []
        for fold in section.folds.values():
            names = {printable(host) for host in fold.rest if host}
            if names:
                said = f"{fold.head}  the same on {counted(len(names), 'host')}: {nodeset.fold(names)}"
                lines.append(Line(said, fold.kind))
            fold.rest = []
        counts = section.counts()
        if section.role:
            # Left and entered again, for a role within it or its handlers: reported again if that changed something.
            tell = bool(section.ends) and counts != section.printed
        else:
            alone = not any(other.role for other in self._sections.values())
            tell = last and (any(counts) or (section.worked_on() > 0 and (alone or section.spent >= LONG)))
        if tell:
            section.printed = counts
            lines.append(self._line(section))
        return lines

    def _line(self, section: _Section) -> Line:
        worked = section.worked_on()
        hosts = counted(worked, "host") if section.role or worked > 1 or self._hosts == 1 else ""
        if hosts and section.ends and not worked:
            hosts = f"nothing to do on {counted(len(section.ends), 'host')}"
        text = f"{section.name:<20}  {hosts:<12}  {clock_text(section.spent):>6}  {self._counted(section, 60)}"
        worst = next((end for end in reversed(ENDS[2:]) if section.hosts(end)), "ok")
        return Line(text.rstrip(), worst)

    def _position(self) -> str:
        return f"{min(self._answered, self._total)} of {self._total} hosts" if self._total > 1 else ""

    def _doing(self) -> str:
        """Return the running task; where no result comes, the hosts that are waited for."""
        still = self._clock() - self._moved
        if still >= SILENT and self._waiting and self._total > 1:
            return f"waits for {nodeset.brief(map(printable, self._waiting), 60)} since {clock_text(still)}"
        return self._task[:60]

    def _counted(self, section: _Section, names: int = 0) -> str:
        """Return ``3 changed, 1 failed``; with the hosts, folded to ``names`` characters, if that is not 0."""
        words = []
        for end in ENDS[2:]:
            if hosts := section.hosts(end):
                named = names > 0 and len(hosts) < len(section.ends)
                which = f" ({nodeset.brief(map(printable, hosts), names)})" if named else ""
                words.append(f"{len(hosts)} {self._verb(end)}{which}")
        return ", ".join(words)

    def _verb(self, end: str) -> str:
        return "would change" if end == "changed" and self._check else end

    def _summary(self, hosts: int, when: str) -> list[Line]:
        if not hosts:
            return [Line(f"No host took part; {when}", "warn")]
        by_end = {end: [host for host, got in self._ends.items() if got == end] for end in ENDS[2:]}
        words = [f"{len(names)} {self._verb(end)}" for end, names in by_end.items() if names]
        worst = "failed" if self._verdict else next((end for end in reversed(ENDS[2:]) if by_end[end]), "ok")
        done = ", ".join(words) or "nothing changed" + ("" if self._verdict else ", nothing failed")
        lines = [Line(f"{counted(hosts, 'host')} {when}: {done}{self._verdict}", worst)]
        for end in ("failed", "unreachable", "rescued", "ignored"):
            if by_end[end]:
                lines.append(Line(f"  {end:<12} {nodeset.fold(map(printable, by_end[end]))}", end))
        return lines


def clock_text(seconds: float) -> str:
    """Format seconds: ``0:07``, ``12:30``, ``1:02:03``."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def printable_lines(text: str) -> str:
    """Return lines without terminal control characters."""
    return "\n".join(printable(line.expandtabs(8)) for line in text.splitlines())


def failure(result: Mapping[str, object]) -> str:
    """Return a result's failure as the node gave it: its message, and what else the module returned."""
    unsaid = "its failed_when is true" if result.get("failed_when_result") else "it failed without a message"
    message = result.get("msg") or result.get("censored") or result.get("reason") or unsaid
    return "\n".join([str(message), *details(result)])


def details(result: Mapping[str, object]) -> list[str]:
    """Return a result's other values, as ``key: value``."""
    lines = []
    for key, value in sorted(result.items()):
        if key in _UNSAID or key.startswith("_ansible") or value in (None, "", [], {}):
            continue
        if isinstance(value, str) and "\n" in value.strip():
            lines += [f"{key}:", *("  " + line for line in value.strip("\n").splitlines())]
        elif isinstance(value, str | int | float):
            lines.append(f"{key}: {value}")
        else:
            plain = json.loads(json.dumps(value, default=str, skipkeys=True))
            told = yaml.safe_dump(plain, allow_unicode=True, default_flow_style=None, width=110, sort_keys=False)
            rows = told.rstrip().splitlines()
            lines += [f"{key}: {rows[0]}"] if len(rows) == 1 else [f"{key}:", *("  " + row for row in rows)]
    return lines


def _titled(role: str, task: str) -> str:
    role, task = printable(role), printable(task)
    return f"{role} : {task}" if role and task and role != task else role or task
