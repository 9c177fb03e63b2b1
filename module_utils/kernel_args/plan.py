# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan the kernel's arguments for all kernels at the next boot, and judge what is active.

All other arguments stay as they are, byte for byte.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import List, Mapping, Optional, Sequence, Tuple

from ..change import written
from ..core import tuned
from ..core.check import Check
from ..core.finding import Finding
from ..core.plan import Command, FileChange, Plan
from ..driver.kernels import GRUB_CFG
from . import grub, grub_settings, grubby
from .grub_settings import DROPIN, LINUX
from .line import Arg, edit, plain, related, satisfied
from .read import ACTIVE, BLS_ENTRIES, GRUBENV, KERNEL_CMDLINE, Boot, Entry


def plan(boot: Boot, args: Sequence[Arg], check: Check, others: Mapping[Arg, Check] = MappingProxyType({})) -> Plan:
    """Judge each argument twice: as the next boot will have it, and as this one has it.

    check: of the arguments.
    others: another check for some arguments.
    Raises ParseError for an argument that GRUB cannot pass on.
    """
    changes, commands = _mend(boot, args)
    ours = boot.stored if boot.kind == "grub" and not changes else None
    text = grub_settings.render_dropin(grub_settings.parse_dropin(ours)) if ours else None
    files = written.compare([FileChange(DROPIN, ours, text)] if ours else [])
    # What came from before there were seals stays.
    files = written.collect([]) if files.wrong and not files.severity else files
    findings: List[Finding] = list(files.edited(check))
    reboot: List[str] = []
    for arg in args:
        persisted = _persisted(boot, arg, others.get(arg, check))
        active = satisfied(boot.active, arg)
        findings += [persisted, _live(boot, arg, others.get(arg, check), persisted, active)]
        if not active and (persisted.ok or persisted.state == "drift"):
            reboot.append("kernel argument %s is not active before a reboot" % arg)
    return Plan(tuple(findings), (*changes, *files.changes), commands, tuple(reboot), files.notes)


def _mend(boot: Boot, args: Sequence[Arg]) -> Tuple[Tuple[FileChange, ...], Tuple[Command, ...]]:
    lines = [entry.line for entry in boot.future]
    wrong = [arg for arg in args if not all(satisfied(line, arg) for line in lines)]
    if not wrong or not boot.kind:
        return (), ()
    tokens, in_grub = plain(wrong, lines), boot.kind in GRUBENV
    if boot.kind == "grub":
        stored = _mended(boot, tokens)
        changes = (FileChange(DROPIN, boot.stored, stored),) if stored != boot.stored else ()
        if not changes and all(_culprit(boot, arg) for arg in wrong):
            # Running the generator again would not help.
            return (), ()
        return changes, (Command(("update-grub",), "rewrite %s" % GRUB_CFG), _sync(GRUB_CFG.rpartition("/")[0]))
    if _beyond_grubby(boot, tokens) or all(edit(e.stored, tokens, in_grub) == e.stored for e in boot.entries):
        return (), ()
    changes = ()
    if boot.stored is not None:
        end = "\n" if boot.stored.endswith("\n") else ""
        text = edit(boot.stored.rstrip("\n"), tokens, in_grub) + end
        if text != boot.stored:
            changes = (FileChange(KERNEL_CMDLINE, boot.stored, text),)
    return changes, (*grubby.commands(boot.entries, tokens), _sync(BLS_ENTRIES))


def _mended(boot: Boot, tokens: Sequence[Arg]) -> Optional[str]:
    """Return our drop-in such that it sees to these arguments; None where nothing is left in it."""
    have = list(grub_settings.parse_dropin(boot.stored)) if boot.stored is not None else []
    for arg in tokens:
        if arg not in have and not _promised(boot, _dropin(have), arg):
            have = [other for other in have if not _contradicts(other, arg)]
            have += [arg] if arg.present or not _promised(boot, _dropin(have), arg) else []
    return _dropin(have)


def _dropin(args: Sequence[Arg]) -> Optional[str]:
    return grub_settings.render_dropin(args) if args else None


def _promised(boot: Boot, stored: Optional[str], arg: Arg) -> bool:
    line = replace(boot, stored=stored).settings
    return line is not None and all(satisfied(future, arg) for future in boot.passed(line))


def _contradicts(old: Arg, new: Arg) -> bool:
    if old.name.replace("-", "_") != new.name.replace("-", "_"):
        return False
    if old.value == new.value or old.exclusive or new.exclusive:
        return old.present or new.present
    return (old.present and not new.present and new.value is None) or (
        new.present and not old.present and old.value is None
    )


