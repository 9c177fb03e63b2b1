# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is read of GPUs from /proc/driver/nvidia and nvidia-smi, and that nothing they print can break the reader."""

from contextlib import suppress
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import gpu
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import PciDevice
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.trees import put, tool

A, B, C = "0000:1b:00.0", "0000:43:00.0", "0000:52:00.0"
UUID = {A: "GPU-aaaaaaaa-0000-0000-0000-000000000001", B: "GPU-bbbbbbbb-0000-0000-0000-000000000002"}
INFORMATION = (
    "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 41\nGPU UUID: \t %s\nBus Location: \t %s\nGPU Excluded:\t No\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.10.01  Release Build  (build@host)\nGCC version: 12\n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.11.02  Sat Aug 19 01:15:15 UTC 2023\n"
HEADER = "index, uuid, name, pci.bus_id, fabric.state, fabric.status"
CSV = "\n".join(
    [
        HEADER,
        "0, %s, NVIDIA H100 80GB HBM3, 00000000:1B:00.0, Completed, Success" % UUID[A],
        "1, %s, NVIDIA H100 80GB HBM3, 00000000:43:00.0, Completed, Success" % UUID[B],
        "",
    ]
)
NVLINK = "GPU 0: NVIDIA H100 (UUID: %s)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n" % UUID[A] + (
    "GPU 1: NVIDIA H100 (UUID: %s)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n" % UUID[B]
)
XML_GPU = """
  <gpu id="00000000:%s:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <uuid>%s</uuid>
    <pci><pci_gpu_link_info>
      <pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
      <link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths>
    </pci_gpu_link_info></pci>
    %s
  </gpu>"""
FABRIC = (
    "<fabric><state>Completed</state><status>Success</status>"
    "<cliqueId>7</cliqueId><clusterUuid>11111111-0000-0000-0000-000000000000</clusterUuid></fabric>"
)


def xml(fabric: str = FABRIC, doctype: str = '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">') -> str:
    gpus = XML_GPU % ("1B", UUID[A], fabric) + XML_GPU % ("43", UUID[B], fabric)
    return '<?xml version="1.0" ?>\n%s\n<nvidia_smi_log>%s\n</nvidia_smi_log>\n' % (doctype, gpus)


# -- parsers ---------------------------------------------------------------------------------------------------------


def test_information_is_a_dictionary_of_its_lines() -> None:
    values = gpu.parse_information(INFORMATION % (UUID[A], A))
    assert values["Model"] == "NVIDIA H100 80GB HBM3"
    assert values["GPU UUID"] == UUID[A]
    assert values["Bus Location"] == A  # the colons of the value stay


@pytest.mark.parametrize("text", ["", "\n \n", "Model", ": value", "Model: \x1b[31mred"])
def test_information_that_is_not_name_and_value_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        gpu.parse_information(text)


def test_driver_version_and_flavour() -> None:
    assert gpu.parse_driver_version(OPEN) == gpu.Driver("575.10.01", True, "/proc/driver/nvidia/version")
    assert gpu.parse_driver_version(CLOSED) == gpu.Driver("535.11.02", False, "/proc/driver/nvidia/version")


@pytest.mark.parametrize("text", ["GCC version: 12", "NVRM version:", OPEN[:65], "NVRM version: 575.10.01 x"])
def test_driver_version_that_is_cut_off_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="expected 'NVRM version"):
        gpu.parse_driver_version(text)


def test_query_loses_units_of_names_and_keeps_those_of_values() -> None:
    text = "index, memory.total [MiB], power.draw [W]\r\n0, 81559 MiB, [N/A]\r\n"
    assert gpu.parse_query_csv(text) == [{"index": "0", "memory.total": "81559 MiB", "power.draw": None}]


