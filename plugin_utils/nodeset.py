# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Names of many nodes as few words, in ClusterShell's syntax: ``gpu-r12-[01-31]``, ``r[1-2]n[1,3]``."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

# Other names would not read back: brackets and commas have a meaning of their own.
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
_NUMBER = re.compile(r"(\d+)")
_WORD = r"(?:[^\[\],]|\[[^\[\]]*\])+"
# A typing error in a waiver must not fill the memory.
LIMIT = 100_000


def fold(names: Iterable[str]) -> str:
    """The names, each once, in the order of their numbers. One that the syntax cannot hold stands as it is."""
    known = set(names)
    odd = sorted(name for name in known if not _PLAIN.fullmatch(name))
    templates: dict[str, set[tuple[str, ...]]] = {}
    for name in known.difference(odd):
        templates.setdefault(_NUMBER.sub("%", name), set()).add(tuple(_NUMBER.findall(name)))
    boxes = [(template, box) for template in sorted(templates) for box in _boxes(templates[template])]
    return ",".join([*(template.replace("%", "%s") % box for template, box in boxes), *odd])


def _boxes(boxes: set[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Numbers of many dimensions as products of ranges: the last dimension first, then what is alike behind it."""
    for axis in reversed(range(len(next(iter(boxes))))):
        alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for box in boxes:
            alike.setdefault((box[:axis], box[axis + 1 :]), []).append(box[axis])
        boxes = {(*before, _ranges(found), *after) for (before, after), found in alike.items()}
    return sorted(boxes, key=lambda box: [(int(_NUMBER.findall(part)[0]), part) for part in box])


def _ranges(numbers: list[str]) -> str:
    """``01 02 04`` -> ``[01-02,04]``; one number stands without brackets."""
    # Where one number of a width begins with zero, all of that width count on with zeros: 08, 09, 10.
    widths = {len(number) for number in numbers if number[0] == "0" != number}
    runs: dict[tuple[int, int], list[str]] = {}
    ordered = sorted((len(text) * (len(text) in widths), int(text), text) for text in numbers)
    for place, (width, number, text) in enumerate(ordered):
        # Numbers that follow each other have the same distance to their places.
        runs.setdefault((width, number - place), []).append(text)
    words = ["-".join(dict.fromkeys((run[0], run[-1]))) for run in sorted(runs.values(), key=lambda run: int(run[0]))]
    return f"[{','.join(words)}]" if len(numbers) > 1 else words[0]


def brief(names: Iterable[str], room: int) -> str:
    """The names folded, where ``room`` characters hold that; else the first of them and how many more there are."""
    # 0 and 00 are the same number: without the text, a set's own order would decide which of them is named.
    ordered = sorted(set(names), key=lambda name: (natural(name), name))
    text = fold(ordered)
    if len(text) <= room or len(ordered) < 2:
        return text

    def first(count: int) -> str:
        return f"{fold(ordered[:count])} and {len(ordered) - count} more"

    return first(1 + bisect.bisect(range(2, len(ordered)), room, key=lambda count: len(first(count))))


def cut(text: str, room: int) -> str:
    """``brief`` of what has been folded before; all of it where a name is one that the syntax cannot hold."""
    try:
        return text if len(text) <= room else brief(expand(text), room)
    except ParseError:
        return text


def natural(name: str) -> list[tuple[str, int]]:
    parts = _NUMBER.split(name)
    return [(text, int(number)) for text, number in itertools.zip_longest(parts[::2], parts[1::2], fillvalue="-1")]


def expand(text: str) -> list[str]:
    """Every name of a nodeset. Raises ParseError."""
    names: list[str] = []
    words = [word.strip() for word in re.findall(_WORD, text)]
    if not re.fullmatch(f"{_WORD}(?:,{_WORD})*", text) or not all(words):
        raise ParseError(f"{text!r} has an empty name, or brackets that do not match")
    for word in words:
        parts = [_numbers(part) if part[:1] == "[" else [part] for part in re.split(r"(\[[^\]]*\])", word)]
        names += map("".join, itertools.islice(itertools.product(*parts), LIMIT + 1))
        if len(names) > LIMIT:
            raise ParseError(f"{text!r} is more than {LIMIT} nodes")
    return names


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges[1:-1].split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not found:
            raise ParseError(f"{ranges} is not a list of numbers and ranges")
        first, last = found[1], found[2] or found[1]
        if not 0 <= int(last) - int(first) < LIMIT:
            raise ParseError(f"{ranges} has a range that ends before it begins or is longer than {LIMIT}")
        width = len(first) if first[0] == "0" != first else 0
        numbers += [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
    return numbers


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return text -> names."""
    found: dict[str, list[str]] = {}
    for text, name in pairs:
        found.setdefault(text, []).append(name)
    return found


def nameless(text: str | None, host: str) -> str | None:
    """Return what is said of a host with ``it`` in place of its name: of forty hosts alike it is the same text.

    In a list (``node01,node02``) the name stays: that is the same list on each of its hosts. So it does in a path.
    """
    if not text or not host or host not in text:
        return text
    name = rf"(?<![\w.,/-])(hostname )?{re.escape(host)}(?![\w/-]|,\w)"
    return re.sub(name, lambda found: "its hostname" if found.group(1) else "it", text)
