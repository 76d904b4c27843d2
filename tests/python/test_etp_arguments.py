"""Arguments of another kind: each gets one sentence that names the op and the argument."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lacewing import etp

BUILDERS = {
    "small_world": lambda n: etp.small_world(n, 4, 0.1, seed=0),
    "fixed_degree": lambda n: etp.fixed_degree(n, n, 1, seed=0),
    "fixed_degree, fan_out": lambda n: etp.fixed_degree(3, n, 1, seed=0, fan_out=True),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
@pytest.mark.parametrize("size", [2**31, 2**40])
def test_sizes_beyond_the_limit_are_refused_before_anything_is_drawn(build: Callable[[int], object], size: int) -> None:
    with pytest.raises(RuntimeError, match=rf"\[lacewing\.etp\..*\] sizes \(.*{size}\) exceed 2\^31 - 1"):
        build(size)
