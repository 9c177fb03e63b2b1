# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read results and logs beside the history on the control node, for a report.

Another machine may have written them, and they hold output of nodes: the reader types it, and no text of it reaches a
report but through ``RelatedResults.text``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.manifest import MAX_AGE_DAYS
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import action_log

DAY = 86400.0
# Characters of a text.
SAID = 600
NO_ACTIONS = "no repair was started from here; busbar remediate writes it"
MEASURED, ABSENT, UNREADABLE = "measured", "absent", "unreadable"
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class RelatedResults:
    """results: nccl_benchmark_results_path.   ended: when the run ended, ``2026-11-21T02:00:07Z``.

    hidden: secrets of the inventory, as redaction.secret_texts gives them.   max_age_days: of a result that counts.
    """

    results: Path
    ended: str
    hidden: tuple[str, ...] = ()
    max_age_days: float = MAX_AGE_DAYS

    def text(self, text: str, room: int = SAID) -> str:
        """Return the text without secrets and terminal control characters, cut to ``room`` characters."""
        clean = printable(redaction.scrub(text, self.hidden))
        return clean if len(clean) <= room else clean[: room - 3] + "..."

    def clean(self, section: Plain) -> Plain:
        """Return a section with each of its texts as ``text`` returns it."""
        return {key: self._clean(item) for key, item in section.items()}

    def _clean(self, item: object) -> object:
        if isinstance(item, str):
            return self.text(item)
        if isinstance(item, list):
            return [*map(self._clean, item)]
        return self.clean(item) if isinstance(item, dict) else item

    @property
    def now(self) -> float:
        """Return the end of the run in seconds since 1970."""
        return datetime.datetime.fromisoformat(self.ended).timestamp()

    def aged(self, finished: float) -> Plain:
        """Return ``finished``, ``age_days`` at the end of the run, ``old``. finished: seconds since 1970."""
        days = (self.now - finished) / DAY
        return {"finished": moment(finished), "age_days": round(days, 2), "old": days > self.max_age_days}

    def read(self, path: Path, what: Callable[[], _Read], absent: str) -> tuple[Plain, _Read | None]:
        """Return ``path``, ``state``, ``why`` and ``simulated`` of a section, and the content, None without one.

        what: the reader; raises OSError and ParseError that names the file.   absent: how the file is made.
        """
        found = {"path": self.text(str(path)), "state": MEASURED, "why": "", "simulated": False}
        try:
            return found, what()
        except FileNotFoundError:
            return {**found, "state": ABSENT, "why": self.text(f"{path} does not exist: {absent}")}, None
        except (OSError, ParseError) as error:
            return {**found, "state": UNREADABLE, "why": self.text(error_text(error))}, None

    @cached_property
    def actions(self) -> tuple[Plain, action_log.Log | None]:
        """Return the state of the action log and the log, read once."""
        return self.read(action_log.file(self.results), lambda: action_log.read(self.results), NO_ACTIONS)


def limited(name: str, rows: Sequence[object], most: int) -> Plain:
    """Return the first rows by their name, and the number of the others: ``bad``, ``bad_left_out``."""
    return {name: rows[:most], f"{name}_left_out": len(rows[most:])}


def moment(seconds: float) -> str:
    """Format seconds since 1970, any number, as ``2026-11-21T02:00:07Z``."""
    return datetime.datetime.fromtimestamp(min(max(seconds, 0.0), 2e11), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
