from __future__ import annotations

import hashlib
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import grub_settings, iommu
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import line as kernel_line
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import plan as kernel_args
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args.grub import passed, quote
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args.grub_settings import render_dropin
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args.line import Arg, edit, satisfied
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args.read import Boot, Entry, read
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests import golden_rows, goldens, readings
from tests.trees import put, put_all

PT = Arg("iommu", "pt")
LINE = "root=UUID=6f1c ro console=tty0 console=ttyS0,115200 quiet"

NAMES = st.from_regex(r"[a-z][a-z0-9_.]{0,6}[a-z0-9]", fullmatch=True)
VALUES = st.text(st.characters(codec="ascii", exclude_characters='"', exclude_categories=["Cc"]), max_size=6)
ARGS = st.builds(Arg, NAMES, st.none() | VALUES)
PASSABLE = st.text(st.characters(codec="ascii", exclude_characters="\"'\\", exclude_categories=["Cc"]), max_size=6)
ABSENT = st.builds(Arg, NAMES, st.none() | VALUES, st.just(False))
LINES = st.text('ab=",- _\t', max_size=40)


@given(LINES)
def test_splitting_loses_nothing(line: str) -> None:
    assert "".join(gap + token for gap, token in kernel_line.split(line)) == line


@given(LINES, ARGS)
def test_absent_after_present_restores_and_twice_is_once(line: str, arg: Arg) -> None:
    # In an open quote whatever is added is part of the quoted value, for the kernel, too.
    line = line.replace('"', "") if line.count('"') % 2 else line
    tokens = [kernel_line.parse(token)[0] for _gap, token in kernel_line.split(line) if token]
    once = edit(line, [arg])
    assert satisfied(once, arg)
    assert edit(once, [arg]) == once
    if arg.name not in tokens:
        assert edit(once, [Arg(arg.name, arg.value, present=False)]) == line


WORDS = st.sampled_from(["a=1", "a=2", "a", 'b="x y"', '"c=x y"', "quiet", "a-b=1"])


@given(st.lists(WORDS, max_size=6), st.booleans())
def test_what_nobody_asked_for_stays(words: list[str], exclusive: bool) -> None:
    line = "  ".join(words)
    others = [word for word in words if kernel_line.parse(word)[0] != "a"]
    for arg in (Arg("a", "2", exclusive=exclusive), Arg("a", present=False), Arg("a", "1", present=False)):
        tokens = [token for _gap, token in kernel_line.split(edit(line, [arg]))]
        assert [token for token in tokens if kernel_line.parse(token)[0] != "a"] == others


def test_an_entry_of_others_that_grub_boots_is_theirs() -> None:
    boot = Boot("grub", "iommu=pt", (Entry("the default entry other", "root=/dev/sdb1", foreign=True),))
    [finding] = [one for one in plan(boot, PT).findings if not one.ok]
    assert (finding.state, finding.aspect) == ("not_owned", "persisted")


@given(st.lists(st.builds(Arg, NAMES, PASSABLE, st.just(True), st.booleans()) | ABSENT, max_size=3))
def test_our_drop_in_is_read_as_it_was_written(args: list[Arg]) -> None:
    assert grub_settings.parse_dropin(render_dropin(args)) == tuple(args)


SETTINGS = [text for (text,) in readings.cases("grub_settings")]
ASKED = readings.cases("kernel_args_asked")


def in_a_shell(settings: str) -> str:
    """The arguments of an entry, as grub-mkconfig (lines 159 to 167) and 10_linux make them."""
    script = f'set -e\n{settings}\nprintf "%s %s" "$GRUB_CMDLINE_LINUX" "$GRUB_CMDLINE_LINUX_DEFAULT"\n'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def tokens(line: str) -> list[str]:
    return [token for _gap, token in kernel_line.split(line) if token]


