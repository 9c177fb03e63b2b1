"""What tools say of a fabric becomes one sweep, and what they do not say is named.

The texts of tests/unit/fabric are outputs of Debian 12's infiniband-diags 44 on a fabric of our own in ibsim 0.10:
leaf1 and leaf2 below spine1, five hosts, of which two have one name and one a name with quotes and markup; a host at
1x, one at EDR, a spine link at FDR. ``lossy``: leaf2 lost packets, and then no host below it answered of its counters.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import (
    discovery,
    dumps,
    merge,
    subnet_manager,
    sweep,
)
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Node, Port, Sweep
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.tool_output import ToolOutput
from ansible_collections.busbar.fabric.plugins.plugin_utils import output_limit
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.record import read_sweep

from tests import goldens
from tests.nested import changed, places

from .built_fabric import a_sweep

FOLDER = Path(__file__).parent / "fabric"
LEAF1, LEAF2, SPINE = "0008f10500200001", "0008f10500200002", "0008f10500200003"
HOST = ["", *(f"0008f105001000{number}0" for number in range(1, 6))]
MARKUP = "node004 'a' <b>x</b> - ( mlx5_0"
Change = Callable[[str], str]
ONE = a_sweep()
LINKED = "==( 4X          10.0 Gbps Active/  LinkUp)==>"


def said(name: str) -> str:
    return (FOLDER / name).read_text()


def of(*outputs: ToolOutput, counters: tuple[ToolOutput, ...] = (), decodes_xdr: bool = False) -> sweep.Sweep:
    merged = merge.Merged(decodes_xdr=decodes_xdr)
    for one in outputs:
        merged.add(one)
    if counters:
        merged.count(counters)
    return merged.sweep()


def tool(parse: Callable[[str], ToolOutput], output: str) -> Callable[..., ToolOutput]:
    """A reader of the tool's output, changed, or of another one, and of what it says on stderr."""

    def read(change: Change = str, stderr: str = "", name: str = output) -> ToolOutput:
        found = parse(change(said(name)))
        found.complain(stderr)
        return found

    return read


topology = tool(discovery.parse_ibnetdiscover, "ibnetdiscover.txt")
links = tool(discovery.parse_iblinkinfo, "iblinkinfo-line.txt")


def counters(errors: Change = str, stderr: str = "", folder: str = "") -> tuple[ToolOutput, ToolOutput]:
    """What ibqueryerrors prints of ports with errors, changed, and of the data of each port."""
    every = said(f"{folder}ibqueryerrors-counters.err") if folder else ""
    return (
        discovery.parse_ibqueryerrors(errors(said(f"{folder}ibqueryerrors.txt")), stderr),
        discovery.parse_ibqueryerrors(said(f"{folder}ibqueryerrors-counters.txt"), every),
    )


def whole() -> sweep.Sweep:
    managers = (subnet_manager.parse_sminfo(said("sminfo.txt")), subnet_manager.parse_records(said("saquery-smir.txt")))
    return of(topology(), links(), *managers, counters=counters())


def joined(*texts: str) -> sweep.Sweep:
    """Outputs as files of dumps."""
    problems: list[Problem] = []
    outputs = [one for number, text in enumerate(texts) for one in dumps.parse(text, f"file {number}", problems)]
    return dumps.join(outputs, problems, 1.0)


def by_guid(found: sweep.Sweep) -> dict[str, Node]:
    return {node.guid: node for node in found.nodes}


def messages(found: sweep.Sweep) -> str:
    return "\n".join(map(str, found.problems))


@pytest.mark.parametrize("name", ["iblinkinfo-line.txt", "iblinkinfo.txt"])
def test_outputs_that_name_ports_alone_have_the_same_cables(name: str) -> None:
    found = of(discovery.parse_iblinkinfo(said(name)))
    assert len(list(found.links())) == 9
    assert sorted(node.kind for node in found.nodes) == ["ca"] * 5 + ["switch"] * 3
    assert found.complete
    assert "known by the GUID of a port only" in messages(found)
    # A host's node GUID is not said there.
    assert by_guid(found)[HOST[4][:-1] + "1"].description == MARKUP
    # With the topology, the same ports are the nodes' again.
    both = of(discovery.parse_ibnetdiscover(said("ibnetdiscover.txt")), discovery.parse_iblinkinfo(said(name)))
    assert (both.complete, both.problems, set(both.links())) == (True, (), set(whole().links()))


