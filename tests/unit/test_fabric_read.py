"""What tools say of a fabric becomes one sweep, and what they do not say is named.

The texts of tests/unit/fabric are outputs of Debian 12's infiniband-diags 44 on a fabric of our own in ibsim 0.10:
leaf1 and leaf2 below spine1, five hosts, of which two have one name and one a name with quotes and markup; a host at
1x, one at EDR, a spine link at FDR. ``lossy``: leaf2 lost packets, and then no host below it answered of its counters.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import (
    dumps,
    iblinkinfo,
    ibnetdiscover,
    ibqueryerrors,
    merge,
    smpquery,
    subnet_manager,
    sweep,
    told,
)

FOLDER = Path(__file__).parent / "fabric"
LEAF1, LEAF2, SPINE = "0008f10500200001", "0008f10500200002", "0008f10500200003"
HOST = ["", *(f"0008f105001000{number}0" for number in range(1, 6))]
MARKUP = "node004 'a' <b>x</b> - ( mlx5_0"


def said(name: str) -> str:
    return (FOLDER / name).read_text()


def of(*outputs: told.Told, counters: tuple[told.Told, ...] = ()) -> sweep.Sweep:
    merged = merge.Merged()
    for one in outputs:
        merged.add(one)
    if counters:
        merged.count(counters)
    return merged.sweep(outputs)


def whole() -> sweep.Sweep:
    return of(
        ibnetdiscover.parse(said("ibnetdiscover.txt")),
        iblinkinfo.parse(said("iblinkinfo-line.txt")),
        subnet_manager.parse_sminfo(said("sminfo.txt")),
        subnet_manager.parse_records(said("saquery-smir.txt")),
        counters=(
            ibqueryerrors.parse(said("ibqueryerrors.txt")),
            ibqueryerrors.parse(said("ibqueryerrors-counters.txt")),
        ),
    )


def messages(found: sweep.Sweep) -> str:
    return "\n".join(map(str, found.problems))


def test_outputs_of_one_fabric_are_one_sweep() -> None:
    found = whole()
    assert (found.complete, found.problems) == (True, ())
    assert sweep.from_dict(json.loads(json.dumps(sweep.to_dict(found)))) == found
    nodes = found.by_guid()
    assert {guid: (node.kind, node.description) for guid, node in nodes.items()} == {
        LEAF1: ("switch", "leaf1"),
        LEAF2: ("switch", "leaf2"),
        SPINE: ("switch", "spine1"),
        HOST[1]: ("ca", "node001 mlx5_0"),
        HOST[2]: ("ca", "node002 mlx5_0"),
        HOST[3]: ("ca", "node003 mlx5_0"),
        HOST[4]: ("ca", MARKUP),
        HOST[5]: ("ca", "node003 mlx5_0"),
    }
    assert (nodes[LEAF1].device_id, nodes[LEAF1].system) == (0xD2F0, LEAF1)
    assert set(found.links()) == {
        *((HOST[number], 1, LEAF1, number) for number in (1, 2)),
        *((HOST[number], 1, LEAF2, number - 2 if number < 5 else 3) for number in (5,)),
        (HOST[3], 1, LEAF2, 1),
        (HOST[4], 1, LEAF2, 2),
        (LEAF1, 5, SPINE, 1),
        (LEAF1, 6, SPINE, 2),
        (LEAF2, 5, SPINE, 3),
        (LEAF2, 6, SPINE, 4),
    }
    rates = {(node.guid, port.number): port.rate for node in found.nodes for port in node.ports if port.peer}
    assert (rates[HOST[1], 1], rates[HOST[2], 1], rates[HOST[4], 1], rates[LEAF2, 6]) == (200, 50, 100, 56)
    [manager] = found.managers
    assert (manager.guid, manager.state, manager.lid) == ("0008f10500100011", "master", 1)
    assert (manager.description, found.plane) == ("node001 mlx5_0", manager.guid)
    down = nodes[LEAF1].port(3)
    assert down is not None
    assert (down.state, down.physical, down.width, down.speed, down.peer) == ("down", "Polling", None, None, None)
    port = nodes[LEAF2].port(6)
    assert port is not None
    # Both ends could do HDR; that is no fault, and no wish.
    assert (port.state, port.width_supported, port.speed, port.speed_supported) == ("active", 12, "FDR", "HDR")


def test_counters_are_of_their_port_and_a_clean_port_has_zeros() -> None:
    nodes = whole().by_guid()
    bad, waits, clean = nodes[LEAF1].port(2), nodes[LEAF1].port(5), nodes[HOST[3]].port(1)
    assert bad is not None
    assert waits is not None
    assert clean is not None
    assert {name: bad.counters[name] for name in ("SymbolErrorCounter", "LinkDownedCounter", "PortRcvErrors")} == {
        "SymbolErrorCounter": 120,
        "LinkDownedCounter": 255,
        "PortRcvErrors": 0,
    }
    assert waits.counters["PortXmitWait"] == 7777
    # Not every device counts it.
    assert "PortXmitWait" not in clean.counters
    assert clean.counters["SymbolErrorCounter"] == 0
    assert clean.counters["PortRcvPkts"] > 0
    assert not bad.unread + clean.unread


@pytest.mark.parametrize("name", ["ibnetdiscover-p.txt", "iblinkinfo-line.txt", "iblinkinfo.txt"])
def test_outputs_that_name_ports_alone_have_the_same_cables(name: str) -> None:
    parse = ibnetdiscover.parse_ports if name.startswith("ibnetdiscover") else iblinkinfo.parse
    found = of(parse(said(name)))
    assert len(list(found.links())) == 9
    assert sorted(node.kind for node in found.nodes) == ["ca"] * 5 + ["switch"] * 3
    assert found.complete
    assert "known by the GUID of a port only" in messages(found)
    # A host's node GUID is not said there.
    assert found.by_guid()[HOST[4][:-1] + "1"].description == MARKUP
    # With the topology, the same ports are the nodes' again.
    both = of(ibnetdiscover.parse(said("ibnetdiscover.txt")), parse(said(name)))
    assert (both.complete, both.problems, set(both.links())) == (True, (), set(whole().links()))


def test_a_partial_sweep_that_ends_with_0_says_so() -> None:
    topology = ibnetdiscover.parse(said("lossy/ibnetdiscover.txt"))
    topology.partial += told.complaints(said("lossy/ibnetdiscover.err"))
    links = iblinkinfo.parse(said("lossy/iblinkinfo-line.txt"))
    links.partial += told.complaints(said("lossy/iblinkinfo-line.err"))
    found = of(topology, links)
    assert not found.complete
    assert "queries had no response, the first: " in messages(found)
    assert "bad status 110" in messages(found)
    # Without stderr, as in a dump, the ports of leaf2 that are not there say it.
    mute = of(ibnetdiscover.parse(said("lossy/ibnetdiscover.txt")), iblinkinfo.parse(said("lossy/iblinkinfo-line.txt")))
    assert not mute.complete
    assert f"ports of a switch were not read: {LEAF2}" in messages(mute)


def test_what_did_not_answer_of_its_counters_is_unread_and_has_no_zeros() -> None:
    outputs = [
        ibqueryerrors.parse(said(f"lossy/{name}.txt"), said(f"lossy/{name}.err"))
        for name in ("ibqueryerrors", "ibqueryerrors-counters")
    ]
    found = of(
        ibnetdiscover.parse(said("ibnetdiscover.txt")),
        iblinkinfo.parse(said("iblinkinfo-line.txt")),
        counters=(outputs[0], outputs[1]),
    )
    nodes = found.by_guid()
    for guid in (HOST[3], HOST[4], HOST[5]):
        [port] = nodes[guid].ports
        assert (port.counters, port.unread) == ({}, "its query failed (IB_GSI_PORT_COUNTERS)")
    [port] = nodes[HOST[1]].ports
    assert port.counters["SymbolErrorCounter"] == 0
    assert "counters could not be read" in messages(found)
    # Nothing tells whom a failure that stderr does not name was of: then nobody has zeros.
    unnamed = ibqueryerrors.parse(said("ibqueryerrors.txt") + "##          1 PMA query failures\n")
    found = of(
        ibnetdiscover.parse(said("ibnetdiscover.txt")),
        counters=(unnamed, ibqueryerrors.parse(said("ibqueryerrors-counters.txt"))),
    )
    [port] = found.by_guid()[HOST[1]].ports
    assert "SymbolErrorCounter" not in port.counters
    assert port.unread


def test_a_switch_whose_sum_was_not_answered_is_not_clean() -> None:
    """The tool leaves it away then, as if it had no errors."""
    stderr = "ibwarn: [7] print_errors: IB_GSI_PORT_COUNTERS query failed on leaf1, Lid 2 port 255\n"
    errors = ibqueryerrors.parse("\n## Summary: 8 nodes checked, 0 bad nodes found\n", stderr)
    assert errors.clean
    found = of(
        ibnetdiscover.parse(said("ibnetdiscover.txt")),
        counters=(errors, ibqueryerrors.parse(said("ibqueryerrors-counters.txt"))),
    )
    port, other = found.by_guid()[LEAF1].port(1), found.by_guid()[LEAF2].port(1)
    assert port is not None
    assert other is not None
    assert port.unread
    assert "SymbolErrorCounter" not in port.counters
    assert other.counters["SymbolErrorCounter"] == 0


@pytest.mark.parametrize(
    ("parse", "name"),
    [
        (ibnetdiscover.parse, "ibnetdiscover.txt"),
        (ibnetdiscover.parse_ports, "ibnetdiscover-p.txt"),
        (iblinkinfo.parse, "iblinkinfo-line.txt"),
        (iblinkinfo.parse, "iblinkinfo.txt"),
        (ibqueryerrors.parse, "ibqueryerrors-counters.txt"),
        (ibqueryerrors.parse, "ibqueryerrors.txt"),
        (subnet_manager.parse_records, "saquery-smir.txt"),
        (subnet_manager.parse_sminfo, "sminfo.txt"),
    ],
)
def test_wherever_an_output_is_cut_the_sweep_is_not_complete(parse: Any, name: str) -> None:
    text = said(name).rstrip()
    if name.startswith(("ibqueryerrors", "s")):
        cut = [parse(text[:end]) for end in range(0, text.find("## Summary") if "##" in text else len(text) - 20, 7)]
        assert all(one.lacks() for one in cut)
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


def test_a_line_that_nobody_understands_is_named() -> None:
    for parse, name in ((ibnetdiscover.parse, "ibnetdiscover.txt"), (iblinkinfo.parse, "iblinkinfo-line.txt")):
        found = of(parse(said(name) + "\x1b[2Jsomething {{ else }}\n" * 9))
        assert not found.complete
        assert "is not understood: " in messages(found)
        assert "and 4 more lines" in messages(found)
        assert all(str(problem).isprintable() for problem in found.problems)


def test_two_nodes_of_one_guid_are_named() -> None:
    text = said("ibnetdiscover.txt").replace(HOST[4], HOST[3]).replace("8f10500100041", "8f10500100031")
    found = of(ibnetdiscover.parse(text))
    assert not found.complete
    assert "two nodes have one GUID" in messages(found)
    assert HOST[3] in messages(found)


def test_a_cable_seen_from_one_end_is_named() -> None:
    text = "\n".join(
        line for line in said("ibnetdiscover.txt").splitlines() if not line.startswith("[1](8f10500100031)")
    )
    found = of(ibnetdiscover.parse(text))
    assert not found.complete
    assert "a cable is seen from one end only" in messages(found)


def test_what_is_at_the_other_end_and_was_not_read_is_named() -> None:
    text = "\n".join(line for line in said("ibnetdiscover-p.txt").splitlines() if not line.startswith("CA"))
    found = of(ibnetdiscover.parse_ports(text))
    assert not found.complete
    assert "what is at the other end of a cable was not read" in messages(found)


def test_a_port_that_no_output_shows_has_no_zeros() -> None:
    """Who leaves clean ports away does so with ports that it never asked, too."""
    counters = ibqueryerrors.parse(said("ibqueryerrors.txt"))
    assert counters.clean
    found = of(ibnetdiscover.parse(said("ibnetdiscover.txt")), counters=(counters,))
    [port] = found.by_guid()[HOST[1]].ports
    assert (port.counters, port.unread) == ({}, "no output shows them")


def test_a_fabric_that_changes_between_two_tools_is_named() -> None:
    links = said("iblinkinfo-line.txt").replace(
        f'0x{LEAF1}      2    6[  ] "leaf1"', f'0x{LEAF1}      2    7[  ] "leaf1"'
    )
    assert links != said("iblinkinfo-line.txt")
    found = of(ibnetdiscover.parse(said("ibnetdiscover.txt")), iblinkinfo.parse(links))
    assert not found.complete
    assert f"{SPINE} port 2: a cable to {LEAF1} port 6, and to {LEAF1} port 7" in messages(found)


def test_lids_of_0_are_none_and_name_nobody() -> None:
    text = said("iblinkinfo.txt")
    for lid in range(1, 9):
        text = text.replace(f"{lid:7d}    1[", "      0    1[").replace(f" {lid:6d} ", "      0 ")
    found = of(iblinkinfo.parse(text))
    assert not found.complete
    assert all(port.lid != 0 for node in found.nodes for port in node.ports)


def test_a_lid_of_everybody_is_nobodys() -> None:
    found = of(
        ibnetdiscover.parse(said("ibnetdiscover.txt").replace("lid 6", "lid 65535").replace("lid 7", "lid 65535"))
    )
    assert found.complete
    assert [port.lid for guid in (HOST[3], HOST[4], HOST[5]) for port in found.by_guid()[guid].ports] == [None, None, 8]


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
    found = ibqueryerrors.parse(said("ibqueryerrors.txt"), f"ibwarn: [9] {line}\n{failed}")
    assert (found.lacks(), list(found.unread)) == ([], [(8, 1)])
    assert ibqueryerrors.parse(said("ibqueryerrors.txt"), f"ibwarn: [9] other: {line}\n").lacks()


def test_a_rate_that_an_old_tool_cannot_name_is_none_and_said() -> None:
    """XDR is decoded from rdma-core 50 on; before it is `???`, `Extended speed`, or of a field that means nothing."""
    found = of(ibnetdiscover.parse(said("ibnetdiscover.txt").replace("4xEDR", "4x???")))
    assert "2 ports are printed without a rate" in messages(found)
    [port] = found.by_guid()[HOST[4]].ports
    assert (port.width, port.speed, port.rate) == (4, None, None)
    found = of(iblinkinfo.parse(said("iblinkinfo-line.txt").replace("25.78125 Gbps", "Extended speed")))
    assert "2 ports are printed without a rate" in messages(found)
    quantum3 = said("ibnetdiscover.txt").replace("devid=0xd2f0", "devid=0xd2f4").replace("4xHDR", "4xQDR")
    port_of_spine = of(ibnetdiscover.parse(quantum3)).by_guid()[SPINE].port(1)
    assert port_of_spine is not None
    assert port_of_spine.speed is None
    merged = merge.Merged(decodes_xdr=True)
    output = ibnetdiscover.parse(quantum3)
    merged.add(output)
    port_of_spine = merged.sweep([output]).by_guid()[SPINE].port(1)
    assert port_of_spine is not None
    assert port_of_spine.speed == "QDR"


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("2.5 Gbps", "SDR"),
        ("10.0 Gbps", "QDR"),
        ("10.0 Gbps (FDR10)", "FDR10"),
        ("106.25 Gbps", "NDR"),
        ("212.5 Gbps", "XDR"),
        ("undefined (16)", None),
    ],
)
def test_lanes_are_named_by_their_rate(text: str, speed: str | None) -> None:
    assert told.lane(text) == speed


def test_a_description_makes_up_nothing_of_others() -> None:
    """A node may call itself like the rest of a line; what stands of others is what they say."""
    fake = f'x" 9 9[  ] ==( 1X 2.5 Gbps Active/ LinkUp)==> 0x{"f" * 16} 9 9[  ] "y" ( )'
    for name, parse in (("iblinkinfo-line.txt", iblinkinfo.parse), ("ibnetdiscover.txt", ibnetdiscover.parse)):
        found = of(parse(said(name).replace(MARKUP, fake)))
        kept = found.by_guid()[LEAF2].port(2)
        assert kept is not None
        assert kept.speed == "EDR"
        assert kept.peer is not None
        assert kept.peer[0].startswith(HOST[4][:-1])


# -- one tool --------------------------------------------------------------------------------------------------------


def test_managers() -> None:
    standby = "SMInfoRecord dump:\n\t\tRID\n\t\tLID...................0x9\n\t\tSMInfo dump:\n"
    found = subnet_manager.parse_records(said("saquery-smir.txt") + standby)
    assert [one.state for one in found.managers] == ["master"]
    assert found.lacks()
    second = said("saquery-smir.txt").replace("SMState...............3", "SMState...............2")
    second = second.replace("0x0008f10500100011", "0x0008f10500100021")
    found = subnet_manager.parse_records(said("saquery-smir.txt") + second)
    assert [one.state for one in found.managers] == ["master", "standby"]
    assert not found.lacks()
    # Two masters: no one of them is the plane's.
    masters = of(subnet_manager.parse_records(said("saquery-smir.txt") + second.replace(".2", ".3")))
    assert (masters.plane, len(masters.managers)) == ("", 2)


def test_keys_and_node_of_a_port() -> None:
    assert smpquery.parse_pkeys(said("smpquery-pkeys.txt")) == (0xFFFF,)
    assert smpquery.parse_nodeinfo(said("smpquery-nodeinfo.txt"))["Guid"] == "0x0008f10500100010"
    for wrong in ("", "   0: 0xffff\n64 pkeys capacity for this port\n", "nonsense\n"):
        with pytest.raises(ParseError):
            smpquery.parse_pkeys(wrong)
    with pytest.raises(ParseError):
        smpquery.parse_nodeinfo("# Node info: Lid 1\n")


def test_a_switchs_sum_is_no_port() -> None:
    found = ibqueryerrors.parse(said("ibqueryerrors.txt"))
    assert sorted(found.counters) == [(LEAF1, 2), (LEAF1, 5)]
    assert found.counters[LEAF1, 2] == {"SymbolErrorCounter": 120, "LinkDownedCounter": 255}


# -- ibdiagnet: by hand, after its manual ----------------------------------------------------------------------------

CSV = f"""# ibdiagnet
START_NODES
NodeDesc,NumPorts,NodeType,ClassVersion,BaseVersion,SystemImageGUID,NodeGUID,PortGUID,DeviceID
"leaf, one <b>",2,2,1,1,0x{LEAF1},0x{LEAF1},0x{LEAF1},54002
"node001 mlx5_0",1,1,1,1,0x{HOST[1]},0x{HOST[1]},0x{HOST[1]},4129
END_NODES

