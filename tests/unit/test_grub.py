"""GRUB's language; tests/el compares it with the real grub-emu."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import grub
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args.line import parse, split
from hypothesis import given
from hypothesis import strategies as st

CFG = """\
set default="0"
if [ -s $prefix/grubenv ]; then
  load_env
fi
set tuned_params="intel_iommu=on iommu=pt"
if [ x$feature = xy ]; then set site=hugepages=8; else set site=quiet; fi
function gfxmode {
	set handoff=vt.handoff=7
}
menuentry 'Debian' --class os $menuentry_id_option 'gnulinux' {
	set extra="$tuned_params"
	linux	($root)/vmlinuz-6.1 ro "$extra" $handoff $menuentry_id_option
	initrd	/initrd.img
}
submenu 'Others' { menuentry 'one line' { linux /vmlinuz-5.10 ro $site $tuned_params; initrd /x; } }
linux
"""


def test_variables_are_what_the_file_sets_and_a_condition_leaves_all_values() -> None:
    found, scope = grub.read(CFG, {})
    assert found == [
        ("($root)/vmlinuz-6.1", 'ro "intel_iommu=on iommu=pt"'),
        ("($root)/vmlinuz-6.1", 'ro "intel_iommu=on iommu=pt" vt.handoff=7'),
        ("/vmlinuz-5.10", "ro intel_iommu=on iommu=pt"),
        ("/vmlinuz-5.10", "ro hugepages=8 intel_iommu=on iommu=pt"),
        ("/vmlinuz-5.10", "ro quiet intel_iommu=on iommu=pt"),
    ]
    assert scope["tuned_params"] == ("intel_iommu=on iommu=pt",)
    many = {f"v{number}": ("a", "b") for number in range(6)}
    with pytest.raises(ParseError, match="more than 16"):
        grub.passed(" ".join(f"$v{number}" for number in range(6)), many)


VALUES = st.text(st.characters(codec="ascii", exclude_characters="\"'\\", exclude_categories=["Cc"]), max_size=9)


@given(VALUES)
def test_a_value_that_is_quoted_comes_through_whole(value: str) -> None:
    [line] = grub.passed(f"ro {grub.quote('a', value)} end", {})
    assert [parse(token) for _gap, token in split(line)] == [("ro", None), ("a", value), ("end", None)]


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
    token = split(text)[0][1]
    if not token.startswith(('"=', '""')):  # a name of nothing
        assert parse(token) == next_arg(text)