@pytest.mark.parametrize(
    ("parse", "name"),
    [
        (discovery.parse_ibnetdiscover, "ibnetdiscover.txt"),
        (discovery.parse_iblinkinfo, "iblinkinfo-line.txt"),
        (discovery.parse_iblinkinfo, "iblinkinfo.txt"),
        (discovery.parse_ibqueryerrors, "ibqueryerrors-counters.txt"),
        (discovery.parse_ibqueryerrors, "ibqueryerrors.txt"),
        (subnet_manager.parse_records, "saquery-smir.txt"),
        (subnet_manager.parse_sminfo, "sminfo.txt"),
    ],
)
def test_wherever_an_output_is_cut_the_sweep_is_not_complete(parse: Any, name: str) -> None:
    text = said(name).rstrip()
    if name.startswith(("ibqueryerrors", "s")):
        cut = [parse(text[:end]) for end in range(0, text.find("## Summary") if "##" in text else len(text) - 20, 7)]
        assert all(one.missing() for one in cut)
        return
    lines = said(name).splitlines()
    whole_nodes = len(of(parse(text)).nodes)
    assert of(parse(text)).complete
    for end in [*range(len(lines)), *(-end for end in range(1, 60, 7))]:
        part = text[:end] if end < 0 else "\n".join(lines[:end])
        found = of(parse(part))
        # A line is the least that can be lost without a trace, and only of what has no cable.
        lost = [line for line in lines[end:] if line.strip() and not line.startswith("#")] if end >= 0 else ["x"]
        if all("[  ]" in line or " - " not in line for line in lost) and name != "ibnetdiscover.txt":
            continue
        assert not found.complete, (end, part[-200:])
        assert len(found.nodes) <= whole_nodes


@pytest.mark.parametrize(
    "line",
    [
        "mad_rpc: _do_madrpc failed; dport (Lid 8)",
        "_do_madrpc: recv failed: Connection timed out",
        "_do_madrpc: timeout after 3 retries, 3000 ms",
        "mad_rpc: MAD completed with error status 0xc; dport (Lid 8)",
    ],
)
def test_what_goes_with_a_query_that_failed_is_no_further_fault(line: str) -> None:
    failed = "ibwarn: [9] print_errors: IB_GSI_PORT_COUNTERS query failed on x, Lid 8 port 1\n"
    found = discovery.parse_ibqueryerrors(said("ibqueryerrors.txt"), f"ibwarn: [9] {line}\n{failed}")
    assert (found.missing(), list(found.unread)) == ([], [(8, 1)])
    assert discovery.parse_ibqueryerrors(said("ibqueryerrors.txt"), f"ibwarn: [9] other: {line}\n").missing()


def test_managers() -> None:
    standby = "SMInfoRecord dump:\n\t\tRID\n\t\tLID...................0x9\n\t\tSMInfo dump:\n"
    found = subnet_manager.parse_records(said("saquery-smir.txt") + standby)
    assert [one.state for one in found.managers] == ["master"]
    assert found.missing()
    second = said("saquery-smir.txt").replace("SMState...............3", "SMState...............2")
    second = second.replace("0x0008f10500100011", "0x0008f10500100021")
    found = subnet_manager.parse_records(said("saquery-smir.txt") + second)
    assert [one.state for one in found.managers] == ["master", "standby"]
    assert not found.missing()
    # Two outputs that differ about one manager.
    standby = said("saquery-smir.txt").replace("SMState...............3", "SMState...............2")
    differing = of(subnet_manager.parse_sminfo(said("sminfo.txt")), subnet_manager.parse_records(standby))
    assert "subnet manager 0008f10500100011: master and standby" in messages(differing)
    # Two masters: no one of them is the plane's.
    masters = of(subnet_manager.parse_records(said("saquery-smir.txt") + second.replace(".2", ".3")))
    assert (masters.plane, len(masters.managers)) == ("", 2)


@pytest.mark.parametrize(
    ("code", "speed"),
    [
        *((1, "SDR"), (4, "QDR"), (256, "FDR"), (512, "EDR"), (1024, "HDR"), (2048, "NDR"), (0x1000000, "XDR")),
        # What stands in a lower byte beside an extended speed means nothing; FDR10 is QDR of a vendor.
        *((0x804, "NDR"), (0x1000004, "XDR"), (0x10004, "FDR10"), (0, None), (0x1000, None), (0xC00, None), (8, None)),
    ],
)
def test_codes_of_speeds(code: int, speed: str | None) -> None:
    text = CSV.replace(",2048,3847,5,4", f",{code},3847,5,4")
    [port] = by_guid(joined(text))[HOST[1]].ports
    assert (port.speed, port.speed_supported) == (speed, "NDR")