@settings(max_examples=3 * settings().max_examples)
@example(
    ["GRUB_CMDLINE_LINUX=a=3", 'GRUB_CMDLINE_LINUX_DEFAULT="iommu=pt intel_iommu=off a=3"'],
    [Arg("a", "3", exclusive=True), Arg("intel_iommu", "off", present=False)],
)
@given(st.lists(st.sampled_from(SETTINGS), max_size=5), st.lists(st.sampled_from(ASKED), min_size=1, max_size=3))
def test_whatever_the_settings_are_one_run_puts_them_right_for_ever(lines: list[str], args: list[Arg]) -> None:
    assume(len({arg.name for arg in args}) == len(args))
    text = "\n".join(lines) + "\n"
    before = in_a_shell(text)
    known = grub(before, before, elsewhere={"/etc/default/grub": text}).settings
    assert known is None or known.split() == before.split()
    made = plan(grub(before, before, elsewhere={"/etc/default/grub": text}), *args)
    if all(satisfied(before, arg) for arg in args):
        assert not made.changed
        return
    kept = made.changes[0].after
    assert kept is not None
    after = in_a_shell(text + kept)
    again = plan(grub(after, after, kept, {"/etc/default/grub": text}), *args)
    assert ([finding.id for finding in again.findings if not finding.ok], again.changed) == ([], False)
    # Nothing else is lost, nor in another order.
    names = {arg.name for arg in args}
    rest = [[token for token in tokens(line) if kernel_line.parse(token)[0] not in names] for line in (before, after)]
    assert rest[0] == rest[1]
    (had, of_init), (has, still_of_init) = (kernel_and_init(line) for line in (before, after))
    assert of_init == still_of_init
    for arg in args:
        same = [[t for t in part if kernel_line.parse(t) == (arg.name, arg.value)] for part in (had, has)]
        # Twice the same is no fault, and stays.
        once = arg.exclusive and not satisfied(before, arg)
        assert not arg.present or len(same[1]) == (1 if once else max(1, len(same[0])))


def kernel_and_init(line: str) -> tuple[list[str], list[str]]:
    words = tokens(line)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at:]


def grub(
    active: str = LINE, entry: str = LINE, kept: str | None = None, elsewhere: dict[str, str] | None = None
) -> Boot:
    return Boot("grub", active, (Entry("vmlinuz-6.1", entry),), kept, tuple((elsewhere or {}).items()))


def plan(boot: Boot, *args: Arg) -> Plan:
    return kernel_args.plan(boot, args, iommu.ARGS).limit("none")


def bls(line: str, *more: str) -> Boot:
    entries = [Entry(f"{number}.conf", text, f"/vmlinuz-{number}") for number, text in enumerate((line, *more), 1)]
    return Boot("bls", "ro", tuple(entries))


HAS_PT = f"{LINE} iommu=pt"
OURS = render_dropin([PT])
LATER = "/etc/default/grub.d/zz.cfg"
SET = {"/etc/default/grub": 'GRUB_CMDLINE_LINUX="iommu=pt"\n'}
ADDED = {
    "/etc/default/grub": "if true; then GRUB_CMDLINE_LINUX=a; fi\n",
    LATER: 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX b"\n',
}
TWO = bls("ro", "console=tty0")
SERIAL = Arg("console", "ttyS0")
# What boots, and the arguments that are wanted.
CASES: dict[str, tuple[Boot, *tuple[Arg, ...]]] = {
    "everything is there": (grub(HAS_PT, HAS_PT, elsewhere=SET), PT),
    "fresh": (grub(), PT),
    "pending": (grub(entry=HAS_PT, kept=OURS), PT),
    "taken away behind our back": (grub(HAS_PT), PT),
    # The generator would lose it the next time.
    "in no settings": (grub(HAS_PT, HAS_PT), PT),
    "in others' settings": (grub(elsewhere=SET), PT),
    # As a killed run leaves it.
    "drop-in without its grub.cfg": (grub(kept=OURS), PT),
    "beside another of ours": (grub(kept=render_dropin([Arg("hugepages", "64")])), PT),
    "not wanted any more": (grub(entry=f"{LINE} a", kept=render_dropin([Arg("a")])), Arg("a", present=False)),
    "others add after ours": (grub(elsewhere=ADDED), PT),
    "grubby, kernels alike": (bls("ro a=1", "ro iommu=pt"), PT, Arg("a", "2", exclusive=True), Arg("b", present=False)),
    # --args takes away what else there is of the name: it is asked for again.
    "grubby, another of the name": (bls(*["console=tty0 ro"] * 2), SERIAL),
    "grubby, spelt with a dash": (bls(*["intel-iommu=off ro"] * 2), Arg("intel_iommu", "off", present=False)),
    "grubby, both spellings": (bls(*["a-b=1 a_b=2"] * 2), Arg("a_b", "3", exclusive=True)),
    "grubby, twice": (bls(*["quiet quiet ro"] * 2), Arg("quiet", present=False)),
    "grubby, one of two values": (bls(*["a=1 a=2 a=1"] * 2), Arg("a", "1", present=False)),
    "grubby, a call for each kernel": (replace(TWO, entries=(*TWO.entries, Entry("c", "console=x"))), SERIAL),
    "grubby, and kernels to come": (replace(bls("ro", "ro"), stored="root=/dev/vda  ro\n"), PT),
    # A node that boots from the network.
    "somebody else's": (Boot("", LINE), PT),
}


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_is_planned(case: str) -> None:
    boot, *args = CASES[case]
    made = plan(boot, *args)
    lines = [line for change in made.changes for line in (change.after or "").splitlines()]
    arguments = [line for line in lines if line.startswith(("busbar_argument add", "busbar_argument remove", "root="))]
    goldens.check("kernel_args", case, [*golden_rows.plan(made), *arguments])
    assert ("pending" in str([f.have for f in made.findings])) is (case == "pending")


