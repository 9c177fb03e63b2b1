# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare hosts with each other by the rules of the table: unique, equal, and subnets. Linear in the number of hosts.

A host has one vote, whatever it reports: a host with false data is the odd one, and accuses no other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding

from .table import HOST, SOURCE, TABLE, Comparison, Member, Value

# Names of other hosts, and duplicates, in a finding.
_NAMES, _TEXTS = 3, 8
_Values = dict[str, Sequence[Value]]


@dataclass(frozen=True)
class Judged:
    """rails: numbers of those that differ. partners: the other hosts of a duplicate."""

    finding: Finding
    rails: tuple[int, ...] = ()
    partners: frozenset[str] = frozenset()


@dataclass
class Comparisons:
    """The result. judged: host -> one for each comparison that it took part in. notes: host -> limits of them."""

    judged: dict[str, list[Judged]] = field(default_factory=lambda: defaultdict(list))
    notes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def compare(
    members: Sequence[Member],
    groups: Mapping[str, Sequence[str]] | None = None,
    table: Sequence[Comparison] = TABLE,
) -> Comparisons:
    """Compare all hosts by the table's rows. groups: of the inventory; differences along whole groups are intended."""
    found = Comparisons()
    kinds: dict[tuple[str, str | None], list[Member]] = defaultdict(list)
    for member in members:
        if member.info is None:
            finding = HOST.judge("rails", "unknown", "compared with the other hosts", "nothing was read", SOURCE)
            found.judged[member.host].append(Judged(finding))
        else:
            kinds[member.kind, member.info.product].append(member)
    known = {member.host: member for of_kind in kinds.values() for member in of_kind}
    for row in table:
        if row.rule == "unique":
            _unique(row, _values(row, known.values()), found)
            continue
        for of_kind in kinds.values():
            values = _values(row, of_kind)
            if row.rule == "subnet":
                _subnets(row, values, found)
            else:
                _declared(row, known, values, found)
                # Both ends of a wire are equal: only the inventory can declare that groups differ in that.
                splits = not row.alike or all(known[host].declared.get(row.check.id) for host in values)
                for cohort in _cohorts(row, values, groups or {} if splits else {}, found):
                    _equal(row, cohort, found)
    return found


def _values(row: Comparison, members: Iterable[Member]) -> _Values:
    read = {one.host: row.read(one, one.info) for one in members if one.info and row.role not in one.changed}
    return {host: values for host, values in read.items() if values}


def _declared(row: Comparison, members: Mapping[str, Member], values: _Values, found: Comparisons) -> None:
    """Judge a host by its declaration where no role does; declared values that have to be equal are compared."""
    for host in [host for host in values if members[host].declared.get(row.check.id)]:
        wanted, judged = members[host].declared[row.check.id], row.role in members[host].judged
        own = values.pop(host)
        odd = [(rail, text) for rail, text in own if text not in wanted]
        if row.alike and (judged or not odd):
            values[host] = [(rail, " or ".join(wanted)) for rail, _text in own]
        elif not judged:
            state = "ok" if not odd else "drift" if any(text is not None for _rail, text in odd) else "unknown"
            want = f"{' or '.join(wanted)}, declared by {row.site}"
            finding = row.judge(state, want, _listed(odd or own, own))
            found.judged[host].append(Judged(finding, _numbers(odd)))


# -- unique ------------------------------------------------------------------------------------------------------------


