"""Peak memory of E1's contenders, and from which length of a sequence on D-RTRL needs less than each form of BPTT.

PYTHONPATH=python python -m benchmarks.e1_memory [T ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.case import OURS
from benchmarks.memory import peak_bytes
from benchmarks.peers.torch_bptt import CSR, MASKED, SAMPLED, Entries
from benchmarks.workloads.e1_drtrl import BLOCKED, EVERY, WHOLE, Data, Problem, bptt, drtrl, make_sequence

CPU = torch.device("cpu")
FORMS = (MASKED, CSR, SAMPLED)
LONGEST = 200


def first_longer(needs_more: Callable[[int], bool], longest: int) -> int:
    """The least T in [1, longest] at which it holds, where it then holds for every greater one."""
    low, high = 1, longest
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if needs_more(middle) else (middle + 1, high)
    return low


def main(lengths: Sequence[int]) -> None:
    """Prints a line for each length, then the crossings."""
    problem = Problem(16, 512, 4096, 64, CPU)
    pattern = problem.pattern()
    entries = Entries(pattern.row, pattern.col, pattern.shape)
    runs: dict[str, Callable[[Data], Sequence[Tensor]]] = {OURS: drtrl(pattern), BLOCKED: drtrl(pattern, EVERY)}
    runs[WHOLE] = drtrl(pattern, reset_gradient=True)
    runs |= {form: bptt(form, entries) for form in FORMS}

    def mebibytes(name: str, steps: int) -> float:
        data = make_sequence(problem, steps, pattern.nse)(0)
        return peak_bytes(lambda: runs[name](data), CPU) / 2**20

    for name in runs:
        mebibytes(name, 2)  # what is made once and kept
    for steps in lengths:
        print(f"T = {steps}: " + ", ".join(f"{name} {mebibytes(name, steps):.2f} MiB" for name in runs))
    for ours in (OURS, BLOCKED, WHOLE):
        least = mebibytes(ours, LONGEST)
        for form in FORMS:
            found = first_longer(lambda steps, form=form, least=least: mebibytes(form, steps) > least, LONGEST)
            print(f"{ours} needs less than {form} from T = {found} on")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [33, 50, LONGEST])
