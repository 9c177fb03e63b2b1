# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What ``busbar diagnose`` and playbooks/diagnose.yml print for people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import (
    SEVERITIES,
    Finding,
    from_dict,
    printable,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import (
    attendance,
    failures,
    judge_local,
    judge_network,
    judge_program,
    judge_settings,
    shown,
    signals,
    table_told,
    unread,
    unread_kinds,
    untold,
    went_on,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import judge as nccl_judge
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.job import Log, Reader
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import Job, names, numbers, of_ranks, split
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.sureness import PROVEN, how_sure
from ansible_collections.busbar.fabric.plugins.plugin_utils import answer, screen

# Lines that no rule has read, of one screen.
UNREAD = 6
# Files of which it is said at which line they begin.
FILES = 12
NODE = Check(
    "nccl_log.node",
    why="the log of a node that did not respond is missing, or part of it: the state of its ranks is unknown",
    fix="check that diagnose_logs names real paths of files there, and run it again for that host (--limit HOST)",
)
"Did every node give its logs (`playbooks/diagnose.yml`)"


def join(registered: Mapping[str, Any]) -> tuple[Log, list[Job], list[Finding]]:
    """The logs of all hosts as one. registered: host -> what nccl_log_info returned, checked by the gate, or None."""
    reader = Reader()
    missing = []
    for host in sorted(registered):
        result = answer.given(registered[host], "nccl_log_info")
        logs = result.get("logs") or []
        for finding in map(from_dict, result.get("findings") or []):
            have = finding.have or "not read"
            missing.append(NODE.judge(f"{host} {finding.subject}", "unknown", "its log", have, "nccl_log_info"))
        if not logs and not result.get("findings"):
            have = str(result.get("msg") or "no result")
            missing.append(NODE.judge(host, "unknown", "its logs", have, "nccl_log_info"))
        for one in logs:
            reader.source(f"{host}:{one['path']}")
            reader.feed(one["text"].encode("utf-8", "replace"))
            short = [f"{one['size'] - one['read']} bytes not read"] if one["read"] < one["size"] else []
            short += [f"{one['left_out']} lines had no room"] if one["left_out"] else []
            if short:
                have = "%s: %s" % (one["path"], ", ".join(short))
                missing.append(NODE.judge(f"{host} {one['path']}", "unknown", "all of it", have, "nccl_log_info"))
    reader.end()
    # What is alike stays as it was judged: what came first stands in front.
    found = [*nccl_judge.judge(reader.log), *missing]
    found.sort(key=lambda one: (one.ok, one.because is not None, SEVERITIES.index(one.severity)))
    return reader.log, split(reader.log), found


def render(
    log: Log,
    jobs: Sequence[Job],
    findings: Sequence[Finding],
    width: int = 100,
) -> str:
    """Return a line of each job, the findings worst first, what is right, then all that the log itself says."""
    unsupported = nccl_judge.not_judged(log, jobs)
    if unsupported:
        return "\n".join(_wrapped(f"verdict: not judged: this is a log of {unsupported}", width))
    bad = [finding for finding in findings if not finding.ok]
    lines = _head(log, jobs, bad, width, None)
    for finding in bad:
        lines += ["", *_finding(finding, jobs, width, None)]
    good = [line for text in _good(findings) for line in _wrapped(text, width)]
    lines += ["", *good] if good else []
    lines += _quotes(log, jobs, bad, width)
    for number, job in enumerate(jobs):
        of = f" of {job.name}" if len(jobs) > 1 else ""
        for title, sentences in (
            ("shown", shown.shown(log, job, number == 0)),
            ("not shown", shown.not_shown(log, job, number == 0)),
        ):
            lines += _block(f"{title}{of}:", sentences, width)
    printed = " ".join(" ".join(lines).split())
    lines += _rest(log, printed, width) if log.small.kept else _unread(log, printed, width)
    lines += ["", *(line for text in _begins(log) for line in _wrapped(text, width)), _summary(log, bad)]
    return "\n".join(map(printable, lines))


def screenful(log: Log, jobs: Sequence[Job], findings: Sequence[Finding], width: int = 100) -> str:
    """Return one screen: the verdict, the findings with the same advice once, and the log's own reports."""
    if nccl_judge.not_judged(log, jobs):
        return render(log, jobs, findings, width)
    bad = [finding for finding in findings if not finding.ok]
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in bad:
        alike.setdefault((finding.check, finding.state, finding.severity, finding.fix), []).append(finding)
    blocks = []
    for first, *others in alike.values():
        block = _finding(first, jobs, width, screen.LINES)
        also = [" ".join(dict.fromkeys((finding.subject, finding.have or ""))) for finding in others]
        blocks.append([*block, *screen.listed("    also ", also, width, False, "; ")])
    title, *quotes = _quotes(log, jobs, bad, 1 << 20)[1:] or [""]
    blocks += [screen.wrapped(f"{title} {quotes[0].strip()}", width, 0, screen.LINES)] if quotes else []
    blocks += [screen.wrapped(quote, width, 2, screen.LINES) for quote in quotes[1:]]
    blocks += [screen.wrapped(text, width, 0, screen.LINES) for text in _good(findings)]
    nearest = unread.chosen(log.unread.kept, [failure.order for failure in log.failures] or [log.lines], UNREAD)
    blocks += [screen.wrapped(f"not read by a rule: {_of_unread(line)[0]}", width, 0, screen.LINES) for line in nearest]
    size = render(log, jobs, findings, width).count("\n") + 1
    head, tail = _head(log, jobs, bad, width, screen.LINES), [_summary(log, bad)]
    more = f"--all (all of the log, {size:,} lines), or --json"
    return "\n".join(screen.page(head, blocks, tail, width, more, "item", cut=True))


def _good(findings: Sequence[Finding]) -> list[str]:
    """Return what is right; what is the same on many hosts once."""
    counts = Counter(f"ok: {finding.have} [{finding.check}]" for finding in findings if finding.ok)
    return [f"{text}, {times} times" if times > 1 else text for text, times in counts.items()]


def _head(log: Log, jobs: Sequence[Job], bad: Sequence[Finding], width: int, most: int | None) -> list[str]:
    """Return what the jobs are and the verdict. most: lines of a text, and jobs; None: no limit."""
    lines = [line for job in jobs[:most] for line in screen.wrapped(_about(job, log), width, 0, most)]
    if most is not None and len(jobs) > most:
        lines += screen.listed("and ", [job.name for job in jobs[most:]], width, False)
    verdict = _verdict(log, jobs, bad)
    lines += screen.wrapped(f"verdict: {verdict}", width, 0, most)
    sure = how_sure(bad) if bad and "no failure is in these lines" not in verdict and not _no_text(log) else ""
    return lines + (screen.wrapped(f"how sure: {sure}", width, 4, most) if sure else [])


def _finding(finding: Finding, jobs: Sequence[Job], width: int, most: int | None) -> list[str]:
    """Return the lines of a finding. most: lines of a text; None: no limit."""
    severity = finding.severity if finding.state == "drift" else f"{finding.severity}, {finding.state}"
    follows = " (likely caused by the first)" if finding.because else ""
    # Of one job its name says nothing.
    parts = finding.subject.split(" ")
    of = f"{parts[0]} {parts[1]}: " if len(jobs) > 1 and len(parts) > 1 else ""
    lines = screen.wrapped(f"{severity}: {of}{finding.have} [{finding.check}]{follows}", width, 0, most)
    source = f"from: {finding.source}" if finding.source != finding.subject else ""
    for text in (f"why: {finding.why}", f"do: {finding.fix}", source):
        lines += screen.wrapped(text, width, 4, most) if text else []
    return lines


def _verdict(log: Log, jobs: Sequence[Job], bad: Sequence[Finding]) -> str:
    """The worst finding in a few words; of what failed in nothing first that it came to its end."""
    if _no_text(log):
        return f"this is not a text: {log.binary} of {log.lines} lines hold zero bytes"
    doubts = table_told.doubts(log.table)
    ended = "" if _reports(log) else went_on.in_order(log, jobs)
    ended = f"it came to its end in order ({ended}); " if ended else ""
    if not bad:
        return ended + (
            f"no failure is in this log; worth a look: {doubts[0]}" if doubts else "nothing in this log is wrong"
        )
    worst = bad[0]
    if worst.severity == "minor":
        own = next((one for one in bad if one.check == judge_program.PROGRAM.id), None)
        if own is not None:
            said = failures.cut(_without_stamps((own.have or "").partition(";")[0]), 300)
            return f"no failure of NCCL is in these lines; a program reports: {said}"
        more = f"; worth a look: {doubts[0]}" if doubts else ""
        return f"{ended}no failure is in these lines{more}; what they do not show is below"
    first = (worst.have or "").partition(";")[0]
    first = failures.cut(_without_stamps(first), 300)
    slow = worst.check.startswith(_NO_FAILURES) or (worst.check, worst.state) == (judge_network.INTERFACE.id, "unknown")
    mere = slow and not nccl_judge.fails(log) and not _reports(log)
    if mere:
        first = f"{ended}no failure is in these lines; worth a look: {first}"
    proof = went_on.line(log, jobs[0]) if len(jobs) == 1 and worst.severity == "major" else 0
    if proof:
        return f"no failure is in these lines: the job continued (line {proof}); worth a look: {first}"
    state = "these lines do not show the cause" if worst.state == "unknown" and not mere else ""
    cause = PROVEN.search(worst.have or "")
    if worst.state == "unknown" and cause is not None:
        state = cause.group()
    elif worst.check == judge_program.PROGRAM.id and "a call of NCCL failed" not in worst.why:
        state = state and "as a program reports"
    return f"{first}" + (f" ({state})" if state else "")


def _no_text(log: Log) -> bool:
    """Whether it is a program, an archive or a core, of which one part or another reads like a failure."""
    # A hole of zeros is in many a log that lies on a network's file system.
    return log.binary * 2 > log.lines and not log.info and not log.warnings


def _reports(log: Log) -> bool:
    """Whether a program or a launcher reports a failure, a death or an order to end."""
    return any(
        one.kind in (signals.DEATH, signals.ERROR, signals.ORDER) and not signals.MERELY.search(one.text)
        for one in log.quotes.all
    )


def _without_stamps(text: str) -> str:
    match = _STAMPS.match(text)
    return text[match.end() :] or text if match is not None else text


# Times, and a collector's marks, that stand before what a line says.
_STAMPS = re.compile(
    r"(?:[\[(]?(?:\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?|"
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)[\])]?"
    r"[ ,:|-]{0,4}(?:std(?:out|err) [FP] )?){1,3}"
)
# Checks of what makes a job slow, and ends none.
_NO_FAILURES = (
    judge_local.LOCAL.id,
    judge_local.NVLINK.id,
    judge_network.NETWORK.id,
    judge_network.GDR.id,
    judge_network.HCAS.id,
    judge_settings.EFFECT.id,
    "nccl_conf.lint.",
)