def _unique(row: Comparison, values: _Values, found: Comparisons) -> None:
    """Name all holders of a value; a host that has values of several others is the only one to blame."""
    holders: dict[str, dict[str, int | None]] = defaultdict(dict)
    for host, rail, text in ((host, *one) for host, own in values.items() for one in own):
        if text is not None:
            holders[text].setdefault(host, rail)
    shared = {text: frozenset(of) for text, of in holders.items() if len(of) > 1}
    sets: dict[str, set[frozenset[str]]] = defaultdict(set)
    for together in shared.values():
        for host in together:
            sets[host].add(together)
    blamed: dict[str, list[tuple[int | None, str]]] = defaultdict(list)
    for text, together in shared.items():
        most = max(len(sets[host]) for host in together)
        for host in together:
            if len(sets[host]) == most:
                blamed[host].append((holders[text][host], text))
    for host, own in values.items() if len(values) > 1 else ():
        texts = [_duplicate(host, rail, text, holders[text]) for rail, text in blamed[host]]
        unread = any(text is None for _rail, text in own)
        have = "; ".join(texts[:_TEXTS]) or ("could not be read" if unread else str(own[0][1]))
        have += " and %d more" % (len(texts or own) - _TEXTS) if len(texts or own) > _TEXTS else ""
        state = "drift" if texts else "unknown" if unread else "ok"
        partners = frozenset(other for _rail, text in blamed[host] for other in shared[text]) - {host}
        first = next((one for one in found.judged[host] if one.finding.subject == TABLE[0].subject), None)
        same = first.finding if first and first.partners == partners else None
        finding = row.judge(state, "found on no other of %d hosts" % len(values), have, because=same)
        found.judged[host].append(Judged(finding, _numbers(blamed[host]), partners))


def _duplicate(host: str, rail: int | None, text: str, holders: Mapping[str, int | None]) -> str:
    others = [
        other if number is None else f"rail {number} of {other}" for other, number in holders.items() if other != host
    ]
    more = " and %d more" % (len(others) - _NAMES) if len(others) > _NAMES else ""
    return f"{text}{'' if rail is None else f' of rail {rail}'} is also on {', '.join(others[:_NAMES])}{more}"


# -- equal -------------------------------------------------------------------------------------------------------------


def _cohorts(
    row: Comparison, values: _Values, groups: Mapping[str, Sequence[str]], found: Comparisons
) -> Iterator[_Values]:
    """Yield the hosts that have to be equal: apart those that differ from most as whole groups of the inventory do."""
    designs: dict[str, tuple[Value, ...]] = {host: tuple(own) for host, own in values.items()}
    frequent = Counter(designs.values()).most_common()
    covered: dict[tuple[Value, ...], set[str]] = defaultdict(set)
    for members in groups.values() if len(frequent) > 1 else ():
        here = [host for host in members if host in designs]
        if len(here) > 1 and len({designs[host] for host in here}) == 1:
            covered[designs[here[0]]].update(here)
    apart = {design for design, count in frequent[1:] if len(covered[design]) == count}
    note = f"{row.check.id} ({row.subject}) differs between groups of the inventory: compared within them"
    for design in apart:
        for host in covered[design]:
            found.notes[host].append(note)
        yield {host: values[host] for host in covered[design]}
    yield {host: own for host, own in values.items() if designs[host] not in apart}


def _equal(row: Comparison, values: _Values, found: Comparisons) -> None:
    """Name the odd ones, rail by rail; where no value has most hosts, those of all rails decide, else both sides."""
    if len(values) < 2:
        return
    on_rail: dict[int | None, Counter[str]] = defaultdict(Counter)
    pool: dict[str, float] = defaultdict(float)
    hosts: Counter[str] = Counter()
    for own in values.values():
        texts = [*dict.fromkeys((rail, text) for rail, text in own if text is not None)]
        for rail, text in texts:
            on_rail[rail][text] += 1
            pool[text] += 1 / len(texts)
        hosts.update({text for _rail, text in texts})
    usual = {rail: _most(counts, pool) for rail, counts in on_rail.items()}
    for host, own in values.items():
        unread = [(rail, text) for rail, text in own if text is None]
        tied = [(rail, text) for rail, text in own if text is not None and usual[rail] is None]
        odd = [(rail, text) for rail, text in own if text is not None and usual[rail] not in (None, text)]
        differ = odd or tied
        state, fix = "drift" if differ else "unknown" if unread else "ok", None
        if odd or not tied:
            of = dict.fromkeys(filter(None, (usual.get(rail) for rail, _text in odd or own)))
            want = " or ".join("%s, as on %d of %d hosts" % (one, hosts[one], len(values)) for one in of)
        else:
            sides = Counter(text for rail, _text in tied for text in on_rail[rail]).most_common(_NAMES)
            want = "one value; " + ", ".join("%s on %d hosts" % (text, hosts[text]) for text, _count in sides)
            declared = f"declare it ({row.site}), or " if row.site else ""
            fix = f"decide which is right: {declared}change the others; {row.fix or row.check.fix}"
        finding = row.judge(
            state, want or "a value, which no host reported", _listed(differ or unread or own, own), fix
        )
        found.judged[host].append(Judged(finding, _numbers(differ)))


