# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the playbook drift.yml and return how it ended for every host."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    accepted,
    codec,
    due_roles,
    findings_file,
    partial_results,
    result_schema,
    suite,
    terminal,
    verdict,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils import manifest as manifests
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import role_results

from .. import ansible_process, private_tempdir
from . import signals
from .inventory import Expected, InventoryError, Manifest, sources
from .run import ENDS, HostResult

PLAYBOOK = "busbar.fabric.drift"
# The findings file is not read beyond this; a host that differs in everything has about 100 kB.
LEAST_BYTES = 64 * 2**20
HOST_BYTES = 256 * 2**10
# Seconds in which Ansible has read the inventory.
START = 600
# Progress lines of fleet_audit.
_RESPONDED = re.compile(r"\d+ of \d+ hosts have responded")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_UNPARSED = re.compile(r"Unable to parse (\S+) as an inventory source")


class RunnerError(RuntimeError):
    """The run reported no host; the message has the reason."""


@dataclass
class _Watch:
    """Collect from a run's events what the findings file does not have.

    file: the manifest that the run writes. timeout: seconds, from then on.
    """

    file: Path
    timeout: float
    expected: Expected
    ends: dict[str, str] = field(default_factory=dict)
    failed: str = ""
    deadline: float = field(default_factory=lambda: time.monotonic() + START)

    def __call__(self, event: Plain) -> bool:
        """Return False: the runner stores no file of the event. There would be two for each task of each host."""
        self.look()
        name, data = event.get("event", ""), event.get("event_data") or {}
        host, result = data.get("host"), data.get("res")
        if name == "playbook_on_task_start":
            self.show(printable(str(data.get("task") or ""))[:60])
        elif responded := _RESPONDED.fullmatch(str(event.get("stdout") or "").strip()):
            self.show(responded[0])
        if host and name == "runner_on_unreachable":
            self.ends[host] = "unreachable"
        elif host and name == "runner_on_failed" and isinstance(result, dict):
            self.failed = self.failed or str(result.get("msg") or "")
            if result.get("timedout"):
                self.ends[host] = "timed_out"
        return False

    def look(self) -> None:
        """Read the manifest once it is there, and remove it: it holds secrets."""
        if self.expected.manifest is None and self.file.exists():
            self.expected.manifest = manifests.read(self.file)
            self.file.unlink()
            self.deadline = time.monotonic() + self.timeout

    @staticmethod
    def show(text: str) -> None:
        """Show what runs in the last line of a terminal; nothing is drawn into a log file."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    @property
    def late(self) -> bool:
        self.look()
        return time.monotonic() > self.deadline


def run(
    inventory: Sequence[Path],
    limit: str | None,
    expected: Expected,
    forks: int | None,
    host_timeout: int,
    timeout: int,
    variables: Mapping[str, object],
) -> dict[str, HostResult]:
    """Return host -> result, for every host of the manifest that ``expected`` then holds.

    host_timeout: seconds for one task on one host. timeout: for all that follows the reading of the inventory.
    variables: busbar_engine*, where the inventory does not decide.
    Raises InventoryError, RunnerError, signals.Interrupted.
    """
    environment = {"ANSIBLE_TASK_TIMEOUT": str(host_timeout)}
    if forks:
        environment["ANSIBLE_FORKS"] = str(forks)
    words = ["--check", *(["--limit", _absolute(limit)] if limit is not None else [])]
    with private_tempdir.directory() as folder, signals.collected() as ended:
        file, answers = folder / "findings.json", folder / "heard"
        watch = _Watch(folder / "manifest.json", timeout, expected)
        done = ansible_process.run(
            private_data_dir=str(folder),
            inventory=sources(inventory),
            playbook=PLAYBOOK,
            cmdline=shlex.join(words),
            extravars={
                "busbar_findings_path": str(file),
                "drift_heard_path": str(answers),
                "drift_manifest_path": str(watch.file),
                "drift_host_timeout": host_timeout,
                **variables,
            },
            envvars=environment,
            event_handler=watch,
            cancel_callback=lambda: bool(ended) or watch.late,
        )
        watch.look()
        watch.show("")
        manifest = expected.manifest
        if ended:
            raise signals.Interrupted(ended[0], until_now(partial_results.read(answers), manifest) if manifest else "")
        if manifest is None:
            raise InventoryError(clean(_unusable(limit, done.stdout.read()), ()))
        # Ansible ends with 2 for drift and for its own errors: only the file proves a verdict.
        if file.exists():
            return results(read_findings(file, len(manifest.hosts)), manifest, watch.ends)
        if done.status == "canceled":
            return results({"hosts": {}}, manifest, watch.ends)
        said = watch.failed or tail(done.stdout.read())
        raise RunnerError(clean(f"ansible-playbook {done.status}, rc {done.rc}: {said}", manifest.secrets))


def _absolute(limit: str) -> str:
    """Return the limit with absolute paths: ansible-runner starts Ansible in another folder."""
    words = limit.split(",")
    return ",".join(f"@{Path(word[1:]).absolute()}" if word.startswith("@") else word for word in words)


def _unusable(limit: str | None, text: str) -> str:
    """Return why there is nothing to query, from what Ansible printed."""
    if "leaves us with no hosts" in text:
        return f"--limit {limit!r} leaves no host of the group {findings_file.GROUP}"
    unparsed = _UNPARSED.search(" ".join(_COLOUR.sub("", text).split()))
    hint = f"; Ansible cannot read {unparsed[1]}: ansible-inventory --list -i {unparsed[1]}" if unparsed else ""
    return tail(text).rpartition("target_nodes' failed: ")[2] + hint


def until_now(answers: Mapping[str, Plain], manifest: Manifest) -> str:
    """Return the verdict's table of a run that was ended before its own. answers: host -> result, as they had come."""
    roles = suite.judged(nightly=True)
    found = {name: role_results(due_roles.of_audit(answers.get(name) or {}, roles[0])) for name in manifest.hosts}
    off = {name: answers.get(name, {}).get("off", {}) for name in manifest.hosts}
    judged = verdict.judge(found, roles, partial=False, ended=True, off=off).scrubbed(manifest.secrets)
    return verdict.render(judged, True, terminal.WIDTH)


