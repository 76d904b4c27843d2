"""Ways to use the products that once gave a wrong answer, a crash or another library's error."""

from __future__ import annotations

import copy
import pickle
import sys
import threading

import numpy
import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

import lacewing
from lacewing import SparseProductInfo, SparseScaleInfo, indexed_mul_scale_gather, indexed_scale_segment
from products_support import OPS, Op, assert_close, make_case

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())


def values(*shape: int, device: str = "cpu") -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64).to(device)


@pytest.mark.parametrize("view", ["negated", "conjugated"])
def test_the_raw_segment_sum_writes_negated_and_conjugated_views(view: str, device: str) -> None:
    x = values(2, 3, 4, device=device)
    if view == "negated":
        out = torch.zeros(2, 3, 4, dtype=torch.complex128, device=device).conj().imag
    else:
        x = torch.complex(x, 2 * x)
        out = torch.zeros(2, 3, 4, dtype=torch.complex128, device=device).conj()

    indexed_scale_segment(x, None, [0, 0, 1], None, out=out)

    assert torch.equal(out.resolve_neg().resolve_conj(), x[:, [0, 0, 1]])


@pytest.mark.parametrize("field", ["index1", "index2", "scale", "seg_out", "gather_index"])
def test_fields_without_values_beside_inputs_with_values(field: str, device: str) -> None:
    meta = torch.zeros(3, dtype=torch.float64 if field == "scale" else torch.long, device="meta")

    with pytest.raises(RuntimeError, match=rf"\[lacewing\.indexed_mul_scale_gather\] {field} is on meta but the input"):
        indexed_mul_scale_gather(values(2, 3, 4, device=device), values(2, 3, 4, device=device), **{field: meta})


def test_fields_of_other_lengths_are_refused_on_meta() -> None:
    x = torch.empty(2, 3, 4, device="meta")

    with pytest.raises(RuntimeError, match="index2 has 1 entries but the fields before it have 2"):
        indexed_mul_scale_gather(x, x, index1=[0, 1], index2=[0])
    with pytest.raises(RuntimeError, match="out_size must not be negative, not -5"):
        indexed_mul_scale_gather(x, x, out_size=-5)


@each_op
def test_vmap_checks_the_rank_of_each_example(op: Op, device: str) -> None:
    case = make_case(op, device=device)
    low = values(5, *([4] * len(op.x)), device=device)

    with pytest.raises(RuntimeError, match=rf"\[lacewing\.sparse_{op.name}\] input1 must have shape"):
        vmap(lambda x: op.function(x, case.y, case.info))(low)
    with pytest.raises(RuntimeError, match=r"\[lacewing\.sparse_scale\] input must have shape"):
        vmap(lambda x: lacewing.sparse_scale(x, SparseScaleInfo(index=[0, 1]).to(device)))(values(5, 3, device=device))


@each_op
def test_vmap_over_an_empty_batch(op: Op, device: str) -> None:
    case = make_case(op, device=device)
    f = lambda s: op.function(case.x, case.y, case.info.with_scale(s))

    z = vmap(f)(case.scale.new_zeros(0, *case.scale.shape))

    assert z.shape == (0, *f(case.scale).shape)


def test_backward_infos_without_terms_are_not_taken_for_those_of_others(device: str) -> None:
    x, one = torch.ones(1, 3, 1, device=device, requires_grad=True), torch.ones(1, 3, 1, device=device)
    some = SparseProductInfo(index1=[0], index2=[0]).to(device)
    none = SparseProductInfo(index1=[], index2=[], seg_out=[0, 0, 0, 0]).to(device)

    for fwd, bwd in ((some, none), (none, some)):
        with pytest.raises(RuntimeError, match="info_bwd1 does not hold the same terms"):
            lacewing.sparse_mul(x, one, fwd, bwd)


def test_a_backward_info_with_fewer_entries_of_scale_is_set_aside(device: str) -> None:
    scale = torch.arange(1.0, 4.0, device=device)
    fwd = SparseProductInfo(scale=scale, index1=[0, 1, 0], index2=[1, 0, 0], seg_out=[0, 1, 2]).to(device)
    bwd = lacewing.sparse_product_info([1, 0], [0, 1], [0, 1], None, 2).to(device)
    x = torch.ones(1, 2, 1, device=device, requires_grad=True)

    lacewing.sparse_mul(x, torch.ones(1, 2, 1, device=device), fwd, bwd).sum().backward()

    assert x.grad.flatten().tolist() == [1, 2]


