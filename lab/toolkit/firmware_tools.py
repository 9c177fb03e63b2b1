# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""mstconfig and mstflint of a simulated node, also by NVIDIA's names: with the real ones' words and codes.

mstconfig prints its errors to stdout and ends with 3 (2 where nobody says yes), mstflint with 1. Written from the
sources of mstflint (mlxconfig/mlxcfg_ui.cpp, flint/subcommands.cpp); Debian's 4.21 was run for its arguments.

Each card is a file of CARDS by the address of its first function: what it is, and of its settings "NAME default", "NAME
current", "NAME next" and more. A setting counts from the next reset on that its ``needs`` names: "reset" (of the card),
"reboot" (of the node), "power" (off and on), or "never". One with ``hidden`` is told of by nobody.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Literal, TypedDict, cast

from .roce_program import Stop, read

CARDS = "/sys/kernel/busbar-lab/firmware"
NODE = f"{CARDS}/node"  # release of the tools, and whether this is a virtual machine
NAMES = {"mlxconfig": "mstconfig", "flint": "mstflint"}
COMMANDS = {"q": "query", "s": "set", "r": "reset", "i": "show_confs"}
SPENT = {"reset": ("reset",), "reboot": ("reset", "reboot"), "power": ("reset", "reboot", "power")}


Value = int | str | None
Column = Literal["default", "current", "next"]


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
    """flash, running: version of the image.   functions: PCI addresses.   refuses: why it takes no setting."""

    settings: dict[str, Setting]
    type: str
    psid: str
    flash: str
    running: str
    functions: list[str]
    silent: bool
    next_only: bool
    refuses: str


class State(TypedDict):
    """cards: by address."""

    cards: dict[str, Card]
    release: str
    virtual: bool


def main(argv: Sequence[str], root: str) -> int:
    """``root``: the hardware root of the node."""
    name, arguments = os.path.basename(argv[0]), list(argv[1:])
    tools = {"mstconfig": mstconfig, "mstflint": mstflint}
    try:
        return tools[NAMES.get(name, name)](root, arguments)
    except Stop as stop:
        for line in stop.said:
            print(line)
        return stop.code


def load(root: str) -> State:
    state = cast("State", {"cards": {}, **json.loads(read(root + NODE))})
    for file in sorted(os.listdir(root + CARDS)):
        if file.endswith(".json"):
            settings: dict[str, dict[str, object]] = {}
            card: dict[str, object] = {"settings": settings}
            for key, value in json.loads(read(f"{root}{CARDS}/{file}")).items():
                name, _, of_setting = key.partition(" ")
                if of_setting:
                    settings.setdefault(name, {})[of_setting] = value
                else:
                    card[name] = value
            state["cards"][file[: -len(".json")]] = cast("Card", card)
    return state


def save(root: str, state: State) -> None:
    """The old state of a card or its new one, whoever is killed when."""
    for address, card in state["cards"].items():
        text = card_text(card)
        path = f"{root}{CARDS}/{address}.json"
        if not os.path.exists(path) or read(path) != text.strip():
            _put(path, text)


def card_text(card: Card) -> str:
    """Flat, so that the lab can take back one value beside another that a tool has set, and sorted for the same."""
    told = {name: value for name, value in card.items() if name != "settings"}
    told |= {f"{name} {key}": value for name, one in card["settings"].items() for key, value in one.items()}
    return json.dumps(told, sort_keys=True) + "\n"


