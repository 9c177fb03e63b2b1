"""What perftest is started with, what it prints, and what that is worth."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import nic_counters, perftest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.perftest import Bar, Options, Port, Session
from hypothesis import given
from hypothesis import strategies as st

from tests import goldens

CLIENT = Session("client", 3, "0000:1a:00.0", "mlx5_9", "node02", "10.19.0.2", 400.0, gpu="0000:19:00.0", gpu_index=3)
SERVER = replace(CLIENT, role="server", address="")
PORT = Port("mlx5_9", 1, 5)
OPTIONS = Options(seconds=5, traffic_class=106)
RULE = "-" * 60 + "\n"
HEAD = f"{RULE}                    RDMA_Write BW Test\n Mtu             : 4096[B]\n Link type       : Ethernet\n{RULE}"
BW = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
LAT = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
    "   99% percentile[usec]   99.9% percentile[usec] \n"
)


def bw_text(rate: float, mtu: int = 4096) -> str:
    return HEAD.replace("4096", str(mtu)) + BW + f" 65536      3700000         0.00    {rate:.2f}\t\t   0.75\n" + RULE


GPU = replace(OPTIONS, memory="gpu")
# Case -> the session, its options, and the usage of this build.
COMMANDS: dict[str, tuple[Session, Options, str]] = {
    "host memory": (CLIENT, OPTIONS, ""),
    "InfiniBand": (replace(CLIENT, link_layer="InfiniBand"), OPTIONS, ""),
    "GPU by its index": (SERVER, GPU, "--use_cuda=<id>"),
    "GPU over DMA-BUF": (SERVER, replace(GPU, dmabuf=True), "--use_cuda=<id> --use_cuda_dmabuf"),
    "GPU by its address": (SERVER, GPU, "--use_cuda=<id> --use_cuda_bus_id=<id>"),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", COMMANDS)
def test_a_test_is_started_with(name: str) -> None:
    session, options, usage = COMMANDS[name]
    port = replace(PORT, gid=None) if session.link_layer == "InfiniBand" else PORT
    argvs = [perftest.argv(session, port, test, options, usage) for test in perftest.TESTS]
    goldens.check("perftest_commands", name, [" ".join(argv) for argv in argvs])


def test_no_two_programs_of_a_host_share_a_port() -> None:
    words = [
        perftest.argv(replace(SERVER, rail=rail), PORT, test, OPTIONS) for rail in range(16) for test in perftest.TESTS
    ]
    assert len({argv[argv.index("-p") + 1] for argv in words}) == 32


LAT_ROW = " 8       1000          2.10           7.55         12.31     \t       12.40     \t0.20\t\t2.90 \t\t7.55\n"


@pytest.mark.parametrize(
    ("test", "text", "figure"),
    [
        ("bw", bw_text(388.24), 388.24),
        # Releases of years ago, in which the figure comes last.
        ("bw", HEAD + BW.replace("   MsgRate[Mpps]", "") + " 65536 3700000 0.00 388.24\n" + RULE, 388.24),
        ("lat", HEAD + LAT + LAT_ROW + RULE, 12.31),
    ],
)
def test_an_output_that_is_cut_anywhere_gives_no_figure_or_the_whole_one(test: str, text: str, figure: float) -> None:
    whole = 0
    for end in range(len(text) + 1):
        for noise in ("", "ib_write_bw: connection lost\n"):
            with contextlib.suppress(ParseError):
                assert perftest.parse(test, text[:end] + noise)[0] == figure
                whole += 1
    assert 0 < whole <= 2 * (len(RULE) + 1)
    # A size that went well before does not stand for the one that broke off.
    with pytest.raises(ParseError, match="cut off"):
        perftest.parse(test, text[: -len(RULE)] + " 131072  12")


@given(st.text(alphabet="#bytesiran []GMB/cuv0123456789.\n\tBW", max_size=300))
def test_any_text_is_a_figure_or_an_error(text: str) -> None:
    for test in perftest.TESTS:
        with contextlib.suppress(ParseError):
            assert perftest.parse(test, BW + text)[0] >= 0


NO_CLOCK = " 8       1000          inf            inf          inf      \t       inf     \t-nan   \t\tinf     \t\tinf\n"
# Case -> the test, exit code, ending, and output of one that gives no figure.
NO_RESULT: dict[str, tuple[str, int | None, str, str]] = {
    "no server": ("bw", 1, "", "Couldn't connect to 10.19.0.2:18603\n"),
    "no device": ("bw", 1, "", "IB device mlx5_0 not found\n Unable to find the Infiniband/RoCE device\n"),
    "port down": ("bw", 1, "", " Port number 1 state is Down\n"),
    "GID types": ("bw", 1, "", "\n Found Incompatibility issue with GID types.\n"),
    "lost packets": ("bw", 1, "", " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n"),
    "not registered": ("bw", 1, "", " Failed status 4: wr_id 0 syndrom 0x51\n"),
    "memory": ("bw", 1, "", "Couldn't allocate MR\n"),
    "the other end gave up": ("bw", 1, "", "ethernet_read_keys: Couldn't read remote address\n"),
    "port taken": ("bw", 1, "", "Couldn't listen to port 18603\n"),
    "nothing": ("bw", 1, "", "----\n\n"),
    "something new": ("bw", 1, "", "something \x1b[31mnew\n"),
    # Exit code 0 without a figure is no result; a figure of a program that failed is none.
    "exit code 0": ("bw", 0, "", HEAD),
    "failed with a figure": ("bw", 1, "", bw_text(388)),
    # A figure without a clock is no result, whatever the bar.
    "no clock": ("bw", 0, "", bw_text(0.0)),
    "no clock, latency": ("lat", 0, "", HEAD + LAT + NO_CLOCK),
    "no client": ("bw", None, "timeout", "* Waiting for client to connect... *\n"),
}


@pytest.mark.golden
def test_why_there_is_no_figure_and_where_to_look() -> None:
    found = {name: perftest.result(of[0], f"ib_write_{of[0]}", *of[1:]) for name, of in NO_RESULT.items()}
    assert {one.figure for one in found.values()} == {None}
    goldens.text("perftest", "".join(f"{name}: {one.reason}; {one.fix}\n" for name, one in found.items()))


def judged(figure: float, share: float = 0.9) -> str:
    [finding] = perftest.judge(CLIENT, [perftest.result("bw", "ib_write_bw", 0, "", bw_text(figure))], Bar(share))
    return finding.state


def test_the_bar_is_a_share_of_what_the_rate_carries_without_headers() -> None:
    assert perftest.carries(CLIENT) == pytest.approx(400 * 4096 / 4178)
    assert perftest.carries(replace(CLIENT, link_layer="InfiniBand")) == pytest.approx(400 * 4096 / 4122)
    assert [judged(rate) for rate in (353.0, 352.9)] == ["ok", "drift"]
    assert judged(0.01, share=0) == "ok"


def test_a_slow_rail_in_small_packets_names_the_mtu_of_both_ends() -> None:
    one = perftest.result("bw", "ib_write_bw", 0, "", bw_text(311, 1024))
    [finding] = perftest.judge(CLIENT, [one], Bar(0.9))
    assert finding.have == "311 Gb/s in packets of 1024 bytes, to host memory"
    assert finding.fix == "an end has a smaller MTU: run site.yml --tags mtu for this host and node02"
    assert finding.id == "perftest.bandwidth[live]@rail 3 to node02"


def test_a_server_is_judged_by_having_served() -> None:
    bad = perftest.result("lat", "ib_write_lat", 1, "", "Couldn't listen to port 18703\n")
    good = perftest.result("bw", "ib_write_bw", 0, "", bw_text(10))
    assert [one.state for one in perftest.judge(SERVER, [good], Bar(0.9))] == ["ok"]
    [finding] = perftest.judge(SERVER, [good, bad], Bar(0.9))
    assert (finding.check, finding.state) == ("perftest.served", "unknown")


def test_simulated_figures_say_so_in_their_source() -> None:
    one = perftest.result("bw", "ib_write_bw", 0, "", bw_text(388) + " simulated: no figure here is a measurement\n")
    assert perftest.judge(CLIENT, [one], Bar(0.9))[0].source == "simulated: ib_write_bw"


def test_what_is_lost_in_a_wrong_queue_has_one_cause() -> None:
    one = perftest.result("bw", "ib_write_bw", 0, "", bw_text(100))
    names = {**{f"tx_prio{number}_bytes": 0 for number in range(8)}, "tx_prio0_bytes": 10**9, "packet_seq_err": 9}
    moved = nic_counters.Counters(names)
    findings = perftest.explained(
        [*perftest.judge(CLIENT, [one], Bar(0.9)), *nic_counters.judge(CLIENT.subject, moved, True, 3, "ethtool -S")]
    )
    roots = [one.check for one in findings if not one.ok and one.because is None]
    assert roots == ["counters.priority"]


@pytest.mark.parametrize(("days", "state"), [(1, "ok"), (31, "unknown"), (-1, "unknown")])
def test_an_old_record_is_unknown_and_so_is_one_from_the_future(days: int, state: str) -> None:
    assert perftest.fresh("rail 0", 1000.0, 1000.0 + days * 86400, 30, "x").state == state
