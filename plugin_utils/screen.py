# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Show findings on one screen: the worst in full, others in a line each, and where to find all; or all of them."""

from __future__ import annotations

import functools
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ansible_collections.busbar.fabric.plugins.module_utils.core import fix_command
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import DISRUPTIONS, printable

from . import finding_groups, nodeset
from .finding_groups import Group, Row

# Lines of a terminal, less the empty ones that Ansible prints around a verdict.
HEIGHT = 22
# Characters of names in a row; lines of a text in it.
CELL, LINES = 30, 2
CUT = " ..."
# Last lines of a table, its legend.
SENTENCES = 6
# The permission in a fix: live and persisted findings may differ in it only. The part a command repeats of a fix.
_PERMISSION = re.compile(r"(?:,reboot)? -e busbar_max_disruption=\w+")
_THEN_RUN = re.compile(r"[;,] then run (?:all of )?site\.yml[^;,]*$")
# Fix, hosts, fingerprints of groups -> command line; empty where the fix names none that can be completed.
Command = Callable[[str, Sequence[str], str], str]


def rows(groups: Iterable[Group]) -> list[Group]:
    """Return one group of the groups of a check that the same action removes, worst first."""
    alike: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        finding = group.finding
        key = (finding.severity, finding.state, finding.check, _PERMISSION.sub("", _common_fix(group)))
        alike.setdefault(key, []).append(group)
    found = []
    for of in alike.values():
        names, of_row = ",".join(group.fingerprint for group in of), tuple(row for group in of for row in group.rows)
        found.append(replace(of[0], fingerprint=names, rows=of_row, varied=of[0].varied or len(of) > 1))
    return sorted(found, key=lambda row: (*finding_groups.rank(row), -len(row.hosts) - row.follows))


def _noun(subjects: Iterable[str]) -> str:
    """Return ``rail`` of ``rail 3`` and ``rail 4``; "" where subjects are of another form or kind."""
    nouns = {subject.split()[0] if re.fullmatch(r"\w+ \d+", subject) else "" for subject in subjects}
    return nouns.pop() if len(nouns) == 1 else ""


def _common_fix(group: Group) -> str:
    """Return the fix in words that hold for each host and subject."""
    fix, noun = finding_groups.common_fix(group.finding, group.hosts[0]), _noun(group.subjects)
    return re.sub(rf"\b{noun} \d+\b", f"the {noun}", fix) if noun else fix


def summary(word: str, ok: int, hosts: int, passed: int, accepted: int) -> str:
    """Return how the first line begins. word: OK, NOT OK or INCOMPLETE. ok: number of hosts without a finding."""
    more = f", {accepted:,} accepted" if accepted else ""
    return f"VERDICT {word}: {ok:,} of {hosts:,} hosts ok, {passed:,} checks passed{more}"


def render(
    head: str,
    mode: str,
    rows: Sequence[Group],
    rest: Sequence[str],
    command: Command,
    width: int,
    more: str,
    verbose: bool,
    remarks: Mapping[str, str] | None = None,
    height: int = HEIGHT,
) -> str:
    """Return the verdict, the rows and the rest. mode: how the first line ends.

    more: options and files with the rest. remarks: fingerprint of a group -> since when it is there.
    """
    full = functools.partial(_full, width=width, command=command, verbose=verbose, remarks=remarks or {})
    counts = finding_groups.tally((row.finding.severity for row in rows), sum(row.follows for row in rows))
    lines = wrapped(f"{head}{', ' * bool(rows)}{counts} ({mode})", width)
    if verbose:
        lines += [line for row in rows for line in ("", *full(row))] + ["", *rest]
    else:
        # The last line names where to find all, also for the fixes that are not printed.
        lines = page(lines, [full(row) for row in rows], rest, width, more, cut=bool(rows), height=height)
    return "\n".join(printable(line) for line in lines)


def page(
    head: Sequence[str],
    blocks: Sequence[Sequence[str]],
    tail: Sequence[str],
    width: int,
    more: str,
    noun: str = "finding",
    cut: bool = False,
    height: int = HEIGHT,
) -> list[str]:
    """Return ``head``, the first blocks, the first lines of further ones, a count of the others, and ``tail``.

    more: options and files with the rest. cut: they have lines that are in no block, too.
    """
    room = height - _height([*head, *tail], width) - 1
    lines: list[str] = []
    whole = 0
    while whole < len(blocks) and _height([*lines, *blocks[whole]], width) <= room:
        lines += blocks[whole]
        whole += 1
    brief = blocks[whole : whole + max(room - _height(lines, width), 0)]
    firsts = [wrapped(block[0], width, 0, 1)[0] for block in brief]
    further: list[str] = []
    for line in brief[0][1:] if brief else ():
        if _height([*lines, *firsts, *further, line], width) > room:
            break
        further.append(line)
    lines += [*firsts[:1], *further, *firsts[1:]]
    left = len(blocks) - whole - len(brief)
    cut = cut or bool(brief) or any(line.endswith((CUT, " more")) for line in [*head, *lines, *tail])
    count = f"{left:,} more {noun}{'s' * (left > 1)}: {more}" if left else f"details: {more}"
    return [*head, *lines, *[count] * (left > 0 or cut), *tail]


def cut(text: str, width: int, more: str, verbose: bool = False) -> str:
    """Return one screen of a table with the sentences at its end, or all of it with ``verbose``."""
    lines = text.splitlines()
    blocks = [[line] for line in lines[:-SENTENCES]]
    return text if verbose else "\n".join(page((), blocks, lines[-SENTENCES:], width, more, "line"))


