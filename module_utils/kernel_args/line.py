# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kernel's command line, token by token: what it holds, whether it satisfies an argument, and how it is edited.

A line is as the kernel gets it (/proc/cmdline), or, with ``in_grub``, as GRUB's configuration has it before that.
Sources: Linux 6.12: lib/cmdline.c, lib/kstrtox.c, arch/x86/kernel/pci-dma.c; drivers/iommu: iommu.c, intel, amd.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple

from ..core.host import ParseError
from . import grub

# Blanks and a token. A quote that is open holds the rest of the line.
_TOKEN = re.compile(r'([ \t-\r]*)((?:"[^"]*(?:"|\Z)|[^" \t-\r])*)')
_GRUB_TOKEN = re.compile(
    r'([ \t-\r]*)((?:\\.|"(?:\\.|[^"\\])*(?:"|\\?\Z)|\'[^\']*(?:\'|\Z)|[^"\' \t-\r\\]|\\\Z)*)', re.DOTALL
)
# (name, item of its comma-separated value, whether it switches on): of several on a line the last one counts.
_Switch = Tuple[Tuple[str, str, bool], ...]
_PASSTHROUGH: _Switch = (("iommu.passthrough", "1", True), ("iommu.passthrough", "0", False))
_INTEL: _Switch = (("intel_iommu", "on", True), ("intel_iommu", "off", False))
SWITCHES: Mapping[Tuple[str, Optional[str]], _Switch] = {
    ("iommu", "pt"): (("iommu", "pt", True), ("iommu", "nopt", False), *_PASSTHROUGH),
    ("iommu.passthrough", "1"): _PASSTHROUGH,
    ("intel_iommu", "on"): _INTEL,
    ("intel_iommu", "off"): tuple((name, item, not on) for name, item, on in _INTEL),
    ("iommu", "off"): (("iommu", "off", True),),
    ("amd_iommu", "off"): (("amd_iommu", "off", True),),
}
# Parameters of modules have a dot in their name; of the others these are read by kstrtobool.
_BOOLEANS = ("init_on_alloc", "init_on_free")


@dataclass(frozen=True)
class Arg:
    """One argument that the command line must have, or must not have.

    value: None is a flag (``quiet``), or with present False any value.
    exclusive: of several tokens of this name the last counts, and this must be it; without it a name may be repeated
    (``console=``).
    """

    name: str
    value: Optional[str] = None
    present: bool = True
    exclusive: bool = False

    def __post_init__(self) -> None:
        if re.fullmatch(r"[A-Za-z0-9_.:-]*[A-Za-z0-9_]", self.name) is None:
            raise ParseError("kernel argument %r: a name has letters, digits and _ . : -" % self.name)
        if self.value is not None and ('"' in self.value or not self.value.isprintable()):
            raise ParseError("kernel argument %s: the kernel cannot take %r" % (self.name, self.value))
        if self.exclusive and not self.present:
            raise ParseError("kernel argument %s: exclusive goes with one that is present" % self.name)

    @property
    def token(self) -> str:
        if self.value is None:
            return self.name
        return '%s="%s"' % (self.name, self.value) if " " in self.value else "%s=%s" % (self.name, self.value)

    @property
    def grub_token(self) -> str:
        """The token in GRUB's configuration. Raises ParseError where GRUB cannot pass it on whole."""
        return self.name if self.value is None else grub.quote(self.name, self.value)

    @property
    def switch(self) -> _Switch:
        return SWITCHES.get((_canonical(self.name), self.value), ())

    def __str__(self) -> str:
        return self.token if self.present else "no %s" % self.token


def split(line: str, in_grub: bool = False) -> List[Tuple[str, str]]:
    """Return (blanks before it, token) of each token; quotes hold blanks together."""
    found = (_GRUB_TOKEN if in_grub else _TOKEN).finditer(line)
    return [(match.group(1), match.group(2)) for match in found if match.group()]


def parse(token: str, in_grub: bool = False) -> Tuple[str, Optional[str]]:
    """Return name, with dashes as underscores (the kernel sees no difference), and value without its quotes."""
    token = grub.unquote(token) if in_grub else token
    quoted = token.startswith('"')
    body = token[1:] if quoted else token
    opened = body.partition("=")[2].startswith('"')
    if (quoted or opened) and body.endswith('"'):
        body = body[:-1]
    name, equals, value = body.partition("=")
    return _canonical(name), value[1 if opened else 0 :] if equals else None


def _canonical(name: str) -> str:
    return name.replace("-", "_")


def _words(line: str) -> List[Tuple[str, Optional[str]]]:
    """Return (name, value) of each token; what follows two dashes is for init."""
    tokens = [token for _gap, token in split(line) if token]
    return [parse(token) for token in tokens[: tokens.index("--") if "--" in tokens else None]]


