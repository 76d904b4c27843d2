"""Bad plans, edges and operands: one sentence each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lacewing


def _plan(**changes: Any) -> lacewing.ProductPlan:
    fields: dict[str, Any] = {
        "form": "u,v,uvw->w",
        "index": ([0, 1, 1], [0, 0, 1], [0, 0, 1]),
        "out": [0, 1, 2],
        "rows": (2, 2, 2),
        "out_rows": 3,
    }
    return lacewing.product_plan(**{**fields, **changes})


def _operands(**changes: Any) -> list[torch.Tensor]:
    shapes = {"x": (4, 2, 3), "y": (4, 2, 5), "w": (2, 3, 5, 7), **changes}
    return [torch.randn(shapes[name]) for name in "xyw"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"form": "uu,v,uvw->w"}, r'letter u stands twice in "uu" of "uu,v,uvw->w"'),
        ({"form": "u,v,uvw"}, r'a product is written like "u,v,uvw->w", with one "->", not "u,v,uvw"'),
        ({"form": "u,v,u1w->w"}, r"has '1', which is no letter"),
        ({"form": 3}, r"form must be a string, not int"),
        ({"index": ([0, 1, 2], [0, 0, 1], [0, 0, 1])}, r"index\[0\]\[2\] = 2 is out of range: rows\[0\] is 2"),
        ({"index": ([0, -1, 1], [0, 0, 1], [0, 0, 1])}, r"index\[0\]\[1\] = -1 is negative"),
        ({"index": ([0, 1, 1], [0, 0], [0, 0, 1])}, r"index\[1\] has 2 entries but index\[0\] has 3"),
        ({"index": ([0, 1, 1], [0, 0, 1])}, r"index has 2 entries for 3 places"),
        ({"out": [0, 1, 3]}, r"out\[2\] = 3 is out of range: out_rows is 3"),
        ({"out": [0.0, 1.0, 2.0]}, r"out must have dtype int32 or int64, not float32"),
        ({"scale": [1.0, 2.0]}, r"index\[0\] has 3 entries but scale has 2"),
        ({"scale": torch.ones(3, 1)}, r"scale must have shape \(T,\), not \(3, 1\)"),
        ({"rows": (2, 2, -3)}, r"rows\[2\] must lie in \[0, \d+\], not -3"),
        ({"index": None, "out": None, "rows": (5, 2, 2)}, None),
        ({"extents": {"z": 3}}, r"extents names the letter z, which the product does not have"),
        (
            {"form": ",".join("a" * 11) + "->a", "index": None, "rows": None},
            r"a product has at most 10 operands, not 11",
        ),
    ],
)
def test_plans(changes: dict[str, Any], sentence: str | None) -> None:
    if sentence is None:
        assert _plan(**changes).sizes[0] == 2
        return
    with pytest.raises((ValueError, RuntimeError, TypeError), match=r"^\[lacewing.product_plan\] .*" + sentence):
        _plan(**changes)


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ([[[2], [3]], [[2], [2]]], r"term 1 joins rows of 3 and 2 entries of letter u: row 1 of operands\[1\] has 2"),
        ([([[2], [3]], [0, 1]), [[2], [3]]], r"layout\[0\] .*rows must not overlap"),
        ([[[2, 1], [3, 1]], [[2], [3]]], r"layout\[0\].extent must have shape \(rows, 1\), a column for each letter"),
        ([([[2], [3]], [0, -1]), [[2], [3]]], r"layout\[0\].offset\[1\] = -1 is negative"),
    ],
)
def test_layouts(layout: list[Any], sentence: str) -> None:
    rows = [lacewing.RowLayout(*each) if isinstance(each, tuple) else lacewing.RowLayout(each) for each in layout]

    with pytest.raises(RuntimeError, match=r"^\[lacewing.product_plan\] .*" + sentence):
        lacewing.product_plan("u,u->", index=([0, 1], [0, 1]), rows=(2, 2), layout=[*rows, None])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"maps": ([0, 1, 4], None, "shared"), "batch": (4, None, None)},
            r"maps\[0\]\[2\] = 4 is out of range: batch\[0\] is 4",
        ),
        ({"maps": ([0, 1], None, "shared")}, r"out has 3 edges but maps\[0\] has 2"),
        ({"out": [1, 0, 1], "sorted": True}, r"out was promised not to decrease, but out\[1\] = 0 follows 1"),
        ({"maps": ("all", None, None)}, r'maps\[0\] must be None, "shared" or a list of integers, not \'all\''),
        ({"edges": 4}, r"out has 3 edges but edges is 4"),
        ({"batch": (4,)}, r"batch has 1 entries for 3 places"),
        ({"out_batch": 1}, r"out\[1\] = 1 is out of range: out_batch is 1"),
    ],
)
def test_edges(changes: dict[str, Any], sentence: str) -> None:
    fields: dict[str, Any] = {"maps": (None, None, "shared"), "out": [0, 1, 1], **changes}

    with pytest.raises((ValueError, RuntimeError), match=r"^\[lacewing.Edges\] .*" + sentence):
        lacewing.Edges(**fields)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"w": (2, 3, 4, 7)}, r"letter v is 4 in operands\[2\] of shape \(2, 3, 4, 7\) but 5 in operands\[1\]"),
        (
            {"y": (5, 2, 5)},
            r"operands\[1\] of shape \(5, 2, 5\) does not fit: it has 5 rows of the batch, but operands\[0\] has 4",
        ),
        ({"x": (4, 3, 3)}, r"operands\[0\] of shape \(4, 3, 3\) does not fit: it has 3 rows, but the plan has 2"),
        ({"x": (3,)}, r"operands\[0\] must have shape \(rows, u\)"),
    ],
)
def test_operands(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RuntimeError, match=r"^\[lacewing.product\] .*" + sentence):
        lacewing.product(_plan(), _operands(**changes))


def test_calls() -> None:
    plan, (x, y, w) = _plan(), _operands()

    with pytest.raises(ValueError, match=r'^\[lacewing.product\] "?\'?u,v,uvw->w\'? takes 3 operands, not 2'):
        lacewing.product(plan, (x, y))
    with pytest.raises(TypeError, match=r"plan must be a ProductPlan, not str"):
        lacewing.product("u,v,uvw->w", (x, y, w))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"operands\[1\] must be a tensor, not list"):
        lacewing.product(plan, (x, [1.0], w))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"operands\[0\] must have dtype float16, .* not int64"):
        lacewing.product(plan, (x.long(), y, w))
    with pytest.raises(RuntimeError, match=r"scale of shape \(4,\) does not fit: it has 4 entries, but the plan has 3"):
        lacewing.product(plan, (x, y, w), None, torch.ones(4))
    with pytest.raises(RuntimeError, match=r"scale is complex but all operands are real"):
        lacewing.product(plan, (x, y, w), None, torch.ones(3, dtype=torch.complex64))
    with pytest.raises(RuntimeError, match=r"operands\[1\] is on meta but operands\[0\] is on cpu"):
        lacewing.product(plan, (x, y.to("meta"), w))
    with pytest.raises(ValueError, match=r"the edges have maps for 2 operands, but .* has 3"):
        lacewing.product(plan, (x, y, w), lacewing.Edges(maps=(None, None)))
    with pytest.raises(RuntimeError, match=r"letter b stands in the output alone: give its extent"):
        lacewing.product(lacewing.product_plan("a->ab"), (torch.randn(4, 3),))


def test_weights_of_a_wrong_count_are_told_the_right_one() -> None:
    with pytest.raises(
        RuntimeError, match=r"operands\[2\] of shape \(5, 3, 5, 7\) does not fit: it has 5 rows, but the plan has 2"
    ):
        lacewing.product(_plan(), _operands(w=(5, 3, 5, 7)))


def test_a_plan_is_not_built_while_torch_traces() -> None:
    torch._dynamo.reset()

    @torch.compile(backend="eager", fullgraph=True)
    def f(x: torch.Tensor) -> torch.Tensor:
        return lacewing.product(lacewing.product_plan("a,a->a"), (x, x))

    with pytest.raises(Exception, match="a plan is built from values"):
        f(torch.randn(3, 4))