def clean(text: str, hidden: tuple[str, ...]) -> str:
    """Return one line without secrets and terminal control characters."""
    return printable(" ".join(redaction.scrub(text, hidden).split()))[:2000]


def tail(text: str, playbook: str = PLAYBOOK) -> str:
    """Return the last output of ansible-playbook, or of its errors."""
    lines = [line for line in _COLOUR.sub("", text).splitlines() if line.strip()]
    errors = [line.removeprefix("[ERROR]: ") for line in lines if "[ERROR]" in line or "ERROR!" in line]
    said = " ".join(errors[:3] or lines[-3:]) or "it printed nothing"
    if f"{playbook} could not be found" in said:
        said += (
            "; it is in the collection busbar.fabric: install busbar with pip beside Ansible, or the collection with"
            " ansible-galaxy, or let collections_path of ansible.cfg name where it is"
        )
    return said


def read_findings(file: Path, hosts: int) -> Plain:
    """Return the findings file. Raises RunnerError where it is none, or larger than so many hosts can make it."""
    limit = LEAST_BYTES + hosts * HOST_BYTES
    with file.open("rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise RunnerError(f"the findings of {hosts} hosts have more than {limit} bytes: no host's result is that long")
    try:
        found = codec.as_dict(json.loads(data, object_hook=findings_file.compacted))
        codec.as_dict(found.get("hosts"), hosts + codec.MANY)
    except (ValueError, RecursionError) as error:
        raise RunnerError(f"the findings file cannot be read: {str(error)[:200]}") from error
    return found


def results(data: Plain, manifest: Manifest, ends: Mapping[str, str]) -> dict[str, HostResult]:
    """Return every host of the manifest with its result in the findings file and the events.

    An invalid result costs no other host its verdict.
    """
    found = {}
    for name in manifest.hosts:
        host = printable(name)
        said = data["hosts"].get(name)
        if said is None:
            end = ends.get(name, "not_run")
            found[host] = HostResult(host, end, (_no_result(_SILENT[end]),))
            continue
        try:
            found[host] = _result(host, said, ends.get(name, "incomplete"), manifest.secrets)
        except (ValueError, RecursionError) as error:
            why = clean(str(error), manifest.secrets)[:300]
            found[host] = HostResult(host, "incomplete", (_no_result(f"its result is not valid: {why}"),))
    return found


_SILENT = {"unreachable": "unreachable", "timed_out": "no response in time", "not_run": "not queried in time"}
_FIGURE = codec.number(-1e12, 1e12)
_BUSBW = codec.record(
    ("simulated", "bar", "finished"),
    others=True,
    busbw=_FIGURE,
    **codec.each(("bar", "finished"), codec.maybe(_FIGURE)),
)
# A host of the findings file: docs/findings.md.
_OF_HOST = codec.record(
    ("accepted", "notes", "intent", "end", "health", "evidence", "acceptances"),
    others=True,
    # Decoded below.
    **codec.each(("findings", "accepted"), codec.anything),
    passed_ids=codec.many(codec.text(), 1 << 20),
    notes=result_schema.lines,
    intent=codec.maybe(codec.text()),
    end=codec.maybe(codec.one_of(*ENDS)),
    busbw=codec.table(_BUSBW),
    health=result_schema.told_devices,
)


def _result(host: str, said: Plain, end: str, hidden: tuple[str, ...]) -> HostResult:
    """Return a host's result. Raises ValueError, which names what differs from docs/findings.md."""
    _OF_HOST(said)
    findings: list[Finding] = []
    for key in ("findings", "accepted"):
        try:
            findings += (_clean(finding, hidden) for finding in result_schema.decode_findings(said.get(key, [])))
        except codec.Invalid as error:
            raise error.within(key) from None
    evidence = findings_file.compacted({"evidence": {}, **said})["evidence"]
    if not isinstance(evidence, findings_file.Packed):
        raise ValueError("evidence is no value and source for each passed check")
    silent = not said["passed_ids"] or any(finding.check.startswith("run.") for finding in findings)
    figures = ("busbw", "bar", "finished")
    return HostResult(
        host=host,
        end=said.get("end") or (end if silent else "complete"),
        findings=tuple(findings),
        passed=frozenset(map(printable, said["passed_ids"])),
        intent=None if said.get("intent") is None else printable(said["intent"]),
        busbw={
            printable(run): {**{key: of.get(key) for key in figures}, "simulated": bool(of.get("simulated"))}
            for run, of in said["busbw"].items()
        },
        notes=tuple(clean(note, hidden) for note in said.get("notes", [])),
        health=tuple(said.get("health", [])),
        evidence=evidence,
        acceptances=accepted.parse(said.get("acceptances", [])),
    )


def _no_result(have: str) -> Finding:
    return verdict.HOST.judge("host", "unknown", "a result", have, "ansible-playbook")


def _clean(finding: Finding, hidden: tuple[str, ...]) -> Finding:
    """Return the finding without secrets and terminal control characters: its texts can be shown from here on."""
    found = finding.scrubbed(hidden)
    texts = {name: getattr(found, name) for name in ("want", "have", "source", "why", "fix")}
    return replace(found, **{name: printable(text) for name, text in texts.items() if text is not None})
