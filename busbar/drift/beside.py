# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What lies beside the history on the control node, and is read when a report is written: results and logs.

Whoever wrote it may be another machine, and what nodes said is in it: its reader types it, and no text of it reaches a
report but through ``Beside.text``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import action_log, answer
from ansible_collections.busbar.fabric.plugins.plugin_utils.manifest import MAX_AGE_DAYS

DAY = 86400.0
NO_ACTIONS = "no repair was started from here; busbar remediate writes it"
MEASURED, ABSENT, UNREADABLE = "measured", "absent", "unreadable"
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Beside:
    """results: nccl_benchmark_results_path.   ended: when the night ended, ``2026-11-21T02:00:07Z``.

    hidden: secrets of the inventory, as redaction.secret_texts gives them.   max_age_days: of a result that counts.
    """

    results: Path
    ended: str
    hidden: tuple[str, ...] = ()
    max_age_days: float = MAX_AGE_DAYS

    def text(self, text: str, room: int = answer.LINE) -> str:
        """The text without a secret, and without what a terminal obeys; cut where it is longer than ``room``."""
        clean = printable(redaction.scrub(text, self.hidden))
        return clean if len(clean) <= room else clean[: room - 3] + "..."

    @property
    def now(self) -> float:
        """The end of the night in seconds since 1970."""
        return datetime.datetime.fromisoformat(self.ended).timestamp()

    def aged(self, finished: float) -> dict[str, Any]:
        """``finished``, ``age_days`` at the end of the night, ``old``. finished: seconds since 1970."""
        days = (self.now - finished) / DAY
        return {"finished": moment(finished), "age_days": round(days, 2), "old": days > self.max_age_days}

    def read(self, path: Path, what: Callable[[], _Read], absent: str) -> tuple[dict[str, Any], _Read | None]:
        """``path``, ``state``, ``why`` and ``simulated`` of a section, and what was read, None where there is nothing.

        what: the reader; raises OSError and ParseError that names the file.   absent: what makes the file.
        """
        found = {"path": self.text(str(path)), "state": MEASURED, "why": "", "simulated": False}
        try:
            return found, what()
        except FileNotFoundError:
            return {**found, "state": ABSENT, "why": self.text(f"{path} does not exist: {absent}")}, None
        except (OSError, ParseError) as error:
            return {**found, "state": UNREADABLE, "why": self.text(error_text(error))}, None

    @cached_property
    def actions(self) -> tuple[dict[str, Any], action_log.Log | None]:
        """What remediation has done, as ``read`` gives it: read once, whoever tells of it."""
        return self.read(action_log.file(self.results), lambda: action_log.read(self.results), NO_ACTIONS)


def moment(seconds: float) -> str:
    """``2026-11-21T02:00:07Z``. seconds: since 1970, of a file: any number."""
    return datetime.datetime.fromtimestamp(min(max(seconds, 0.0), 2e11), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
