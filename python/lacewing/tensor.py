"""Sparse tensors: a thin shell around the C++ ones, which are torch tensors themselves."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import SUPPORTED_NODES, tree_map_only
from torch.utils.data._utils.collate import default_collate_fn_map

from ._library import ops
from ._tensor_arguments import (
    Undefined,
    as_tensor,
    fill_arguments,
    index_array,
    index_item,
    is_by_column,
    is_whole,
    sizes_of,
    slices_of,
    undefined,
)

_F = TypeVar("_F", bound=Callable[..., Any])
_KEY: Final[Any] = torch._C._parse_dispatch_key("DeferredInit")
_KINDS: Final = ("scalar", "undefined", "array")
# Common arguments and results that hold no tensors; a torch.Size that is mapped would be a tuple.
_WITHOUT_TENSORS: Final = frozenset(
    {bool, int, float, complex, str, type(None), torch.Size, torch.dtype, torch.device, torch.layout}
)
_FORMATS: Final = ("coo", "gcrs", "gccs")
_STAND_FOR: Final = ops.tensor_stand_for.default
# Of the object, not of the tensor inside. It refuses what a custom function gave, which has no gradient.
_REQUIRES_GRAD: Final = vars(torch._C.TensorBase)["requires_grad"].__get__


def _not_compiled(function: _F) -> _F:
    """torch.compile breaks its graph here: the tensors inside are not its own."""
    disabled: _F = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return disabled


def _with_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A value with its tensors replaced, in containers of any kind too; what has none is not walked."""
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in _WITHOUT_TENSORS:
        return value
    if isinstance(value, (list, tuple)) and type(value) not in SUPPORTED_NODES and not hasattr(value, "_fields"):
        return [_with_tensors(function, item) for item in value]  # of a class that torch takes as a list
    return tree_map_only(Tensor, function, value)