def _most(counts: Counter[str], pool: Mapping[str, float]) -> str | None:
    """Return the value of most hosts on a rail; of several, the most frequent one on all rails; None for a tie."""
    ranked = sorted(((count, round(pool[text], 6), text) for text, count in counts.items()), reverse=True)
    return None if len(ranked) > 1 and ranked[0][:2] == ranked[1][:2] else ranked[0][2]


# -- subnets -----------------------------------------------------------------------------------------------------------


def _subnets(row: Comparison, values: _Values, found: Comparisons) -> None:
    """Compare each rail's subnet between hosts that share the others: there may be a plan for each leaf, or host."""
    frequent: Counter[tuple[Value, ...]] = Counter(tuple(own) for own in values.values())
    best: dict[Value, tuple[Value, ...]] = {}
    for design, _count in reversed(frequent.most_common()):
        best.update(dict.fromkeys(design, design))
    like: dict[tuple[Value, ...], _Values] = defaultdict(dict)
    for host, own in values.items():
        votes = Counter(best[one] for one in own)
        like[max(votes, key=lambda design: (votes[design], frequent[design]))][host] = own
    wrong = _overlapping(values)
    odd = {host: [(rail, text) for rail, text in own if text in wrong] for host, own in values.items()}
    for cohort in like.values():
        _equal(row, {host: own for host, own in cohort.items() if not odd[host]}, found)
    for host, some in odd.items():
        if some:
            have = "; ".join(f"{_listed([one], values[host])} overlaps {wrong[str(one[1])]}" for one in some)
            finding = row.judge("drift", "subnets that do not overlap", have)
            found.judged[host].append(Judged(finding, _numbers(some)))


def _overlapping(values: _Values) -> dict[str, str]:
    """Return the subnets that overlap another with a longer prefix -> that one: of both the one of fewer hosts."""
    hosts = Counter(text for own in values.values() for text in {text or "" for _rail, text in own})
    parsed = [(ip_network(word), text) for text in hosts for word in text.split(", ") if word]
    parsed.sort(key=lambda one: (one[0].version, int(one[0].network_address), one[0].prefixlen))
    wrong: dict[str, str] = {}
    around: list[tuple[IPv4Network | IPv6Network, str]] = []
    for network, text in parsed:
        while around and (around[-1][0].version != network.version or around[-1][0][-1] < network[0]):  # type: ignore[operator]
            around.pop()
        if around and around[-1][0] != network and around[-1][1] != text:
            outer = around[-1][1]
            if hosts[outer] <= hosts[text]:
                wrong.setdefault(outer, text)
            if hosts[text] <= hosts[outer]:
                wrong.setdefault(text, outer)
        around.append((network, text))
    return wrong


# -- texts -------------------------------------------------------------------------------------------------------------


def _listed(part: Sequence[Value], own: Sequence[Value]) -> str:
    """Return ``28.39.1002 on rails 3, 5``: each value with its rails, unless it is on all. part: of own."""
    where: dict[str, list[Value]] = defaultdict(list)
    for rail, text in part:
        where["could not be read" if text is None else text].append((rail, text))
    if len(where) == 1 and len(part) == len(own):
        return next(iter(where))
    texts = []
    for text, rails in where.items():
        numbers = _numbers(rails)
        at = f" on rail{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}" if numbers else ""
        texts.append(text + at)
    return "; ".join(texts)


def _numbers(values: Iterable[Value]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(rail for rail, _text in values if rail is not None))
