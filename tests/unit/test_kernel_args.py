from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import kernel_args
from ansible_collections.busbar.fabric.plugins.module_utils.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import Arg, Boot, Entry, edit, satisfied
from ansible_collections.busbar.fabric.plugins.module_utils.plan import Plan
from hypothesis import given
from hypothesis import strategies as st

PT = Arg("iommu", "pt")
COMMANDS = ["update-grub", "sync --file-system /boot/grub"]
LINE = "root=UUID=6f1c ro console=tty0 console=ttyS0,115200 quiet"

# -- tokens ----------------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-z][a-z0-9_.]{0,6}[a-z0-9]", fullmatch=True)
VALUES = st.text(st.characters(codec="ascii", exclude_characters='"', exclude_categories=["Cc"]), max_size=6)
ARGS = st.builds(Arg, NAMES, st.none() | VALUES)
LINES = st.text('ab=",- _\t', max_size=40)


@given(LINES)
def test_splitting_loses_nothing(line: str) -> None:
    assert "".join(gap + token for gap, token in kernel_args.split(line)) == line


@given(LINES, ARGS)
def test_absent_after_present_restores_and_twice_is_once(line: str, arg: Arg) -> None:
    # In an open quote whatever is added is part of the quoted value, for the kernel, too.
    line = line.replace('"', "") if line.count('"') % 2 else line
    tokens = [kernel_args.parse(token)[0] for _gap, token in kernel_args.split(line) if token]
    once = edit(line, [arg])
    assert satisfied(once, arg)
    assert edit(once, [arg]) == once
    if arg.name not in tokens:
        assert edit(once, [Arg(arg.name, arg.value, present=False)]) == line


WORDS = st.sampled_from(["a=1", "a=2", "a", 'b="x y"', '"c=x y"', "quiet", "a-b=1"])


@given(st.lists(WORDS, max_size=6), st.booleans())
def test_what_nobody_asked_for_stays(words: list[str], exclusive: bool) -> None:
    line = "  ".join(words)
    others = [word for word in words if kernel_args.parse(word)[0] != "a"]
    for arg in (Arg("a", "2", exclusive=exclusive), Arg("a", present=False), Arg("a", "1", present=False)):
        tokens = [token for _gap, token in kernel_args.split(edit(line, [arg]))]
        assert [token for token in tokens if kernel_args.parse(token)[0] != "a"] == others


@pytest.mark.parametrize(
    ("before", "arg", "after"),
    [
        ("", PT, "iommu=pt"),
        ("ro quiet", PT, "ro quiet iommu=pt"),
        ("ro quiet \t", PT, "ro quiet iommu=pt \t"),
        ("ro iommu=pt quiet", PT, "ro iommu=pt quiet"),
        ('ro "iommu=pt" quiet', PT, 'ro "iommu=pt" quiet'),
        # What follows two dashes is init's.
        ("ro -- iommu=pt", PT, "ro iommu=pt -- iommu=pt"),
        # A name may be repeated, unless it is asked for alone.
        ("console=tty0", Arg("console", "ttyS0"), "console=tty0 console=ttyS0"),
        ("a=1 b a=2 c", Arg("a", "3", exclusive=True), "b a=3 c"),
        ("a=3 b a=2 c", Arg("a", "3", exclusive=True), "a=3 b c"),
        # The kernel sees no difference between dash and underscore.
        ("intel-iommu=on", Arg("intel_iommu", "on"), "intel-iommu=on"),
        ("intel_iommu=off ro", Arg("intel_iommu", "off", present=False), "ro"),
        ("intel_iommu=off ro", Arg("intel_iommu", present=False), "ro"),
        ("ro nomodeset", Arg("nomodeset", present=False), "ro"),
        ("", Arg("dyndbg", "file a +p"), 'dyndbg="file a +p"'),
        ('dyndbg="file a +p"', Arg("dyndbg", "file a +p"), 'dyndbg="file a +p"'),
        ('"dyndbg=file a +p" x', Arg("dyndbg", "file a +p", present=False), "x"),
    ],
)
def test_a_line_is_edited_token_by_token(before: str, arg: Arg, after: str) -> None:
    assert edit(before, [arg]) == after


@pytest.mark.parametrize(
    "arg", [{"name": "a b"}, {"name": ""}, {"name": 'a"'}, {"name": "a", "value": 'x"'}, {"name": "a", "value": "x\ny"}]
)
def test_what_no_kernel_can_take_is_refused(arg: dict[str, Any]) -> None:
    with pytest.raises(ParseError, match="kernel argument"):
        Arg(**arg)


# -- files of boot loaders -------------------------------------------------------------------------------------------

