"""Building infos: the builder's laws, backward infos, and infos as objects."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lacewing
from lacewing import (
    SparseProductInfo,
    derive_backward,
    sparse_product_info,
    sparse_product_infos,
)
from products_support import (
    OPS,
    Fields,
    Op,
    assert_close,
    assert_derivatives_close,
    derivatives,
    make_case,
    oracle,
    oracle_derivatives,
    random_values,
)

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())

INDEX1, INDEX2, INDEX, SCALE = [2, 0, 1, 2, 2], [0, 1, 1, 3, 0], [3, 1, 3, 0, 3], [1.0, -2.0, 0.5, 3.0, 4.0]


def lists(info: SparseProductInfo) -> dict[str, list[int] | None]:
    """The index fields as lists."""
    names = ("index1", "index2", "seg_out", "gather_index", "index_out")
    return {name: None if (t := getattr(info, name)) is None else t.tolist() for name in names}


def triples(info: SparseProductInfo, entries: int) -> list[tuple[int, int, int, int]]:
    """(t, index1, index2, row) of the terms, in the info's order."""
    return Fields(**lists(info), out_size=info.out_size).terms(entries)[0]


def product(info: SparseProductInfo, x: Tensor, y: Tensor) -> Tensor:
    return lacewing.sparse_mul(x, y, info)


@pytest.mark.parametrize("make", [list, torch.tensor, lambda v: torch.tensor(v, dtype=torch.int32)])
def test_lists_and_tensors_of_both_widths_give_the_same_info(make) -> None:
    want = lists(sparse_product_info(INDEX1, INDEX2, INDEX, SCALE, 5))

    info = sparse_product_info(make(INDEX1), make(INDEX2), make(INDEX), SCALE, 5)

    assert lists(info) == want


def test_builder_accepts_indices_on_the_device(device: str) -> None:
    indices = (torch.tensor(i, device=device) for i in (INDEX1, INDEX2, INDEX))

    info = sparse_product_info(*indices, torch.tensor(SCALE, device=device), 5)

    assert info.device.type == device
    assert lists(info) == lists(sparse_product_info(INDEX1, INDEX2, INDEX, SCALE, 5))


