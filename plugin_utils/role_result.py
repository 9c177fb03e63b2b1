# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The result of a role on one host, typed: what it found, or why it found nothing.

It is made once of what a task has registered or the audit has returned; the comparison between hosts adds to it, and
the verdict reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core import plan
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding

from . import codec, result_schema
from .plain_data import PlainView

VALID, MISSING, UNREACHABLE, FAILED = "valid", "missing", "unreachable", "failed"
_NOTHING: PlainView = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RoleResult:
    """state: VALID, or why there is no result.   msg, fix: of that.   raw: as registered, with the module's own keys.

    findings: those that are not ok.   passed: ids of checks that are ok.   evidence: id -> value and source.
    repaired: ids of findings that the run repaired, or would repair.
    """

    state: str = VALID
    msg: str = ""
    fix: str = ""
    findings: tuple[Finding, ...] = ()
    passed: Sequence[str] = ()
    evidence: Mapping[str, Sequence[str]] = field(default_factory=lambda: _NOTHING)
    repaired: Sequence[str] = ()
    notes: Sequence[str] = ()
    changed: bool = False
    raw: PlainView = field(default_factory=lambda: _NOTHING)

    def part(self, key: str, check: codec.Check) -> Any:
        """Return a key of the role's own module; None where it has none, or an invalid one."""
        value = self.raw.get(key) if self.state == VALID else None
        return value if value is not None and codec.is_valid(check, value) else None

    def adding(self, found: Iterable[Finding], notes: Iterable[str] = ()) -> RoleResult:
        """Return the result with further findings, ok ones among them, and notes."""
        bad, passed, evidence = plan.sorted_out(found)
        return replace(
            self,
            findings=(*self.findings, *bad),
            passed=[*self.passed, *passed],
            evidence={**self.evidence, **evidence},
            notes=[*self.notes, *notes],
        )


def role_result(registered: object) -> RoleResult:
    """Return what a role has registered. An invalid result is a failure that names what is not valid."""
    found = result_schema.given(registered)
    raw = registered if isinstance(registered, Mapping) else _NOTHING
    more = {name: found[name] for name in ("repaired", "notes", "evidence", "changed") if name in found}
    if not found or found.get("skipped"):
        return RoleResult(MISSING)
    if found.get("unreachable"):
        return RoleResult(UNREACHABLE, found["msg"], found.get("fix", ""))
    if found.get("failed"):
        said = "; ".join(str(found[name]) for name in ("msg", "module_stderr") if found.get(name))
        return RoleResult(FAILED, said, found.get("fix", ""), raw=raw, **more)
    findings = result_schema.decode_findings(found["findings"])
    return RoleResult(findings=findings, passed=found["passed"], raw=raw, **more)


def role_results(registered: PlainView) -> dict[str, RoleResult]:
    """Return role -> its result. registered: role -> what it has registered."""
    return {role: role_result(one) for role, one in registered.items()}