GRUB_CFG = """\
set default="0"
### BEGIN /etc/grub.d/10_linux ###
menuentry 'Debian GNU/Linux' {
\tlinux\t/boot/vmlinuz-6.1.0-40-amd64 root=UUID=6f1c ro  quiet
\tinitrd\t/boot/initrd.img-6.1.0-40-amd64
}
menuentry 'recovery' {
\tlinux\t/boot/vmlinuz-6.1.0-40-amd64 root=UUID=6f1c ro single
}
### END /etc/grub.d/10_linux ###
### BEGIN /etc/grub.d/30_os-prober ###
menuentry 'Another system' {
\tlinux /vmlinuz root=/dev/sdb1
}
### END /etc/grub.d/30_os-prober ###
"""


def test_entries_of_grub_are_those_that_its_generator_writes_for_this_system() -> None:
    assert kernel_args.parse_grub_cfg(GRUB_CFG) == [
        Entry("vmlinuz-6.1.0-40-amd64", "root=UUID=6f1c ro  quiet"),
        Entry("vmlinuz-6.1.0-40-amd64", "root=UUID=6f1c ro single"),
    ]
    assert kernel_args.parse_grub_cfg("linux /vmlinuz-1 ro\n") == [Entry("vmlinuz-1", "ro")]
    with pytest.raises(ParseError, match="run update-grub"):
        kernel_args.parse_grub_cfg("set default=0\n")


def test_a_boot_entry_takes_its_variables_from_grubenv() -> None:
    options = kernel_args.parse_bls("title Rocky\n# options no\noptions $kernelopts $tuned_params\n", "a.conf")
    variables = kernel_args.parse_grubenv("# GRUB Environment Block\nkernelopts=root=/dev/sda1 ro iommu=pt \n####")
    assert kernel_args.expand(options, variables) == "root=/dev/sda1 ro iommu=pt"
    with pytest.raises(ParseError, match="no line 'options'"):
        kernel_args.parse_bls("title Rocky\n", "a.conf")


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=30))
def test_our_drop_in_is_read_as_it_was_written(line: str) -> None:
    assert kernel_args.parse_dropin(kernel_args.render_dropin(line)) == line


def test_a_drop_in_that_somebody_edited_is_not_overwritten() -> None:
    with pytest.raises(ParseError, match="was edited by hand"):
        kernel_args.parse_dropin('GRUB_CMDLINE_LINUX="iommu=pt"\n')
    assert kernel_args.parse_dropin("# nothing\n\n") == ""


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (['GRUB_CMDLINE_LINUX="a b"\n# GRUB_CMDLINE_LINUX="no"\nGRUB_CMDLINE_LINUX_DEFAULT=quiet\n'], "a b quiet"),
        (["GRUB_CMDLINE_LINUX='a $b'", 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX c"'], "a $b c"),
        (['GRUB_CMDLINE_LINUX="a"', 'GRUB_CMDLINE_LINUX+=" b=\\"x y\\""'], 'a b="x y"'),
        (['GRUB_CMDLINE_LINUX="a"', 'GRUB_CMDLINE_LINUX="b"', 'GRUB_CMDLINE_LINUX="${GRUB_CMDLINE_LINUX} c"'], "b c"),
    ],
)
def test_settings_are_evaluated_as_a_shell_would(texts: list[str], line: str) -> None:
    assert kernel_args.evaluate(texts) == line


# -- plans -----------------------------------------------------------------------------------------------------------


def grub(
    active: str = LINE, entry: str = LINE, kept: str | None = None, elsewhere: dict[str, str] | None = None
) -> Boot:
    return Boot("grub", active, (Entry("vmlinuz-6.1", entry),), kept, tuple((elsewhere or {}).items()))


def plan(boot: Boot, *args: Arg) -> Plan:
    return kernel_args.plan(boot, args, "kernel_args", "a test").limit("none")


def states(made: Plan) -> dict[str, str]:
    return {finding.id.removeprefix("kernel_args.args"): finding.state for finding in made.findings if not finding.ok}


SET = {"/etc/default/grub": 'GRUB_CMDLINE_LINUX="iommu=pt"\n'}


def test_a_node_that_has_everything_is_left_alone() -> None:
    made = plan(grub(f"{LINE} iommu=pt", f"{LINE} iommu=pt", elsewhere=SET), PT)
    assert (states(made), made.changed, made.reboot) == ({}, False, ())
    assert len(made.findings) == 2


def test_a_fresh_node_gets_a_drop_in_and_the_rest_waits_for_a_reboot() -> None:
    made = plan(grub(), PT)
    assert [change.path for change in made.changes] == [kernel_args.DROPIN]
    assert made.changes[0].after is not None
    assert 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=pt"\n' in made.changes[0].after
    assert [str(command) for command in made.commands] == COMMANDS
    assert states(made) == {"[persisted]@iommu=pt": "drift", "[live]@iommu=pt": "withheld"}
    assert made.findings[1].because == made.findings[0].id
    assert made.reboot == ("kernel argument iommu=pt is not active before a reboot",)


