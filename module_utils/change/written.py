# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare files that Busbar has written by their effect, so that neither an upgrade nor a comment is drift.

Each file carries the release, a hash of the intent that it implements, and a hash of all its text: in a comment at its
head, in JSON in a key. A text whose hash is right was written by Busbar; any other was edited.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Callable, Iterable, List, Optional, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.plan import FileChange

# As in pyproject.toml.
RELEASE = "0.1.0"
# Of these an intact text of another release counts as long as it was made of the same intent.
PROGRAMS = re.compile(r"/usr/local/.*|.*\.(service|timer|rules)|.*/(multi-user\.target|openibd\.service)\.d/.*")
# What the head of every text begins with, before and after it is sealed.
HEAD = "Written by Busbar"
_SEAL = re.compile(HEAD + r" ([0-9][0-9A-Za-z.+-]{0,30}), intent ([0-9a-f]{12}), sha256 ([0-9a-f]{32})")
# Of JSON: sorted before all other keys, so that none of their values is taken for the head.
KEY = "_written"
SAME, OLDER, EDITED, DIFFERENT = "same", "older", "edited", "different"
_NO_EFFECT = ("Description", "Documentation")
Effect = Callable[[str, str], object]


@dataclass(frozen=True)
class Seal:
    """release: of the Busbar that wrote the text.   intent: hash of what the text implements."""

    release: str
    intent: str


@dataclass(frozen=True)
class Files:
    """What comes of a comparison. changes: with all that a run renews.   notes: on files of another release.

    wrong: what a finding says of files that were edited or are not as written, "" for none.
    severity: "minor" where no setting differs, None for that of the check.
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
        if self.severity is None:
            return ()
        path, want = self.changes[0].path, "as Busbar has written it"
        return (check.judge(path, "drift", want, self.wrong, severity=self.severity, aspect="persisted"),)


def seal(path: str, text: str, intent: object = None) -> str:
    """Put release and hashes behind HEAD. A text without HEAD, such as a key, stays as it is.

    intent: plain data that the text was made of, needed of PROGRAMS only; else its settings.
    """
    basis = "%s, intent %.12s" % (RELEASE, _hash(repr(effect(path, text) if intent is None else intent)))
    return text.replace(HEAD, "%s %s, sha256 %.32s" % (HEAD, basis, _hash(basis + text)), 1)


def seal_of(text: Optional[str]) -> Optional[Seal]:
    """Return the seal of a text that is as Busbar has written it; None where there is none, or the text was edited."""
    found = _SEAL.search(text or "")
    if text is None or found is None:
        return None
    release, intent, given = found.groups()
    plain = text[: found.start()] + HEAD + text[found.end() :]
    good = given == _hash("%s, intent %s%s" % (release, intent, plain))[:32]
    return Seal(release, intent) if good else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def effect(path: str, text: str) -> object:
    """Return what a text of this path comes to: equal for texts that do the same."""
    lines = text.split("\n")
    if path.startswith(("/usr/local/lib/busbar/", "/usr/local/libexec/busbar/")):
        # Root runs it: of a program only the head has no effect.
        return [line for line in lines if not line.startswith("# " + HEAD)]
    if path.endswith(".json"):
        return _json(text)
    words = [line.rstrip() for line in lines if not line.lstrip().startswith(("#", ";"))]
    if path.endswith((".service", ".timer", ".repo")) or re.match(r"/etc/systemd/sys[^/]*/.*\.conf$", path):
        return _ini(words)
    if path.startswith(("/etc/apt/", "/etc/pki/")):
        return "\n".join(words).strip()
    if path.endswith((".yaml", ".yml", ".rules", ".fstab", ".args", ".cfg")) or "/systemd/network/" in path:
        return [line for line in words if line]
    return sorted({re.sub(r" *= *", "=", " ".join(line.split())) for line in words if line})


def _ini(lines: Iterable[str]) -> List[Tuple[str, str, str]]:
    found, section = [], ""
    for line in lines:
        key, _equals, value = map(str.strip, line.partition("="))
        section = key if key.startswith("[") else section
        if key and key not in _NO_EFFECT:
            found.append((section, key, value))
    # Values of one key stay in their order.
    return sorted(found, key=lambda one: one[:2])


def _json(text: str) -> object:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return {name: value for name, value in data.items() if name != KEY} if isinstance(data, dict) else data


def compare(candidates: Iterable[FileChange], effect: Effect = effect) -> Files:
    """Say what of files that Busbar writes differs, and how much that matters.

    candidates: a change for each file, also where nothing differs; texts are sealed.
    """
    return collect((change, _status(change, effect)) for change in candidates)


def _status(change: FileChange, effect: Effect) -> str:
    before, after = change.before, change.after
    if before == after and change.mode_before in (None, change.mode):
        return SAME
    if before is None or after is None or before == after:
        return DIFFERENT
    found, wanted = seal_of(before), seal_of(after)
    same = effect(change.path, before) == effect(change.path, after)
    by_intent = found and wanted and found.intent == wanted.intent and PROGRAMS.fullmatch(change.path)
    if found is not None and (same or by_intent):
        return OLDER
    # Before there were seals the head had no release.
    return DIFFERENT if not same else OLDER if HEAD + " (role" in before else EDITED


def collect(judged: Iterable[Tuple[FileChange, str]]) -> Files:
    """Sum up changes and their status."""
    changes: List[FileChange] = []
    wrong: List[str] = []
    older: List[str] = []
    only_edited = True
    for change, status in judged:
        if status == SAME:
            continue
        changes.append(change)
        if status == OLDER:
            found = seal_of(change.before)
            older.append("%s (%s)" % (change.path, found.release if found else "before 0.1"))
            continue
        only_edited = only_edited and status == EDITED
        text = "%s was edited, without effect" % change.path
        wrong.append(text if status == EDITED else change.described("written"))
    notes = ["another version of Busbar has written %s; the next run of site.yml renews it" % ", ".join(older)]
    severity = "minor" if wrong and only_edited else None
    return Files(tuple(changes), ", ".join(wrong), severity, tuple(notes if older else ()))