def swap(before: str, after: str) -> Change:
    def change(text: str) -> str:
        assert before in text
        return text.replace(before, after)

    return change


def without(start: str) -> Change:
    return lambda text: "\n".join(line for line in text.splitlines() if not line.startswith(start))


def no_lids(text: str) -> str:
    for lid in range(1, 9):
        text = text.replace(f"{lid:7d}    1[", "      0    1[").replace(f" {lid:6d} ", "      0 ")
    return text


def in_full(text: str) -> str:
    """As a full listing, which adds to rates."""
    rates = ("xHDR", "xEDR", "xFDR")
    return "\n".join(f"{line} s=4 w=2 v=4 e=4 f=1" if line.endswith(rates) else line for line in text.split("\n"))


def one_guid(text: str) -> str:
    return text.replace(HOST[4], HOST[3]).replace("8f10500100041", "8f10500100031")


def quantum3(text: str) -> str:
    return text.replace("devid=0xd2f0", "devid=0xd2f4").replace("4xHDR", "4xQDR")


CSV = said("ibdiagnet2.db_csv.txt")
UNKNOWN = "\x1b[2Jsomething {{ else }}\n" * 9
FAKE = f'x" 9 9[  ] ==( 1X 2.5 Gbps Active/ LinkUp)==> 0x{"f" * 16} 9 9[  ] "y" ( )'
SUM = "ibwarn: [7] print_errors: IB_GSI_PORT_COUNTERS query failed on leaf1, Lid 2 port 255\n"
NO_RESPONSE = "START_ERRORS_DISCOVERY\nScope,Summary\nPORT,no response\nEND_ERRORS_DISCOVERY\n"
LOSSY = "lossy/"
# What is read of an output that is changed.
READERS: dict[str, Callable[[Change], sweep.Sweep]] = {
    "topology": lambda change: of(topology(change)),
    "links": lambda change: of(links(change)),
    "links of people": lambda change: of(links(change, name="iblinkinfo.txt")),
    "links after the topology": lambda change: of(topology(), links(change)),
    "counters": lambda change: of(topology(), counters=counters(change)),
    "db_csv": lambda change: joined(change(CSV)),
}
CHANGED: dict[str, tuple[str, Change]] = {
    # Nothing tells whom a failure that stderr does not name was of: then no port has zeros.
    "counters of some port lost": ("counters", lambda text: text + "##          1 PMA query failures\n"),
    "lines that are not known": ("topology", lambda text: text + UNKNOWN),
    "links that are not known": ("links", lambda text: text + UNKNOWN),
    "two nodes of one GUID": ("topology", one_guid),
    "cable seen from one end": ("topology", without("[1](8f10500100031)")),
    "other end not read": ("links", without("0x0008f1050010")),
    "changed between two tools": (
        "links after the topology",
        swap(f'0x{LEAF1}      2    6[  ] "leaf1"', f'0x{LEAF1}      2    7[  ] "leaf1"'),
    ),
    "no LIDs": ("links of people", no_lids),
    "LID of all": ("topology", lambda text: swap("lid 7", "lid 65535")(swap("lid 6", "lid 65535")(text))),
    # XDR is decoded from rdma-core 50 on; before it is `???`, `Extended speed`, or of a field that means nothing.
    "rate that is not known": ("topology", swap("4xEDR", "4x???")),
    "extended speed": ("links", swap("25.78125 Gbps", "Extended speed")),
    "Quantum-3": ("topology", quantum3),
    "full listing": ("topology", in_full),
    # A node may call itself like the rest of a line; what stands of others is what they say.
    "description like a line": ("topology", swap(MARKUP, FAKE)),
    "description like a link": ("links", swap(MARKUP, FAKE)),
    # The wide counter is believed, wherever it stands.
    "columns turned": (
        "db_csv",
        lambda text: swap("255,1000", "1000,255")(
            swap("SymbolErrorCounter,SymbolErrorCounterExt", "SymbolErrorCounterExt,SymbolErrorCounter")(text)
        ),
    ),
    "section without an end": ("db_csv", swap("END_LINKS\n", "")),
    "section without a head": ("db_csv", swap("START_LINKS\nNodeGuid1,PortNum1,NodeGuid2,PortNum2\n", "")),
    "short row": ("db_csv", swap(f"{HOST[1]},1,7,2,3,2048,3847,5,4\n", f"{HOST[1]},1,7,2\n")),
    "long row": ("db_csv", swap(f"0x{LEAF1},1,0x{HOST[1]},1\n", f"0x{LEAF1},1,0x{HOST[1]},1,7\n")),
    "rate of no code": ("db_csv", swap(",2048,3847,5,4\n", ",99999,3847,5,4\n")),
    "no response": ("db_csv", lambda text: text + NO_RESPONSE),
}
Base = Callable[[], sweep.Sweep]
# Name -> what is read, and what it is compared with.
READ: dict[str, tuple[Base, Base]] = {
    "whole": (whole, sweep.Sweep),
    "db_csv": (lambda: joined(CSV), sweep.Sweep),
    "partial": (
        lambda: of(
            topology(name=f"{LOSSY}ibnetdiscover.txt", stderr=said(f"{LOSSY}ibnetdiscover.err")),
            links(name=f"{LOSSY}iblinkinfo-line.txt", stderr=said(f"{LOSSY}iblinkinfo-line.err")),
        ),
        lambda: of(topology(), links()),
    ),
    # As in a dump: ports that are not there say it.
    "partial, without stderr": (
        lambda: of(topology(name=f"{LOSSY}ibnetdiscover.txt"), links(name=f"{LOSSY}iblinkinfo-line.txt")),
        lambda: of(topology(), links()),
    ),
    "counters of three hosts lost": (
        lambda: of(topology(), links(), counters=counters(stderr=said(f"{LOSSY}ibqueryerrors.err"), folder=LOSSY)),
        whole,
    ),
    # The tool leaves a switch out then, as if it had no errors.
    "sum of a switch lost": (
        lambda: of(topology(), counters=counters(lambda _: "\n## Summary: 8 nodes checked, 0 bad nodes found\n", SUM)),
        lambda: of(topology(), counters=counters()),
    ),
    # Who leaves clean ports out does so with ports that were never asked, too.
    "errors alone": (lambda: of(topology(), counters=counters()[:1]), lambda: of(topology())),
    "Quantum-3, newer tool": (lambda: of(topology(quantum3), decodes_xdr=True), lambda: of(topology(quantum3))),
    "log of the manager": (lambda: joined(said("opensm.log"), said("ibnetdiscover.txt")), lambda: of(topology())),
    "unhealthy ports": (lambda: joined(said("opensm-unhealthy-ports.txt")), sweep.Sweep),
    "ibdiagnet2.pm": (lambda: joined(said("ibnetdiscover.txt"), said("ibdiagnet2.pm.txt")), lambda: of(topology())),
    **{name: (partial(READERS[key], change), partial(READERS[key], str)) for name, (key, change) in CHANGED.items()},
}


