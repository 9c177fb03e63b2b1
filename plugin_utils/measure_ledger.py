# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Store the cost of each night of ``busbar measure``, and the age of each host's results: one file beside them.

A host's age is that of its results below ``nccl_benchmark_results_path``, from any run; each of their directories is
read once. A grant is written down before it is used: a run that was killed has spent its grant.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from . import benchmark_results, codec, result_schema, results_folder
from .campaign import cluster_record
from .measure import Known

FORMAT = 1
NAME = "measure.json"
LIMIT = 16 << 20
NIGHTS = 60
# Days after which results are not read, and only the ledger has them.
OLDEST_DAYS = 90.0


@dataclass
class Grant:
    """The grant of a run that is not yet accounted for."""

    night: str
    cost: float
    hosts: list[str]


@dataclass
class Ledger:
    """nights: name -> node-minutes spent.   read: kind of results -> the newest of their directories that was read."""

    nights: dict[str, float] = field(default_factory=dict)
    hosts: dict[str, Known] = field(default_factory=dict)
    granted: Grant | None = None
    read: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def host(self, host: str) -> Known:
        return self.hosts.setdefault(host, Known())

    def grant(self, night: str, cost: float, hosts: list[str], now: float) -> None:
        self.granted = Grant(night, cost, hosts)
        for host in hosts:
            self.host(host).tried = now

    def book(self, cost: float | None = None) -> Grant | None:
        """Book the grant at its cost; None: all of it, since the cost is unknown. Return the grant."""
        was, self.granted = self.granted, None
        if was is not None:
            spent = self.nights.get(was.night, 0.0) + (was.cost if cost is None else cost)
            self.nights[was.night] = round(spent, 2)
            for name in sorted(self.nights)[:-NIGHTS]:
                del self.nights[name]
        return was

    def scan(self, results: Path, now: float) -> None:
        """Read results newer than those already read. Unreadable ones count for no host."""
        for kind, parent, take in (("node", results, self._node), ("cluster", results / "cluster", self._cluster)):
            oldest = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now - OLDEST_DAYS * 86400))
            after = max(self.read.get(kind, ""), oldest)
            for path in sorted(path for path in parent.glob("20*") if path.is_dir()):
                if path.name > after:
                    try:
                        take(path, now)
                    except (OSError, ValueError):
                        continue
                    self.read[kind] = path.name

    def _node(self, path: Path, now: float) -> None:
        for host, finished in benchmark_results.finished(path).items():
            self._seen(host, "node", min(finished, now))

    def _cluster(self, path: Path, _now: float) -> None:
        record = cluster_record.read(path)
        for host in record.hosts:
            self._seen(host, record.scope, record.finished)
            self.host(host).minutes.setdefault(record.scope, round((record.finished - record.begun) / 60, 2))

    def _seen(self, host: str, scope: str, finished: float) -> None:
        known = self.host(host).finished
        known[scope] = max(finished, known.get(scope, 0.0))


_ledger = codec.of_class(
    Ledger,
    {"finished": result_schema.seconds, "tried": result_schema.seconds, "hosts": codec.text(codec.LINE, empty=False)},
    format=codec.whole(FORMAT, FORMAT),
    hosts=codec.table(codec.of_class(Known, {"finished": result_schema.seconds, "tried": result_schema.seconds})),
)


def path_of(results: Path) -> Path:
    return results / NAME


def load(results: Path) -> Ledger:
    """Return the ledger. Raises OSError; ParseError with the file's name: the budget must not be forgotten."""
    path = path_of(results)
    try:
        data = codec.read(results_folder.content(path, LIMIT).decode(), LIMIT)
        _ledger(data)
    except FileNotFoundError:
        return Ledger()
    except ValueError as error:
        raise ParseError(f"{path}: {str(error)[:300]}; remove it to start again with an unspent budget") from None
    return codec.build(Ledger, data)


def save(results: Path, ledger: Ledger) -> None:
    """Write the ledger whole. Raises OSError."""
    results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(ledger), sort_keys=True, allow_nan=False)
    results_folder.replace_file(path_of(results), [text, "\n"])
