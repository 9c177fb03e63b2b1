# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.cabling_plan import (
    Cable,
    Plan,
    load,
    read,
    write,
)

HEADER = "a_node,a_port,z_node,z_port,rail\n"
TYPED = HEADER.replace("rail", "rail,a_type")
GUID = "0x506b4b0300A1B2C0"
TWICE = "line 3: spine01 port 3 has another cable already (line 2)"
SPINE = "leaf03,33,spine01,3,\n"


def test_a_plan_is_read_with_guids_in_every_spelling_and_names_as_they_stand() -> None:
    text = f"{HEADER}# hosts\n{GUID},1,1070:fd03:009f:2e40,7,3\n\nnode 'x' <b>,mlx5_0/2,S-1070fd03009f2e40,1/2,\n"
    assert read(text, "p.csv").cables == (
        Cable("506b4b0300a1b2c0", 1, "1070fd03009f2e40", 7, 3, 3),
        Cable("node 'x' <b>", "mlx5_0/2", "1070fd03009f2e40", "1/2", None, 5),
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: text.replace(",", ";"),
        lambda text: text.replace(",", "\t"),
        lambda text: text.replace("a_node", '"A-Node"').replace("leaf03", '" leaf03 "'),
        lambda text: text.replace("\n", ",,\n"),
    ],
)
def test_what_spreadsheets_make_of_it_is_the_same_plan(change: Callable[[str], str], tmp_path: Path) -> None:
    file = tmp_path / "plan.csv"
    file.write_bytes(change(HEADER + f"{GUID},1,leaf03,1,0\n" + SPINE).encode())
    ends = [cable.ends for cable in load(file).cables]
    assert ends == [(("506b4b0300a1b2c0", 1), ("leaf03", 1)), (("leaf03", 33), ("spine01", 3))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "empty") for text in ("", "# nothing\n\n")),
        (HEADER, "no cable in it"),
        ("a_node,a_port,z_node\n", "line 1: the header lacks z_port"),
        ("host,port,chassis,port_id\nx,y,z,1\n", "lacks a_node, a_port"),
        (HEADER.replace("rail", "rial") + SPINE, "unknown column rial"),
        (HEADER.replace("rail", "a_port") + SPINE, "twice a_port"),
        *((HEADER + SPINE + more, TWICE) for more in ("leaf04,1,spine01,3,\n", "spine01,3,leaf03,33,\n")),
        (HEADER + "leaf03,1,leaf03,1,\n", "line 2: leaf03 port 1 is connected to itself"),
        (HEADER + "leaf03,,spine01,3,\n", "line 2: a_port is empty"),
        (HEADER + "leaf03,0,spine01,3,\n", "a_port is 0"),
        *(
            (HEADER + f"leaf03,{port},spine01,3,\n", "have numbers from 1 to 254")
            for port in ("0" * 5000 + "1", "9" * 5000)
        ),
        *((HEADER + f"leaf03,1,spine01,3,{rail}\n", f"rail is '{rail}'") for rail in ("x", "-1")),
        (HEADER + "=cmd|'/c calc'!A1,1,spine01,3,\n", "a_node is a formula"),
        (HEADER + "leaf03,1,@SUM(1),3,\n", "z_node is a formula"),
        *((f"{HEADER}{end},spine01,3,\n", "a spreadsheet made of another") for end in ("1.07E+15,1", "leaf03,1-Feb")),
        (HEADER + "0x0000000000000000,1,spine01,3,\n", "the GUID 0"),
        (HEADER + "leaf\x1b[31m,1,spine01,3,\n", "a_node is 'leaf\\\\x1b[31m'"),
        (HEADER + f"{'x' * 300},1,spine01,3,\n", "300 characters"),
        (HEADER + '"leaf03,1,spine01,3,\n', "line 2: unexpected end of data"),
        (HEADER + "leaf03,1,spine01,3,,x\n", "line 2: 6 cells, but the header has 5 columns"),
        (HEADER + "leaf03,1\n", "line 2: 2 cells"),
        (HEADER + "\n" * 1_000_000, "more than 1000000 lines"),
        (HEADER + " " * 100_000 + SPINE, "line 2: 100020 characters"),
        (TYPED + "leaf03,1,spine01,3,1,switch\n", "leaf03 is not a host"),
        (TYPED + "leaf03,1,spine01,3,1,router\n", "a_type is 'router'"),
    ],
)
def test_what_is_no_plan_is_refused_with_its_file_and_line(text: str, said: str) -> None:
    with pytest.raises(ParseError) as error:
        read(text, "plan.csv")
    assert str(error.value).startswith("plan.csv")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"PK\x03\x04rest", "export each sheet as .CSV"),
        (HEADER.encode("utf-16"), "CSV UTF-8"),
        (b"a_node\xff", "byte 6"),
        (b"a_node\0", "zero byte"),
    ],
)
def test_a_file_that_is_no_text_is_refused_with_the_way_out(data: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.csv"
    file.write_bytes(data)
    with pytest.raises(ParseError, match=said) as error:
        load(file)
    assert str(file) in str(error.value)


def test_what_is_written_is_read_again() -> None:
    chance = random.Random(19)
    texts = ['say "x"', "a,b", "a;b", "<script>", "node 1", "größe", "{{ x }}", "1/2", "0xzz"]
    names = [f"{text}-{number}" for number, text in enumerate(texts)] + ["%016x" % (number + 1) for number in range(20)]
    ends = [(name, port) for name in names for port in (1, 2, "mlx5_0", "1/2")]
    chance.shuffle(ends)
    halves = zip(ends[::2], ends[1::2], strict=True)
    said = ["", "node 1", '"q"']
    cables = tuple(Cable(*a, *z, chance.choice([None, 0, 7]), 0, "", "switch", chance.choice(said)) for a, z in halves)
    again = read(write(Plan(cables, "draft")), "draft")
    assert tuple(replace(cable, line=0) for cable in again.cables) == cables


@pytest.mark.parametrize("bad", ["=x", "#x", "a\nb", " " * 3 + "\t"])
def test_no_name_is_written_that_would_not_be_read(bad: str) -> None:
    with pytest.raises(ParseError, match="a_name"):
        write(Plan((Cable("a", 1, "b", 2, a_name=bad),), "draft"))
