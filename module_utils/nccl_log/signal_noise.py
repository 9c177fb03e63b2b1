# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines with words of failures that report none: what stands around a traceback, warnings of Python's, commands."""

from __future__ import annotations

import re

# What Python, PyTorch and launchers print around a failure, which has nothing about it: at a line's begin, and in it.
_BEGINS = re.compile(
    r"\W*(?:File \"|raise \w|Exception raised from|frame #|Traceback|During handling|The above exception|"
    r"CUDA kernel errors might|For debugging consider|Compile with .?TORCH_USE|Device-side assertion tracking)|"
    r"\s*(?:if|elif|else|return|except|raise|def|assert)\b|"
    # The source of a warning of Python's, which stands below it.
    r"\s{0,40}(?:\w{1,60}\.){0,4}\w{0,40}warn\w{0,20}\(|"
    # A figure of a model or a check by its name.
    r"\W{0,20}(?:(?:test|train(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?|avg|average|mean|rms|squared|absolute|relative|"
    r"max(?:imum)?|prediction|reconstruction|numerical) ){1,3}errors?(?: rate)?\W{0,8}"
    r"(?:[\d.]{1,20}(?:e[-+]?\d{1,3})? ?%?\s*)?$",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"OMP_NUM_THREADS|(?:Future|Deprecation|User|Runtime|Resource|Syntax|ImportW?)Warning\b|Permanently added|"
    r"site-packages/\S+:\d+: \w*Warning|\+ 0x[0-9a-f]+ \(0x[0-9a-f]+ in |INTENDED_(?:USER|SYSTEM)_EXIT|"
    r"(?:^|[\s:\])])Last error: *$|Out of bounds values|Avg bus bandwidth|error_file *:|"
    r"handle_exception|-W ?error|errors='|on_error|error_rate|failfast|see all help / error messages|sent help message",
    re.IGNORECASE,
)
_AT = re.compile(r"(?:^|\s)at \S+\.\w+:\d+ *$")
# Every line that _NOISE matches has one of these, in small letters.
_NOISE_MARKS = (
    *("omp_num_threads", "warning", "permanently added", "+ 0x", "intended_", "last error:", "out of bounds values"),
    *("avg bus bandwidth", "error_file", "handle_exception", "-w", "errors='", "on_error", "error_rate"),
    *("failfast", "see all help / error messages", "sent help message"),
)
# A command as somebody typed it, or as a shell's -x prints it: its words report nothing.
_COMMAND = re.compile(
    r"(?:^|[\s$#>+])(?:[\w./~-]{0,200}/)?(?:mpirun|mpiexec|prterun|orterun|srun|sbatch|salloc|torchrun|horovodrun|deepspeed|"
    r"accelerate|docker|podman|kubectl|numactl|nsys)\s+(?:--?[A-Za-z]|[A-Z_]{2,40}=|(?:run|exec|launch|logs)\s)|"
    r"^\W{0,3}(?:\S{1,80}[$#] )?(?:[A-Z_]\w{0,60}=\S{0,200} ){0,20}"
    r"(?:python[\d.]*|bash|sh|export|nohup|sudo|env)\s+[-\w./]+"
    r"(?:\s+-|\s*$|=)"
)
# What a logger puts before each line of a traceback.
_LOGGED = re.compile(r"(?:\([^()]{1,80}\) ?){0,3}(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\[\]]{1,80}\] ")


def noise(text: str) -> bool:
    """Whether a line stands around failures and has nothing about them."""
    logged = _LOGGED.match(text) if "Traceback" in text else None
    text = text if logged is None else text[logged.end() :]
    if text.rstrip()[-4:] == "^^^^":
        return True  # what Python puts below the part of a line that failed
    if _BEGINS.match(text) is not None or (text.rstrip(" ")[-1:].isdigit() and _AT.search(text) is not None):
        return True
    small = text.lower()
    return any(mark in small for mark in _NOISE_MARKS) and _NOISE.search(text) is not None


def command(text: str) -> bool:
    """Whether a line is a command, whose words report nothing."""
    return _COMMAND.search(text) is not None