def _sync(folder: str) -> Command:
    # Of this file system alone: one that hangs elsewhere must not hold us up.
    return Command(
        ("sync", "--file-system", folder),
        "GRUB reads no journal: after a power cut now it would read the old file",
    )


def _culprit(boot: Boot, arg: Arg) -> str:
    """Return what to do about another's file that spoils the argument whatever Busbar writes, "" where none does."""
    for path, words in boot.tuned:
        if not satisfied("%s %s" % (arg.token, words) if arg.present else words, arg):
            return (
                "take %s out of section [bootloader] of tuned's profile (%s; copy it to %s first if it is below /usr),"
                " run tuned-adm profile with the name of the profile%s"
                % (related(words, arg), path, tuned.FOLDER, " and update-grub" if boot.kind == "grub" else "")
            )
    for one in boot.entries:
        if one.foreign and not satisfied(one.line, arg):
            return "write %s into %s in /etc/grub.d, or run grub-set-default 0; then update-grub" % (arg, one.name)
    cut = grub.GRUB.cut(boot.settings or "")
    if cut and not _promised(boot, _mended(boot, plain([arg], [entry.line for entry in boot.future])), arg):
        paths = [path for path, settings in boot.elsewhere if cut in settings]
        return 'put %s into quotes for GRUB in %s, as \\"%s\\" within others, and run update-grub' % (
            cut,
            " or ".join(paths) or "the settings of GRUB",
            cut,
        )
    later = sorted(file for file in boot.elsewhere if file[0] > DROPIN and LINUX in file[1])
    files: List[Tuple[str, str]] = [(DROPIN, grub_settings.render_dropin([arg]))] if later else []
    for path, text in later:
        files.append((path, text))
        line = grub_settings.arguments(files)
        if line is None or not all(satisfied(future, arg) for future in boot.passed(line)):
            return "let %s, which is read after %s, leave %s as it is, and run update-grub" % (path, DROPIN, LINUX)
    return ""


def _beyond_grubby(boot: Boot, args: Sequence[Arg]) -> str:
    """Return the token that it would spoil, "" where none or where it is not used."""
    return grubby.spoiled(boot.entries, args) if boot.kind == "bls" else ""


def _persisted(boot: Boot, arg: Arg, check: Check) -> Finding:
    bad = [entry for entry in boot.future if not satisfied(entry.line, arg)]
    source = {"grub": GRUB_CFG, "bls": BLS_ENTRIES}.get(boot.kind, ACTIVE)
    state, have, fix = "ok", related(boot.active, arg) or str(arg), None
    if not boot.kind and not satisfied(boot.active, arg):
        state, have = "not_owned", "no boot loader that Busbar knows stores arguments on this node"
        fix = "%s the arguments where the node boots from (the image, or the network boot server's configuration)"
        fix = fix % ("add %s to" % arg.token if arg.present else "remove %s from" % arg.token) + ", then reboot it"
    elif bad:
        have = "%s in %s" % (related(bad[0].line, arg) or "no %s" % arg.name, bad[0].name)
        have += " and %d more" % (len(bad) - 1) if bad[1:] else ""
        spoilt, fix = _beyond_grubby(boot, plain([arg], [entry.line for entry in bad])), _culprit(boot, arg)
        state = "not_owned" if fix else "drift"
        if spoilt and not fix:
            text = "grubby would corrupt %s: edit the lines 'options' in %s%s by hand, so that they have %s"
            more = " and %s" % KERNEL_CMDLINE if boot.stored is not None else ""
            fix = text % (spoilt, BLS_ENTRIES, more, arg.grub_token if arg.present else arg)
    elif boot.entries:
        have = related(boot.entries[0].line, arg) or str(arg)
    words = related((bad or boot.entries or (Entry("", boot.active),))[0].line, arg).split()
    source += origin(boot, words) if boot.kind in GRUBENV else ""
    return check.judge(str(arg), state, str(arg), have, source, fix or None, aspect="persisted")


def origin(boot: Boot, words: Sequence[str]) -> str:
    """Return, for a source, which of the files known has one of the words."""
    files = [*boot.elsewhere, (DROPIN, boot.stored or ""), *boot.tuned]
    names = [path for path, text in files if any(word in text for word in words)]
    return " (set in %s)" % ", ".join(names) if names else ""


def _live(boot: Boot, arg: Arg, check: Check, persisted: Finding, active: bool) -> Finding:
    have = related(boot.active, arg)
    if not active and persisted.ok:
        have = "pending: the next boot will have it"
    return check.judge(
        str(arg),
        "ok" if active else "drift",
        want=str(arg),
        have=have or (str(arg) if active else "not on the command line"),
        source=ACTIVE,
        fix="%s, or reboot the node" % check.fix,
        disruption="reboot",
        because=persisted,
    )