def _quotes(log: Log, jobs: Sequence[Job], bad: Sequence[Finding], width: int) -> list[str]:
    """Lines of the log that report something, and that no finding quotes."""
    explained = " ".join(" ".join(f"{finding.have} {finding.source}".split()) for finding in bad)
    found = shown.quoted(jobs[0], explained) if jobs else []
    sentences = []
    for one, first in found:
        sentences += shown.quote(jobs[0], one, first)
    sentences += [f"and {log.quotes.left_out} more kinds of lines"] if log.quotes.left_out else []
    return _block("lines of the log, in order:", sentences, width)


def _unread(log: Log, printed: str, width: int) -> list[str]:
    """Return what no rule has made anything of, and is not printed yet."""
    found = [one for one in log.unread.kept if " ".join(one.text.split()) not in printed]
    sentences = [sentence for one in found for sentence in _of_unread(one)]
    if log.unread.left_out:
        sentences.append(f"and {log.unread.left_out} more lines, not shown")
    return _block("lines that no rule has read, those that differ by numbers alone once:", sentences, width)


def _rest(log: Log, printed: str, width: int) -> list[str]:
    """Of a small log all that is not printed yet."""
    sentences = []
    for one in untold.left(log.small, printed):
        where = f"line {one.order}" + (f"; {one.count} such up to line {one.end}" if one.count > 1 else "")
        where += f", others: {one.last}" if one.last else ""
        about = unread_kinds.about(one.text, True) if one.nccl else ""
        sentences += [f"{'NCCL: ' if one.nccl else ''}{one.text} ({where})", *([f"= {about}"] if about else [])]
    return _block("the rest of the log, lines that differ by numbers alone once:", sentences, width)


