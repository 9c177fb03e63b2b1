# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build calls of EL's grubby, so that boot entries have these arguments and lose no others.

It is a script that edits by sed. --args first removes all values of a name, a dash differs from an underscore, of two
equal flags it removes one per mention, and some characters come out as others. Source: grubby-bls of
Fedora 38, read and run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Sequence, Tuple

from ..core.plan import Command

_ALL = "ALL"


@dataclass(frozen=True)
class Change:
    """Change of one boot entry, or of a file for future entries.

    kernel: as the entry names its file, "" without an entry.   tokens: all of them.
    there, wanted: the tokens of the wanted names, as they are and as they must be.
    """

    kernel: str
    tokens: Tuple[str, ...]
    there: Tuple[str, ...]
    wanted: Tuple[str, ...]


def commands(changes: Sequence[Change]) -> Tuple[Command, ...]:
    """Return one call for all kernels, or one each if they have different values beside the wanted one."""
    # The order of names makes no difference.
    if len({tuple(sorted(change.wanted, key=_name)) for change in changes}) == 1:
        return (_command(_ALL, changes),)
    return tuple(
        _command(change.kernel, [change]) for change in changes if change.kernel and change.there != change.wanted
    )


def _command(kernel: str, changes: Sequence[Change]) -> Command:
    wanted = changes[0].wanted
    spelled = [[_name(token) for token in change.there] for change in changes]
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


def spoils(change: Change) -> str:
    """Return the token that would not come out as it is, or as wanted; "" for none."""
    for token in change.tokens:
        # What follows two dashes is for init, and grubby puts what is new there.
        if token == "--" or re.search(r"[&\\]", token):
            return token
    return next((token for token in change.wanted if re.search(r'[\s"*?\[]', token)), "")