def _height(lines: Iterable[str], width: int) -> int:
    """Return how many lines of a terminal they take: a command, to be copied, may be longer than one."""
    return sum(-(-len(line) // width) or 1 for line in lines)


def _name(row: Group) -> str:
    aspects = sorted({of.finding.aspect for of in row.rows})
    check = row.finding.check + f"[{','.join(aspects)}]" * (len(aspects) > 1)
    where = (f"on {nodeset.brief(row.hosts, CELL)}", _subject(row.subjects))
    return "  ".join((row.finding.severity, row.finding.state, check, *where))


def _full(row: Group, width: int, command: Command, verbose: bool, remarks: Mapping[str, str]) -> list[str]:
    most = None if verbose else LINES
    facts = [f"{row.follows} more follow{'s' * (row.follows == 1)}"] if row.follows else []
    facts += dict.fromkeys(remarks[name] for name in row.fingerprint.split(",") if name in remarks)
    lines = wrapped(_name(row), width, 0, most)
    texts = ["; ".join([*facts, _values(row.rows)]), row.shared_hint]
    if verbose:
        # A name is not broken where a comma is near.
        hosts = "on: " + nodeset.fold(row.hosts).replace(",", ", ")
        lines += [line.replace(", ", ",") for line in wrapped(hosts, width, 4)] if len(hosts) > CELL else []
        parts = finding_groups.fold(row.rows)
        if len(parts) > 1 or len(row.subjects) > 1:
            texts[:1] = ["; ".join(facts)] + [
                f"{part.finding.aspect}: {_values(part.rows)}; {', '.join(part.subjects)} on {nodeset.fold(part.hosts)}"
                for part in parts
            ]
        texts += dict.fromkeys(f"why: {of.finding.why}" for of in row.rows)
    lines += [line for text in texts if text for line in wrapped(text, width, 4, most)]
    for fix in _fixes(row)[: None if verbose else 1]:
        copied, found = command(fix, row.hosts, row.fingerprint), fix_command.parse(fix)
        mends = bool(copied and found and found.mends)
        text = _THEN_RUN.sub("", fix) if copied and not verbose else fix
        lines += wrapped(f"do: {text}", width, 4, most) if verbose or not mends else []
        lines += [f"    {'' if mends else 'then '}$ {copied}"] if copied else []
    return lines


def _fixes(row: Group) -> list[str]:
    if len(row.rows) == 1:
        return [row.finding.fix]
    runs = {fix: fix_command.parse(fix) for fix in map(_common_fix, finding_groups.fold(row.rows))}
    return sorted(runs, key=lambda fix: -DISRUPTIONS.index(run.disruption if (run := runs[fix]) else "none"))


def _values(of: Sequence[Row]) -> str:
    return f"expected {_value(of, 'want')}; actual {_value(of, 'have')}"


def _value(of: Sequence[Row], name: str) -> str:
    """Return the most frequent value, of each aspect where these differ."""
    texts = {}
    for aspect in sorted({row.finding.aspect for row in of}):
        values = [(getattr(row.finding, name) or "none", row.host) for row in of if row.finding.aspect == aspect]
        # A sentence of several hosts names them equally in each; where each names itself, its name is left out.
        exact = Counter(text for text, _host in values)
        nameless = Counter(nodeset.nameless(text, host) for text, host in values)
        (text, _count), *others = min(exact, nameless, key=len).most_common()
        texts[aspect] = f"{text}{f' and {len(others)} other value' + 's' * (len(others) > 1) if others else ''}"
    same = len({*texts.values()}) == 1
    return texts[aspect] if same else ", ".join(f"{aspect} {text}" for aspect, text in texts.items())


def _subject(subjects: Sequence[str]) -> str:
    """Return ``8 rails: 0-7``, ``8 devices: mlx5_[0-7]``, or the first and how many more."""
    if len(subjects) == 1:
        return subjects[0]
    noun, words = _noun(subjects), [subject.split() for subject in subjects]
    if noun or all(len(parts) > 1 and ":" in parts[0] for parts in words):
        names = nodeset.brief((parts[1] for parts in words), CELL)
        return f"{len(subjects)} {noun or 'device'}s: {re.sub('[][]', '', names) if noun else names}"
    return f"{subjects[0]} and {len(subjects) - 1} more"


def listed(head: str, items: Sequence[str], width: int, verbose: bool, join: str = ", ") -> list[str]:
    """Return no line of no items, one line of as many as fit, or, with ``verbose``, all of them."""
    if verbose or not items:
        return wrapped(head + join.join(items), width) if items else []
    count = min(len(items), width)
    while count > 1 and len(head + join.join(items[:count])) + len(f" and {len(items)} more") > width:
        count -= 1
    more = f" and {len(items) - count} more" if count < len(items) else ""
    return [wrapped(head + join.join(items[:count]), width - len(more), 0, 1)[0] + more]


def each(items: Sequence[str], width: int, verbose: bool) -> list[str]:
    """Return a paragraph for each item with ``verbose``, else one line: the first, and how many more."""
    paragraphs = [line for item in items for line in wrapped(item, width)]
    return paragraphs if verbose else listed("", items, width, verbose, "; ")


def wrapped(text: str, width: int, indent: int = 0, most: int | None = None) -> list[str]:
    """Return its lines, those after the first set off; where there are more than ``most``, the last one is cut.

    Without ``most`` a word that is longer than a line is not broken: a path is to be copied.
    """
    first, further = " " * indent, " " * (indent + 4)
    lines = textwrap.wrap(
        printable(text.replace("\n", " ")),
        width,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=most is not None,
        break_on_hyphens=False,
    )
    if most is None or len(lines) <= most:
        return lines
    last = " ".join([lines[most - 1], *map(str.strip, lines[most:])])
    return [*lines[: most - 1], last[: width - len(CUT)].rstrip() + CUT]
