"""Neighbours that switches' own tools export."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.cabling_neighbours import Neighbour, neighbours


def test_neighbours_are_a_line_for_each_port_of_a_host() -> None:
    text = (
        "\ufeffhost;port;chassis;port-id\r\nnode1;ens1f0np0;ec:0d:9a:00:00:01;swp1s0\r\nnode1;Eth-12;leaf2;Eth 1/2\r\n"
    )
    assert neighbours(text, "n.csv") == (
        Neighbour("node1", "ens1f0np0", "ec:0d:9a:00:00:01", "swp1s0", 2),
        Neighbour("node1", "Eth-12", "leaf2", "Eth 1/2", 3),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("host,port,chassis,port_id\n", "no neighbour"),
        ("host,port,chassis\n", "lacks port_id"),
        ("host,port,chassis,port_id\nn,p,c,1\nn,p,d,1\n", "line 3: n p has a neighbour already .line 2"),
        ("host,port,chassis,port_id\nn,p,,1\n", "line 2: chassis is empty"),
        ("host,port,chassis,port_id\nn,p,+1,1\n", "line 2: chassis is a formula"),
    ],
)
def test_neighbours_that_are_none_are_refused(text: str, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        neighbours(text, "n.csv")
