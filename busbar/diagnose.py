# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar diagnose``: what happened to a job and what to do about it, out of its NCCL_DEBUG output.

Exit code 0: nothing wrong is in the log. 1: findings, what the log cannot tell among them. 2: no log was read.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO, Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import (
    SEVERITIES,
    Finding,
    printable,
    worst_first,
)
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job as nccl_job
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import judge as nccl_judge
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import training as nccl_training
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import Job, names, split
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.report import report
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.transport import transport
from ansible_collections.busbar.fabric.plugins.plugin_utils import terminal

BLOCK = 1 << 20
# What a file begins with -> how it is read.
_PACKED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_NOT_READ = {
    b"\x28\xb5\x2f\xfd": "is packed by zstd: zstd -dc FILE | busbar diagnose -",
    b"PK\x03\x04": "is a zip archive: unzip -p FILE | busbar diagnose -",
}
_COLOURS = {"critical": "\033[31m", "major": "\033[33m", "minor": "\033[36m"}
_RESET = "\033[0m"
# Findings that are printed; all of them are in --json.
SHOWN = 40


def run(paths: Sequence[str], as_json: bool, training: str | None = None) -> int:
    """Read logs of one job, or of several ("-": standard input), and print what they say.

    training: a training log with step times and, where it has it, GPU utilisation.
    """
    reader = nccl_job.Reader()
    code = 0
    read = 0
    for path in paths:
        name = "<stdin>" if path == "-" else path
        try:
            for number, block in enumerate(_blocks(path, name)):
                if number == 0:
                    reader.source(name)
                    read += 1
                reader.feed(block)
        except ReadError as error:
            code = _cannot(str(error))
    reader.end()
    if not read:
        return code or _cannot("there is nothing in %s" % ", ".join(paths))
    log = reader.log
    findings = nccl_judge.judge(log)
    if training is not None:
        try:
            findings = worst_first([*findings, *nccl_training.judge(_steps(training), findings)])
        except ReadError as error:
            code = _cannot(str(error))
    jobs = split(log)
    if as_json:
        print(json.dumps(report(log, jobs, findings), indent=1))
    else:
        print(render(log, jobs, findings, terminal.WIDTH, sys.stdout.isatty()))
    if not log.info and not log.warnings and not log.failures:
        return 2
    return code or int(any(not finding.ok for finding in findings))


def _blocks(path: str, name: str) -> Iterator[bytes]:
    """A file's content, unpacked where it is packed. Raises ReadError."""
    try:
        if path == "-":
            if sys.stdin is None:
                raise ReadError(name, "is closed")
            yield from _from(sys.stdin.buffer)
            return
        with open(path, "rb") as plain:
            begin = plain.read(8)
        for magic, why in _NOT_READ.items():
            if begin.startswith(magic):
                raise ReadError(name, why)
        opener: Any = next((way for magic, way in _PACKED.items() if begin.startswith(magic)), open)
        with opener(path, "rb") as stream:
            yield from _from(stream)
    except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ReadError(name, f"cannot be read: {reason}") from error


def _steps(path: str) -> nccl_training.Training:
    """Raises ReadError."""
    training = nccl_training.Training()
    rest = b""
    for block in _blocks(path, path):
        *lines, rest = (rest + block).replace(b"\r", b"\n").split(b"\n")
        rest = rest[:BLOCK]
        for line in lines:
            training.line(line[:2000].decode("utf-8", "replace"))
    training.line(rest[:2000].decode("utf-8", "replace"))
    return training


def _from(stream: IO[bytes]) -> Iterator[bytes]:
    """Blocks of UTF-8; of the UTF-16 that Windows' tools write, too."""
    block = stream.read(BLOCK)
    wide = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}.get(block[:2])
    rest = b""
    if wide:
        block = block[2:]
    while block:
        if wide:
            block = rest + block
            even = len(block) & ~1
            rest, block = block[even:], block[:even].decode(wide, "replace").encode("utf-8", "replace")
        yield block
        block = stream.read(BLOCK)


