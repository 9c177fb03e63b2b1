# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write and read the findings file of one of several runs that share a night, of `busbar drift` or of AWX."""

from __future__ import annotations

import datetime
import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.plugin_utils import accepted, findings_file, suite
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .inventory import Manifest
from .run import HostResult, Run
from .runner import clean, typed

# Bytes of all parts: 10,000 hosts that differ in everything have about 1 GB, as many healthy ones 130 MB.
BYTES = 2**30
MOMENT = "%Y-%m-%dT%H:%M:%SZ"


class PartError(RuntimeError):
    """A file is no part of a run, or parts make no run; the message names files and hosts."""


@dataclass(frozen=True)
class Part:
    """The content of a findings file (plugin_utils/findings_file.py); its hosts are not yet checked.

    hosts: name -> result, as busbar/drift/runner.py reads it. expected: roles that had to report.
    """

    path: Path
    version: str
    started: datetime.datetime
    ended: datetime.datetime
    inventory: tuple[str, ...]
    group: tuple[str, ...]
    commit: str | None
    digest: str | None
    simulated: bool
    expected: tuple[str, ...]
    hosts: Mapping[str, object]


def render(run: Run, manifest: Manifest, hosts: Mapping[str, HostResult]) -> str:
    """Return the findings file of a finished run of `busbar drift`."""
    data = {
        "check_mode": True,
        "expected": suite.judged(nightly=True),
        "left_out": [],
        "run": findings_file.of_run(
            run.started,
            run.ended or findings_file.now(),
            run.inventory.split("\n"),
            run.limit,
            manifest.group,
            run.simulated,
            run.commit,
            manifest.digest,
        ),
        "hosts": {
            name: {
                "end": host.end,
                **_findings(host, datetime.date.fromisoformat(run.started[:10])),
                "passed_ids": sorted(host.passed),
                "intent": host.intent,
                "busbw": host.busbw,
                "notes": host.notes,
                "health": host.health,
                "acceptances": [entry.to_dict() for entry in host.acceptances],
            }
            for name, host in hosts.items()
        },
    }
    return "".join(findings_file.text(data, lambda name: findings_file.unpacked(hosts[name].evidence)))


def _findings(host: HostResult, day: datetime.date) -> dict[str, list[dict[str, str | None]]]:
    """Return standing and accepted findings: repairs read the first only."""
    of = accepted.covered(host.findings, host.acceptances, day)
    found: dict[str, list[dict[str, str | None]]] = {"findings": [], "accepted": []}
    for finding in host.findings:
        found["accepted" if finding.id in of else "findings"].append(finding.to_dict())
    return found


def read(paths: Sequence[Path]) -> list[Part]:
    """Return every file's content, each file once. Raises PartError."""
    parts = []
    room = BYTES
    files: dict[tuple[int, int], Path] = {}
    for path in paths:
        try:
            data, identity = _bytes(path, room)
        except OSError as error:
            raise PartError(f"{path} cannot be read: {error.strerror}") from error
        if identity in files:
            raise PartError(f"{files[identity]} and {path} are one file: name each file once")
        files[identity] = path
        room -= len(data)
        parts.append(_part(path, data))
    return parts


def _bytes(path: Path, room: int) -> tuple[bytes, tuple[int, int]]:
    """Return the content, and the file's identity. Raises OSError, PartError."""
    # Opening a pipe would wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PartError(f"{path} is not a regular file: name the findings file of a run")
        data = stream.read(room + 1)
    if len(data) > room:
        raise PartError(f"{path}: all files together have more than {BYTES} bytes, which no fleet's results have")
    return data, (status.st_dev, status.st_ino)


def _part(path: Path, content: bytes) -> Part:
    try:
        return _parse(path, typed(json.loads(content, object_pairs_hook=_unique_object), dict, "it"))
    except (ValueError, RecursionError) as error:
        # Including errors of json and of text that is not UTF-8.
        raise PartError(f"{path} is not a findings file, or is incomplete: {clean(str(error), ())[:300]}") from error


def _unique_object(pairs: list[tuple[str, object]]) -> Plain:
    """Return a JSON object. Raises ValueError for two values with one name, of which the first would be lost."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in found if names.count(name) > 1)!r:.80} is there twice")
    return findings_file.compacted(found)


def _parse(path: Path, data: Plain) -> Part:
    """Return the part. Raises ValueError, and PartError for a sound file of another kind of run."""
    if "run" not in data and "hosts" in data:
        raise PartError(f"{path} does not name its run, because an older Busbar wrote it; audit its hosts again")
    run = typed(data.get("run"), dict, "run")
    if run.get("format") != findings_file.FORMAT:
        wanted = f"this Busbar reads {findings_file.FORMAT}"
        raise PartError(f"{path} has format {run.get('format')!r:.20}, {wanted}: merge with the Busbar that wrote it")
    if typed(data.get("check_mode"), bool, "check_mode") is not True:
        raise PartError(f"{path} is of a run that changes nodes; only runs with --check can be merged")
    left_out = _texts(data.get("left_out"), "left_out")
    if left_out:
        raise PartError(f"{path} leaves roles out (--tags or --skip-tags): {', '.join(left_out)[:300]}")
    hosts = {printable(name): answer for name, answer in typed(data.get("hosts"), dict, "hosts").items()}
    if len(hosts) != len(data["hosts"]):
        raise ValueError("two of its hosts have one name")
    if not hosts:
        raise PartError(f"{path} has no host")
    ended = _moment(run.get("ended"), "run.ended")
    started = ended if run.get("started") is None else _moment(run["started"], "run.started")
    if ended < started:
        raise ValueError(f"its run ended {ended:{MOMENT}}, before it began ({started:{MOMENT}})")
    return Part(
        path=path,
        version=printable(typed(run.get("version"), str, "run.version")),
        started=started,
        ended=ended,
        inventory=_texts(run.get("inventory"), "run.inventory"),
        group=_texts(run.get("group"), "run.group"),
        commit=_perhaps(run.get("commit"), "run.commit"),
        digest=_perhaps(run.get("digest"), "run.digest"),
        simulated=typed(run.get("simulated"), bool, "run.simulated"),
        expected=_texts(data.get("expected", data.get("checked")), "expected"),
        hosts=hosts,
    )


def _texts(value: object, what: str) -> tuple[str, ...]:
    return tuple(printable(typed(item, str, what)) for item in typed(value, list, what))


def _perhaps(value: object, what: str) -> str | None:
    return None if value is None else printable(typed(value, str, what))


def _moment(value: object, what: str) -> datetime.datetime:
    return datetime.datetime.strptime(typed(value, str, what), MOMENT).replace(tzinfo=datetime.UTC)


def names(paths: Iterable[Path]) -> str:
    return ", ".join(map(str, paths))
