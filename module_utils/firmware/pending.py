# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Store on the node what was done so that a card loads its settings: the boot in which they waited, resets tried.

So a run that was killed does not reset a card twice, and a setting that never takes effect does not cause endless
reboots. Format: {"format": 1, "cards": {PCI ADDRESS: {"boot", "want", "tried", "said"}}}.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple

from ..core.host import Host, ParseError
from ..core.plan import FileChange

STORE = "/var/lib/busbar/nic_firmware/pending.json"
LIMIT = 256 * 1024
_FORMAT = 1


@dataclass(frozen=True)
class Waiting:
    """boot: id of the boot in which the settings were first seen to wait.   want: those, as one line.

    tried: reset levels in that boot, stored before each.   said: the tool's message on the last that failed.
    """

    boot: str
    want: str
    tried: Tuple[int, ...] = ()
    said: str = ""


@dataclass(frozen=True)
class Record:
    """cards: PCI address -> its waiting settings.   text: of the file; None without one."""

    cards: Mapping[str, Waiting] = field(default_factory=dict)
    text: Optional[str] = None

    def find(self, address: str, want: str) -> Optional[Waiting]:
        """Return the entry of this card; None without one for these settings."""
        found = self.cards.get(address)
        return found if found is not None and found.want == want else None

    def with_card(self, address: str, waiting: Optional[Waiting]) -> Record:
        """Return the record with another entry of one card; None: without one."""
        cards = {key: value for key, value in self.cards.items() if key != address}
        if waiting is not None:
            cards[address] = waiting
        return Record(cards, self.text)

    def change(self) -> Optional[FileChange]:
        """Return the change that writes the record; None if the file is up to date."""
        after = render(self) if self.cards else None
        return None if after == self.text else FileChange(STORE, self.text, after)


def read(host: Host) -> Record:
    """Read the record. Raises ReadError and ParseError."""
    text = host.read_system(STORE, limit=LIMIT)
    return Record() if text is None else Record(parse(text), text)


def parse(text: str) -> Dict[str, Waiting]:
    """Parse the file. Raises ParseError."""
    try:
        data: Any = json.loads(text)
        if data["format"] != _FORMAT:
            raise ParseError("of another format: %.40r" % (data["format"],))
        return {str(address): _waiting(entry) for address, entry in data["cards"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ParseError):
            raise
        raise ParseError("no record of nic_firmware: %s" % type(error).__name__) from error


def _waiting(entry: Mapping[str, object]) -> Waiting:
    texts = [entry["boot"], entry["want"], entry["said"]]
    tried = entry["tried"]
    if not all(isinstance(text, str) for text in texts) or not isinstance(tried, list):
        raise ParseError("no record of nic_firmware: an entry is not as it is written")
    if any(isinstance(level, bool) or not isinstance(level, int) for level in tried):
        raise ParseError("not a record of nic_firmware: a reset level is not a number")
    return Waiting(texts[0], texts[1], tuple(tried), texts[2])


def render(record: Record) -> str:
    """Return the file's text."""
    cards = {
        address: {"boot": one.boot, "want": one.want, "tried": list(one.tried), "said": one.said[:400]}
        for address, one in sorted(record.cards.items())
    }
    return json.dumps({"format": _FORMAT, "cards": cards}, indent=1) + "\n"