@pytest.mark.parametrize(("arg", "text"), readings.cases("kernel_args_later_file"))
def test_what_is_read_after_ours_is_named_and_left_to_its_owner(arg: Arg, text: str) -> None:
    line = f"{LINE} intel_iommu=off hugepages=4"
    made = plan(grub(line, line, render_dropin([arg]), {LATER: text}), arg)
    assert (made.findings[0].state, made.changed, LATER in made.findings[0].fix) == ("not_owned", False, True)


@pytest.mark.parametrize(("line", "arg", "spoilt"), readings.cases("kernel_args_grubby_spoils"))
def test_what_grubby_would_spoil_is_left_to_a_person(line: str, arg: Arg, spoilt: str) -> None:
    made = plan(bls(line), arg)
    assert (made.changed, made.findings[0].state) == (False, "drift")
    assert f"grubby would corrupt {spoilt}: edit" in made.findings[0].fix


TUNED = "/usr/lib/tuned/site/tuned.conf"


def update_grub(root: Path) -> None:
    """As grub-mkconfig, 00_tuned and 10_linux do it."""
    names = [root / "etc/default/grub", *sorted((root / "etc/default/grub.d").glob("*.cfg"))]
    tuned = root / "etc/tuned/bootcmdline"
    line = in_a_shell("".join(f"{name.read_text()}\n" for name in names if name.exists()))
    text = f'set tuned_params="{tuned.read_text() if tuned.exists() else ""}"\n'
    text += "### BEGIN /etc/grub.d/10_linux ###\nmenuentry 'x' {\n\tlinux /boot/vmlinuz-6.1 root=/dev/sda ro "
    put(root, "/boot/grub/grub.cfg", f"{text}{line}\n}}\n### END /etc/grub.d/10_linux ###\n")


def node(root: Path, files: dict[str, str]) -> Host:
    for path, text in {"/proc/cmdline": "ro", "/usr/sbin/update-grub": "#!/bin/sh\n", **files}.items():
        put(root, path, text, 0o755)
    update_grub(root)
    return Host(str(root), str(root))


def judge(host: Host, *args: Arg) -> Plan:
    return kernel_args.plan(read(host), args, iommu.ARGS)


def bad(made: Plan) -> list[Finding]:
    return [finding for finding in made.findings if not finding.ok and finding.aspect == "persisted"]


def apply(root: Path, made: Plan) -> None:
    for change in made.changes:
        put(root, change.path, change.after or "")
    update_grub(root)


ACS = Arg("pci", "config_acs=xx111x0@0008:00:00.0;xx110x1@0008:02:00.0")


@pytest.mark.parametrize(("settings", "arg", "line"), readings.cases("kernel_args_written"))
def test_what_is_written_is_what_the_next_boot_has(tmp_path: Path, settings: str, arg: Arg, line: str) -> None:
    host = node(tmp_path, {"/etc/default/grub": f'GRUB_CMDLINE_LINUX="{settings}"\n'})
    made = judge(host, arg)
    assert ([f.state for f in bad(made)], made.changed) == (["drift"] if line else [], bool(line))
    if line:
        apply(tmp_path, made)
        (found,) = [text for text in (tmp_path / "boot/grub/grub.cfg").read_text().splitlines() if "vmlinuz" in text]
        assert found.split()[2:] == line.split()
        assert (bad(judge(host, arg)), judge(host, arg).changed) == ([], False)


def test_what_grub_cannot_pass_on_is_refused(tmp_path: Path) -> None:
    host = node(tmp_path, {"/etc/default/grub": "\n"})
    with pytest.raises(ParseError, match="GRUB cannot pass on"):
        judge(host, Arg("dyndbg", "file 'a' +p"))


def test_the_drop_in_of_an_earlier_release_is_no_drift_unless_grub_cuts_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = '# Written by Busbar\nbusbar_argument() { GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX $2"; }\n'
    monkeypatch.setattr(grub_settings, "_FORMER_HEADS", (hashlib.sha256(head.encode()).hexdigest(),))
    text = head + "busbar_argument add iommu=pt\n"
    host = node(tmp_path, {"/etc/default/grub": "\n", grub_settings.DROPIN: text})
    made = judge(host, PT)
    assert (bad(made), made.changed) == ([], False)
    put(tmp_path, grub_settings.DROPIN, f"{text}busbar_argument add '{ACS.token}'\n")
    update_grub(tmp_path)
    made = judge(host, ACS)
    assert [f.state for f in bad(made)] == ["drift"]
    apply(tmp_path, made)
    assert bad(judge(host, PT, ACS)) == []