@pytest.mark.parametrize("absent", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_absent_index_means_identity(absent: tuple[int, ...]) -> None:
    given = [None if i in absent else values for i, values in enumerate((INDEX1, INDEX2, INDEX))]
    identity = [list(range(5)) if values is None else values for values in given]

    info = sparse_product_info(*given, SCALE, 5)

    assert lists(info) == lists(sparse_product_info(*identity, SCALE, 5))


def test_all_indices_absent_takes_the_length_of_scale() -> None:
    info = sparse_product_info(scale=SCALE)

    assert lists(info) == dict.fromkeys(lists(info))
    assert info.out_size == 5


def test_nothing_given_is_an_info_without_terms() -> None:
    info = sparse_product_info()

    z = product(info, torch.ones(2, 3, 4), torch.ones(2, 3, 4))

    assert info.out_size == 0
    assert z.shape == (2, 0, 4)


def test_terms_are_sorted_stably_by_output_then_index1_then_index2() -> None:
    want = sorted(
        ((i, a, b, t) for t, (a, b, i) in enumerate(zip(INDEX1, INDEX2, INDEX, strict=True))),
        key=lambda term: term[:3],
    )

    info = sparse_product_info(INDEX1, INDEX2, INDEX, SCALE)

    assert [(row, a, b, t) for t, a, b, row in triples(info, 5)] == want


def test_duplicates_are_kept_and_add() -> None:
    info = sparse_product_info([0, 0, 0], [0, 0, 0], [1, 1, 1], [1.0, 2.0, 4.0])

    z = product(info, torch.full((1, 1, 1), 3.0), torch.full((1, 1, 1), 5.0))

    assert z.flatten().tolist() == [0.0, 105.0]


def test_segments_are_dense_and_repeat_for_rows_without_entries() -> None:
    info = sparse_product_info([0, 1, 2], [0, 0, 0], [1, 1, 4], None, 6)

    assert info.seg_out.tolist() == [0, 0, 2, 2, 2, 3, 3]


def test_out_size_absent_is_one_more_than_the_largest_output() -> None:
    info = sparse_product_info([0, 0], [0, 0], [5, 2])

    assert info.out_size == 6


def test_identity_fields_become_absent() -> None:
    info = sparse_product_info([0, 1, 2], [0, 1, 2], [0, 1, 2], None, 3)

    assert lists(info) == dict.fromkeys(lists(info))


def test_segments_stay_where_out_size_is_larger_than_the_identity() -> None:
    info = sparse_product_info([0, 1, 2], [0, 1, 2], [0, 1, 2], None, 4)

    assert info.seg_out.tolist() == [0, 1, 2, 3, 3]
    assert info.index1 is None


def test_backward_infos_follow_formula_six() -> None:
    together = sparse_product_infos(INDEX1, INDEX2, INDEX, SCALE, 5, 4, 6)

    alone = (
        sparse_product_info(INDEX1, INDEX2, INDEX, SCALE, 5),
        sparse_product_info(INDEX2, INDEX, INDEX1, SCALE, 4),
        sparse_product_info(INDEX, INDEX1, INDEX2, SCALE, 6),
    )

    for one, other in zip(together, alone, strict=True):
        assert lists(one) == lists(other)
        assert one.out_size == other.out_size


def test_infos_from_csr_data_need_no_sort() -> None:
    built = sparse_product_info([0, 1, 0, 2], [1, 0, 2, 2], [0, 0, 2, 2], SCALE[:4], 3)

    by_hand = SparseProductInfo(SCALE[:4], [0, 1, 0, 2], [1, 0, 2, 2], [0, 2, 2, 4])

    assert triples(by_hand, 4) == triples(built, 4)
    assert lists(by_hand)["gather_index"] is None


def test_infos_copy_their_indices() -> None:
    index = torch.tensor([0, 1, 1])
    info = SparseProductInfo(index1=index, index2=index, seg_out=torch.tensor([0, 3]))
    x = random_values([1, 2, 3], torch.float64, 0)
    want = product(info, x, x)

    index.fill_(7)

    assert torch.equal(product(info, x, x), want)
    assert info.index1.tolist() == [0, 1, 1]


def test_a_million_triples_against_torch() -> None:
    generator = torch.Generator().manual_seed(3)
    count, sizes = 1_000_000, (5_000, 300, 20_000)
    first, second, row = (torch.randint(0, size, (count,), generator=generator) for size in sizes)
    key = (row * sizes[0] + first) * sizes[1] + second
    order = torch.argsort(key, stable=True)
    seg = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(row, minlength=sizes[2]).cumsum(0)])

    info = sparse_product_info(first, second, row, None, sizes[2])

    assert torch.equal(info.seg_out, seg)
    assert torch.equal(info.gather_index, order)
    assert torch.equal(info.index1, first)
    assert torch.equal(info.index2, second)


@each_op
def test_given_backward_infos_give_the_derived_gradients(op: Op, device: str) -> None:
    case = make_case(op, ("index_out", "gather_index", "seg_out"), device=device)
    fields = case.fields
    rows = [t % 3 for t in range(case.entries)]
    in1, in2 = case.x.shape[1], case.y.shape[1]
    infos = sparse_product_infos(fields.index1, fields.index2, rows, case.scale, 3, in1, in2)
    infos = tuple(info.to(device) for info in infos)
    terms = [(t, fields.index1[t], fields.index2[t], rows[t]) for t in range(case.entries)]
    want = derivatives(
        lambda x, y, scale: oracle(op, x, y, scale, terms, 3), case.x.cpu(), case.y.cpu(), case.scale.cpu(), 2
    )

    got = derivatives(
        lambda x, y, scale: op.function(x, y, infos[0].with_scale(scale), *infos[1:]), case.x, case.y, case.scale, 2
    )

    assert_derivatives_close(got, want, torch.float64)


