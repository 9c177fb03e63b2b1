# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Names of many nodes as few words, in ClusterShell's syntax: ``gpu-r12-[01-31]``, ``r[1-2]n[1,3]``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

# Other names would not read back: brackets and commas have a meaning of their own.
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
_NUMBER = re.compile(r"(\d+)")
# A typing error in a waiver must not fill the memory.
LIMIT = 100_000


class NodesetError(ValueError):
    """A nodeset that cannot be read; the message says why."""


def fold(names: Iterable[str]) -> str:
    """The names, each once, in the order of their numbers. One that the syntax cannot hold stands as it is."""
    templates: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    odd = set()
    for name in set(names):
        if not _PLAIN.fullmatch(name):
            odd.add(name)
            continue
        parts = _NUMBER.split(name)
        templates.setdefault(tuple(parts[::2]), set()).add(tuple(parts[1::2]))
    words = []
    for texts, numbers in sorted(templates.items()):
        words += [_word(texts, ranges) for ranges in _boxes(numbers)]
    return ",".join([*words, *sorted(odd)])


def brief(names: Iterable[str], room: int) -> str:
    """The names folded, where ``room`` characters hold that; else the first of them and how many more there are."""
    known = set(names)
    text = fold(known)
    if len(text) <= room:
        return text
    # 0 and 00 are the same number: without the text, a set's own order would decide which of them is named.
    ordered = sorted(known, key=lambda name: (natural(name), name))

    def first(count: int) -> str:
        return "%s and %d more" % (fold(ordered[:count]), len(ordered) - count)

    # Few fit usually: to begin with all of ten thousand would take longer than the rest of a table.
    most = 1
    while most * 2 < len(ordered) and len(first(most * 2)) <= room:
        most *= 2
    least, most = most, min(most * 2, len(ordered))
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if len(first(middle)) <= room else (least, middle)
    return first(least) if len(ordered) > 1 else text


def cut(text: str, room: int) -> str:
    """``brief`` of what has been folded before."""
    if len(text) <= room:
        return text
    try:
        return brief(expand(text), room)
    except NodesetError:
        # A name that the syntax cannot hold: all of it rather than a part that nobody can count.
        return text


def natural(name: str) -> list[tuple[str, int]]:
    parts = _NUMBER.split(name)
    return [(text, int(number)) for text, number in itertools.zip_longest(parts[::2], parts[1::2], fillvalue="-1")]


def _word(texts: Sequence[str], numbers: Sequence[str]) -> str:
    return "".join(itertools.chain.from_iterable(itertools.zip_longest(texts, numbers, fillvalue="")))


def _boxes(points: set[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Numbers of many dimensions as products of ranges: the last dimension first, then what is alike behind it."""
    boxes = points
    width = len(next(iter(points)))
    for axis in reversed(range(width)):
        alike: dict[tuple[tuple[str, ...], tuple[str, ...]], set[str]] = {}
        for box in boxes:
            alike.setdefault((box[:axis], box[axis + 1 :]), set()).add(box[axis])
        boxes = {(*before, _ranges(found), *after) for (before, after), found in alike.items()}
    return sorted(boxes, key=lambda box: [(int(_first(part)), part) for part in box])


def _first(ranges: str) -> str:
    found = _NUMBER.search(ranges)
    return found.group() if found else "0"


def _ranges(numbers: set[str]) -> str:
    """``{"01", "02", "04"}`` -> ``[01-02,04]``; one number stands without brackets."""
    # Where one number of a width begins with zero, all of that width count on with zeros: 08, 09, 10.
    widths = {len(number) for number in numbers if _padded(number)}
    runs: list[list[str]] = []
    for number in sorted(numbers, key=lambda text: (len(text) if len(text) in widths else 0, int(text))):
        last = runs[-1][-1] if runs else ""
        alike = len(number) == len(last) or not widths.intersection((len(number), len(last)))
        if last and alike and int(number) == int(last) + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in sorted(runs, key=lambda r: int(r[0])))
    return text if len(numbers) == 1 else f"[{text}]"


def _padded(number: str) -> bool:
    return len(number) > 1 and number.startswith("0")


def expand(text: str) -> list[str]:
    """Every name of a nodeset. Raises NodesetError."""
    names: list[str] = []
    for word in _words(text):
        parts = [_numbers(part) if part.startswith("[") else [part] for part in re.split(r"(\[[^\]]*\])", word)]
        count = 1
        for part in parts:
            count *= len(part)
        if count + len(names) > LIMIT:
            raise NodesetError(f"{text!r} is more than {LIMIT} nodes")
        names += ["".join(choice) for choice in itertools.product(*parts)]
    return names


def _words(text: str) -> Iterator[str]:
    depth = 0
    word = ""
    for char in text.strip():
        depth += {"[": 1, "]": -1}.get(char, 0)
        if depth not in (0, 1):
            raise NodesetError(f"{text!r} has brackets that do not match")
        if char == "," and depth == 0:
            if not word.strip():
                raise NodesetError(f"{text!r} has an empty name")
            yield word.strip()
            word = ""
        else:
            word += char
    if depth or not word.strip():
        raise NodesetError(f"{text!r} " + ("has brackets that do not match" if depth else "has an empty name"))
    yield word.strip()


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges[1:-1].split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not found:
            raise NodesetError(f"{ranges} is not a list of numbers and ranges")
        first, last = found.group(1), found.group(2) or found.group(1)
        if int(last) < int(first) or int(last) - int(first) >= LIMIT:
            raise NodesetError(f"{ranges} has a range that ends before it begins or is longer than {LIMIT}")
        width = len(first) if _padded(first) else 0
        numbers += [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
    return numbers


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return text -> names."""
    found: dict[str, list[str]] = {}
    for text, name in pairs:
        found.setdefault(text, []).append(name)
    return found


def nameless(text: str | None, host: str) -> str | None:
    """What is said of a host without its name, for which ``it`` stands: of forty hosts alike it is the same text.

    In a list (``node01,node02``) the name stays: that is the same list on each of its hosts. So it does in a path.
    """
    if not text or not host or host not in text:
        return text
    return re.sub(rf"(?<![\w.,/-]){re.escape(host)}(?![\w/-]|,\w)", "it", text)