START_PORTS
NodeGuid,PortGuid,PortNum,LID,LinkWidthActv,LinkWidthSup,LinkSpeedActv,LinkSpeedSup,PortPhyState,PortState
0x{LEAF1},0x{LEAF1},0,2,0,0,0,0,0,4
0x{LEAF1},0x{LEAF1},1,2,2,3,2048,3847,5,4
0x{LEAF1},0x{LEAF1},2,2,2,3,1,3847,2,1
0x{HOST[1]},0x{HOST[1]},1,7,2,3,2048,3847,5,4
END_PORTS

START_LINKS
NodeGuid1,PortNum1,NodeGuid2,PortNum2
0x{LEAF1},1,0x{HOST[1]},1
END_LINKS

START_PM_INFO
NodeGUID,PortGUID,PortNumber,LinkDownedCounter,SymbolErrorCounter,SymbolErrorCounterExt,PortXmitDataExtended,PortRcvErrors
0x{LEAF1},0x{LEAF1},1,0x1,255,1000,0xfffffffffffffffe,N/A
0x{HOST[1]},0x{HOST[1]},1,0,0,0,77,3
END_PM_INFO

START_SM_INFO
NodeGUID,PortGUID,PortNumber,GUID,Sm_Key,ActCount,SmState,Priority
0x{HOST[1]},0x{HOST[1]},1,0x{HOST[1]},0x0,9,3,14
END_SM_INFO