def _own(op: Callable[..., Any], *args: Any) -> Any:
    """Calls an op that only this library has on the tensor inside of a shell.

    A torch.func transform does not know the op; what it captured from outside is looked at outside of it.
    """
    for t in args:
        if isinstance(t, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(t):
            raise RuntimeError(
                "[lacewing.SparseTensor] a fill that belongs to a torch.func transform cannot be given to a sparse "
                "tensor: use torch.autograd"
            )
    with torch._C._DisableFuncTorch():
        return op(*args)


class SparseTensor(Tensor):
    """A sparse tensor. Made by ``sparse_coo_tensor`` and ``to_sparse``; every torch function takes it.

    Functions and methods of torch run on the C++ tensor inside, and their sparse results come back as SparseTensors.
    """

    _inner: Tensor
    _read: tuple[Any, weakref.ref[Tensor]] | None  # the last element read, for s[i] += x
    _index: Any  # where a view was read from its tensor, for s[i] += x too

    @staticmethod
    def __new__(cls, inner: Tensor) -> SparseTensor:
        """Wraps a sparse tensor of the C++ library."""
        shell: SparseTensor = Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=False
        )
        shell._inner = inner
        shell._read = None
        shell._index = None
        with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableFuncTorch():
            _STAND_FOR(shell, inner)
        return shell

    @classmethod
    @_not_compiled
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs a torch function on the tensors inside."""
        if func is torch.autograd.grad:
            return _grad(*args, **(kwargs or {}))
        if func is torch.autograd.backward:
            return _backward(*args, **(kwargs or {}))
        shells: dict[int, SparseTensor] = {}

        def inside(tensor: Tensor) -> Tensor:
            if not isinstance(tensor, SparseTensor):
                return tensor
            if not tensor.is_leaf:
                _REQUIRES_GRAD(tensor)
            shells[id(tensor._inner)] = tensor
            return tensor._inner

        def outside(tensor: Tensor) -> Tensor:
            # An op in place gives the tensor that it was called on.
            shell = shells.get(id(tensor))
            return _wrapped(tensor) if shell is None else shell

        with torch._C.DisableTorchFunctionSubclass():
            inner_args = [_with_tensors(inside, arg) for arg in args]
            inner_kwargs = {name: _with_tensors(inside, arg) for name, arg in kwargs.items()} if kwargs else {}
            result = func(*inner_args, **inner_kwargs)
        return _with_tensors(outside, result)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Reached where torch wants a number or a copy, or torch.func takes a tensor, never by torch's functions."""
        if func in _PAST_FUNCTIONS:
            inner = args[0]._inner
            # torch has left the dispatch key of the tensor inside behind it.
            excluded = torch._C._dispatch_tls_local_exclude_set() - torch._C._dispatch_keys(inner)
            with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
                return _with_tensors(_wrapped, func(inner, *args[1:], **(kwargs or {})))
        raise RuntimeError(
            f"[lacewing.SparseTensor] {func} was called past torch's functions on a sparse tensor: as the input of a "
            "torch.func transform (capture the tensor and transform a function of strided ones, or use "
            "torch.autograd), where torch wants elements in memory (use to_dense()), or by DistributedDataParallel, "
            "which sends buffers (register values() and indices() as buffers, and make the tensor of them in forward)"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        shape = tuple(self._inner.shape)
        split = "" if self.format == "coo" else f" rows={self.row_dims}, cols={self.col_dims},"
        return (
            f"<SparseTensor {self.format}: shape={shape},{split} nse={self.nse}, dtype={self._inner.dtype}, "
            f"device={self._inner.device}, fill={self._fill_text()}>"
        )

    def __format__(self, format_spec: str) -> str:
        return self.item().__format__(format_spec) if self._inner.dim() == 0 else object.__format__(self, format_spec)

    def _fill_text(self) -> str:
        kind = self.fill_kind
        if kind != "scalar":
            return kind
        fill = _own(ops.tensor_fill, self._inner)
        return (
            "scalar"
            if fill.device.type != "cpu"
            else f"{fill.item():g}"
            if fill.is_floating_point()
            else str(fill.item())
        )

    @property
    @_not_compiled
    def nse(self) -> int:
        """The number of entries."""
        count: int = _own(ops.tensor_nse, self._inner)
        return count

    @property
    @_not_compiled
    def format(self) -> str:
        """``"coo"``, ``"gcrs"`` or ``"gccs"``."""
        return _FORMATS[_own(ops.tensor_format, self._inner)]

    @property
    @_not_compiled
    def row_dims(self) -> tuple[int, ...]:
        """The dims that make up the rows of a compressed format."""
        return tuple(_own(ops.tensor_row_dims, self._inner))

    @property
    @_not_compiled
    def col_dims(self) -> tuple[int, ...]:
        """The dims that make up the columns of a compressed format."""
        return tuple(_own(ops.tensor_col_dims, self._inner))

    @property
    @_not_compiled
    def grad(self) -> Tensor | None:  # type: ignore[override]
        """Refused: gradients live on the components, and so an optimizer takes ``values()``."""
        return self._inner.grad

    @property
    @_not_compiled
    def fill_kind(self) -> str:
        """``"scalar"``, ``"undefined"`` or ``"array"``."""
        return _KINDS[_own(ops.tensor_fill_kind, self._inner)]

    @property
    @_not_compiled
    def fill_value(self) -> Tensor | Undefined:
        """What an element without an entry is: for reading, but where it is a leaf that learns."""
        fill: Tensor | None = _own(ops.tensor_fill, self._inner)
        return undefined if fill is None else fill

    @property
    @_not_compiled
    def requires_grad(self) -> bool:
        """Whether values or fill do. Set to true it is set for the values, to false for both."""
        return self._inner.requires_grad

    @requires_grad.setter
    @_not_compiled
    def requires_grad(self, wanted: bool) -> None:
        if wanted:
            self.values().requires_grad = True
        elif self._inner.requires_grad:
            # torch's flag of the tensor inside follows its components when it is read, and they follow it.
            self._inner.requires_grad = False
            _ = self._inner.requires_grad

    @_not_compiled
    def requires_grad_(self, requires_grad: bool = True) -> SparseTensor:
        """Sets ``requires_grad``."""
        self.requires_grad = requires_grad
        return self

    @_not_compiled
    def indices(self) -> Tensor:
        """(sparse dims, nse)."""
        result: Tensor = _own(ops.tensor_indices, self._inner)
        return result

    @_not_compiled
    def values(self) -> Tensor:
        """(nse, *dense shape): the tensor that gradients reach and optimizers take."""
        with torch._C.DisableTorchFunctionSubclass():
            if not self.is_leaf:
                _REQUIRES_GRAD(self)
        result: Tensor = _own(ops.tensor_values, self._inner)
        return result

    @_not_compiled
    def to_dense(  # type: ignore[override]
        self, fill: object = None, *, dtype: torch.dtype | None = None, masked_grad: bool | None = None
    ) -> Tensor:
        """The strided tensor, of another ``dtype`` where one is given; ``fill`` stands for an undefined fill.

        With ``masked_grad=True`` gradients flow to the values alone, and not to the fill.
        """
        if isinstance(fill, torch.dtype):  # where torch has its dtype
            fill, dtype = None, fill if dtype is None else dtype
        if fill is None:
            return Tensor.to_dense(self, dtype, masked_grad=masked_grad)
        if masked_grad:
            raise ValueError("[lacewing.to_dense] masked_grad=True is for a fill of the tensor's own, not for fill=")
        given = fill_arguments("to_dense", fill, self.values())[1]
        result: Tensor = _own(ops.tensor_to_dense, self._inner, given)
        return result if dtype is None else result.to(dtype)

    @_not_compiled
    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
        """The tensor itself, or a copy where that of a strided tensor would be one, as after ``t()``."""
        result: Tensor = torch.ops.aten.contiguous(self, memory_format=memory_format)
        return result

    @_not_compiled
    def compressed_indices(self) -> Tensor:
        """(rows + 1,): where the entries of each row begin; in GCCS, of each column."""
        result: Tensor = _own(ops.tensor_compressed_indices, self._inner)
        return result

    @_not_compiled
    def plain_indices(self) -> Tensor:
        """(nse,): the column of each entry; in GCCS, its row."""
        result: Tensor = _own(ops.tensor_plain_indices, self._inner)
        return result

    @_not_compiled
    def to_gcs(
        self, row_dims: Sequence[int] | None = None, col_dims: Sequence[int] | None = None, compressed: str = "rows"
    ) -> SparseTensor:
        """The same tensor in GCRS (``compressed="rows"``) or GCCS (``"columns"``): in two dims CSR and CSC.

        The sparse dims are split into two ordered groups, the rows and the columns of a matrix; ``row_dims`` is the
        first dim by default, ``col_dims`` the other ones in ascending order. Linear time; differentiable. Fewer than
        two sparse dims stay COO.
        """
        in_columns = is_by_column("to_gcs", compressed)
        rows, columns = (
            None if dims is None else sizes_of("to_gcs", name, dims)
            for name, dims in (("row_dims", row_dims), ("col_dims", col_dims))
        )
        return SparseTensor(_own(ops.tensor_to_gcs, self._inner, rows, columns, in_columns))

    @_not_compiled
    def to_coo(self) -> SparseTensor:
        """The same entries, in their order, in COO."""
        return SparseTensor(_own(ops.tensor_to_coo, self._inner))

    @_not_compiled
    def to_torch(self, layout: torch.layout = torch.sparse_coo, blocksize: Sequence[int] | None = None) -> Tensor:
        """Torch's own sparse tensor of a layout; it shares memory where the layouts agree. The fill must be 0."""
        result: Tensor = _own(ops.tensor_to_torch, self._inner, layout, blocksize)
        return result

    def to_scipy(self, format: str | None = None) -> Any:
        """SciPy's sparse array of the same format, or of ``"coo"``, ``"csr"`` or ``"csc"``; see ``from_scipy``."""
        from .interop import to_scipy

        return to_scipy(self, format)

    def spy(self, axes: Any = None, **style: Any) -> Any:
        """Draws where the entries are; see ``lacewing.spy``."""
        from .plots import spy

        return spy(self, axes, **style)

    @_not_compiled
    def coalesce(self) -> SparseTensor:
        """Entries sorted by index, duplicates added."""
        return SparseTensor(_own(ops.tensor_coalesce, self._inner))

    @_not_compiled
    def is_coalesced(self) -> bool:
        """Whether entries are sorted and distinct."""
        result: bool = _own(ops.tensor_is_coalesced, self._inner)
        return result

    @_not_compiled
    def prune(self) -> SparseTensor:
        """Without the entries that equal the fill."""
        return SparseTensor(_own(ops.tensor_prune, self._inner))

    @_not_compiled
    def with_fill(self, fill_value: object) -> SparseTensor:
        """The same entries with another fill."""
        return SparseTensor(
            _own(ops.tensor_with_fill, self._inner, *fill_arguments("with_fill", fill_value, self.values()))
        )

    @_not_compiled
    def with_values(self, values: Tensor) -> SparseTensor:
        """The same places and fill with other values (nse, *dense shape), which may require gradients.

        What was derived from the indices is shared: a module keeps a tensor for its places, and makes the one it works
        with from its parameter in every ``forward``.
        """
        if not isinstance(values, Tensor):
            raise TypeError(f"[lacewing.with_values] values must be a tensor, not a {type(values).__name__}")
        return SparseTensor(_own(ops.tensor_with_values, self._inner, values))

    @_not_compiled
    def to_additive(self) -> tuple[Tensor, SparseTensor]:
        """``(a, s)`` with ``self == a + s``, where s has the fill 0."""
        additive, sparse = _own(ops.tensor_to_additive, self._inner)
        return additive, SparseTensor(sparse)

    def backward(self, *args: object, **kwargs: object) -> None:
        """Refused: gradients live on the components."""
        raise RuntimeError(
            "[lacewing.SparseTensor] backward() needs a strided tensor: reduce the sparse tensor first, or call "
            "backward() on its values()"
        )

    def new_tensor(self, data: Any, **options: Any) -> Tensor:  # type: ignore[override]
        """A strided tensor of the numbers in ``data``, of this tensor's dtype and device by default."""
        return self.values().new_tensor(data, **options)

    def register_hook(self, hook: Any) -> Any:
        """Refused: gradients live on the components."""
        raise RuntimeError(_NO_HOOKS.format("register_hook"))

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        """Refused: gradients live on the components."""
        raise RuntimeError(_NO_HOOKS.format("register_post_accumulate_grad_hook"))

    def retain_grad(self) -> None:
        """Refused: gradients live on the components."""
        raise RuntimeError(_NO_HOOKS.format("retain_grad"))

    @_not_compiled
    def __getitem__(self, index: Any) -> Tensor:
        """A copy: only ``s[i, j] += x`` and assignment write to the tensor."""
        slices = slices_of(index, tuple(self._inner.shape))
        if slices is not None:
            result: Tensor = SparseTensor(_own(ops.tensor_slice, self._inner, *slices))
        else:
            result = super().__getitem__(index)
        if isinstance(result, SparseTensor):
            result._index = index
        else:
            self._read = index, weakref.ref(result)
        return result

    @_not_compiled
    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes the elements of integers and slices, or of an index tensor or mask for each sparse dim.

        Every element that is written becomes an entry, but where the whole tensor is written, or where a mask of its
        shape is.
        """
        if self._read is not None and self._read[1]() is value and self._read[0] is index:
            _own(ops.tensor_forget_copy, self._inner, value)
        written = getattr(value, "_written", None)
        if written is not None and written[0] is index:
            _own(ops.tensor_forget_copy, self._inner, written[1])
        items = tuple(index_item(i) for i in (index if isinstance(index, tuple) else (index,)))
        if isinstance(value, SparseTensor):
            value = value._inner.to(self._inner.dtype)
        else:
            value = torch.as_tensor(value, dtype=self._inner.dtype, device=self._inner.device)
        lead = next((d for d, size in enumerate(value.shape) if size != 1), value.dim())
        value = value.reshape(value.shape[lead:]) if lead > 0 else value
        dots = sum(i is Ellipsis for i in items)
        if dots <= 1 and len(items) <= self._inner.dim() + dots and all(is_whole(i) for i in items):
            self._inner.copy_(value) if value.dim() > 0 else self._inner.fill_(value)
            return
        places, inside = self._index_tensors(items)
        if inside:
            found = torch.ops.aten.index(self._inner, places)
            blocks = _own(ops.tensor_to_dense, found, None) if _is_inner(found) else found.clone()
            blocks[(..., *inside)] = value
            value = blocks
        torch.ops.aten.index_put_(self._inner, places, value)

    def _index_tensors(self, index: tuple[Any, ...]) -> tuple[list[Tensor | None], tuple[Any, ...]]:
        """One index tensor for each sparse dim, slices along dims of their own; and the index of the dense dims.

        Without the latter the dense dims are taken whole.
        """
        device = self._inner.device
        if any(isinstance(i, Tensor) for i in index):
            while index and isinstance(index[-1], slice) and index[-1] == slice(None):
                index = index[:-1]
            if all(isinstance(i, Tensor) or type(i) is int or i == slice(None) for i in index):
                return [None if isinstance(i, slice) else _inside(torch.as_tensor(i, device=device)) for i in index], ()
        sparse = _own(ops.tensor_sparse_dim, self._inner) or self._inner.dim()
        dots = [k for k, i in enumerate(index) if i is Ellipsis]
        whole = (slice(None),) * (self._inner.dim() - len(index) + len(dots))
        index = index[: dots[0]] + whole + index[dots[0] + 1 :] if dots else index + whole
        if len(dots) > 1 or any(type(i) is not int and not isinstance(i, slice) for i in index):
            raise NotImplementedError(
                "[lacewing.SparseTensor] assignment takes integers and slices, or an integer, an index tensor or a "
                "mask for each sparse dim"
            )
        slices = sum(isinstance(i, slice) for i in index[:sparse])
        tensors: list[Tensor | None] = []
        for i, size in zip(index[:sparse], self._inner.shape, strict=False):
            if isinstance(i, slice):
                slices -= 1
                chosen = range(*i.indices(size))
                along = torch.arange(len(chosen), device=device) * chosen.step + chosen.start
                tensors.append(along.view(-1, *[1] * slices))
            else:
                tensors.append(torch.tensor(i, device=device))
        return tensors, () if all(is_whole(i) for i in index[sparse:]) else index[sparse:]

    def _parts(self) -> tuple[Callable[..., SparseTensor], tuple[Any, ...]]:
        """What makes the tensor again: a function and its arguments."""
        fill = _own(ops.tensor_fill_kind, self._inner), _own(ops.tensor_fill, self._inner)
        shape = tuple(self._inner.shape)
        if self.format == "coo":
            return _rebuild, (self.indices(), self.values(), shape, *fill)
        arrays = self.compressed_indices(), self.plain_indices(), self.values(), shape
        return _rebuild_gcs, (*arrays, self.row_dims, self.col_dims, self.format == "gccs", *fill)

    def _with_values(self, values: Tensor) -> SparseTensor:
        """The same entries with other values and the fill 0."""
        make, parts = self._parts()
        place = 1 if make is _rebuild else 2
        return make(*parts[:place], values, *parts[place + 1 : -2], 0, None)

    def _attributes(self) -> dict[str, Any]:
        """What the user has set on the object."""
        return {name: value for name, value in self.__dict__.items() if name not in SparseTensor.__annotations__}

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseTensor:
        if id(self) in memo:
            known: SparseTensor = memo[id(self)]
            return known
        make, parts = self._parts()
        # A component that others hold too, such as the parameter of a module, is copied once.
        copied = tree_map_only(
            Tensor, lambda t: deepcopy(t, memo) if t.is_leaf else t.detach().clone().requires_grad_(), parts
        )
        copy = memo[id(self)] = make(*copied)
        copy.__dict__.update(deepcopy(self._attributes(), memo))
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        attributes = self._attributes()
        return (*self._parts(), attributes) if attributes else self._parts()

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)

    @property
    def _is_param(self) -> bool:
        """What nn.Parameter sets on a tensor of another class to make a parameter of it."""
        return False

    @_is_param.setter
    def _is_param(self, wanted: bool) -> None:
        raise TypeError(
            "[lacewing.SparseTensor] a sparse tensor cannot be an nn.Parameter: gradients reach its values, so keep "
            "w = nn.Parameter(S.values()), and use S.with_values(w) in forward"
        )


# What torch.tensor(S) and float(S) come to: no gradient passes there.
_PAST_FUNCTIONS: Final = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.detach.default,
    torch.ops.aten._to_copy.default,
    torch.ops.aten.lift_fresh.default,
)

_NO_HOOKS: Final = (
    "[lacewing.SparseTensor] {}() needs a tensor that gradients reach: those of a sparse tensor reach its values() and "
    "its fill"
)


_STRIDED_OUTPUTS: Final = (
    "[lacewing.SparseTensor] {}() needs strided outputs: reduce the sparse tensor first, or take its values()"
)


def _in_place(name: str, op: Callable[[Any, Any], Any]) -> Callable[[SparseTensor, Any], Any]:
    """``s[i] += x`` reads a view, changes it, and assigns it; a view that is changed and not assigned is refused."""

    @_not_compiled
    def method(self: SparseTensor, other: Any) -> Any:
        if not _own(ops.tensor_is_view, self._inner):
            return getattr(Tensor, name)(self, other)
        result = op(self, other)
        written = torch.zeros(())
        _own(ops.tensor_watch_copy, self._inner, written)
        written.add_(1)
        result._written = self._index, written
        return result

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(SparseTensor, f"__i{_name}__", _in_place(f"__i{_name}__", getattr(operator, f"__{_name}__")))


def _inside(tensor: Tensor) -> Tensor:
    return tensor._inner if isinstance(tensor, SparseTensor) else tensor


def _backward(tensors: Any, *, inputs: Any = None, **kwargs: Any) -> None:
    """torch.autograd.backward: the gradients of a sparse tensor among the inputs are accumulated in its values."""
    if any(isinstance(t, SparseTensor) for t in ((tensors,) if isinstance(tensors, Tensor) else tuple(tensors))):
        raise RuntimeError(_STRIDED_OUTPUTS.format("autograd.backward"))
    wanted = None if inputs is None else (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    leaves = wanted and [t.values() if isinstance(t, SparseTensor) else t for t in wanted]
    torch.autograd.backward(tensors, inputs=leaves, **kwargs)


def _grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Tensor | None, ...]:
    """torch.autograd.grad: the gradient of a sparse tensor is one of its entries, with the fill 0."""
    if any(isinstance(t, SparseTensor) for t in ((outputs,) if isinstance(outputs, Tensor) else tuple(outputs))):
        raise RuntimeError(_STRIDED_OUTPUTS.format("autograd.grad"))
    wanted = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    found = torch.autograd.grad(
        outputs, [t.values() if isinstance(t, SparseTensor) else t for t in wanted], *args, **kwargs
    )
    return tuple(
        t._with_values(g) if isinstance(t, SparseTensor) and g is not None else g
        for t, g in zip(wanted, found, strict=True)
    )


def _wrapped(tensor: Tensor) -> Tensor:
    return SparseTensor(tensor) if _is_inner(tensor) else tensor


def _is_inner(tensor: Tensor) -> bool:
    """By its dispatch key: no op is called, which a tensor inside torch.func might not have."""
    return not isinstance(tensor, SparseTensor) and torch._C._dispatch_keys(tensor).has(_KEY)


def _rebuild(indices: Tensor, values: Tensor, size: Sequence[int], kind: int, fill: Tensor | None) -> SparseTensor:
    return SparseTensor(ops.make_sparse_tensor(indices, values, list(size), kind, fill))


def _rebuild_gcs(
    compressed: Tensor, plain: Tensor, values: Tensor, size: Sequence[int], row_dims: Sequence[int],
    col_dims: Sequence[int], by_column: bool, kind: int, fill: Tensor | None,
) -> SparseTensor:  # fmt: skip
    return SparseTensor(
        ops.make_gcs_tensor(compressed, plain, values, list(size), row_dims, col_dims, by_column, kind, fill)
    )


# torch.load takes the files of torch.save without weights_only=False.
torch.serialization.add_safe_globals([_rebuild, _rebuild_gcs, SparseTensor])


def _collate(batch: list[Tensor], *, collate_fn_map: object = None) -> Tensor:
    return torch.stack(batch)


# Workers of a DataLoader would write the batch into shared memory of its strided shape.
default_collate_fn_map[SparseTensor] = _collate


def is_sparse_tensor(tensor: object) -> bool:
    """Whether it is a sparse tensor of this library."""
    return isinstance(tensor, SparseTensor) or (isinstance(tensor, Tensor) and _is_inner(tensor))


@_not_compiled
def sparse_coo_tensor(
    indices: object,
    values: object,
    size: Sequence[int] | None = None,
    fill_value: object = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """The sparse tensor with ``values[t]`` at ``indices[:, t]`` and the fill elsewhere.

    indices (sparse dims, nse), integers; values (nse, *dense shape); duplicates add. Without ``size`` the sparse sizes
    are one more than the largest index. ``fill_value``: a number (0 by default), ``lacewing.undefined`` or ``[]``, or
    an array of the dense shape. Differentiable in values and fill, where they are tensors that require gradients.
    """
    empty = not isinstance(values, Tensor) and isinstance(values, Sequence) and len(values) == 0
    if empty and isinstance(fill_value, Tensor):
        dtype = fill_value.dtype if dtype is None else dtype
        device = fill_value.device if device is None else device
    entries = as_tensor("sparse_coo_tensor", "values", values, dtype, device)
    places = index_array("sparse_coo_tensor", "indices", indices, entries)
    if requires_grad:
        entries = entries.detach().requires_grad_()
    kind, fill = fill_arguments("sparse_coo_tensor", fill_value, entries)
    shape = None if size is None else sizes_of("sparse_coo_tensor", "size", size)
    return SparseTensor(ops.make_sparse_tensor(places, entries, shape, kind, fill))


@_not_compiled
def sparse_gcs_tensor(
    compressed_indices: object,
    plain_indices: object,
    values: object,
    size: Sequence[int],
    row_dims: Sequence[int] | None = None,
    col_dims: Sequence[int] | None = None,
    compressed: str = "rows",
    fill_value: object = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """The sparse tensor of the arrays of GCRS (``compressed="rows"``, in two dims CSR) or GCCS (``"columns"``, CSC).

    Entries of row r are ``compressed_indices[r]`` to ``compressed_indices[r + 1] - 1``, in any order, and
    ``plain_indices`` are their columns; int32 or int64, kept as they are. ``row_dims`` and ``col_dims`` as in
    ``to_gcs``, ``fill_value`` as in ``sparse_coo_tensor``. Differentiable in values and fill.
    """
    entries = as_tensor("sparse_gcs_tensor", "values", values)
    starts = index_array("sparse_gcs_tensor", "compressed_indices", compressed_indices, entries)
    plain = index_array("sparse_gcs_tensor", "plain_indices", plain_indices, entries)
    if requires_grad:
        entries = entries.detach().requires_grad_()
    kind, fill = fill_arguments("sparse_gcs_tensor", fill_value, entries)
    in_columns = is_by_column("sparse_gcs_tensor", compressed)
    shape = sizes_of("sparse_gcs_tensor", "size", size)
    rows, columns = (
        None if dims is None else sizes_of("sparse_gcs_tensor", name, dims)
        for name, dims in (("row_dims", row_dims), ("col_dims", col_dims))
    )
    return SparseTensor(ops.make_gcs_tensor(starts, plain, entries, shape, rows, columns, in_columns, kind, fill))


@_not_compiled
def to_sparse(dense: Tensor, sparse_dims: int | None = None, fill_value: object = None) -> SparseTensor:
    """The elements of a strided tensor that differ from the fill.

    The leading ``sparse_dims`` dims are sparse, all by default. Differentiable for the elements that become entries.
    """
    if not isinstance(dense, Tensor):
        raise TypeError(f"[lacewing.to_sparse] a strided tensor is needed, not a {type(dense).__name__}")
    if sparse_dims is not None and not hasattr(sparse_dims, "__index__"):
        raise TypeError(f"[lacewing.to_sparse] sparse_dims must be an integer, not {sparse_dims!r}")
    kind, fill = fill_arguments("to_sparse", fill_value, dense)
    return SparseTensor(ops.tensor_from_dense(dense, sparse_dims, kind, fill))


def from_additive(additive: Tensor, sparse: SparseTensor) -> SparseTensor:
    """``additive + sparse`` as one sparse tensor, whose fill is ``additive``; sparse must have the fill 0."""
    return SparseTensor(ops.tensor_from_additive(additive, sparse._inner))
