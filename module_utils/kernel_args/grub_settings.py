# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Settings of GRUB's generator: shell, of which the plain part is understood; and Busbar's drop-in among them.

Sources: grub-mkconfig and 10_linux (GRUB 2.06); POSIX 2.2 (quoting).
"""

from __future__ import annotations

import hashlib
import itertools
import re
import shlex
from typing import Dict, List, Optional, Sequence, Tuple

from ..change import written
from ..core.host import ParseError
from . import grub
from .line import Arg, edit, parse

# After 50-cloudimg-settings.cfg, which sets one of the variables.
DROPIN = "/etc/default/grub.d/99-busbar.cfg"
LINUX, DEFAULT = "GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"
# The shell of grub-mkconfig runs this after the other settings, so that it holds whatever they do to come to their
# values. It leans on nothing that they may have set (IFS, set -e, set -u), and starts no program.
_HEAD = """\
# Written by Busbar (role or module that manages kernel arguments). Your own arguments belong into another file.
# grub-mkconfig reads this after all files whose names sort before it. Whatever those make of GRUB_CMDLINE_LINUX and
# GRUB_CMDLINE_LINUX_DEFAULT: what is added below is there, what is removed is not, and all else stays.
busbar_split() {
    # As the kernel does it: a name, in which - is _, and =value.
    busbar_name=${1%%=*}
    busbar_value=${1#"$busbar_name"}
    while :; do
        case $busbar_name in *-*) busbar_name=${busbar_name%%-*}_${busbar_name#*-} ;; *) break ;; esac
    done
}
busbar_word() {
    # One word, and the blanks before it: it stays, is replaced, or is left out. What follows -- is for init.
    busbar_split "$busbar_text"
    if [ "$busbar_word" = -- ]; then
        if [ -z "$busbar_init$busbar_there" ]; then
            busbar_line=$busbar_line$busbar_gap$busbar_token
            busbar_gap=' '
            busbar_there=yes
        fi
        busbar_init=yes
    elif [ -z "$busbar_init" ] && [ "$busbar_name" = "$busbar_wanted" ]; then
        case $busbar_mode in
        add) if [ "$busbar_value" = "$busbar_right" ]; then busbar_there=yes; fi ;;
        only)
            if [ -n "$busbar_there" ]; then return 0; fi
            busbar_word=$busbar_token
            busbar_there=yes
            ;;
        remove) if [ -z "$busbar_right" ] || [ "$busbar_value" = "$busbar_right" ]; then return 0; fi ;;
        esac
    fi
    busbar_line=$busbar_line$busbar_gap$busbar_word
}
busbar_words() {
    # As GRUB does it: blanks within quotes and behind a backslash part no words, which busbar_text has without quotes.
    busbar_rest=$1 busbar_line='' busbar_gap='' busbar_word='' busbar_text='' busbar_quote=''
    while [ -n "$busbar_rest" ]; do
        busbar_tail=${busbar_rest#?}
        busbar_char=${busbar_rest%"$busbar_tail"}
        busbar_rest=$busbar_tail
        case $busbar_quote$busbar_char in
        [[:space:]])
            if [ -n "$busbar_word" ]; then busbar_word; busbar_gap='' busbar_word='' busbar_text=''; fi
            busbar_gap=$busbar_gap$busbar_char
            continue
            ;;
        '"' | "'" | '\\' | '"\\') busbar_quote=$busbar_quote$busbar_char ;;
        '""' | "''") busbar_quote='' ;;
        '"\\"' | '"\\\\' | '"\\$') busbar_quote='"' busbar_text=$busbar_text$busbar_char ;;
        '"\\'?) busbar_quote='"' busbar_text=$busbar_text'\\'$busbar_char ;;
        '\\'?) busbar_quote='' busbar_text=$busbar_text$busbar_char ;;
        *) busbar_text=$busbar_text$busbar_char ;;
        esac
        busbar_word=$busbar_word$busbar_char
    done
    if [ -n "$busbar_word" ]; then busbar_word; else busbar_line=$busbar_line$busbar_gap; fi
}
busbar_argument() {
    busbar_mode='' busbar_token=$2 busbar_there='' busbar_init='' busbar_wanted=''
    busbar_words "$busbar_token"
    busbar_mode=$1 busbar_wanted=$busbar_name busbar_right=$busbar_value
    if [ "$busbar_mode" = remove ]; then busbar_there=yes; fi
    busbar_words "${GRUB_CMDLINE_LINUX-}"
    GRUB_CMDLINE_LINUX=$busbar_line
    busbar_words "${GRUB_CMDLINE_LINUX_DEFAULT-}"
    GRUB_CMDLINE_LINUX_DEFAULT=$busbar_line
    if [ -z "$busbar_there" ]; then
        GRUB_CMDLINE_LINUX="${GRUB_CMDLINE_LINUX:+$GRUB_CMDLINE_LINUX }$busbar_token"
    fi
}
"""
_CALL = "busbar_argument "
# SHA-256 of the program of release 0.1.0: it does the same but for GRUB's quotes.
_FORMER_HEADS = ("f173f61d5373df1681dfa5e1156a494aa874c365cc493a502d6f6e02fa37c8f3",)
# What an expansion does beyond a variable's value takes a shell.
_EXPANSION = r"(?:\$\{[^{}'\"`\\]*\}|\$[A-Za-z_]\w*|`[^`\\'\"]*`|\$\([^()'\"`\\]*\)|~)"
_SHELL = grub.Language(_EXPANSION, "|&()<>`~", r'$"\\\n`')


def evaluate(text: str, values: Dict[str, Optional[str]]) -> bool:
    """Return whether the text only assigns; then put its assignments into values, None for what needs a shell."""
    for words in _SHELL.commands(text):
        export = words[:1] == ["export"]
        for word in words[1:] if export else words:
            name, equals, value = word.partition("=")
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or not _SHELL.word.fullmatch(word):
                return False
            if equals:
                values[name] = _evaluated(value, values, export)
            elif not export:
                return False
    return True


def _evaluated(word: str, values: Dict[str, Optional[str]], export: bool) -> Optional[str]:
    found = ""
    given = {name: value for name, value in values.items() if value is not None}
    for text, splits in _SHELL.parts(word, lambda variable: given.get(variable.strip("${}"), "\0")):
        # dash parts an unquoted $X after export into words.
        found += "\0" if splits and export else text
    return None if "\0" in found else found


def _apply(values: Dict[str, Optional[str]], args: Sequence[Arg]) -> None:
    """Do what our drop-in does."""
    for arg in args:
        lines = [values[LINUX], values[DEFAULT]]
        first, second = (line or "" for line in lines)
        both = "%s %s" % (first, second)
        if None not in lines and edit(both, [arg], in_grub=True) != both:
            if arg.exclusive or not arg.present:
                gone = Arg(arg.name, None if arg.exclusive else arg.value, present=False)
                first, second = edit(first, [gone], in_grub=True), edit(second, [gone], in_grub=True)
            values[LINUX], values[DEFAULT] = edit(first, [arg], in_grub=True), second


def arguments(files: Sequence[Tuple[str, str]]) -> Optional[str]:
    """Return the arguments of a normal entry, as GRUB gets them; None where that takes a shell.

    files: path -> text, the drop-in among them.
    """
    values: Dict[str, Optional[str]] = {LINUX: "", DEFAULT: ""}
    for path, text in sorted(files):
        if path == DROPIN:
            _apply(values, parse_dropin(text))
        elif not evaluate(text, values):
            return None
    first, second = values[LINUX], values[DEFAULT]
    return None if first is None or second is None else ("%s %s" % (first, second)).strip()


# -- our drop-in -----------------------------------------------------------------------------------------------------


def render_dropin(args: Sequence[Arg]) -> str:
    """Raises ParseError for what GRUB cannot pass on whole."""
    modes = ["only" if arg.exclusive else "add" if arg.present else "remove" for arg in args]
    tokens = [arg.grub_token if arg.present else arg.token for arg in args]
    calls = "".join("%s%s %s\n" % (_CALL, mode, shlex.quote(token)) for mode, token in zip(modes, tokens))
    return written.seal(DROPIN, _HEAD + calls)


def parse_dropin(text: str) -> Tuple[Arg, ...]:
    """Return what our drop-in sees to. Raises ParseError where it was edited."""
    lines = text.splitlines(True)
    program = "".join(line for line in lines if not line.startswith("# " + written.HEAD))
    former = hashlib.sha256((text.partition("\n" + _CALL)[0] + "\n").encode()).hexdigest() in _FORMER_HEADS
    if program.startswith(_HEAD.partition("\n")[2]) or written.seal_of(text) or former:
        try:
            calls = itertools.dropwhile(lambda line: not line.startswith(_CALL), lines)
            return tuple(_called(shlex.split(line)) for line in calls)
        except ValueError:
            pass
    if all(line.startswith("#") for line in lines if line.strip()):
        return ()
    raise ParseError(
        "%s was edited by hand, and Busbar cannot read it: move your own lines into another file there, and remove it"
        % DROPIN
    )


def _called(words: List[str]) -> Arg:
    if len(words) != 3 or words[0] != _CALL.strip() or words[1] not in ("add", "only", "remove"):
        raise ValueError(words)
    return _arg(words[2], words[1])


def _arg(token: str, mode: str = "add") -> Arg:
    name = grub.unquote(token).strip('"').partition("=")[0]
    return Arg(name, parse(token, in_grub=mode != "remove")[1], mode != "remove", mode == "only")
