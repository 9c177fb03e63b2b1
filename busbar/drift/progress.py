# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Show the progress of a run on a terminal; silent elsewhere."""

from __future__ import annotations

from types import TracebackType


class Progress:
    """A bar on standard error: the running task, and how many hosts have responded to it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        # Nothing is drawn into a log file.
        self._bar = Bar(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal, transient=True)
        self._task = self._bar.add_task("starting", total=None)

    def expect(self, hosts: int) -> None:
        self._bar.update(self._task, total=hosts)

    def task(self, name: str) -> None:
        self._bar.update(self._task, description=name[:60], completed=0)

    def answered(self, hosts: int) -> None:
        self._bar.update(self._task, completed=hosts)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