@each_op
@pytest.mark.parametrize("absent", [(), ("scale",), ("index1",), ("gather_index",), ("index_out",)], ids="+".join)
def test_derive_backward_with_gather_index_and_index_out(op: Op, absent: tuple[str, ...], device: str) -> None:
    case = make_case(op, absent, device=device, seed=11)
    _, bwd1, bwd2 = derive_backward(case.info, case.x.shape[1], case.y.shape[1])
    want = oracle_derivatives(case, order=2)

    got = derivatives(
        lambda x, y, scale: op.function(x, y, case.info.with_scale(scale), bwd1, bwd2), case.x, case.y, case.scale, 2
    )

    assert_derivatives_close(got, want, torch.float64)


@pytest.mark.parametrize("absent", [(), ("gather_index",), ("seg_out", "index_out")], ids="+".join)
def test_derived_infos_hold_the_rotated_terms(absent: tuple[str, ...]) -> None:
    case = make_case(OPS["mul"], absent, seed=4)
    x, y = case.x, case.y
    z = case.oracle(x, y, case.scale)
    gz = random_values(z.shape, torch.float64, 9)
    want_x, want_y = torch.autograd.grad(case.oracle(x.requires_grad_(), y.requires_grad_(), case.scale), (x, y), gz)

    _, bwd1, bwd2 = derive_backward(case.info, x.shape[1], y.shape[1])

    assert_close(product(bwd1, y.detach(), gz), want_x, 1e-12)
    assert_close(product(bwd2, gz, x.detach()), want_y, 1e-12)


def test_derived_backward_of_a_repeated_entry_passes_its_gradient_to_scale() -> None:
    scale = torch.tensor([2.0, 3.0], requires_grad=True)
    info = SparseProductInfo(scale, [0, 1], [0, 1], [0, 3], [0, 1, 0])
    _, bwd1, _ = derive_backward(info, 2, 2)

    product(bwd1, torch.ones(1, 2, 1), torch.ones(1, 1, 1)).sum().backward()

    assert scale.grad.tolist() == [2.0, 1.0]


def test_rotation_three_times_is_the_identity() -> None:
    infos = sparse_product_infos(INDEX1, INDEX2, INDEX, SCALE, 5, 4, 6)
    sizes = (5, 4, 6)

    for step in range(3):
        fwd, bwd1, bwd2 = (infos[(step + i) % 3] for i in range(3))
        in1, in2 = sizes[(step + 1) % 3], sizes[(step + 2) % 3]
        derived = derive_backward(fwd, in1, in2)

        assert derived.fwd is fwd
        assert sorted(triples(derived.bwd1, 5)) == sorted(triples(bwd1, 5))
        assert sorted(triples(derived.bwd2, 5)) == sorted(triples(bwd2, 5))


def test_backward_infos_with_another_order_of_scale() -> None:
    fwd = sparse_product_info(INDEX1, INDEX2, INDEX, SCALE, 4)
    order = torch.tensor([4, 2, 0, 1, 3])
    i1, i2, i, s = (torch.tensor(v)[order] for v in (INDEX1, INDEX2, INDEX, SCALE))
    bwd1, bwd2 = sparse_product_info(i2, i, i1, s, 3), sparse_product_info(i, i1, i2, s, 4)
    terms = [(t, *abc) for t, abc in enumerate(zip(INDEX1, INDEX2, INDEX, strict=True))]
    x, y = random_values([2, 3, 2], torch.float64, 1), random_values([2, 4, 2], torch.float64, 2)
    scale = torch.tensor(SCALE, dtype=torch.float64)
    want = derivatives(lambda x, y, scale: oracle(OPS["mul"], x, y, scale, terms, 4), x, y, scale, 2)

    got = derivatives(lambda x, y, scale: lacewing.sparse_mul(x, y, fwd.with_scale(scale), bwd1, bwd2), x, y, scale, 2)

    assert_derivatives_close(got, want, torch.float64)