def _of_unread(one: unread.Line) -> list[str]:
    """A line that no rule has read, as it is printed, and what it is."""
    where = f"line {one.order}"
    if one.count > 1:
        where += f"; {'at least ' if one.count >= unread.LOOKED_AT else ''}{one.count} lines are alike"
    text = f"{'NCCL: ' if one.nccl else ''}{one.text}"
    if one.last and one.last != one.text:
        text += f" ... {one.last} (up to line {one.end})"
    about = unread_kinds.about(one.text) if one.nccl else ""
    return [f"{text} ({where})", *([f"= {about}"] if about else [])]


def _block(title: str, sentences: Sequence[str], width: int) -> list[str]:
    if not sentences:
        return []
    lines = ["", title]
    for sentence in sentences:
        lines += _wrapped(("      " if sentence.startswith("= ") else "  ") + sentence, width)
    return lines


def _about(job: Job, log: Log) -> str:
    hosts = {process.host for process in job.processes if process.host}
    listed = log.table.ranks if not hosts else {}
    said = [f"{job.name}: NCCL's lines of {job.counted} process{'' if job.counted == 1 else 'es'}"]
    if job.counted is None:
        said = [f"{job.name}: processes that cannot be distinguished (no pid)"]
    if len(job.processes) == 1 and not job.processes[0].host and job.processes[0].key[1] is None:
        said = [f"{job.name}: the lines do not name their processes"]
    elif not job.processes:
        said = [f"{job.name}: no line of NCCL's that names a process"]
        if log.ras.groups or log.ras.blocks:
            said = [f"{job.name}: no line of NCCL's own log; a report of its RAS"]
    if listed:
        pids = {(one.host, one.pid) for one in log.table.placed}
        most = max(listed) + 1
        told = f"{len(listed)} rank{'' if len(listed) == 1 else 's'} of nccl-tests in its list"
        if most > len(listed):
            told = f"{len(listed)} of at least {most} ranks of nccl-tests in what is here of its list"
        said = [f"{job.name}: {told}"]
        said.append(f"in {len(pids)} process{'' if len(pids) == 1 else 'es'} on {names(log.table.hosts)}")
    of = log.programs
    if log.table.summed and not hosts and not listed:
        said = [f"{job.name}: nccl-tests' list has {names(log.table.summed)}"]
    if hosts:
        said.append("on %s" % names(hosts))
    if job.world is None and not listed and len(of.worlds) == 1 and job.name == "job":
        said.append("a program's world has %d ranks" % next(iter(of.worlds)))
    spoke = {one.failure.rank for one in job.failures} | of.ranks | of.named
    spoke = spoke.union(*(one.ranks for one in job.quotes))
    if not job.processes and spoke - {None}:
        said.append("%s in lines of programs" % of_ranks(numbers(rank for rank in spoke if rank is not None)))
    # Programs of one rank each are no job of one rank.
    apart = job.world is not None and job.world.ranks == 1 and len(hosts) > 1
    if job.world is not None and not apart:
        said.append("%d of %d ranks in this log" % (attendance.here(log, job), job.world.ranks))
        if len(job.communicators) > 1:
            said.append("%d communicators" % len(job.communicators))
    counted = job.world is None or job.world.nodes is not None or len(job.world.began) == job.world.ranks
    least = "" if counted else "at least "
    nodes = "1 node" if job.nodes == 1 else f"{least}{job.nodes} nodes"
    named = max((process.shaped for process in job.processes), default=0)
    # Of how many it is not told nothing is said here: hosts are named, or what is not shown reports it.
    if apart:
        said.append("communicators of one rank alone")
    elif job.nodes or named == 1:
        said.append(f"over {nodes}" if job.nodes else "a communicator over 1 node is named")
    release = ", ".join(job.versions)
    signed = {process.host for process in job.processes if process.versions}
    if len(job.versions) == 1 and signed and len(signed) < len(hosts):
        release += " (reported by %s)" % names(signed, 2)
    said.append("NCCL %s" % (release or "release unknown"))
    if job.networks or job.called:
        said.append("network %s" % names(job.networks | job.called))
    return ", ".join(said)


def _wrapped(text: str, width: int) -> list[str]:
    return screen.wrapped(text.strip(), width, len(text) - len(text.lstrip()))


def _summary(log: Log, bad: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in bad)
    detail = ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity])
    read = f"{log.lines} lines of {len(log.sources)} file{'' if len(log.sources) == 1 else 's'}"
    return f"{len(bad)} finding{'' if len(bad) == 1 else 's'} in {read}" + (f": {detail}" if detail else "")


def _begins(log: Log) -> list[str]:
    """Where each file begins: lines are counted through all of them."""
    if len(log.sources) < 2:
        return []
    begins = [f"{name} at {before + 1}" for name, before in zip(log.sources, log.begins, strict=True)]
    more = f" and {len(begins) - FILES} more files" if len(begins) > FILES else ""
    return [f"lines are counted through all files, which begin: {', '.join(begins[:FILES])}{more}"]