START_NODES_INFO
NodeGUID,FWInfo_Major,FWInfo_Minor,FWInfo_SubMinor,FWInfo_PSID
0x{HOST[1]},0x1c,0x29,0x3ea,MT_0000000838
END_NODES_INFO

START_CABLE_INFO
NodeGuid,PortNum
anything at all, and more, of it
END_CABLE_INFO
"""


def of_files(text: str, tool: str) -> sweep.Sweep:
    problems: list[Problem] = []
    outputs = dumps.parse(text, "file", problems)
    assert {name for name, _said in outputs} == {tool}
    return dumps.join(outputs, problems, 1.0)


def test_ibdiagnets_sections_are_one_sweep() -> None:
    found = of_files(CSV, "db_csv")
    assert (found.complete, found.problems, found.source, found.plane) == (True, (), "db_csv", HOST[1])
    nodes = found.by_guid()
    assert (nodes[LEAF1].kind, nodes[LEAF1].description) == ("switch", "leaf, one <b>")
    host = nodes[HOST[1]]
    assert (host.firmware, host.psid) == ("28.0041.1002", "MT_0000000838")
    assert list(found.links()) == [(HOST[1], 1, LEAF1, 1)]
    up, down = nodes[LEAF1].ports
    assert (up.state, up.width, up.speed, up.speed_supported, up.rate) == ("active", 4, "NDR", "NDR", 400)
    assert (down.state, down.physical, down.width, down.speed) == ("down", "Polling", None, None)
    # The wide one is believed; what a device cannot count is not there.
    assert up.counters == {"LinkDownedCounter": 1, "SymbolErrorCounter": 1000}
    assert found.adaptive_routing is None
    turned = CSV.replace("SymbolErrorCounter,SymbolErrorCounterExt", "SymbolErrorCounterExt,SymbolErrorCounter")
    assert of_files(turned.replace("255,1000", "1000,255"), "db_csv").nodes == found.nodes


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
    port = of_files(text, "db_csv").by_guid()[HOST[1]].port(1)
    assert port is not None
    assert (port.speed, port.speed_supported) == (speed, "NDR")


@pytest.mark.parametrize(
    ("before", "after", "said_of_it"),
    [
        ("END_LINKS\n", "", "it ends within section LINKS"),
        ("START_LINKS\nNodeGuid1,PortNum1,NodeGuid2,PortNum2\n", "", "is not understood"),
        (f"0x{HOST[1]},0x{HOST[1]},1,7,2,3,2048,3847,5,4\n", f"0x{HOST[1]},0x{HOST[1]},1,7,2\n", "is not understood"),
        (",2048,3847,5,4\n", ",99999,3847,5,4\n", "a rate that is not known"),
        (f"0x{LEAF1},1,0x{HOST[1]},1\n", f"0x{LEAF1},1,0x{HOST[1]},1,7\n", "is not understood"),
        (
            "START_CABLE",
            "START_ERRORS_DISCOVERY\nScope,Summary\nPORT,no response\nEND_ERRORS_DISCOVERY\nSTART_CABLE",
            "no",
        ),
    ],
)
def test_what_ibdiagnet_did_not_write_is_named(before: str, after: str, said_of_it: str) -> None:
    text = CSV.replace(before, after)
    assert text != CSV
    found = of_files(text, "db_csv")
    assert said_of_it in messages(found)
    assert found.complete == ("rate" in said_of_it)


# -- a directory of outputs ------------------------------------------------------------------------------------------


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


def test_outputs_in_one_file_are_told_apart(tmp_path: Path) -> None:
    names = ("sminfo", "ibnetdiscover", "iblinkinfo-line", "ibqueryerrors", "ibqueryerrors-counters", "saquery-smir")
    text = "".join(f"[root@node001 ~]# {name}\n{said(name + '.txt')}\n" for name in names)
    problems: list[Problem] = []
    found = dumps.join(dumps.parse(text, "all.txt", problems), problems, 1.0)
    assert (found.complete, found.problems, found.nodes) == (True, (), whole().nodes)
    # With what the tools said on stderr in between, and something that is of no tool.
    text += "[root@node001 ~]# ls\nanaconda-ks.cfg\n" + said("lossy/ibnetdiscover.err")
    found = dumps.join(dumps.parse(text, "all.txt", problems), problems, 1.0)
    assert not found.complete
    assert "anaconda-ks.cfg" in messages(found)
    assert "bad status 110" in messages(found)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("1", "1", True), ("0", "0", False), ("0", "1", None), ("1", "N/A", None), ("0", "", None)],
)
def test_adaptive_routing_is_that_of_all_switches(first: str, second: str, expected: bool | None) -> None:
    rows = [f"0x{LEAF1},{first},1", *([f"0x{LEAF2},{second},0"] if second else [])]
    section = "\n".join(("START_AR_INFO", "NodeGUID,e,is_arn_sup", *rows, "END_AR_INFO\n"))
    other = f"leaf2,2,2,1,1,0x{LEAF2},0x{LEAF2},0x{LEAF2},54002\nEND_NODES"
    found = of_files(CSV.replace("END_NODES", other, 1) + section, "db_csv")
    assert found.adaptive_routing is expected
    alone = of_files(CSV + section, "db_csv")
    assert (alone.complete, alone.problems, alone.adaptive_routing) == (True, (), first == "1")


def test_the_managers_log_among_dumps_says_what_it_routes_with() -> None:
    problems: list[Problem] = []
    [log] = [path for path in FOLDER.iterdir() if path.name.startswith("opensm")]
    outputs = dumps.parse(log.read_text(), "opensm.log", problems)
    outputs += dumps.parse(said("ibnetdiscover.txt"), "topology", problems)
    found = dumps.join(outputs, problems, 1.0)
    assert (found.routing, found.complete, found.problems) == ("minhop", True, ())
    torus = log.read_text().replace("minhop tables", "torus-2QoS tables")
    assert subnet_manager.parse_log(torus).routing == "torus-2QoS"


@pytest.mark.parametrize("text", ["", "\n\n", "hello\n", "\x00\x01\x02", "#\n", "{}", "[1]\n"])
def test_a_file_of_nothing_known_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    [found] = dumps.read(Host(system_root=str(tmp_path.parent)), f"/{tmp_path.name}")
    assert not found.complete
    assert "/x" in messages(found)


def test_a_directory_that_is_none_or_empty_is_an_error(tmp_path: Path) -> None:
    host = Host(system_root=str(tmp_path))
    with pytest.raises(ReadError, match="is not a directory"):
        dumps.read(host, "/none")
    with pytest.raises(ParseError, match="holds no file"):
        dumps.read(host, "/")


# -- whatever comes --------------------------------------------------------------------------------------------------


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
    texts = [CSV, *(path.read_text() for path in sorted(FOLDER.rglob("*.txt")))]
    problems: list[Problem] = []
    outputs = []
    for number, text in enumerate(by.sample(texts, 5)):
        outputs += dumps.parse(_mangled(text, by), f"file {number}", problems)
    found = dumps.join(outputs, problems, 1.0)
    assert sweep.from_dict(json.loads(json.dumps(sweep.to_dict(found)))) == found
    assert found.problems


# -- subnet managers' logs, unhealthy ports, HCAs with two ports ------------------------------------------------------


def _log(*lines: tuple[str, str]) -> str:
    return "".join(f"{when} 717944 [EC430700] 0x01 -> {text}\n" for when, text in lines)


TIMEOUT = "sm_mad_ctrl_send_err_cb: ERR 3113: MAD completed in error (IB_TIMEOUT): SubnGet(SMInfo)"
START, STOP = "OpenSM 5.19.0.MLNX", "Exiting SM"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([("Mar 11 19:32:26", TIMEOUT), ("Mar 11 19:32:27", TIMEOUT)], {"ERR 3113": 2}),
        ([("Mar 11 19:32:26", TIMEOUT), ("Mar 13 19:32:27", "SUBNET UP")], {}),
        ([("Dec 31 23:59:59", TIMEOUT), ("Jan  1 00:00:01", "SUBNET UP")], {"ERR 3113": 1}),
        ([("Mar 11 19:32:26", STOP)], {sweep.EXITED: 1}),
        ([("Mar 11 19:32:26", STOP), ("Mar 11 19:33:00", START)], {}),
        ([("Feb 29 09:00:00", "nvlsm_x: ERR ABCD: Link is not trained")], {"ERR ABCD": 1}),
        ([("Mar 41 19:32:26", TIMEOUT)], {"ERR 3113": 1}),
        ([("Mar 11 19:32:26", "umad_receiver: note about ERR handling"), ("Mar 11 19:32:26", START)], {}),
    ],
)
def test_events_of_a_managers_log_are_recent_errors_and_its_exit(
    lines: list[tuple[str, str]], expected: dict[str, int]
) -> None:
    text = _log(*lines) + "                        Method 0x1, Attr 0x20, TID 0x11f51\n"
    problems: list[Problem] = []
    found = dumps.join(dumps.parse(text, "log", problems), problems, at=0)
    assert {event.code: event.count for event in found.events} == expected
    assert not problems
    assert sweep.from_dict(json.loads(json.dumps(sweep.to_dict(found)))) == found


def test_ports_that_opensm_lists_as_unhealthy_are_read() -> None:
    text = (
        "# NodeGUID, PortNum, NodeDesc, PeerNodeGUID, PeerPortNum, PeerNodeDesc, {BadCond1, ...}, TimeStamp\n"
        '0x0011223344550001, 25, "spine, \\"3\\"", 0x0055667788990001, 25, "leaf", {FLAPPING, SET_ERR}, Fri Mar 20\n'
        '0x0011223344550002, 900, "leaf", 0x0055667788990001, 25, "spine", {FLAPPING}, Fri Mar 20 01:13\n'
    )
    problems: list[Problem] = []
    found = dumps.join(dumps.parse(text, "dump", problems), problems, at=0)
    assert dict(found.unhealthy) == {("0011223344550001", 25): "FLAPPING, SET_ERR since Fri Mar 20"}
    assert [problem for problem in found.problems if "900" in problem.message]


LINKED = "==( 4X          10.0 Gbps Active/  LinkUp)==>"


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


def test_what_a_full_listing_adds_behind_a_rate_is_read() -> None:
    text = said("ibnetdiscover.txt")
    full = "\n".join(
        f"{one} s=4 w=2 v=4 e=4 f=1" if one.endswith(("xHDR", "xEDR", "xFDR")) else one for one in text.split("\n")
    )
    assert full != text
    assert of(ibnetdiscover.parse(full)).nodes == of(ibnetdiscover.parse(text)).nodes
