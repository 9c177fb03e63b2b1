# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build calls of EL's grubby, so that boot entries have these arguments and lose no others.

It is a script that edits by sed. --args first removes all values of a name, a dash differs from an underscore, of two
equal flags it removes one per mention, and some characters come out as others. Source: grubby-bls of
Fedora 38, read and run.
"""

from __future__ import annotations

import re
from typing import List, Sequence, Tuple

from ..core.plan import Command
from .line import Arg, edit, parse, split
from .read import Entry

_ALL = "ALL"
# Tokens of the wanted names: as they are, and as they have to be.
_Change = Tuple[Tuple[str, ...], Tuple[str, ...]]


def commands(entries: Sequence[Entry], args: Sequence[Arg]) -> Tuple[Command, ...]:
    """Return one call for all kernels, or one each if they have different values beside the wanted one."""
    changes = [_change(entry, args) for entry in entries]
    # The order of names makes no difference.
    if len({tuple(sorted(wanted, key=_name)) for _there, wanted in changes}) == 1:
        return (_command(_ALL, changes),)
    return tuple(
        _command(entry.kernel, [change])
        for entry, change in zip(entries, changes)
        if entry.kernel and change[0] != change[1]
    )


def _change(entry: Entry, args: Sequence[Arg]) -> _Change:
    names = {arg.name.replace("-", "_") for arg in args}
    lines = [split(line, in_grub=True) for line in (entry.stored, edit(entry.stored, args, in_grub=True))]
    there, wanted = (
        tuple(token for _gap, token in line if token and parse(token, in_grub=True)[0] in names) for line in lines
    )
    return there, wanted


def _command(kernel: str, changes: Sequence[_Change]) -> Command:
    wanted = changes[0][1]
    spelled = [[_name(token) for token in there] for there, _wanted in changes]
    most = {name: max(names.count(name) for names in spelled) for names in spelled for name in names}
    added = {_name(token) for token in wanted}
    gone: List[str] = []
    for name, count in most.items():
        # --args removes a name once before it adds it.
        gone += [name] * (count if count > 1 or name not in added else 0)
    argv = ["grubby", "--update-kernel=%s" % kernel]
    argv += ["--remove-args=%s" % " ".join(gone)] if gone else []
    argv += ["--args=%s" % " ".join(wanted)] if wanted else []
    what = "all kernels" if kernel == _ALL else kernel
    return Command(tuple(argv), "change the boot entries of %s" % what)


def _name(token: str) -> str:
    return token.strip('"').partition("=")[0]


def spoiled(entries: Sequence[Entry], args: Sequence[Arg]) -> str:
    """Return the first token that would not come out as it is, or as wanted; "" for none."""
    for entry in entries:
        # What follows two dashes is for init, and grubby puts what is new there.
        tokens = [token for _gap, token in split(entry.stored, in_grub=True)]
        found = [token for token in tokens if token == "--" or re.search(r"[&\\]", token)]
        found += [token for token in _change(entry, args)[1] if re.search(r'[\s"*?\[]', token)]
        if found:
            return found[0]
    return ""
