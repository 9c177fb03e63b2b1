# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""mstconfig and mstflint of a simulated node, with the real ones' words and codes, as Busbar calls them.

mstconfig -d CARD -e query NAME ..., mstconfig -d CARD -y set NAME=VALUE ..., mstflint -d CARD query. mstconfig prints
its errors to stdout and ends with 3, mstflint with 1. Written from the sources of mstflint (mlxconfig/mlxcfg_ui.cpp,
flint/subcommands.cpp).

Each card is a file of CARDS by the address of its first function: what it is, and of its settings "NAME default", "NAME
current", "NAME next" and more. A setting counts from the next reset on that its ``needs`` names: "reset" (of the card),
"reboot" (of the node), "power" (off and on), or "never". One with ``hidden`` is told of by nobody.
"""

from __future__ import annotations

import getopt
import json
import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict, cast

from .. import qos
from .roce_program import Stop, read

CARDS = f"{qos.STATE}/firmware"
SPENT = {"reset": ("reset",), "reboot": ("reset", "reboot"), "power": ("reset", "reboot", "power")}
Value = int | str | None
Column = Literal["default", "current", "next"]
_HEADERS: dict[Column, str] = {"default": "Default", "current": "Current", "next": "Next Boot"}
_WIDTH = 33


class Setting(TypedDict, total=False):
    """words: text of a number -> its word."""

    default: Value
    current: Value
    next: Value
    needs: str
    hidden: bool
    read_only: bool
    words: dict[str, str]


class Card(TypedDict, total=False):
    """flash, running: version of the image.   functions: PCI addresses.   refuses: why it takes no setting.

    silent: it does not answer.   next_only: its firmware tells nothing but what the next boot has.
    """

    settings: dict[str, Setting]
    type: str
    psid: str
    flash: str
    running: str
    functions: list[str]
    silent: bool
    next_only: bool
    refuses: str


Cards = dict[str, Card]


def main(argv: Sequence[str], root: str) -> int:
    """``root``: the hardware root of the node."""
    name, *arguments = argv
    cards = load(root)
    try:
        given, words = getopt.getopt(arguments, "d:ey")
        address = dict(given)["-d"]
        card = _card(cards, address)
        if os.path.basename(name) == "mstflint":
            _show_image(card, address)
        elif card is None:
            raise Stop(3, "-E- Failed to open the device")
        elif words[0] == "set":
            _set(root, cards, card, words[1:])
        else:
            _query(card, dict(given), words[1:])
    except Stop as stop:
        print("\n".join(stop.said))
        return stop.code
    return 0


def load(root: str) -> Cards:
    """Return the cards by their addresses."""
    cards: Cards = {}
    for file in sorted(os.listdir(root + CARDS)) if os.path.isdir(root + CARDS) else ():
        if not file.endswith(".json"):
            continue
        settings: dict[str, dict[str, object]] = {}
        card: dict[str, object] = {"settings": settings}
        for key, value in json.loads(read(f"{root}{CARDS}/{file}")).items():
            name, _, of_setting = key.partition(" ")
            if of_setting:
                settings.setdefault(name, {})[of_setting] = value
            else:
                card[name] = value
        cards[file.removesuffix(".json")] = cast("Card", card)
    return cards


def save(root: str, cards: Mapping[str, Card]) -> None:
    """The old state of a card or its new one, whoever is killed when."""
    os.makedirs(root + CARDS, exist_ok=True)
    for address, card in cards.items():
        text = card_text(card)
        path = f"{root}{CARDS}/{address}.json"
        if not os.path.exists(path) or read(path) != text.strip():
            qos.replace(path, text)


def card_text(card: Card) -> str:
    """Flat, so that the lab can take back one value beside another that a tool has set, and sorted for the same."""
    told = {name: value for name, value in card.items() if name != "settings"}
    told |= {f"{name} {key}": value for name, one in card["settings"].items() for key, value in one.items()}
    return json.dumps(told, sort_keys=True) + "\n"


def spend(root: str, what: str) -> None:
    """The node is rebooted ("reboot") or was off ("power"): all cards load what waits for that."""
    cards = load(root)
    for card in cards.values():
        for setting in card["settings"].values():
            if setting.get("needs", "reset") in SPENT[what]:
                setting["current"] = setting["next"]
        card["running"] = card["flash"]
    save(root, cards)


def _card(cards: Mapping[str, Card], address: str) -> Card | None:
    """Each of its functions will do. None of one that is not there, or does not answer."""
    found = (card for card in cards.values() if address in card["functions"] and not card.get("silent"))
    return next(found, None)


def _shown(card: Card, names: Sequence[str]) -> dict[str, Setting]:
    visible = {name: one for name, one in card["settings"].items() if not one.get("hidden")}
    for name in names:
        if name not in visible:
            raise Stop(3, f"-E- The Device doesn't support {name} parameter")
    return {name: visible[name] for name in names or visible}


def _query(card: Card, options: Mapping[str, str], names: Sequence[str]) -> None:
    told = "-e" in options and not card.get("next_only")
    settings = _shown(card, names)
    columns: tuple[Column, ...] = ("default", "current", "next") if told else ("next",)
    print("\nDevice #1:\n----------\n")
    for label, text in (("Device type:", card["type"]), ("Name:", "N/A"), ("Device:", options["-d"])):
        print(f"{label:<20}{text:<20}")
    _table(settings, columns)
    if told and any(len({setting[column] for column in columns}) > 1 for setting in settings.values()):
        print("The '*' shows parameters with next value different from default/current value.")
    if any(setting.get("read_only") for setting in settings.values()):
        print("\nThe 'RO' shows parameters which are for read only and cannot be changed")
    if "-e" in options and not told:
        print("Device Firmware does not support reading default and current configurations")


def _table(settings: Mapping[str, Setting], columns: Sequence[Column]) -> None:
    print(f"\n{'Configurations:':<56}" + " ".join(f"{_HEADERS[column]:<{_WIDTH}}" for column in columns))
    for name, one in settings.items():
        mark = "*" if any(one["next"] != one[column] for column in columns) else " "
        values = [f"{_text(one, one[column]):<{_WIDTH}}" for column in columns]
        # A value that fills its column is kept from the next one by a blank.
        row = "".join(f"{value} " if value[-1] != " " else value for value in values)
        print(f"{mark}{'RO' if one.get('read_only') else '  '}     {name:<48}{row}")


def _text(setting: Setting, value: Value) -> str:
    if value is None:
        return "N/A"
    word = setting.get("words", {}).get(str(value))
    return f"{word}({value})" if word is not None else str(value)


def _set(root: str, cards: Mapping[str, Card], card: Card, words: Sequence[str]) -> None:
    asked = dict(word.split("=") for word in words)
    settings = _shown(card, list(asked))
    values: dict[str, int] = {}
    for name, text in asked.items():
        numbers = {word.lower(): int(number) for number, word in settings[name].get("words", {}).items()}
        try:
            values[name] = numbers[text.lower()] if text.lower() in numbers else int(text, 0)
        except ValueError as error:
            raise Stop(3, f"-E- Failed to parse {name}={text}") from error
    _table(settings, ("next",))
    print("\n Apply new Configuration? (y/n) [n] : y")
    if card.get("refuses"):
        raise Stop(3, "Applying... Failed!", "-E- Failed to set configuration: " + card["refuses"])
    for name, value in values.items():
        card["settings"][name]["next"] = value
        # The card takes one after the other.
        save(root, cards)
    print("Applying... Done!\n-I- Please reboot machine to load new configurations.")


def _show_image(card: Card | None, address: str) -> None:
    if card is None:
        raise Stop(1, f"-E- Cannot open Device: {address}. No such file or directory. MFE_CR_ERROR")
    fields = {"Image type": "FS4", "FW Version": card["flash"]}
    fields |= {"FW Version(Running)": card["running"]} if card["running"] != card["flash"] else {}
    fields |= {"FW Release Date": "10.11.2024", "Description": "UID                GuidsNumber"}
    for name, value in {**fields, "PSID": card["psid"], "Security Attributes": "secure-fw"}.items():
        print(f"{name + ':':<23}{value}")
