# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report the verdicts on hosts: as one screen, or all of it, and as data. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ansible_collections.busbar.fabric.plugins.plugin_utils import exit_code, finding_groups, nodeset, screen
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import RoleResult

from .infer import Assumed
from .judge import Verdict
from .question import Data, Values

_BY = {"siblings": "unlike {}", "fleet": "unlike {}", "platform": "assumed: {}", "intent": "set by the inventory"}
MORE = "-v, --json FILE"


def report(verdicts: Sequence[Verdict], seconds: float, verbose: bool = False, width: int = 100) -> Values:
    """Return ``code``, ``hosts`` and ``text``: docs/check.md. verbose: the text has all of it, however many lines."""
    code = exit_code.worst(verdict.code for verdict in verdicts)
    roots = finding_groups.rows_of({one.host: [row.finding for row in one.rows] for one in verdicts})
    groups = finding_groups.fold(roots)
    basis = {(one.host, row.finding.id): row for one in verdicts for row in one.rows}
    remarks = {}
    for group in groups:
        row = basis[group.rows[0].host, group.rows[0].finding.id]
        if row.basis in _BY:
            remarks[group.fingerprint] = _BY[row.basis].format(row.reference)
    good = sum(one.code == exit_code.GOOD for one in verdicts)
    head = screen.summary(exit_code.WORDS[code], good, len(verdicts), sum(one.passed for one in verdicts), 0)
    rest = [line for texts in _rest(verdicts) for line in screen.each(texts, width, verbose)]
    rows = screen.rows(groups)
    mode = f"{seconds:.1f} s" if seconds > 0 else "check mode"
    text = screen.render(head, mode, rows, rest, lambda *_: "", width, MORE, verbose, remarks)
    return {"code": code, "hosts": {one.host: _host(one) for one in verdicts}, "text": text}


def _host(one: Verdict) -> Values:
    rows = [{**row.finding.to_dict(), "basis": row.basis, "reference": row.reference} for row in one.rows]
    found = {name: getattr(one, name) for name in ("code", "undecided", "need_root", "passed")}
    found["findings"] = rows
    if one.assumed is not None:
        found["recognised"] = {name: getattr(one.assumed, name) for name in ("platform", "reason", "undecided")}
        found["machine"] = {key: value for key, value in one.assumed.facts.items() if key != "draft"}
        found.update(values=one.assumed.inferred, draft=one.assumed.draft, doubts=[*one.assumed.doubts])
    return found


def _rest(verdicts: Sequence[Verdict]) -> Iterator[list[str]]:
    several = len(verdicts) > 1
    known = [(one, one.assumed) for one in verdicts if one.assumed]
    kinds = nodeset.grouped((text, one.host) for one, of in known for text in (_machine(of.facts), _assumed(one, of)))
    texts = [f"{text}{f' on {nodeset.brief(names, screen.CELL)}' if several else ''}" for text, names in kinds.items()]
    yield from ([text] for text in texts[:2])
    yield texts[2:]
    open_ = nodeset.grouped((text, one.host) for one in verdicts for text in one.undecided)
    on = {text: f" on {nodeset.brief(names, screen.CELL)}" if several else "" for text, names in open_.items()}
    yield [f"to decide{on[text]}: {text}" for text in open_]
    denied = sum(one.need_root for one in verdicts)
    yield [f"not read: {denied} results need root: run it as root{' (-b)' * several}"] if denied else []
    if known and all(one.empty for one, _facts in known):
        yield ["next: busbar check -i 'host1,host2,' checks hosts over ssh; in a checkout, make demo simulates two"]
    elif any(one.assumed and not (one.assumed.draft or "busbar_platform" in one.assumed.given) for one in verdicts):
        sites = any("site.yml" in row.finding.fix for one in verdicts for row in one.rows)
        yield ["next: busbar check --write DIR drafts an inventory" + ", which site.yml needs" * sites]


def _machine(facts: Data) -> str:
    models = Counter(gpu["model"] or f"NVIDIA GPU {gpu['device']:04x}" for gpu in facts["gpus"])
    parts = [f"{number} x {model}" for model, number in (models + Counter(facts["foreign"])).items()]
    parts += [f"{facts['nvswitches']} NVSwitches"] * bool(facts["nvswitches"])
    where = [facts["product"] or facts["cloud"], facts["machine"] if facts["bus"] else "the PCI bus cannot be seen"]
    return "machine: " + ", ".join([*filter(None, where), *(parts or ["no NVIDIA GPU"])])


def _assumed(one: Verdict, assumed: Assumed) -> str:
    if not assumed.platform:
        return f"assumed: no platform: {assumed.reason}"
    platform = one.results.get("platform", RoleResult())
    there = len((platform.raw.get("rail_info") or {}).get("rails", ()))
    rails = "undecided" if assumed.undecided else f"{there} of {len(assumed.profile['rails'])}"
    gpus = f"{len(assumed.facts['gpus'])} of {assumed.profile['gpus']['count']} GPUs"
    label = "platform" if "busbar_platform" in assumed.given else "assumed"
    return f"{label}: {assumed.platform} ({gpus}, {rails} rails): {assumed.reason}"
