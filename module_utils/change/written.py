# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare files that Busbar has written by their effect, so that neither an upgrade nor a comment is drift.

The head of each (a comment; a key of JSON) has the release, a hash of the intent that the file implements, and one of
all its text. A text whose hash is right was written by Busbar; any other was edited.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Callable, Iterable, NamedTuple, Optional, Tuple

from ..core import ini
from ..core.check import Check
from ..core.finding import Finding
from ..core.plan import FileChange

RELEASE = "0.2.0"
# An intact text of another release is right here as long as it was made of the same intent.
PROGRAMS = re.compile(r"/usr/local/.*|.*\.(service|timer|rules)|.*/(multi-user\.target|openibd\.service)\.d/.*")
# Start of every text's head, before and after it is sealed.
HEAD = "Written by Busbar"
_SEAL = re.compile(HEAD + r" ([0-9][0-9A-Za-z.+-]{0,30}), intent ([0-9a-f]{12}), sha256 ([0-9a-f]{32})")
# JSON: sorts before all other keys, so that none of their values is taken for the head.
KEY = "_written"
SAME, OLDER, EDITED, DIFFERENT = "same", "older", "edited", "different"
_NO_EFFECT = ("Description", "Documentation")
Effect = Callable[[str, str], object]
# Programs and units of release 0.1.0, which had no seals: SHA-256 of their lines without those of _VALUE.
_FORMER = (
    "cde9f4e76bf98c94f24e4ad08a53170f5341df3a0c95549a09dac5a267fabad3",
    "674f5a672add91289233cd29d99b4e4064f0a1a95add70f9ad9b48694b5586fa",
    "9ea6f73cb264b1c41783df67ced4eba87c8e32db81862dfd54cad3e7012065e9",
)
_VALUE = re.compile(r"(?:DEVICES|BRIDGES|NICS|READ_REQUEST) = |    '[0-9a-f:.]{12}': '")


class Files(NamedTuple):
    """changes: what a run renews.   wrong: text of a finding on files that are not as written, "" for none.

    severity: "minor" where no setting differs, None for that of the check.   notes: on files of another release.
    """

    changes: Tuple[FileChange, ...]
    wrong: str
    severity: Optional[str]
    notes: Tuple[str, ...]

    @property
    def state(self) -> str:
        return "drift" if self.wrong else "ok"

    def edited(self, check: Check) -> Tuple[Finding, ...]:
        """Return a minor finding of ``check`` where a text was edited and no setting differs."""
        if not self.severity:
            return ()
        how = {"severity": self.severity, "aspect": "persisted", "disruption": "none"}
        return (check.judge(self.changes[0].path, "drift", "as Busbar has written it", self.wrong, **how),)


def seal(path: str, text: str, intent: object = None) -> str:
    """Put release and hashes behind HEAD. intent: data that one of PROGRAMS implements; others are hashed by effect."""
    basis = "%s, intent %.12s" % (RELEASE, _hash(repr(effect(path, text) if intent is None else intent)))
    return text.replace(HEAD, "%s %s, sha256 %.32s" % (HEAD, basis, _hash(basis + text)), 1)


def seal_of(text: Optional[str]) -> Optional[Tuple[str, str]]:
    """Return release and hash of the intent of a text of Busbar; None without a head, or if it was edited."""
    found = _SEAL.search(text or "")
    if text is None or found is None:
        return None
    basis = "%s, intent %s%s%s%s" % (found[1], found[2], text[: found.start()], HEAD, text[found.end() :])
    return (found[1], found[2]) if found[3] == _hash(basis)[:32] else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def effect(path: str, text: str) -> object:
    """Return what a text of this path does: equal for texts with the same effect."""
    lines = text.split("\n")
    if path.startswith(("/usr/local/lib/busbar/", "/usr/local/libexec/busbar/")):
        # Root runs it: of a program only the head has no effect.
        return [line for line in lines if not line.startswith("# " + HEAD)]
    if path.endswith(".json"):
        try:
            return {name: value for name, value in dict(json.loads(text)).items() if name != KEY}
        except (ValueError, TypeError, RecursionError):
            return text
    words = [line.rstrip() for line in lines if not line.lstrip().startswith(("#", ";"))]
    if path.endswith((".service", ".timer", ".repo")) or re.match(r"/etc/systemd/sys[^/]*/.*\.conf$", path):
        found = [(one.section, one.key, one.value) for one in ini.settings(text) if one.key not in _NO_EFFECT]
        # Values of one key stay in their order.
        return sorted(found, key=lambda one: one[:2])
    if path.startswith(("/etc/apt/", "/etc/pki/")):
        return "\n".join(words).strip()
    if path.endswith((".yaml", ".yml", ".rules", ".fstab", ".args", ".cfg")) or "/systemd/network/" in path:
        return [line for line in words if line]
    return sorted({re.sub(r" *= *", "=", " ".join(line.split())) for line in words if line})


def compare(candidates: Iterable[FileChange], effect: Effect = effect) -> Files:
    """Compare each of these files, also where nothing differs, with its new text, which is sealed."""
    return collect((change, _status(change, effect)) for change in candidates)


def _status(change: FileChange, effect: Effect) -> str:
    before, after, good_mode = change.before, change.after, change.mode_before in (None, change.mode)
    if before is None or after is None or before == after or not good_mode:
        return SAME if before == after and good_mode else DIFFERENT
    found, wanted = seal_of(before), seal_of(after)
    same = effect(change.path, before) == effect(change.path, after)
    if found and (same or (wanted and found[1] == wanted[1] and PROGRAMS.fullmatch(change.path))):
        return OLDER
    if _is_former(change.path, before, after, same):
        return OLDER
    return EDITED if same else DIFFERENT


def _is_former(path: str, before: str, after: str, same: bool) -> bool:
    """Return whether release 0.1.0, whose heads had no seals, wrote the text for what is wanted now."""
    if same:
        is_plain = (
            path.endswith(".json") and before == json.dumps(effect(path, before), indent=1, sort_keys=True) + "\n"
        )
        return is_plain or HEAD + " (role" in before
    lines, wanted = before.split("\n"), after.split("\n")
    program = "\n".join(line for line in lines if not _VALUE.match(line))
    return _hash(program) in _FORMER and [*filter(_VALUE.match, lines)] == [*filter(_VALUE.match, wanted)]


def collect(judged: Iterable[Tuple[FileChange, str]]) -> Files:
    """Sum up changes and their status."""
    found = [(change, status) for change, status in judged if status != SAME]
    older = ["%s (%s)" % (one.path, (seal_of(one.before) or ("?", ""))[0]) for one, status in found if status == OLDER]
    wrong = [
        "%s was edited, without effect" % change.path if status == EDITED else change.described("written")
        for change, status in found
        if status != OLDER
    ]
    severity = "minor" if wrong and all(status != DIFFERENT for _change, status in found) else None
    notes = ("another version of Busbar has written %s; the next run of site.yml renews it" % ", ".join(older),)
    return Files(tuple(change for change, _status in found), ", ".join(wrong), severity, notes if older else ())
