# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stacks of C++, which tell in what thread an error was met."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, stacks
from ansible_collections.busbar.fabric.plugins.plugin_utils import diagnose

FRAME = "{0}frame #{1}: {2} + 0x96 (0x7fd2c04b9446 in /opt/torch/lib/libc10.so)\n"


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(diagnose.render(log, jobs.split(log), judge.judge(log), 100).split())


def stack(names: list[str], label: str = "") -> str:
    return "".join(FRAME.format(label, number, name) for number, name in enumerate(names))


def test_a_stack_tells_the_thread_that_met_an_error() -> None:
    names = [
        "c10::Error::Error(c10::SourceLocation, std::string)",
        "<unknown function>",
        "c10::TensorImpl::~TensorImpl()",
    ]
    said = printed(
        "what(): CUDA error: an illegal thing\n" + stack([*names, "torch::autograd::Engine::thread_main(int)"])
    )
    assert "a stack of C++ (line 2): c10::TensorImpl::~TensorImpl < torch::autograd::Engine::thread_main (in a" in said
    assert "(autograd), as tensors are freed: where the error was met, which need not be where it arose)" in said


def test_stacks_of_ranks_that_mix_are_one_kind() -> None:
    one, two = (stack(["a::b(int)", "x::ncclCommWatchdog()"], f"[rank{rank}]: ").splitlines(True) for rank in (0, 1))
    said = printed(one[0] + two[0] + one[1] + two[1])
    assert "a stack of C++ (line 1; 2 of them): a::b < x::ncclCommWatchdog (in PyTorch's watchdog thread" in said


def test_the_stack_of_a_wait_that_was_given_up_tells_nothing() -> None:
    assert "a stack of C++" not in printed(stack(["x::checkTimeout(int)", "x::ncclCommWatchdog()"]))


def test_stacks_are_bounded() -> None:
    many = stacks.Stacks()
    for number in range(1000):
        many.line(f"[{number}] frame #0: f{number}::g{'x' * 400}() + 0x1", number)
        many.line("frame #" + "1" * 60_000, number)
    assert len(many.told()) == 8
    assert max(map(len, many.told())) < 200