def test_pending_is_another_finding_than_missing() -> None:
    made = plan(grub(entry=f"{LINE} iommu=pt", kept=kernel_args.render_dropin("iommu=pt")), PT)
    assert (states(made), made.changed) == ({"[live]@iommu=pt": "withheld"}, False)
    assert made.findings[1].because is None
    assert "pending" in (made.findings[1].have or "")
    assert made.reboot


def test_taken_away_behind_our_back_while_active_is_drift_of_the_next_boot_only() -> None:
    made = plan(grub(active=f"{LINE} iommu=pt"), PT)
    assert made.changed
    assert (states(made), made.reboot) == ({"[persisted]@iommu=pt": "drift"}, ())


def test_what_the_generator_would_lose_the_next_time_is_drift_already() -> None:
    made = plan(grub(f"{LINE} iommu=pt", f"{LINE} iommu=pt"), PT)
    assert states(made) == {"[persisted]@iommu=pt": "drift"}
    assert made.findings[0].have == "not in GRUB's settings"
    assert [change.path for change in made.changes] == [kernel_args.DROPIN]


def test_what_others_settings_have_is_not_written_twice() -> None:
    made = plan(grub(elsewhere=SET), PT)
    assert (made.changes, [str(command) for command in made.commands]) == ((), COMMANDS)


def test_a_killed_run_left_the_drop_in_without_its_grub_cfg() -> None:
    made = plan(grub(kept=kernel_args.render_dropin("iommu=pt")), PT)
    assert made.changes == ()
    assert [str(command) for command in made.commands] == COMMANDS


def test_others_of_our_arguments_stay_in_the_drop_in() -> None:
    made = plan(grub(kept=kernel_args.render_dropin("hugepages=64")), PT)
    assert made.changes[0].after == kernel_args.render_dropin("hugepages=64 iommu=pt")
    made = plan(grub(entry=f"{LINE} a", kept=kernel_args.render_dropin("a")), Arg("a", present=False))
    assert made.changes[0].after is None


@pytest.mark.parametrize(
    ("arg", "entry", "path", "text"),
    [
        (
            Arg("intel_iommu", "off", present=False),
            f"{LINE} intel_iommu=off",
            "/etc/default/grub",
            'GRUB_CMDLINE_LINUX_DEFAULT="quiet intel_iommu=off"\n',
        ),
        (
            Arg("hugepages", "8", exclusive=True),
            f"{LINE} hugepages=4 hugepages=8",
            "/etc/default/grub.d/10-site.cfg",
            "GRUB_CMDLINE_LINUX='hugepages=4'\n",
        ),
        (PT, LINE, "/etc/default/grub.d/zz.cfg", 'GRUB_CMDLINE_LINUX="quiet"\n'),
    ],
)
def test_what_others_files_say_is_named_and_left_to_them(arg: Arg, entry: str, path: str, text: str) -> None:
    boot = grub(entry, entry, kernel_args.render_dropin("iommu=pt hugepages=8"), {path: text})
    made = plan(boot, arg)
    persisted = made.findings[0]
    assert (persisted.state, made.changed) == ("not_owned", False)
    assert path in persisted.fix


def test_grubby_gets_one_call_for_all_kernels() -> None:
    boot = Boot("bls", "ro", (Entry("a.conf", "ro a=1"), Entry("b.conf", "ro iommu=pt")))
    made = plan(boot, PT, Arg("a", "2", exclusive=True), Arg("b", present=False))
    assert made.commands[0].argv == ("grubby", "--update-kernel=ALL", "--remove-args=a=1", "--args=iommu=pt a=2")
    assert states(made)["[persisted]@iommu=pt"] == "drift"


def test_etc_kernel_cmdline_is_edited_in_place() -> None:
    boot = Boot(
        "kernel-install", "ro", (Entry("/etc/kernel/cmdline", "root=/dev/vda  ro"),), "root=/dev/vda  ro\n", (),
        (("6.12.1", "/boot/vmlinuz-6.12.1"),),
    )  # fmt: skip
    made = plan(boot, PT)
    assert [change.after for change in made.changes] == ["root=/dev/vda  ro iommu=pt\n"]
    assert [str(c) for c in made.commands] == ["kernel-install add 6.12.1 /boot/vmlinuz-6.12.1"]


def test_a_node_that_boots_from_the_network_is_somebody_else_s() -> None:
    made = plan(Boot("", LINE), PT)
    assert states(made) == {"[persisted]@iommu=pt": "not_owned", "[live]@iommu=pt": "withheld"}
    assert made.findings[1].because == made.findings[0].id
    assert not made.changed