def _cannot(message: str) -> int:
    print(f"busbar diagnose: {printable(message)}", file=sys.stderr)
    return 2


def render(
    log: nccl_job.Log, jobs: Sequence[Job], findings: Sequence[Finding], width: int = 100, colour: bool = False
) -> str:
    """What people read: the job in a few lines, the findings worst first, then what is right."""
    lines = []
    for job in jobs:
        lines += _wrapped(_about(job), width)
        if job.processes and job.nodes != 1:
            proof = transport(job)
            lines += _wrapped(
                "  transport: " + ("proven" if proof.proven else "not proven: " + "; ".join(proof.missing)), width
            )
        settings = ["%s=%s" % (name, names(job.set_to(name), 3)) for name in sorted(_set(job))]
        if settings:
            lines += _wrapped(
                "  set (by the environment, or a file such as /etc/nccl.conf: the log does not tell which): %s"
                % ", ".join(settings[:30]) + (" and %d more" % (len(settings) - 30) if len(settings) > 30 else ""),
                width,
            )  # fmt: skip
    bad = [finding for finding in findings if not finding.ok]
    for finding in bad[:SHOWN]:
        severity = finding.severity if finding.state == "drift" else f"{finding.severity}, {finding.state}"
        if colour:
            severity = f"{_COLOURS[finding.severity]}{severity}{_RESET}"
        lines.append("")
        follows = " (follows from the first)" if finding.because else ""
        # Of one job its name says nothing.
        of = (
            f"{finding.subject.split(' ')[0]} {finding.subject.split(' ')[1]}: "
            if len(jobs) > 1 and " " in finding.subject
            else ""
        )
        lines += _wrapped(f"{severity}: {of}{finding.have} [{finding.check}]{follows}", width)
        lines += _wrapped(f"    why: {finding.why}", width)
        lines += _wrapped(f"    do: {finding.fix}", width)
        if finding.source != finding.subject:
            lines += _wrapped(f"    from: {finding.source}", width)
    if len(bad) > SHOWN:
        lines += ["", "... and %d more findings; --json has them all" % (len(bad) - SHOWN)]
    good = [finding for finding in findings if finding.ok]
    if good:
        lines.append("")
        lines += [line for finding in good for line in _wrapped(f"ok: {finding.have} [{finding.check}]", width)]
    lines += ["", _summary(log, bad)]
    return "\n".join(printable(line) if not colour else line for line in lines)


def _set(job: Job) -> set[str]:
    return {name for process in job.processes for name in process.variables}


def _about(job: Job) -> str:
    hosts = {process.host for process in job.processes if process.host}
    said = [f"{job.name}: {len(job.processes)} process{'' if len(job.processes) == 1 else 'es'}"]
    if hosts:
        said.append("on %s" % names(hosts))
    if job.world is not None:
        said.append("%d of %d ranks in this log" % (len(job.world.began), job.world.ranks))
        if len(job.communicators) > 1:
            said.append("%d communicators" % len(job.communicators))
    said.append("over %s" % ("1 node" if job.nodes == 1 else f"{job.nodes} nodes") if job.nodes else "nodes unknown")
    said.append("NCCL %s" % (", ".join(job.versions) or "release unknown"))
    if job.networks:
        said.append("network %s" % names(job.networks))
    return ", ".join(said)


def _wrapped(text: str, width: int) -> list[str]:
    text = printable(text)
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text.strip(), width, initial_indent=indent, subsequent_indent=indent + "    ", break_on_hyphens=False
    )


def _summary(log: nccl_job.Log, bad: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in bad)
    detail = ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity])
    read = f"{log.lines} lines of {len(log.sources)} file{'' if len(log.sources) == 1 else 's'}"
    return f"{len(bad)} finding{'' if len(bad) == 1 else 's'} in {read}" + (f": {detail}" if detail else "")
