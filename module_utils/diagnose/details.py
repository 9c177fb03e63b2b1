# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What code, text or place of a line add to the meaning of its event: the refinements of both tables."""

from __future__ import annotations

from typing import Dict, List

from . import events, outside_events
from .events import Detail, Occurrence

DETAILS = (*events.DETAILS, *outside_events.DETAILS)
_BY_EVENT: Dict[str, List[Detail]] = {}
for _row in DETAILS:
    _BY_EVENT.setdefault(_row.event, []).append(_row)


def merge_details(one: Occurrence) -> Detail:
    """Merge the rows that fit an occurrence: the first of them gives each text."""
    rows = [
        row
        for row in _BY_EVENT.get(one.event.id, ())
        if row.code.match(one.code) and row.text.search(one.text) and row.place.search(one.place)
    ]
    why, fix = (next(filter(None, texts), "") for texts in ((row.why for row in rows), (row.fix for row in rows)))
    causes = next((row for row in rows if row.causes), Detail(one.event.id))
    tier = next((row.tier for row in rows if row.tier is not None), None)
    return causes._replace(why=why, fix=fix, tier=tier)