def _meaning(name: str, value: Optional[str]) -> Optional[str]:
    """Return the value; of a parameter that is on or off, 1 or 0 for all that kstrtobool takes."""
    if value is None or not ("." in name or name in _BOOLEANS):
        return value
    match = re.match(r"([yYtT1]|[oO][nN])|[nNfF0]|[oO][fF]", value)
    return value if match is None else "1" if match.group(1) else "0"


def _effects(name: str, value: Optional[str], switch: _Switch) -> List[Tuple[str, Optional[bool]]]:
    """Return each item of the value with what it switches; None for nothing."""
    known = {(own, item): on for own, item, on in switch}
    return [(item, known.get((name, _meaning(name, item) or ""))) for item in (value or "").split(",")]


def satisfied(line: str, arg: Arg) -> bool:
    """Return whether a kernel with this line does what is wanted. Equal forms count, and the last one wins."""
    words, name = _words(line), _canonical(arg.name)
    if arg.switch:
        states = [on for own, value in words for _item, on in _effects(own, value, arg.switch) if on is not None]
        return bool(states and states[-1]) is arg.present
    values = [value for own, value in words if own == name]
    if not arg.present:
        return arg.value not in values if arg.value is not None else not values
    values = [_meaning(name, value) for value in (values[-1:] if arg.exclusive else values)]
    return _meaning(name, arg.value) in values


def related(line: str, arg: Arg) -> str:
    """Return the tokens of a line that bear on the argument, "" where there is none."""
    names = {_canonical(arg.name), *(name for name, _item, _on in arg.switch)}
    return " ".join(token for _gap, token in split(line) if token and parse(token)[0] in names)


def plain(args: Sequence[Arg], lines: Sequence[str]) -> List[Arg]:
    """Return arguments that tools which only add and remove tokens can bring about.

    What switches the other way is removed, and what else its list holds is added again.
    """
    found: List[Arg] = []
    for arg in args:
        for name, value in [word for line in lines for word in _words(line)] if arg.switch else ():
            items = _effects(name, value, arg.switch)
            rest = [item for item, on in items if on is None or on is arg.present]
            if len(rest) < len(items):
                found.append(Arg(name, value, present=False))
                found += [Arg(name, ",".join(rest))] if rest else []
        found.append(arg)
    return list(dict.fromkeys(found))


def edit(line: str, args: Sequence[Arg], in_grub: bool = False) -> str:
    """Return the line with these arguments; the same line where it is right already."""
    tokens = split(line, in_grub)
    for arg in args:
        tokens = _edit(tokens, arg, in_grub)
    return "".join(gap + token for gap, token in tokens)


def _edit(tokens: List[Tuple[str, str]], arg: Arg, in_grub: bool) -> List[Tuple[str, str]]:
    # What follows two dashes is for init, and none of the kernel's business.
    end = next((n for n, (_gap, token) in enumerate(tokens) if token == "--"), len(tokens))
    name, new = _canonical(arg.name), arg.grub_token if in_grub and arg.present else arg.token
    same = [n for n, (_gap, token) in enumerate(tokens[:end]) if token and parse(token, in_grub)[0] == name]
    values = {n: parse(tokens[n][1], in_grub)[1] for n in same}
    if not arg.present:
        return _without(tokens, [n for n in same if arg.value is None or values[n] == arg.value])
    right = [n for n in same if _meaning(name, values[n]) == _meaning(name, arg.value)]
    if not arg.exclusive:
        return tokens if right else _with(tokens, end, new)
    if right:
        return _without(tokens, [n for n in same if n != right[-1]])
    if not same:
        return _with(tokens, end, new)
    tokens = list(tokens)
    tokens[same[-1]] = (tokens[same[-1]][0], new)
    return _without(tokens, same[:-1])


def _with(tokens: List[Tuple[str, str]], end: int, token: str) -> List[Tuple[str, str]]:
    # Blanks at the end are a token of nothing; they stay behind what is added.
    if end and not tokens[end - 1][1]:
        end -= 1
    before, after = tokens[:end], tokens[end:]
    if before or not after or not after[0][1]:
        return before + [(" " if before else "", token)] + after
    return [(after[0][0], token), (" ", after[0][1])] + after[1:]


def _without(tokens: List[Tuple[str, str]], gone: Sequence[int]) -> List[Tuple[str, str]]:
    left = [item for n, item in enumerate(tokens) if n not in gone]
    if left and 0 in gone and left[0][1]:
        # The line began with a token, and still does.
        left[0] = (tokens[0][0], left[0][1])
    return left