def test_threads_share_an_info_of_many_sizes() -> None:
    info = SparseProductInfo(out_size=200)
    failures: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for k in range(120):
                x = torch.ones(1, 1 + (start + k) % 97, 1, requires_grad=True)
                lacewing.sparse_mul(x, x.detach(), info).sum().backward()
                assert torch.equal(x.grad, torch.ones_like(x))
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-6)
        threads = [threading.Thread(target=work, args=(13 * i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert not failures


@pytest.mark.parametrize("indexed", [False, True])
def test_raw_products_of_constants_inside_transforms(indexed: bool, device: str) -> None:
    x, y = values(2, 3, 4, device=device), values(3, 4, device=device)
    fields = {"index1": [0, 1, 1]} if indexed else {}
    raw = lambda q: indexed_mul_scale_gather(q, y, **fields)
    weight = values(2, 3, 4, device=device)

    got = grad(lambda a: (vmap(raw)(x) * a).sum())(weight)

    assert_close(got, raw(x).cpu(), 1e-12)


def test_infos_built_inside_a_transform_outlive_it(device: str) -> None:
    x, y = values(2, 3, 4, device=device), values(2, 3, 4, device=device)
    kept: list[SparseProductInfo] = []

    def f(a: Tensor) -> Tensor:
        index = torch.tensor([0, 1, 2], device=device)
        kept.append(SparseProductInfo(index1=index, index2=[1, 1, 0]).to(device))
        kept.extend(
            info.to(device) for info in lacewing.sparse_product_infos(index, [1, 1, 0], [0, 0, 1], None, 3, 3, 3)
        )
        return lacewing.sparse_mul(a, y, kept[0]).sum() + lacewing.sparse_mul(a, y, *kept[1:]).sum()

    gradient = grad(f)(x)

    for info in kept:
        again = pickle.loads(pickle.dumps(copy.deepcopy(info)))
        assert torch.equal(lacewing.sparse_mul(x, y, again), lacewing.sparse_mul(x, y, info))
    assert_close(gradient, (y[:, [1, 1, 0]] * 2).cpu(), 1e-12)


def test_infos_of_a_batch_of_indices_are_refused(device: str) -> None:
    with pytest.raises(RuntimeError, match=r"\[lacewing\.SparseProductInfo\] index1 has no values here"):
        vmap(lambda i: SparseProductInfo(index1=i))(torch.zeros(5, 3, dtype=torch.long, device=device))


def test_infos_inside_of_what_is_compiled_are_refused() -> None:
    x = torch.ones(2, 3, 4)

    with pytest.raises(Exception, match="build it outside of what is compiled"):
        torch.compile(lambda a: lacewing.sparse_mul(a, a, SparseProductInfo()), fullgraph=True, backend="eager")(x)


def test_export_with_a_dynamic_number_of_rows() -> None:
    info = SparseProductInfo()

    class Square(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return lacewing.sparse_mul(x, x, info)

    rows = torch.export.Dim("rows", min=3, max=50)

    program = torch.export.export(Square(), (values(2, 3, 4),), dynamic_shapes=({1: rows},))

    x = values(2, 7, 4)
    assert torch.equal(program.module()(x), x * x)


SPECIAL = {
    "sparse": lambda x: x.to_sparse(),
    "csr": lambda x: x[0].to_sparse_csr(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_not_dense_get_a_sentence(kind: str) -> None:
    x = torch.randn(2, 3, 4)
    bad = SPECIAL[kind](x)
    calls = {
        "sparse_mul": lambda: lacewing.sparse_mul(bad, x, SparseProductInfo()),
        "sparse_vecmat": lambda: lacewing.sparse_vecmat(x, bad, SparseProductInfo(index1=[0], index2=[0])),
        "sparse_scale": lambda: lacewing.sparse_scale(bad, SparseScaleInfo(index=[0])),
        "indexed_mul_scale_gather": lambda: indexed_mul_scale_gather(x, bad),
        "gather_rows": lambda: lacewing.ops.gather_rows(bad, torch.tensor([0])),
    }

    for name, call in calls.items():
        with pytest.raises((RuntimeError, ValueError), match=rf"^\[lacewing\.{name}\] \w+ must"):
            call()


@pytest.mark.filterwarnings("ignore")
def test_fields_that_are_not_dense_get_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"\[lacewing\.SparseProductInfo\] scale must be a dense tensor"):
        SparseProductInfo(scale=torch.ones(3).to_sparse())
    with pytest.raises(RuntimeError, match=r"\[lacewing\.SparseProductInfo\] index1 must be a dense tensor"):
        SparseProductInfo(index1=torch.ones(3, dtype=torch.long).to_sparse())


def test_sizes_that_overflow_get_a_sentence() -> None:
    info = SparseProductInfo(index1=[0], index2=[0])
    one = torch.zeros(1)

    with pytest.raises(
        RuntimeError, match=r"\[lacewing\.derive_backward\] in1_size must lie in \[0, 281474976710656\]"
    ):
        lacewing.derive_backward(info, 2**62, 1)
    with pytest.raises(
        RuntimeError, match=r"\[lacewing\.sparse_outer\] the output has sizes \(2, 1, 1099511627776, 10"
    ):
        lacewing.sparse_outer(one.expand(2, 1, 2**40), one.expand(2, 1, 2**40), info)
    with pytest.raises(RuntimeError, match=r"\[lacewing\.scatter_add_rows\] rows must be at most 281474976710656"):
        lacewing.ops.scatter_add_rows(torch.ones(3, 2), torch.tensor([0, 1, 1]), 2**62)


def test_a_scale_of_tensors_keeps_their_gradients() -> None:
    s = torch.tensor(2.0, requires_grad=True)
    info = SparseProductInfo(scale=[s, torch.tensor(3.0)], index1=[0, 1], index2=[0, 1])

    lacewing.sparse_mul(torch.ones(2, 1), torch.ones(2, 1), info).sum().backward()

    assert s.grad.item() == 1


def test_derive_backward_of_absent_fields_takes_equal_sizes() -> None:
    with pytest.raises(ValueError, match="takes as many rows of input1 as of input2, not 2 and 3"):
        lacewing.derive_backward(SparseProductInfo(), 2, 3)


def test_workspace_bytes_wants_the_info_of_its_op() -> None:
    x = torch.ones(2, 3)

    with pytest.raises(TypeError, match="info must be a SparseProductInfo for sparse_mul, not SparseScaleInfo"):
        lacewing.workspace_bytes("sparse_mul", x, x, SparseScaleInfo(index=[0]))


def test_an_index_beyond_an_input_without_values() -> None:
    info = SparseProductInfo(index1=[0, 1, 2], index2=[0, 0, 0]).to("meta")
    x = torch.empty(2, 2, 4, device="meta")

    with pytest.raises(RuntimeError, match="an entry of index1 is out of range for input1 of shape"):
        lacewing.sparse_mul(x, x, info)


def test_a_scale_given_as_a_list_in_inference_mode_trains_later(device: str) -> None:
    with torch.inference_mode():
        info = SparseProductInfo(scale=[1.0, 2.0], index1=[0, 1], index2=[0, 1]).to(device)
    x = values(1, 2, 3, device=device).requires_grad_()

    lacewing.sparse_mul(x, x.detach(), info).sum().backward()

    assert_close(x.grad, (x.detach() * torch.tensor([1.0, 2.0], device=device)[:, None]).cpu(), 1e-12)


def test_sizes_of_numpy_and_infos_that_stay_as_they_are() -> None:
    info = SparseProductInfo(index1=[0], index2=[0], index_out=[1], out_size=numpy.int64(2))

    assert info.out_size == 2
    with pytest.raises(AttributeError):
        info.out_size = 99
    assert "<1 x " in repr(info.to("meta"))


def test_an_entry_that_no_segment_uses_is_named_by_its_value(device: str) -> None:
    info = SparseProductInfo(index1=[0, 99], index2=[0, 0], gather_index=[0]).to(device)
    x = values(2, 2, 3, device=device)

    with pytest.raises(RuntimeError, match="an entry of index1 that no segment uses, 99, is out of range for input1"):
        lacewing.sparse_mul(x, x, info)


@each_op
def test_flags_are_bools(op: Op) -> None:
    x = values(2, 3, 4)
    raw = getattr(lacewing, f"indexed_{op.name}_scale_gather")

    with pytest.raises(TypeError, match=rf"\[lacewing\.sparse_{op.name}\] out_accumulated must be a bool, not str"):
        op.function(x, x, SparseProductInfo(), out_accumulated="yes")
    with pytest.raises(TypeError, match=r"out_accumulated must be a bool, not NoneType"):
        raw(x, x, out_accumulated=None)