# followed: files of who has done what the advice says.
@pytest.mark.parametrize(("files", "arg", "names", "followed"), readings.cases("kernel_args_advice"))
def test_who_does_what_the_advice_says_is_rid_of_the_finding(
    tmp_path: Path, files: dict[str, str], arg: Arg, names: list[str], followed: dict[str, str]
) -> None:
    host = node(tmp_path, files)
    if not files.get("/usr/sbin/update-grub", "x"):
        (tmp_path / "usr/sbin/update-grub").unlink()
    for _run in range(2):
        made = judge(host, arg)
        (found,) = bad(made)
        assert (found.state, [name for name in names if name not in found.fix]) == ("not_owned", [])
        apply(tmp_path, made)
    assert not made.changed
    put_all(tmp_path, followed)
    update_grub(tmp_path)
    assert (bad(judge(host, arg)), judge(host, arg).changed) == ([], False)


def test_what_sets_an_argument_is_named(tmp_path: Path) -> None:
    files = {
        "/usr/sbin/tuned-adm": "#!/bin/sh\n",
        "/etc/tuned/active_profile": "child\n",
        "/etc/tuned/child/tuned.conf": "[main]\ninclude=site\n[bootloader]\ncmdline_child=+nohz=on\n",
        TUNED: "[bootloader]\ncmdline=iommu=pt isolcpus=${cores}\n",
        "/etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet \\$tuned_params"\n',
        "/etc/tuned/bootcmdline": "iommu=pt nohz=on",
    }
    found = judge(node(tmp_path, files), PT, Arg("nohz", "on")).findings
    assert all(finding.ok for finding in found if finding.aspect == "persisted")
    assert [TUNED in found[0].source, "/etc/tuned/child/tuned.conf" in found[2].source] == [True, True]
    assert found[0].have == "iommu=pt"


def test_what_is_on_the_line_is_shown() -> None:
    for active, have in (("ro intel_iommu=off", "intel_iommu=off"), ("ro", "not on the command line")):
        found = plan(grub(active=active), Arg("intel_iommu", "on")).findings[1]
        assert (found.aspect, found.have) == ("live", have)


def test_boot_entries_are_read_through_grub_s_shell_and_edited_by_hand_where_grubby_cannot(tmp_path: Path) -> None:
    entry = "title Rocky\nlinux /vmlinuz-5.14\noptions {}\n"
    files = {
        "/usr/sbin/grubby": "#!/bin/sh\n",
        "/boot/loader/entries/a.conf": entry.format("$kernelopts pci=config_acs=A;B iommu=pt $tuned_params"),
        "/boot/grub2/grubenv": "kernelopts=root=/dev/sda ro\ntuned_params=iommu.passthrough=0\n",
    }
    host = node(tmp_path, files)
    assert [e.line for e in read(host).entries] == ["root=/dev/sda ro pci=config_acs=A"]
    (found,) = bad(judge(host, ACS))
    assert f'pci="{ACS.value}"' in found.fix
    options = f'$kernelopts pci="{ACS.value}" iommu=pt $tuned_params'
    put(tmp_path, "/boot/loader/entries/a.conf", entry.format(options))
    assert bad(judge(host, ACS)) == []
    assert [f.subject for f in bad(judge(host, PT))] == ["iommu=pt"]


# -- GRUB's language and the kernel's; tests/el compares the first with the real grub-emu ------------------------------


@given(PASSABLE)
def test_a_value_that_is_quoted_comes_through_whole(value: str) -> None:
    [line] = passed(f"ro {quote('a', value)} end", {})
    tokens = [kernel_line.parse(token) for _gap, token in kernel_line.split(line)]
    assert tokens == [("ro", None), ("a", value), ("end", None)]


def next_arg(text: str) -> tuple[str, str | None]:
    """lib/cmdline.c, by index as there."""
    quoted = in_quote = text.startswith('"')
    args, equals = text[quoted:], 0
    end = len(args)
    for at, char in enumerate(args):
        if char.isspace() and not in_quote:
            end = at
            break
        equals = equals or (at if char == "=" else 0)
        in_quote ^= char == '"'
    name, value = args[: equals or end], args[equals + 1 : end] if equals else None
    closed = end and args[end - 1] == '"'
    if value is not None and value.startswith('"'):
        value = value[1:-1] if closed and len(value) > 1 else value[1:]
    elif quoted and closed:
        name, value = (name, value[:-1]) if value is not None else (name[:-1], None)
    return name.replace("-", "_"), value


@given(st.text('ab=" -', min_size=1, max_size=12).filter(lambda text: text[0] not in " ="))
def test_a_token_is_parsed_as_the_kernel_does(text: str) -> None:
    token = kernel_line.split(text)[0][1]
    if not token.startswith(('"=', '""')):  # a name of nothing
        assert kernel_line.parse(token) == next_arg(text)