def changes(now: Any, before: Any) -> dict[str, Any]:
    """Return the fields that differ; of counters how many there are, and those with another value."""
    found = {field.name: getattr(now, field.name) for field in fields(now) if field.name not in ("ports", "counters")}
    found = {name: value for name, value in found.items() if value != getattr(before, name)}
    if isinstance(now, sweep.Port) and now.counters != before.counters:
        found["counters"] = len(now.counters)
        found |= {name: value for name, value in now.counters.items() if value != before.counters.get(name, 0)}
    return found


def rows(found: sweep.Sweep, base: sweep.Sweep) -> list[Any]:
    """Return what is not as in the base: of the sweep, and of nodes and ports, those with one change in one row."""
    about = [found.complete, found.source, found.plane, found.routing, found.adaptive_routing, len(found.problems)]
    result: list[Any] = [about, *([one.guid, one.state, one.lid, one.description] for one in found.managers)]
    result += [[*key, conditions] for key, conditions in found.unhealthy.items()]
    before, now = by_guid(base), by_guid(found)
    alike: dict[str, list[str]] = {}
    for guid, node in sorted(now.items()):
        known = before.get(guid, sweep.Node(guid, "router", ""))
        changed = {"": changes(node, known)}
        ports, past = ({port.number: port for port in one.ports} for one in (node, known))
        for number, port in ports.items():
            changed[f"/{number}"] = changes(port, past.get(number, sweep.Port(number)))
        changed |= {f"/{number}": {"there": False} for number in past if number not in ports}
        for where, change in changed.items():
            if change:
                alike.setdefault(json.dumps(change), []).append(guid[-6:] + where)
    result += [[json.loads(change), " ".join(names)] for change, names in alike.items()]
    return result + [[guid, "not there"] for guid in sorted(before.keys() - now.keys())]


