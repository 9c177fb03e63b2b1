# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What programs report of their own work, in lines that report no failure: speed, results, progress, success.

Each kind of line is kept once, with the first and the last one: a training that prints a million steps is two lines.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Deque, Dict, List, Sequence, Set, Tuple

SPEED, RESULT, SUCCESS, PROGRESS, TIME = "speed", "result", "success", "progress", "time"
# In the order in which they are told.
KINDS = (SUCCESS, SPEED, RESULT, PROGRESS, TIME)
# Lines that are looked at as they come, lines at the end that are looked at in any case, kinds of lines that are kept,
# characters of each, and kinds that are reported.
LOOKED_AT, LAST, KEPT, LONGEST, TOLD = 20_000, 500, 60, 300, 10
_BEGIN = 8

# Looked for from its first digit on alone: each digit of a long one would be tried else.
_FROM_ITS_BEGIN = r"(?<!\d)"
_NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d{1,3})?"
_SPEED = re.compile(
    _FROM_ITS_BEGIN + _NUMBER + r"[KkM]? ?(?:[KMGT]i?[Bb](?:ytes?|its?)?(?:/s(?:ec)?\b|ps\b)|[KMGTP]?FLOP/?s\b|"
    r"(?:k?tok(?:en)?s?|samples?|images?|imgs?|steps?|it|iters?|iterations?|examples?|records?|sequences?|seqs?|reqs?|"
    r"requests?|ops)(?:/s(?:ec)?\b| per sec(?:ond)?\b))|"
    r"(?:\w_per_sec(?:ond)?|throughput|bandwidth|busbw|algbw|\bbw)\b['\"]?(?: ?\([^()]{1,40}\))?\s*[=:]\s*" + _NUMBER,
    re.IGNORECASE,
)
_RESULT = re.compile(
    r"\b(?:results?|answer|gathered|reduced|outputs?|val(?:ue)?|sum|received|expect(?:ed)?|got|accuracy|acc|perplexity|"
    r"(?:eval|test|val)_\w{1,30})['\"]?\s*(?:[=:]+|is)\s*(?:tensor\(|array\()?[\[(]*['\"]?(?:"
    + _NUMBER
    + r"|nan|True|False)",
    re.IGNORECASE,
)
_SUCCESS = re.compile(
    r"\b(?:ok|passed(?! (?:in|to|as|by|on|both|an?|the|no|it|its|through|over|via)\b|-)|"
    r"(?<!forward )(?<!backward )(?<!this )pass(?=\W*$)|"
    r"succe(?:ss|eded|ssful|ssfully)|finished|completed?|done|verified|correct|saved(?: to)?)\b",
    re.IGNORECASE,
)
# Words that make another thing of such a word.
_NOT = re.compile(
    r"\b(?:not|no|never|un\w+ed|if|when|until|after|before|wait\w*|in ?complete|fail\w*|\w{0,40}errors?|"
    r"\w{0,40}exceptions?|time ?-?outs?|timed ?-?out|timing out|crash\w*|kill\w*|hung|hangs?|stuck|broken|lost|"
    r"corrupt\w*|invalid|dead|died|"
    # A state, and no report of an end.
    r"last (?:enqueued|started|completed|scheduled)|SeqNum|"
    r"0 passed|cancel\w*|abort\w*|you|your|please|should|must|ensure|make sure|warning|deprecated)\b",
    re.IGNORECASE,
)
# What does not make it one all the same.
_NONE = re.compile(r"\b(?:0|no|zero|without(?: any)?) (?:errors?|fail\w{0,10}|exceptions?|timeouts?)\b", re.IGNORECASE)
# No count of anything: -1 without its sign, or memory that nobody wrote.
_GARBAGE = re.compile(r"(?<![\d.,\w])-?\d{16,}(?![\d\w.])")
_PROGRESS = re.compile(
    r"\b(?:(?:global_?)?step|iter(?:ation)?|epoch|batch|episode|round)s?\b['\"]?[ \t=:#\[(]{0,4}\d|"
    r"\b\w{0,20}loss\b['\"]?\s*[=: ]\s*(?:" + _NUMBER + r"|nan|inf)|"
    r"\b(?:running|start(?:ing|ed)?|begin(?:ning)?|resum\w+) (?:the )?(?:model )?"
    r"(?:training|evaluation|inference|benchmark)|"
    r"\btraining (?:started|begins|starts)|\bnum(?:ber of)? (?:examples|epochs|steps|samples)\b|"
    r"\b(?:train )?batch size\b.{0,80}[=:]\s*\d|"
    + _FROM_ITS_BEGIN
    + r"\d[\d,.]*[KMB]? (?:total |trainable )*param(?:eter)?s\b|\b(?:model size|param(?:eter)?s(?:"
    r" count)?)\s*[=:]\s*\d|\d{1,3}%\|.{0,200}?\| *\d+/\d+|application startup complete",
    re.IGNORECASE,
)
_TIME = re.compile(
    r"\b(?:\w{0,20}(?:time|elapsed|runtime|duration|latency)|took|finished in)\b[^\d\n]{0,40}?"
    r"(?:\d+\.\d+|\d+(?: ?(?:ms|us|s|sec|seconds|min|minutes))\b)(?![-:\d])",
    re.IGNORECASE,
)
# A command or a setting, a comment, a source's line and a launcher's words are no report.
_OTHER = re.compile(
    r"^\W{0,3}(?:\S{1,80}[$#] )?(?:[A-Z_]\w{0,60}=\S{0,200} ){0,20}"
    r"(?:python|bash|sh|mpirun|srun|torchrun|export|sudo|docker)\b|"
    r"^#|\bOMP_NUM_THREADS|^\s*(?:return|if|for|def|raise|assert|self\.|File )\b|[({,]$"
)
# How many of them there are to be, at the end of a line: how far it has come is another word.
_TO_BE = re.compile(
    r"(?:^|[\s\"'])(?:epochs|steps|iterations|episodes|rounds)[\"']? {0,20}[:=] {0,20}\d{1,12}[\"',]{0,3}$"
)
# Of these kinds lines measure something.
_MEASURES = {SPEED: _SPEED, TIME: _TIME}
_FIGURE = re.compile(r"(?<![\w.])" + _NUMBER)
# Figures of a line that are kept, and how many different ones, and how many lines, have a course; how near to the
# middle of the later half figures are that are steady.
_MEASURED, _SEVERAL, _COURSE, _STEADY = 2_000, 3, 8, 0.1
_RULES = ((SPEED, _SPEED), (RESULT, _RESULT), (PROGRESS, _PROGRESS), (SUCCESS, _SUCCESS), (TIME, _TIME))
# The end of a line of NCCL's.
_TORN = re.compile(r"\bcommId 0x([0-9a-f]{1,16}) - Init COMPLETE")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass
class Line:
    """kind: one of KINDS.   text, order: of the first one.   last, last_order: of the last one.   count: how many.

    figures: of the first lines what they measure, where each of them does.
    """

    kind: str
    text: str
    order: int
    last: str
    last_order: int
    count: int = 1
    figures: List[float] = field(default_factory=list)

    @property
    def course(self) -> str:
        """The least and the most of what was measured, and whether the first lines differ from all behind them."""
        measured = self.figures
        if len(measured) != self.count or len(set(measured)) < _SEVERAL:
            return ""
        steady = sorted(measured[len(measured) // 2 :])
        middle = steady[len(steady) // 2]
        begin = len(measured)
        while begin and abs(measured[begin - 1] - middle) <= _STEADY * abs(middle):
            begin -= 1
        if begin and len(measured) >= _COURSE and begin <= len(measured) // 3:
            return "; the first %d are between %s, all behind them between %s: as where the first rounds warm up" % (
                begin, _between(measured[:begin]), _between(measured[begin:]),
            )  # fmt: skip
        return "; between %s" % _between(measured)


def _between(figures: Sequence[float]) -> str:
    return "%s and %s" % tuple("%.10g" % one for one in (min(figures), max(figures)))


def shorter(text: str, most: int) -> str:
    """The begin of a text; that the rest is left out is to be seen."""
    return text if len(text) <= most else text[: most - 4] + " ..."


class Results:
    """``line`` for each line that no other rule reads, then ``end``; ``kept`` in the order of their first lines."""

    def __init__(self) -> None:
        self._known: Dict[str, Line] = {}
        self._looked = 0
        # How lines of kept kinds begin: what begins so behind the limit is counted, and not looked at.
        self._begins: Set[bytes] = set()
        self._tail: Deque[Tuple[bytes, int]] = deque(maxlen=LAST)

    @property
    def kept(self) -> List[Line]:
        return sorted(self._known.values(), key=lambda one: one.order)

    @property
    def beyond(self) -> bool:
        """Whether not all lines were looked at."""
        return self._looked >= LOOKED_AT

    def line(self, line: bytes, order: int) -> bool:
        """Whether it was one that reports something of a program's work."""
        if self._looked >= LOOKED_AT:
            self._tail.append((line[: LONGEST * 2], order))
            return line[:_BEGIN] in self._begins
        self._looked += 1
        return self._take(line, order)

    def end(self) -> None:
        for line, order in self._tail:
            self._take(line, order)
        self._tail.clear()

    def _take(self, line: bytes, order: int) -> bool:
        text = shorter(line[: LONGEST * 2].decode("utf-8", "replace").strip(), LONGEST)
        kind = classify(text)
        if not kind:
            return False
        key = _NUMBERS.sub("#", " ".join(text.split()))
        known = self._known.get(key)
        if known is not None:
            known.last, known.last_order, known.count = text, order, known.count + 1
            _measure(known, text)
        elif len(self._known) < KEPT:
            self._known[key] = Line(kind, text, order, text, order)
            _measure(self._known[key], text)
            self._begins.add(line[:_BEGIN])
        return known is not None or key in self._known


def classify(text: str) -> str:
    """The kind of a line; "" of what reports nothing of a program's work."""
    if _OTHER.search(text) is not None:
        return ""
    kind = next((kind for kind, pattern in _RULES if pattern.search(text)), "")
    if kind == SUCCESS and _NOT.search(_NONE.sub("", text)):
        return ""
    if kind == PROGRESS and _TO_BE.search(text):
        return ""
    return "" if kind in (SUCCESS, PROGRESS) and _GARBAGE.search(text) else kind


def _measure(line: Line, text: str) -> None:
    """Takes what a line measures in, as long as each one before it measured something."""
    pattern = _MEASURES.get(line.kind)
    if pattern is None or len(line.figures) != line.count - 1 or line.count > _MEASURED:
        return
    match = pattern.search(text)
    found = _FIGURE.findall(match.group()) if match is not None else []
    if found:
        line.figures.append(float(found[-1].replace(",", "")))


def torn(results: Results) -> List[Tuple[str, int]]:
    """Communicators that lines of NCCL's without their begin call complete, and the number of the line."""
    found = ((_TORN.search(one.text), one.order) for one in results.kept)
    return [(match.group(1), order) for match, order in found if match is not None]


def told(results: Results) -> List[str]:
    """What programs report, in sentences; of many kinds those that say most, and the last ones of each."""
    own = [one for one in results.kept if _TORN.search(one.text) is None]
    kept = sorted(own, key=lambda one: (KINDS.index(one.kind), -one.last_order))[:TOLD]
    said = []
    for one in sorted(kept, key=lambda one: one.order):
        text = "the program reports (%s, line %d): %s" % (one.kind, one.order, one.text)
        if one.count > 1:
            least = "at least " if results.beyond else ""
            text += "; %s%d lines are alike, the last (line %d): %s" % (least, one.count, one.last_order, one.last)
            text += "" if results.beyond else one.course
        said.append(text)
    left = len(own) - len(kept)
    return said + (["and %d more kinds of lines in which it reports of its work" % left] if left else [])
