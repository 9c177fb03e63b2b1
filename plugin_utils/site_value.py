# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Define how a variable of an inventory is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """A decision that only the site can make. Values with equal decisions are one row of docs/variables.md.

    because: why it has no right default. without: what a run does without a decision.
    """

    because: str
    without: str


@dataclass(frozen=True)
class Value:
    """One variable of an inventory. The text below a declaration is its meaning, and its unit.

    The text is sentences of Markdown without links; a page is `docs/NAME.md`. It has no braces of templates: Ansible
    would evaluate them in argument specs.

    type, elements: as in Ansible's argument specs; elements of a list only.
    default: None is "unset", where an empty text or list would mean something else. A required value has none.
    choices: all that it may be; of a list, what its elements may be. Empty: anything of the type.
    keys: of a dict, the keys that are known. None: any.
    decision: where a site has to decide, why.
    private: it may hold secrets whatever its names are: neither printed nor quoted, see intent.printable_values.
    """

    type: str
    default: object = None
    required: bool = False
    choices: tuple[str | int, ...] = ()
    keys: Mapping[str, Value] | None = None
    elements: str = "str"
    decision: Decision | None = None
    private: bool = False


def declared(part: type) -> dict[str, Value]:
    """Return the values of a class, by name, in the order in which they are declared."""
    return {name: value for name, value in vars(part).items() if isinstance(value, Value)}