@pytest.mark.golden
@pytest.mark.parametrize("name", READ)
def test_what_is_read_of_outputs(name: str) -> None:
    found, base = (make() for make in READ[name])
    assert read_sweep(json.loads(json.dumps(sweep.to_dict(found)))) == found
    assert all(str(problem).isprintable() for problem in found.problems)
    goldens.check("fabric_read", name, rows(found, base))


@pytest.mark.golden
def test_what_is_said_of_outputs() -> None:
    parts = [f"== {name}\n{messages(make())}\n" for name, (make, _base) in READ.items()]
    goldens.text("fabric_read", "".join(parts))


def test_a_directory_is_a_plane_and_each_folder_in_it_one_more(tmp_path: Path) -> None:
    for name in ("ibnetdiscover", "iblinkinfo-line", "sminfo", "ibqueryerrors", "ibqueryerrors-counters"):
        for folder in ("fabric", "fabric/second"):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / f"{name}.anything").write_text(said(f"{name}.txt"))
    first, second = dumps.read(Host(system_root=str(tmp_path)), "/fabric")
    assert replace(first, at=second.at) == second
    assert (first.complete, first.problems, first.source, first.plane) == (True, (), "dumps", "0008f10500100011")
    assert first.nodes == whole().nodes
    assert abs(first.at - time.time()) < 3600


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("1", "1", True), ("0", "0", False), ("0", "1", None), ("1", "N/A", None), ("0", "", None)],
)
def test_adaptive_routing_is_that_of_all_switches(first: str, second: str, expected: bool | None) -> None:
    rows = [f"0x{LEAF1},{first},1", *([f"0x{LEAF2},{second},0"] if second else [])]
    section = "\n".join(("START_AR_INFO", "NodeGUID,e,is_arn_sup", *rows, "END_AR_INFO\n"))
    other = f"leaf2,2,2,1,1,0x{LEAF2},0x{LEAF2},0x{LEAF2},54002\nEND_NODES"
    found = joined(CSV.replace("END_NODES", other, 1) + section)
    assert found.adaptive_routing is expected
    alone = joined(CSV + section)
    assert (alone.complete, alone.problems, alone.adaptive_routing) == (True, (), first == "1")


def test_a_line_longer_than_any_tool_prints_is_not_read() -> None:
    assert links(swap(MARKUP, "x" * 600)).odd_count == 2


@pytest.mark.parametrize("text", ["", "\n\n", "hello\n", "\x00\x01\x02", "#\n", "{}", "[1]\n"])
def test_a_file_of_nothing_known_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    [found] = dumps.read(Host(system_root=str(tmp_path.parent)), f"/{tmp_path.name}")
    assert not found.complete
    assert "/x" in messages(found)
    assert ("; run ibnetdiscover, " in messages(found)) == bool(text.strip("#\n"))


def test_a_directory_that_is_none_or_empty_is_an_error(tmp_path: Path) -> None:
    host = Host(system_root=str(tmp_path))
    with pytest.raises(ReadError, match="is not a directory"):
        dumps.read(host, "/none")
    with pytest.raises(ParseError, match="holds no file"):
        dumps.read(host, "/")


