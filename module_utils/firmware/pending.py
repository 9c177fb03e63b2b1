# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Store on the node which cards have settings that wait, and since which boot.

So a setting that never takes effect does not cause endless reboots.
Format: {"format": 1, "cards": {PCI ADDRESS: {"boot", "want"}}}.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple

from ..core.host import Host, ParseError
from ..core.plan import FileChange

STORE = "/var/lib/busbar/nic_firmware/pending.json"
LIMIT = 256 * 1024
_FORMAT = 1


@dataclass(frozen=True)
class Record:
    """cards: PCI address -> (id of the boot in which its settings were first seen to wait, those as one line).

    text: of the file; None without one.
    """

    cards: Mapping[str, Tuple[str, str]] = field(default_factory=dict)
    text: Optional[str] = None

    def boot_of(self, address: str, want: str) -> Optional[str]:
        """Return the boot since which these settings of a card wait; None: they were not seen to wait."""
        boot, waiting = self.cards.get(address, ("", ""))
        return boot if waiting == want else None

    def change(self, cards: Mapping[str, Tuple[str, str]]) -> Optional[FileChange]:
        """Return the change that writes other cards; None if the file is up to date."""
        entries = {address: {"boot": boot, "want": want} for address, (boot, want) in sorted(cards.items())}
        after = json.dumps({"format": _FORMAT, "cards": entries}, indent=1) + "\n" if entries else None
        return None if after == self.text else FileChange(STORE, self.text, after)


def read(host: Host) -> Record:
    """Read the record. Raises ReadError and ParseError."""
    text = host.read_system(STORE, limit=LIMIT)
    if text is None:
        return Record()
    try:
        data: Any = json.loads(text)
        cards = {str(address): (entry["boot"], entry["want"]) for address, entry in data["cards"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ParseError("not a record of nic_firmware: %s" % type(error).__name__) from error
    if data.get("format") != _FORMAT or not all(isinstance(word, str) for pair in cards.values() for word in pair):
        raise ParseError("not a record of nic_firmware of format %d" % _FORMAT)
    return Record(cards, text)