@pytest.mark.parametrize("which", ["other_terms", "one_moved_term", "exchanged", "forward_twice"])
@pytest.mark.parametrize("scale", [None, SCALE[:4]], ids=["no_scale", "scale"])
@each_op
def test_wrong_backward_infos_are_refused(op: Op, scale: list[float] | None, which: str) -> None:
    index1, index2, index = [0, 1, 2, 2], [1, 1, 0, 2], [0, 2, 1, 1]
    fwd, bwd1, bwd2 = sparse_product_infos(index1, index2, index, scale, 3, 3, 3)
    wrong = {
        "other_terms": sparse_product_infos([0, 0, 0, 0], index2, index, scale, 3, 3, 3)[1:],
        "one_moved_term": sparse_product_infos([0, 1, 2, 1], index2, index, scale, 3, 3, 3)[1:],
        "exchanged": (bwd2, bwd1),
        "forward_twice": (fwd, fwd),
    }[which]
    x = random_values([2, 3, *(2 for _ in op.x)], torch.float64, 1).requires_grad_()
    y = random_values([2, 3, *(2 for _ in op.y)], torch.float64, 2).requires_grad_()

    with pytest.raises((RuntimeError, ValueError), match=rf"\[lacewing\.sparse_{op.name}\] info_bwd1"):
        op.function(x, y, fwd, *wrong).sum().backward()


@pytest.mark.parametrize("absent", ["forward", "backward"])
def test_wrong_backward_infos_are_refused_where_the_terms_follow_the_operands(absent: str) -> None:
    """An info without fields has its terms settled by the operands, and they are compared all the same."""
    open_info, reverse = SparseProductInfo(), SparseProductInfo(index1=[2, 1, 0], index2=[0, 1, 2])
    fwd, bwd = (open_info, reverse) if absent == "forward" else (reverse, open_info)
    x, y = torch.ones(1, 3, 2, requires_grad=True), torch.ones(1, 3, 2)

    with pytest.raises((RuntimeError, ValueError), match=r"\[lacewing\.sparse_mul\] info_bwd1"):
        lacewing.sparse_mul(x, y, fwd, bwd, bwd).sum().backward()


@pytest.mark.parametrize("out_size", [None, 2, 4])
def test_scale_given_to_an_info_without_other_fields(out_size: int | None) -> None:
    x, y = random_values([3, 2, 2], torch.float64, 1), random_values([3, 2, 2], torch.float64, 2)
    scale = random_values([2], torch.float64, 3)
    terms = [(t, t, t, t) for t in range(2)]
    want = derivatives(lambda x, y, scale: oracle(OPS["mul"], x, y, scale, terms, out_size or 2), x, y, scale, 2)
    info = SparseProductInfo(out_size=out_size)

    got = derivatives(lambda x, y, scale: lacewing.sparse_mul(x, y, info.with_scale(scale)), x, y, scale, 2)

    assert_derivatives_close(got, want, torch.float64)


def test_backward_info_for_another_input_size_is_refused() -> None:
    fwd, _, bwd2 = sparse_product_infos(INDEX1, INDEX2, INDEX, SCALE, 4, 3, 4)
    bwd1 = sparse_product_info(INDEX2, INDEX, INDEX1, SCALE, 7)
    x, y = torch.ones(1, 3, 2, requires_grad=True), torch.ones(1, 4, 2)

    with pytest.raises(RuntimeError, match=r"\[lacewing\.sparse_mul\] info_bwd1 .*7 rows .* 3 rows"):
        lacewing.sparse_mul(x, y, fwd, bwd1, bwd2)