@pytest.mark.parametrize(
    "cell", ["N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "Unknown Error", "ERR!", ""]
)
def test_query_gives_none_for_what_is_not_a_value(cell: str) -> None:
    assert gpu.parse_query_csv("index, name\n0, %s\n" % cell) == [{"index": "0", "name": None}]


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "no output"),
        ("No devices were found\n", "No devices were found"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "NVIDIA-SMI has failed"),
        ("Unable to determine the device handle for GPU0000:5D:00.0: Unknown Error", "GPU0000:5D:00.0"),
        ('Field "fabric.state" is not a valid field to query.\n\n', "fabric.state"),
        ("0, GPU-1, NVIDIA H100\n", "header"),
        ("index, uuid\n", "no row"),
        ("index, uuid\n0\n", "2 columns"),
        ("index, uuid\n0, GPU-1, more\n", "2 columns"),
        ("index, uuid\n0, GPU-1\nUnable to determine the device handle\n", "Unable to determine"),
        ("index, uuid\n0, \x1b[2J\n", "plain text"),
    ],
)
def test_query_quotes_what_is_not_a_table(text: str, quoted: str) -> None:
    with pytest.raises(ParseError, match=quoted):
        gpu.parse_query_csv(text)


def test_xml_gives_identity_fabric_and_link() -> None:
    first, second = gpu.parse_xml(xml())
    assert (first.pci, second.pci) == (A, B)
    assert (first.uuid, first.product_name) == (UUID[A], "NVIDIA H100 80GB HBM3")
    assert (first.fabric_state, first.fabric_status) == ("Completed", "Success")


def test_xml_of_a_driver_without_fabric_has_none() -> None:
    assert all(one.fabric_state is None for one in gpu.parse_xml(xml(fabric="")))


BOMB = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "not XML"),
        (xml()[:-30], "not XML"),
        (xml(doctype=BOMB), "<!ENTITY"),
        (xml(fabric="<fabric><state>&b;</state></fabric>"), "not XML"),
        ("<html/>", "<html>, expected <nvidia_smi_log>"),
        ("<nvidia_smi_log><attached_gpus>0</attached_gpus></nvidia_smi_log>", "no <gpu>"),
        ("<nvidia_smi_log><gpu/></nvidia_smi_log>", "PCI address"),
        ("No devices were found", "No devices were found"),
    ],
)
def test_xml_that_is_not_a_log_is_refused(text: str, quoted: str) -> None:
    with pytest.raises(ParseError, match=quoted):
        gpu.parse_xml(text)


def test_xml_does_not_open_what_its_doctype_names(tmp_path: Path) -> None:
    dtd = tmp_path / "log.dtd"
    dtd.write_text("not a DTD at all <<<")
    assert gpu.parse_xml(xml(doctype='<!DOCTYPE nvidia_smi_log SYSTEM "%s">' % dtd.as_uri()))


def test_xml_nested_without_end_is_no_crash() -> None:
    with pytest.raises(ParseError):
        gpu.parse_xml("<a>" * 200_000)


def test_nvlinks_are_counted_for_each_gpu() -> None:
    assert gpu.parse_nvlink_status(NVLINK) == [
        gpu.NvlinkStatus(0, UUID[A], 2, 2),
        gpu.NvlinkStatus(1, UUID[B], 1, 2),
    ]


@pytest.mark.parametrize(
    ("below", "active", "total"),
    [
        ("\t NVML: Unable to retrieve NVLink information as all links are inActive\n", 0, None),
        ("\t NVML: Unable to retrieve NVLink information: Not Supported\n", 0, 0),
        ("NVML: Unable to retrieve Nvlink information as all links are inActive\n", 0, None),
        ("Device does not have or support Nvlink\n", 0, 0),
        ("\t NVML: Unable to retrieve NVLink information for link 3: Unknown Error\n", None, None),
        ("", 0, 0),
        ("\t Link 0: <inactive>\n", 0, 1),
        ("         Link 0: 25 GB/s\n", 1, 1),
    ],
)
def test_nvlinks_of_a_gpu_that_says_something_else(below: str, active: "int | None", total: "int | None") -> None:
    text = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n%sGPU 1: NVIDIA H100 (UUID: GPU-2)\n\t Link 0: 25 GB/s\n" % below
    assert gpu.parse_nvlink_status(text) == [
        gpu.NvlinkStatus(0, "GPU-1", active, total),
        gpu.NvlinkStatus(1, "GPU-2", 1, 1),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found",
        "\t Link 0: 25 GB/s\n",
        "GPU 0: NVIDIA H100 (UUID: GPU-1",
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.5",
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 25 GB/s\n\t Link 0: 25 GB/s\n",
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: <inact",
    ],
)
def test_nvlink_text_that_is_cut_off_or_garbled_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        gpu.parse_nvlink_status(text)


