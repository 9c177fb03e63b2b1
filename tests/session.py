# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A run of pytest writes down what each test took, and ends what its tests have started.

``python -m tests.session DIRECTORY`` prints what each folder took, and the slowest tests, of all runs that wrote there.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import uuid
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

from tests import processes

# Environment of every process that a run starts; each worker of pytest-xdist has a value of its own.
MARK = "BUSBAR_TEST_SESSION"
# Directory for the durations; unset: none are written.
DURATIONS = "BUSBAR_TEST_DURATIONS"
SLOWEST = 20


def processor() -> float:
    """Return seconds of a processor that this process and the ended ones that it started have used."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


class Session:
    """Plugin of one process of pytest."""

    def __init__(self, file: Path | None) -> None:
        self.mark = os.environ[MARK] = uuid.uuid4().hex
        self._file = file
        self._seconds: dict[str, float] = defaultdict(float)
        self._processors: dict[str, float] = defaultdict(float)
        self._processor = 0.0

    def pytest_runtest_setup(self) -> None:
        self._processor = processor()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put what the test took of a processor, with the processes that it started and waited for, into its report."""
        report = yield
        vars(report)["processor"] = processor() - self._processor if call.when == "teardown" else 0.0
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        self._processors[report.nodeid] += getattr(report, "processor", 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        for pid in {*processes.marked(MARK, self.mark)} - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            rows = (f"{wall:.2f}\t{self._processors[test]:.2f}\t{test}\n" for test, wall in self._seconds.items())
            self._file.write_text("".join(rows))


def plugin(config: pytest.Config) -> Session:
    """Return the plugin of this process. The tests of workers are reported to the one that started them."""
    folder = os.environ.get(DURATIONS)
    is_worker = hasattr(config, "workerinput")
    return Session(Path(folder, f"{uuid.uuid4().hex}.tsv") if folder and not is_worker else None)


def main(folder: Path) -> None:
    rows = [line.split("\t") for file in folder.glob("*.tsv") for line in file.read_text().splitlines()]
    folders: dict[str, list[float]] = defaultdict(lambda: [0, 0])
    for wall, used, test in rows:
        both = folders["/".join(test.split("/")[:2])]
        both[:] = both[0] + float(wall), both[1] + float(used)
    print(f"{len(rows)} tests; seconds, and seconds of a processor without what containers use:")
    for name, sums in sorted(folders.items(), key=lambda item: -item[1][0]):
        print(f"{sums[0]:8.0f} {sums[1]:8.0f}  {name}")
    for wall, used, test in sorted(rows, key=lambda row: -float(row[0]))[:SLOWEST]:
        print(f"{float(wall):8.1f} {float(used):8.1f}  {test}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
