"""The command line of the fuzzer."""

from __future__ import annotations

import argparse
import sys
import time

from .processes import Finding, Limits, run_case, run_cases
from .targets import TARGETS

ROUND = 200  # cases of a target before the next one's turn


def fuzz(
    targets: list[str], first_seed: int, count: int | None, seconds: float | None, limits: Limits
) -> list[Finding]:
    """So many cases of each target, or cases for so long."""
    found = []
    started = time.monotonic()
    done = 0
    while (count is None or done < count) and (seconds is None or time.monotonic() - started < seconds):
        many = ROUND if count is None else min(ROUND, count - done)
        for name in targets:
            seeds = range(first_seed + done, first_seed + done + many)
            for finding in run_cases(name, TARGETS[name], seeds, limits):
                print(finding, flush=True)
                found.append(finding)
        done += many
    spent = time.monotonic() - started
    print(f"fuzz: {done} cases of each of {len(targets)} targets, {len(found)} findings, {spent:.0f} s")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fuzz.py", description=__doc__)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="one of them (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--count", type=int, help="cases of each target")
    parser.add_argument("--seconds", type=float, help="go on for so long (default: 60, where no count is given)")
    parser.add_argument("--case", action="store_true", help="run the case of --target and --seed in this process")
    given = parser.parse_args(arguments)
    targets = given.target or list(TARGETS)
    if given.case:
        print(run_case(TARGETS[targets[0]], given.seed) or "nothing is wrong")
        return 0
    seconds = 60.0 if given.count is None and given.seconds is None else given.seconds
    return 1 if fuzz(targets, given.seed, given.count, seconds, Limits()) else 0


if __name__ == "__main__":
    sys.exit(main())
