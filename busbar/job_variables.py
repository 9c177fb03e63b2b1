# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL's variables in what starts a job: shell and batch scripts, Dockerfiles, Kubernetes and compose files, Python.

Nothing is run, and a value that only running it would tell is passed over. An argument list (`mpirun -x NCCL_X=1`,
`--export=`, `docker run -e`) counts wherever it stands.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.shell_assignments import MENTION, Assignment, parse

KINDS = ("conf", "script", "dockerfile", "yaml", "python")
_ENDINGS = {
    **dict.fromkeys((".sh", ".bash", ".csh", ".sbatch", ".slurm", ".pbs", ".job"), "script"),
    **dict.fromkeys((".yml", ".yaml", ".json"), "yaml"),
    **dict.fromkeys((".dockerfile", ".containerfile"), "dockerfile"),
    ".py": "python",
    ".conf": "conf",
}
_DIRECTIVE = re.compile(r"#(?:SBATCH|PBS|BSUB|\$)[ \t]+(.*)")
_INSTRUCTION = re.compile(r"(?i)[ \t]*(ENV|CMD|ENTRYPOINT|RUN)[ \t]+(.*)", re.DOTALL)


def kind_of(name: str, text: str) -> str:
    """By the file's name, else by how it begins; nccl.conf where nothing says otherwise."""
    base = name.lower().replace("\\", "/").rpartition("/")[2]
    if base.startswith(("dockerfile", "containerfile")):
        return "dockerfile"
    for ending, kind in _ENDINGS.items():
        if base.endswith(ending):
            return kind
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("# ")), "")
    if first.startswith("#!"):
        return "python" if "python" in first else "script"
    if re.search(r"(?m)^#(SBATCH|PBS|BSUB) ", text):
        return "script"
    if re.match(r"(?i)(FROM|ARG)\s+\S", first):
        return "dockerfile"
    return "yaml" if re.search(r"(?m)^(apiVersion|services|kind):", text) else "conf"


def read(text: str, kind: str) -> list[Assignment]:
    """What the text sets. Raises ParseError with the line where it is not of its kind."""
    found = {"script": _script, "dockerfile": _dockerfile, "yaml": _yaml, "python": _python}[kind](text)
    return sorted(found, key=lambda one: one.line)


def _script(text: str) -> list[Assignment]:
    found = parse(text)
    for number, line in enumerate(text.splitlines(), 1):
        match = _DIRECTIVE.match(line)
        if match:
            found += _at(parse("sbatch " + match.group(1)), number)
    return found


def _at(found: list[Assignment], first: int) -> list[Assignment]:
    """The assignments of a part of a file that begins in line ``first``, with the lines of the whole file."""
    return [replace(one, line=one.line + first - 1) for one in found]


def _dockerfile(text: str) -> list[Assignment]:
    found = []
    rows = text.splitlines()
    number = 0
    while number < len(rows):
        first, row = number + 1, rows[number]
        while row.endswith("\\") and number + 1 < len(rows):
            number += 1
            # Comments between the lines of an instruction are taken out, and the lines have to keep their numbers.
            row += "\n" + (rows[number] if not rows[number].lstrip().startswith("#") else "\\")
        number += 1
        match = _INSTRUCTION.match(row)
        if match:
            found += _at(_instruction(match.group(1).upper(), match.group(2)), first)
    return found


def _instruction(word: str, rest: str) -> list[Assignment]:
    if word == "ENV":
        return parse(("export " if "=" in rest.split()[0] else "setenv ") + rest) if rest.split() else []
    try:
        words = json.loads(rest)
    except ValueError:
        words = None
    if isinstance(words, list):
        rest = shlex.join(map(str, words))
    # What RUN exports ends with it.
    return [one for one in parse(rest) if word != "RUN" or one.scope == "argument"]


def _yaml(text: str) -> list[Assignment]:
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise ParseError(f"{where}no YAML: {getattr(error, 'problem', None) or 'it cannot be read'}") from error
    found: list[Assignment] = []
    done: set[int] = set()
    waiting = [document for document in documents if document is not None]
    while waiting:
        node = waiting.pop()
        if id(node) in done:
            continue  # an alias
        done.add(id(node))
        if isinstance(node, yaml.MappingNode):
            found += _mapping(node)
            waiting += [value for _key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            found += _sequence(node)
            waiting += [item for item in node.value if not isinstance(item, yaml.ScalarNode)]
        elif isinstance(node, yaml.ScalarNode):
            found += _text(node)
    return found


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _mapping(node: yaml.MappingNode) -> Iterator[Assignment]:
    """`name: NCCL_X, value: "1"` of a container, and `NCCL_X: 1` of a ConfigMap or a compose file."""
    pairs = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
    name, value = pairs.get("name"), pairs.get("value")
    if isinstance(name, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode) and MENTION.fullmatch(name.value):
        yield Assignment(name.value, value.value, _line(value), "environment")
    for key, item in node.value:
        if isinstance(key, yaml.ScalarNode) and isinstance(item, yaml.ScalarNode) and MENTION.fullmatch(key.value):
            yield Assignment(key.value, item.value, _line(item), "environment")


def _sequence(node: yaml.SequenceNode) -> list[Assignment]:
    """`- NCCL_X=1` of a compose file, or the words of a command: `["mpirun", "-x", "NCCL_X=1"]`."""
    found: list[Assignment] = []
    words: list[yaml.ScalarNode] = [item for item in node.value if isinstance(item, yaml.ScalarNode)]
    for number, item in enumerate(words):
        if "\n" in item.value or " " in item.value.strip():
            found += _text(item)
        elif MENTION.search(item.value):
            before = words[number - 1].value if number else ""
            found += _at(parse(shlex.join(["start", before, item.value])), _line(item))
    return found


def _text(node: yaml.ScalarNode) -> list[Assignment]:
    """A script within the file: `args: |`."""
    value = str(node.value)
    return _at(parse(value), _line(node) + (node.style in ("|", ">"))) if MENTION.search(value) else []


def _python(text: str) -> list[Assignment]:
    """`os.environ["NCCL_X"] = "1"`, `environ.setdefault("NCCL_X", "1")`, `env={"NCCL_X": "1"}`."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ParseError(f"line {getattr(error, 'lineno', None) or 1}: no Python of this version") from error
    found = []
    for node in ast.walk(tree):
        pairs: list[tuple[ast.expr | None, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target.slice, node.value) for target in node.targets if isinstance(target, ast.Subscript)]
        elif isinstance(node, ast.Dict):
            pairs = list(zip(node.keys, node.values, strict=True))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".setdefault", ".putenv", ".setenv")):
            pairs = [(node.args[0], node.args[1])] if len(node.args) > 1 else []
        for key, value in pairs:
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and MENTION.fullmatch(key.value):
                said = str(value.value) if isinstance(value, ast.Constant) else None
                found.append(Assignment(key.value, said, key.lineno, "environment"))
    return found