PARSERS = [
    (gpu.parse_information, INFORMATION % (UUID[A], A)),
    (gpu.parse_driver_version, OPEN),
    (gpu.parse_query_csv, CSV),
    (gpu.parse_xml, xml()),
    (gpu.parse_nvlink_status, NVLINK),
]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(PARSERS), st.data())
def test_any_text_and_any_damage_gives_a_value_or_a_parse_error(parser, data) -> None:  # type: ignore[no-untyped-def]
    parse, good = parser
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, len(good)))
    put_in = data.draw(st.text(max_size=20) | st.sampled_from(["N/A", "[Unknown Error]", "\0", ",", "<a>", "\n"]))
    for text in (good[:start] + put_in + good[end:], put_in):
        with suppress(ParseError):
            parse(text)


# -- reader ----------------------------------------------------------------------------------------------------------


def device(address: str, class_code: int = 0x030200, vendor: int = 0x10DE) -> PciDevice:
    return PciDevice(
        address=address,
        class_code=class_code,
        vendor=vendor,
        device=0x2330,
        numa_node=0,
        ancestors=("pci0000:15",),
        current_speed_gts=32.0,
        current_width=16,
        max_speed_gts=32.0,
        max_width=16,
        physfn=None,
        driver="nvidia",
        source="/sys/devices/pci0000:15/" + address,
    )


