# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write settings into the flash of NICs and reset the cards, and store what was tried.

Written settings count from the next reset on: by the lowest level that the card offers, at most once for each level and
boot; else by one reboot.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, List, Optional, Tuple

from ..change import apply
from ..core.host import Host, ParseError, ReadError
from ..core.plan import Command, Plan
from . import pending, tools
from .pending import Record, Waiting
from .read import Card, NicsState


@dataclass(frozen=True)
class CardCommand(Command):
    """Change a card.   waiting: its stored entry from then on, or meanwhile."""

    card: Card = field(default_factory=lambda: Card("", "", (), (), ()))
    waiting: Waiting = field(default_factory=lambda: Waiting("", ""))


class Write(CardCommand):
    """Write settings; they count from the card's next reset on."""


@dataclass(frozen=True)
class Reset(CardCommand):
    """Reset the card by each of ``levels`` in turn, until its wanted settings are in effect."""

    levels: Tuple[int, ...] = ()


class Hands:
    """Make a plan's changes. A card that fails does not affect the others: ``failed`` has its error."""

    def __init__(self) -> None:
        self.failed: Dict[str, str] = {}

    def __call__(self, host: Host, planned: Plan) -> List[str]:
        """Return the paths of backups: none."""
        for command in planned.commands:
            if isinstance(command, Reset):
                if command.card.address not in self.failed:
                    _reset(host, command)
            elif isinstance(command, Write):
                _store(host, command.card, command.waiting)
                try:
                    apply.run(host, command)
                except ReadError as error:
                    self.failed[command.card.address] = str(error)
        return []


def _reset(host: Host, command: Reset) -> None:
    """Store each level before it is tried: a run that is killed then is not followed by the same reset.

    Raises ReadError where the record cannot be written; then nothing is reset.
    """
    waiting, card = command.waiting, command.card
    for level in command.levels:
        waiting = replace(waiting, tried=(*waiting.tried, level))
        _store(host, card, waiting)
        try:
            tools.reset(host, card.address, level)
            answer = tools.query(host, card.address, [one.name for one in card.wanted])
        except ReadError as error:
            _store(host, card, replace(waiting, said=str(error)))
            # What state it left the card in is not known: the next level is not tried on top of it.
            return
        except ParseError:
            return
        if not card.waits(answer):
            return


def _store(host: Host, card: Card, waiting: Waiting) -> None:
    try:
        _write(host, pending.read(host).with_card(card.address, waiting))
    except ParseError as error:
        raise ReadError(pending.STORE, str(error)) from error


def _write(host: Host, record: Record) -> None:
    change = record.change()
    if change is not None:
        apply.write(host, change)


def remember(host: Host, have: NicsState) -> None:
    """Store which cards wait in this boot, and forget those that do not: state of ours, and no setting.

    Only where something was allowed to change. Raises ReadError.
    """
    if not isinstance(have.record, Record):
        return
    record = have.record
    for card, answer in have.answers():
        waiting: Optional[Waiting] = record.find(card.address, card.key)
        written = all(one.matches(setting.following) for one, setting in card.changeable(answer))
        if not card.waits(answer):
            record = record.with_card(card.address, None)
        elif waiting is None and written:
            record = record.with_card(card.address, Waiting(have.boot, card.key))
    _write(host, record)


def changed(planned: Plan, before: NicsState, after: NicsState) -> bool:
    """Return whether the plan's commands have changed a card: its settings differ, or it was reset."""
    resets = any(isinstance(one, Reset) and one.card.address not in after.failed for one in planned.commands)
    return resets or any(after.told.get(address, told).answer != told.answer for address, told in before.told.items())


def diff(have: NicsState) -> List[Dict[str, str]]:
    """Return Ansible's diff of each card that is written: settings for its next reset, before and after."""
    found = []
    for card, answer in have.answers() if isinstance(have.record, Record) else ():
        wrong = [(one, setting) for one, setting in card.changeable(answer) if one.differs(setting.following)]
        if wrong:
            header = "%s, settings of the next reset" % card.label
            before = "".join("%s=%s\n" % (one.name, setting.following) for one, setting in wrong)
            after = "".join("%s\n" % one.argument for one, _setting in wrong)
            found.append({"before_header": header, "after_header": header, "before": before, "after": after})
    return found
