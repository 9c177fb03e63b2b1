"""GRUB's language; tests/el compares it with the real grub-emu."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import grub
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args.line import parse, split
from hypothesis import given
from hypothesis import strategies as st

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