DEVICES = {address: device(address) for address in (B, A)}  # not in PCI order, on purpose
TOOL = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
--query-gpu=*) cat {root}/csv; exit $(cat {root}/csv.rc) ;;
"-q -x") cat {root}/xml ;;
"nvlink -s") cat {root}/nvlink ;;
esac
"""


def build(root: Path) -> Path:
    """A tree with /proc/driver/nvidia and an nvidia-smi that prints files and logs how it was called."""
    write_tool(root, TOOL)
    for address, uuid in UUID.items():
        information(root, address, INFORMATION % (uuid, address))
    (root / "proc/driver/nvidia/version").write_text(OPEN)
    for name, text in (("csv", CSV), ("csv.rc", "0"), ("xml", xml()), ("nvlink", NVLINK)):
        (root / name).write_text(text)
    return root


def write_tool(root: Path, script: str) -> None:
    tool(root, "usr/bin/nvidia-smi", script.format(log=root / "calls", root=root))


def information(root: Path, address: str, text: str) -> None:
    put(root, f"proc/driver/nvidia/gpus/{address}/information", text)


def read(root: Path, devices=None, timeout: float = 20.0):  # type: ignore[no-untyped-def]
    host = Host(hardware_root=str(root), system_root=str(root), timeout=timeout)
    gpus, driver, problems = gpu.read(host, DEVICES if devices is None else devices)
    return gpus, driver, [str(problem) for problem in problems]


def calls(root: Path) -> "list[str]":
    log = root / "calls"
    return [line.split("=")[0] for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return build(tmp_path)


def test_a_healthy_machine_is_read_with_two_calls_and_no_problem(machine: Path) -> None:
    gpus, driver, problems = read(machine)
    assert problems == []
    assert calls(machine) == ["--query-gpu", "nvlink -s"]
    assert driver == gpu.Driver("575.10.01", True, "/proc/driver/nvidia/version")
    assert [(one.pci, one.index, one.uuid, one.in_driver) for one in gpus] == [
        (A, 0, UUID[A], True),
        (B, 1, UUID[B], True),
    ]
    assert (gpus[0].model, gpus[0].fabric_state, gpus[0].fabric_status) == (
        "NVIDIA H100 80GB HBM3",
        "Completed",
        "Success",
    )
    assert [(one.nvlinks_active, one.nvlinks_total) for one in gpus] == [(2, 2), (1, 2)]
    assert gpus[0].sources == (
        "/sys/devices/pci0000:15/" + A,
        "/proc/driver/nvidia/gpus/%s/information" % A,
        "nvidia-smi --query-gpu=index,uuid,name,pci.bus_id,fabric.state,fabric.status --format=csv",
        "nvidia-smi nvlink -s",
    )


def test_only_nvidia_display_functions_are_gpus(machine: Path) -> None:
    others = {
        "0000:02:00.0": device("0000:02:00.0", vendor=0x1A03, class_code=0x030000),  # a BMC's display
        "0000:07:00.0": device("0000:07:00.0", class_code=0x068000),  # NVSwitch
    }
    gpus, _, problems = read(machine, {**others, **DEVICES})
    assert [one.pci for one in gpus] == [A, B]
    assert problems == []


def test_pci_order_is_that_of_numbers(machine: Path) -> None:
    far = "10000:01:00.0"
    gpus, _, _ = read(machine, {far: device(far), "2000:01:00.0": device("2000:01:00.0")})
    assert [one.pci for one in gpus] == ["2000:01:00.0", far]


def test_without_a_gpu_no_tool_is_called(machine: Path) -> None:
    gpus, driver, problems = read(machine, {})
    assert gpus == ()
    assert driver is not None
    assert calls(machine) == []
    assert len(problems) == 2  # the driver lists two GPUs that sysfs does not have
    (machine / "proc/driver/nvidia/version").unlink()
    for address in UUID:
        (machine / "proc/driver/nvidia/gpus" / address / "information").unlink()
        (machine / "proc/driver/nvidia/gpus" / address).rmdir()
    assert read(machine, {}) == ((), None, [])


def test_without_a_driver_no_tool_is_called_and_there_is_one_problem(tmp_path: Path) -> None:
    machine = build(tmp_path / "with")
    host = Host(hardware_root=str(tmp_path / "empty"), system_root=str(machine))
    gpus, driver, problems = gpu.read(host, DEVICES)
    assert driver is None
    assert calls(machine) == []
    assert [str(problem) for problem in problems] == [
        "/proc/driver/nvidia/version: is not there: the NVIDIA driver is not loaded"
    ]
    assert [(one.pci, one.in_driver, one.model, one.nvlinks_active) for one in gpus] == [
        (A, False, None, None),
        (B, False, None, None),
    ]


def test_an_old_driver_is_asked_again_in_xml(machine: Path) -> None:
    (machine / "csv").write_text('Field "fabric.state" is not a valid field to query.\n\n')
    (machine / "csv.rc").write_text("2")
    gpus, _, problems = read(machine)
    assert calls(machine) == ["--query-gpu", "-q -x", "nvlink -s"]
    assert problems == []
    assert [one.fabric_state for one in gpus] == ["Completed", "Completed"]
    assert "nvidia-smi -q -x" in gpus[0].sources


def test_a_gpu_without_fabric_state_is_a_problem_of_its_own(machine: Path) -> None:
    (machine / "csv").write_text(CSV.replace("Completed, Success", "[Unknown Error], [Unknown Error]", 1))
    gpus, _, problems = read(machine)
    assert [one.fabric_state for one in gpus] == [None, "Completed"]
    assert len(problems) == 1
    assert problems[0].endswith("gives no fabric state for %s" % A)


def test_a_state_that_is_not_completed_needs_no_status(machine: Path) -> None:
    (machine / "csv").write_text(CSV.replace("Completed, Success", "In Progress, N/A"))
    gpus, _, problems = read(machine)
    assert [(one.fabric_state, one.fabric_status) for one in gpus] == [("In Progress", None)] * 2
    assert problems == []
    (machine / "csv").write_text(CSV.replace("Completed, Success", "Completed, N/A"))
    assert [problem.split(": ", 1)[1] for problem in read(machine)[2]] == [
        "gives no fabric status for %s" % A,
        "gives no fabric status for %s" % B,
    ]


@pytest.mark.parametrize("hangs", ["--query-gpu=*", '"-q -x"'])
def test_after_a_call_that_hangs_no_other_is_made(machine: Path, hangs: str) -> None:
    (machine / "csv").write_text('Field "fabric.state" is not a valid field to query.\n')
    write_tool(machine, TOOL.replace('case "$*" in', 'case "$*" in\n%s) sleep 30 ;;' % hangs))
    gpus, _, problems = read(machine, timeout=2)
    assert "nvlink -s" not in calls(machine)
    assert len(problems) == 1
    assert "did not respond within" in problems[0]
    assert [(one.model, one.nvlinks_active, one.fabric_state) for one in gpus] == [
        ("NVIDIA H100 80GB HBM3", None, None)
    ] * 2


def test_a_missing_tool_is_one_problem(machine: Path) -> None:
    (machine / "usr/bin/nvidia-smi").unlink()
    gpus, driver, problems = read(machine)
    assert len(problems) == 1
    assert "nvidia-smi: is not installed" in problems[0]
    assert driver is not None
    assert [one.uuid for one in gpus] == [UUID[A], UUID[B]]


def test_output_that_is_not_text_does_not_stop_the_second_call(machine: Path) -> None:
    (machine / "csv").write_bytes(b"\xff\xfe\0")
    gpus, _, problems = read(machine)
    assert len(problems) == 1
    assert "is not text" in problems[0]
    assert [one.nvlinks_active for one in gpus] == [2, 1]


@pytest.mark.parametrize(
    "said", ["NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "No devices were found"]
)
def test_a_tool_that_fails_is_quoted(machine: Path, said: str) -> None:
    (machine / "csv").write_text(said)
    (machine / "csv.rc").write_text("9")
    (machine / "nvlink").write_text(said)
    gpus, _, problems = read(machine)
    assert len(problems) == 2
    assert all(said[:30] in problem for problem in problems)
    assert "(exit code 9)" in problems[0]
    assert [one.in_driver for one in gpus] == [True, True]


@pytest.mark.parametrize("said", ["", "\n", "Device does not have or support Nvlink.\n" * 2])
def test_cards_without_nvlink_of_which_nothing_is_said_have_none(machine: Path, said: str) -> None:
    (machine / "nvlink").write_text(said)
    gpus, _, problems = read(machine)
    assert ([(one.nvlinks_active, one.nvlinks_total) for one in gpus], problems) == ([(0, 0), (0, 0)], [])
    # A tool that could not list the GPUs has not said that they have none.
    for name in ("csv", "xml"):
        (machine / name).write_text("")
    gpus, _, problems = read(machine)
    assert [one.nvlinks_active for one in gpus] == [None, None]
    assert problems


def test_a_whole_answer_with_an_exit_code_counts_and_is_a_problem(machine: Path) -> None:
    (machine / "csv.rc").write_text("14")
    gpus, _, problems = read(machine)
    assert [one.fabric_state for one in gpus] == ["Completed", "Completed"]
    assert len(problems) == 1
    assert "ended with exit code 14" in problems[0]


def test_a_gpu_that_nvidia_smi_does_not_list_is_a_problem(machine: Path) -> None:
    (machine / "csv").write_text("\n".join(CSV.splitlines()[:2]))
    (machine / "nvlink").write_text(NVLINK[: NVLINK.index("GPU 1")])
    gpus, _, problems = read(machine)
    assert len(problems) == 1
    assert problems[0].endswith("does not list the GPU at %s" % B)
    assert (gpus[1].in_driver, gpus[1].fabric_state, gpus[1].nvlinks_active) == (True, None, None)


def test_gpus_that_only_the_driver_and_nvidia_smi_have_are_problems(machine: Path) -> None:
    gpus, _, problems = read(machine, {A: DEVICES[A]})
    assert [one.pci for one in gpus] == [A]
    assert [problem.split(": ", 1)[1] for problem in problems] == [
        "lists a GPU at %s, /sys/bus/pci/devices has none there" % B
    ] * 2


def test_a_gpu_that_the_driver_does_not_have_stays_in_the_list(machine: Path) -> None:
    gpus, _, problems = read(machine, {**DEVICES, C: device(C)})
    assert [(one.pci, one.in_driver) for one in gpus] == [(A, True), (B, True), (C, False)]
    assert (gpus[2].model, gpus[2].uuid, gpus[2].nvlinks_active) == (None, None, None)
    assert [problem.split(": ", 1)[1] for problem in problems] == ["does not list the GPU at %s" % C]


def test_what_proc_does_not_say_comes_from_nvidia_smi(machine: Path) -> None:
    information(machine, A, INFORMATION % ("GPU-????????-????-????-????-????????????", A))
    gpus, _, problems = read(machine)
    assert (gpus[0].uuid, gpus[0].nvlinks_active) == (UUID[A], 2)
    assert problems == []


def test_a_gpu_that_the_driver_could_not_start_has_no_uuid(machine: Path) -> None:
    information(machine, A, INFORMATION % ("GPU-????????-????-????-????-????????????", A))
    (machine / "csv").write_text(CSV.replace(UUID[A], "[Unknown Error]"))
    gpus, _, problems = read(machine)
    assert (gpus[0].uuid, gpus[0].nvlinks_active) == (None, None)
    assert [problem.split(": ", 1)[1] for problem in problems] == [
        "gives no GPU UUID",
        "gives no NVLinks for %s (UUID None)" % A,
        "lists GPU 0 (UUID %r), which nothing else does" % UUID[A],
    ]


def test_a_row_without_an_address_is_a_problem(machine: Path) -> None:
    (machine / "csv").write_text(CSV.replace("00000000:43:00.0", "[GPU is lost]"))
    gpus, _, problems = read(machine)
    assert gpus[1].fabric_state is None
    assert any("lists a GPU without a PCI address" in problem for problem in problems)
    assert any(problem.endswith("does not list the GPU at %s" % B) for problem in problems)


@pytest.mark.parametrize("content", ["", "\x07\x07", "cut of"])
def test_an_information_file_that_cannot_be_understood_costs_only_itself(machine: Path, content: str) -> None:
    information(machine, B, content)
    gpus, _, problems = read(machine)
    assert len(problems) == 1
    assert problems[0].startswith("/proc/driver/nvidia/gpus/%s/information" % B)
    assert (gpus[1].in_driver, gpus[1].model) == (True, "NVIDIA H100 80GB HBM3")


def test_strange_names_below_proc_are_problems(machine: Path) -> None:
    information(machine, "what", "Model: x\n")
    _, _, problems = read(machine)
    assert len(problems) == 1
    assert problems[0].startswith("/proc/driver/nvidia/gpus/what/information: 'what' is not a PCI address")


@pytest.mark.parametrize("version", ["", "NVRM version: something else\n"])
def test_a_version_that_cannot_be_understood_is_still_a_driver(machine: Path, version: str) -> None:
    (machine / "proc/driver/nvidia/version").write_text(version)
    gpus, driver, problems = read(machine)
    assert driver is None
    assert len(problems) == 1
    assert gpus[0].fabric_state == "Completed"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(csv=st.text(max_size=60), nvlink=st.text(max_size=60), said=st.text(max_size=60))
@example(csv=HEADER, nvlink="GPU 0:", said="Model:")
def test_no_text_of_tool_or_file_breaks_the_reader(machine: Path, csv: str, nvlink: str, said: str) -> None:
    (machine / "csv").write_text(csv)
    (machine / "nvlink").write_text(nvlink)
    information(machine, A, said)
    gpus, _, problems = read(machine)
    assert [one.pci for one in gpus] == [A, B]
    assert problems