def _put(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(path + ".new", path)


def spend(root: str, what: str) -> None:
    """The node is rebooted ("reboot") or was off ("power"): all cards load what waits for that."""
    state = load(root)
    for card in state["cards"].values():
        _spend(card, what)
    save(root, state)


def _spend(card: Card, what: str) -> None:
    for setting in card["settings"].values():
        if setting.get("needs", "reset") in SPENT[what]:
            setting["current"] = setting["next"]
    card["running"] = card["flash"]


def _card(state: State, address: str) -> Card | None:
    """Each of its functions will do, with or without the domain. None of one that is not there, or does not answer."""
    for card in state["cards"].values():
        if not card.get("silent") and (address in card["functions"] or "0000:" + address in card["functions"]):
            return card
    return None


# -- mstconfig -------------------------------------------------------------------------------------------------------


_NO_ARGUMENT = {"-d": "-E- missing device name"}
_SHORT = {"--dev": "-d", "--enable_verbosity": "-e", "--yes": "-y"}


def _invalid(word: str) -> Stop:
    return Stop(3, f"-E- invalid argument: {word}", "    NAME:", "        mstconfig")


def mstconfig(root: str, arguments: list[str]) -> int:
    state, options, words = load(root), {}, list(arguments)
    old = state["release"] == "old"
    if words[:1] in (["-v"], ["--version"]):
        print(f"mstconfig, mstflint {'4.21.0' if old else '4.31.0'}, Git SHA Hash: N/A")
        return 0
    while words and words[0].startswith("-"):
        word = words.pop(0)
        option = _SHORT.get(word, word)
        if option not in ("-d", "-e", "-y"):
            raise _invalid(word)
        if option in _NO_ARGUMENT and not words:
            raise Stop(3, _NO_ARGUMENT[option])
        options[option] = words.pop(0) if option in _NO_ARGUMENT else ""
    if not words:
        raise Stop(3, "-E- No command found. For more information please read the help message:")
    command, *words = words
    command_ = COMMANDS.get(command, command)
    if command_ not in ("query", "set"):
        raise _invalid(command)
    if command_ == "set":
        if not words:
            raise Stop(3, "-E- missing configuration arguments. For more information please run mstconfig -h|--help.")
        for word in words:
            if word.count("=") != 1:
                raise Stop(3, f"-E- Invalid Configuration argument {word}", "    NAME:", "        mstconfig")
    card = _card(state, options.get("-d", ""))
    if card is None:
        raise Stop(3, "-E- Failed to open the device" if "-d" in options else "-E- Failed to get devices.")
    return (
        _query(state["release"], card, options, words)
        if command_ == "query"
        else _set(root, state, card, options, words)
    )


def _shown(card: Card, names: list[str]) -> dict[str, Setting]:
    visible = {name: one for name, one in card["settings"].items() if not one.get("hidden")}
    for name in names:
        if name not in visible:
            raise Stop(3, f"-E- The Device doesn't support {name} parameter")
    return {name: visible[name] for name in names or visible}


def _query(release: str, card: Card, options: dict[str, str], names: list[str]) -> int:
    told = "-e" in options and not card.get("next_only")
    settings = _shown(card, names)
    columns: tuple[Column, ...] = ("default", "current", "next") if told else ("next",)
    width = 20 if release == "new" else 16
    print("\nDevice #1:\n----------\n")
    for label, text in (("Device type:", card["type"]), ("Name:", "N/A"), ("Device:", options["-d"])):
        print(f"{label:<{width}}{text:<{width}}")
    _table(release, settings, columns)
    if told and any(len({setting[column] for column in columns}) > 1 for setting in settings.values()):
        print("The '*' shows parameters with next value different from default/current value.")
    if any(setting.get("read_only") for setting in settings.values()):
        print("\nThe 'RO' shows parameters which are for read only and cannot be changed")
    if "-e" in options and not told:
        print("Device Firmware does not support reading default and current configurations")
    return 0


_HEADERS: dict[Column, str] = {"default": "Default", "current": "Current", "next": "Next Boot"}


def _table(release: str, settings: dict[str, Setting], columns: tuple[Column, ...]) -> None:
    if release == "new":
        width, form = 33, "{mark}{only}     {name:<48}"
        print(f"\n{'Configurations:':<56}" + " ".join(f"{_HEADERS[column]:<{width}}" for column in columns))
    else:
        width, form = 16, "{mark}        {name:<36}"
        places = (36, 16, 18) if len(columns) == 3 else (38,)
        heads = (f"{_HEADERS[column]:>{place}}" for column, place in zip(columns, places, strict=True))
        print(f"\n{'Configurations:':<16}{''.join(heads)}")
    for name, one in settings.items():
        mark = "*" if any(one["next"] != one[column] for column in columns) else " "
        values = [f"{_text(one, one[column]):<{width}}" for column in columns]
        # A value that fills its column is kept from the next one by a blank.
        row = "".join(f"{value} " if len(value) > width or value[-1] != " " else value for value in values)
        print(form.format(mark=mark, only="RO" if one.get("read_only") else "  ", name=name) + row)


def _text(setting: Setting, value: Value) -> str:
    if value is None:
        return "N/A"
    word = setting.get("words", {}).get(str(value))
    return f"{word}({value})" if word is not None else str(value)


def _set(root: str, state: State, card: Card, options: dict[str, str], words: list[str]) -> int:
    asked = dict(word.split("=") for word in words)
    settings = _shown(card, list(asked))
    values: dict[str, int] = {}
    for name, text in asked.items():
        one = settings[name]
        if one.get("read_only"):
            raise Stop(3, f"-E- Operation is not supported (Read only TLV: {name.lower()})")
        of_words = {word.lower(): int(number) for number, word in one.get("words", {}).items()}
        try:
            values[name] = of_words[text.lower()] if text.lower() in of_words else int(text, 0)
        except ValueError as error:
            raise Stop(3, f"-E- Failed to parse {name}={text}") from error
        if one.get("words") and str(values[name]) not in one["words"]:
            raise Stop(3, f"-E- Failed to parse {name}={text}")
    _table(state["release"], settings, ("next",))
    if "-y" not in options:
        print("\n Apply new Configuration? (y/n) [n] : n")
        raise Stop(2, "-E- Aborted by user.")
    print("\n Apply new Configuration? (y/n) [n] : y")
    if card.get("refuses"):
        raise Stop(3, "Applying... Failed!", "-E- Failed to set configuration: " + str(card["refuses"]))
    for name, value in values.items():
        card["settings"][name]["next"] = value
        # The card takes one after the other.
        save(root, state)
    print("Applying... Done!\n-I- Please reboot machine to load new configurations.")
    return 0


# -- mstflint --------------------------------------------------------------------------------------------------------


def mstflint(root: str, arguments: list[str]) -> int:
    if arguments in (["-v"], ["--version"]):
        print("mstflint, mstflint 4.31.0, Git SHA Hash: N/A")
        return 0
    address = arguments[1]
    card = _card(load(root), address)
    if card is None:
        raise Stop(1, f"-E- Cannot open Device: {address}. No such file or directory. MFE_CR_ERROR")
    fields = {"Image type": "FS4", "FW Version": card["flash"]}
    fields |= {"FW Version(Running)": card["running"]} if card["running"] != card["flash"] else {}
    fields |= {"FW Release Date": "10.11.2024", "Description": "UID                GuidsNumber"}
    for name, value in {**fields, "PSID": card["psid"], "Security Attributes": "secure-fw"}.items():
        print(f"{name + ':':<23}{value}")
    return 0
