# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A run of pytest writes down what each test took, and ends what its tests have started.

``python -m tests.session DIRECTORY`` prints the slowest tests of all runs that wrote there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import uuid
from collections import defaultdict
from pathlib import Path

import pytest

from tests import processes

# Environment of every process that a run starts; each worker of pytest-xdist has a value of its own.
MARK = "BUSBAR_TEST_SESSION"
# Directory for the durations; unset: none are written.
DURATIONS = "BUSBAR_TEST_DURATIONS"
SLOWEST = 20


class Session:
    """Plugin of one process of pytest."""

    def __init__(self, file: Path | None) -> None:
        self.mark = os.environ[MARK] = uuid.uuid4().hex
        self._file = file
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        for pid in {*processes.marked(MARK, self.mark)} - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text("".join(f"{seconds:.2f}\t{test}\n" for test, seconds in self._seconds.items()))


def plugin(config: pytest.Config) -> Session:
    """Return the plugin of this process. The tests of workers are reported to the one that started them."""
    folder = os.environ.get(DURATIONS)
    is_worker = hasattr(config, "workerinput")
    return Session(Path(folder, f"{uuid.uuid4().hex}.tsv") if folder and not is_worker else None)


def main(folder: Path) -> None:
    rows = [line.split("\t") for file in folder.glob("*.tsv") for line in file.read_text().splitlines()]
    folders: dict[str, float] = defaultdict(float)
    for seconds, test in rows:
        folders["/".join(test.split("/")[:2])] += float(seconds)
    parts = [f"{name} {took:.0f}" for name, took in sorted(folders.items(), key=lambda item: -item[1])]
    print(f"{len(rows)} tests; seconds by folder: {', '.join(parts)}")
    for seconds, test in sorted(rows, key=lambda row: -float(row[0]))[:SLOWEST]:
        print(f"{float(seconds):8.1f} s  {test}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