def _mangled(text: str, by: random.Random) -> str:
    """The text as a bad disk, a bad hand or a bad node leaves it."""
    for _times in range(by.randint(1, 6)):
        at, end = sorted(by.randrange(len(text) + 1) for _end in "ab")
        end = min(end, at + by.choice((1, 3, 40, 4000)))
        pieces = (
            "",
            text[at:end] * 2,
            "\n",
            "\x00\x1b[2J",
            '"',
            "9" * 30,
            "-1",
            "0x" + "f" * 40,
            "é\u2028",
            "{{ x }}",
            ",,,",
        )
        text = text[:at] + by.choice(pieces) + text[end:]
    return text


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_read_becomes_a_sweep_that_travels(seed: int) -> None:
    by = random.Random(seed)
    texts = [path.read_text() for path in sorted(FOLDER.rglob("*.txt"))]
    problems: list[Problem] = []
    outputs = []
    for number, text in enumerate(by.sample(texts, 5)):
        outputs += dumps.parse(_mangled(text, by), f"file {number}", problems)
    found = dumps.join(outputs, problems, 1.0)
    assert read_sweep(json.loads(json.dumps(sweep.to_dict(found)))) == found
    assert found.problems


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("line", [True, False])
def test_ports_of_one_hca_are_one_node(line: bool, number: int) -> None:
    here = '{} 6 1[  ] {} {} 2 1[  ] "sw" ( )\n{} 4 {}[  ] {} {} 2 2[  ] "sw" ( )\n'
    there = '{} 2 1[  ] {} {} 6 1[  ] "n9 HCA-1" ( )\n{} 2 2[  ] {} {} 4 {}[  ] "n9 HCA-1" ( )\n'
    first, second, switch = "0x0000000000000051", "0x0000000000000052", "0x00000000000000aa"
    if line:
        own, far, leaf = ('{} "n9 HCA-1"', '{} "sw"', switch)
        text = here.format(own.format(first), LINKED, switch, own.format(second), number, LINKED, switch)
        text += there.format(far.format(leaf), LINKED, first, far.format(leaf), LINKED, second, number)
    else:
        text = "CA: n9 HCA-1:\n" + here.format(first, LINKED, "", second, number, LINKED, "")
        text += f"Switch: {switch} sw:\n" + there.format("", LINKED, "", "", LINKED, "", number)
    found = dumps.join(dumps.parse(text, "out", []), [], at=0)
    assert [(node.kind, [port.number for port in node.ports]) for node in found.nodes] == [
        ("ca", [1, number]),
        ("switch", [1, 2]),
    ]
    assert found.complete


def data() -> dict[str, Any]:
    return dict(json.loads(json.dumps(sweep.to_dict(ONE))))


def test_a_large_fabric_is_within_what_is_read_of_a_node() -> None:
    """600 switches of 64 ports, 4,096 HCA ports, and every port's counters."""
    names = dict.fromkeys(f"PortCounterOfSomeLength{number:02}" for number in range(26))
    busy = {"PortXmitData": 10**15, "PortRcvData": 10**15, "PortXmitPkts": 10**12, "PortRcvPkts": 10**12}
    counters = {**dict.fromkeys(names, 0), **busy, "PortXmitWait": 10**9}
    guids = [f"{number:016x}" for number in range(4696)]

    def port(number: int) -> Port:
        return Port(number, "active", "LinkUp", 4, "NDR", 4, "NDR", (guids[-1], 64), counters=counters)

    nodes = [Node(guid, "switch", "x" * 32, guid, 1, ports=tuple(map(port, range(1, 65)))) for guid in guids[:600]]
    nodes += [Node(guid, "ca", "x" * 32, guid, 1, ports=(port(1),)) for guid in guids[600:]]
    text = json.dumps(sweep.to_dict(Sweep(nodes=tuple(nodes))))
    assert len(text) < output_limit.LIMIT * 0.9
    assert read_sweep(json.loads(text)).nodes[-1] == nodes[-1]


HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**5000,
    1 << 70,
    1.5,
    float("nan"),
    "x" * 5000,
    "\x1b[2J",
    [],
    [[]] * 9,
    {},
    {"a": 1},
)


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: str(type(value).__name__))
def test_whatever_stands_anywhere_is_the_type_it_must_be_or_refused(value: Any) -> None:
    refused = 0
    for way in places(data()):
        try:
            found = read_sweep(changed(data(), way, value))
        except ParseError as error:
            refused += 1
            assert str(error).startswith("sweep: ")
            assert str(error).isprintable()
            assert len(str(error)) < 200
        else:
            assert json.loads(json.dumps(sweep.to_dict(found))) is not None
    assert refused > 40


def test_a_key_less_or_more_a_node_twice_and_a_port_twice_are_refused() -> None:
    for key in data():
        with pytest.raises(ParseError, match=key):
            read_sweep({name: value for name, value in data().items() if name != key})
    with pytest.raises(ParseError, match="ansible_facts"):
        read_sweep({**data(), "ansible_facts": {}})
    twice = data()
    twice["nodes"].append(twice["nodes"][0])
    with pytest.raises(ParseError, match="two nodes"):
        read_sweep(twice)
    twice = data()
    twice["nodes"][1][7].append(twice["nodes"][1][7][0])
    with pytest.raises(ParseError, match="a port twice"):
        read_sweep(twice)
