# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read and change settings in INI files of systemd and NetworkManager.

Sources: systemd.syntax(7), nm-settings-keyfile(5).
"""

from __future__ import annotations

from typing import List, NamedTuple, Tuple


class Setting(NamedTuple):
    """first, last: its lines, from 0."""

    section: str
    key: str
    value: str
    first: int
    last: int


# What systemd takes for a boolean, whatever the case of its letters.
TRUE, FALSE = ("1", "yes", "y", "true", "t", "on"), ("0", "no", "n", "false", "f", "off")
# Key of a section's heading: no line of a file can have it.
_HEADING = "\n"


def settings(text: str, continued: bool = True) -> List[Setting]:
    """Return all settings in order. continued: a backslash joins a line with the next (systemd, not keyfiles)."""
    return [one for one in _ini(text, continued) if one.key != _HEADING]


def blocks(text: str, continued: bool = True) -> List[Tuple[str, List[Setting]]]:
    """Return each heading with its settings; a section that occurs twice comes twice."""
    found: List[Tuple[str, List[Setting]]] = [("", [])]
    for setting in _ini(text, continued):
        if setting.key == _HEADING:
            found.append((setting.section, []))
        else:
            found[-1][1].append(setting)
    return found[1:]


def sections(text: str) -> List[str]:
    """Return the sections of a keyfile, each once; also those that have no settings."""
    found = [one.section for one in _ini(text, continued=False) if one.key == _HEADING]
    return list(dict.fromkeys(found))


def _ini(text: str, continued: bool) -> List[Setting]:
    found: List[Setting] = []
    lines = text.split("\n")
    section, at = "", 0
    while at < len(lines):
        first, line = at, lines[at].strip()
        at += 1
        if not line or line[0] in "#;":
            continue
        while continued and line.endswith("\\") and at < len(lines):
            following = lines[at].strip()
            at += 1
            if following[:1] not in ("#", ";"):
                line = line[:-1] + " " + following
        key, equals, value = line.partition("=")
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            found.append(Setting(section, _HEADING, "", first, at - 1))
        elif equals:
            found.append(Setting(section, key.strip(), value.strip(), first, at - 1))
    return found


def set_setting(text: str, section: str, key: str, value: str, continued: bool = True) -> str:
    """Return the text with this value in the last line of the key, which counts; all other lines stay."""
    there = [setting for setting in _ini(text, continued) if setting.section == section]
    same, headings = ([one for one in there if one.key == name] for name in (key, _HEADING))
    lines, line = text.split("\n"), "%s=%s" % (key, value)
    if same:
        last = same[-1]
        lines[last.first : last.last + 1] = [line] if last.value != value else lines[last.first : last.last + 1]
    elif headings:
        # At once: what ends the section may be a line that goes on.
        lines.insert(headings[-1].last + 1, line)
    else:
        text = text if not text or text.endswith("\n") else text + "\n"
        return "%s%s[%s]\n%s\n" % (text, "\n" if text else "", section, line)
    return "\n".join(lines)
