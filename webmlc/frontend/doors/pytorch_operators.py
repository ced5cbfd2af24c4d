"""Operators of PyTorch that torch.onnx does not translate, as operators of ONNX.

In: tensors of onnxscript, while torch.onnx translates a program. Out: the result, computed by
operators of onnxscript. `translations` is the table that torch.onnx takes. A function here has the
name and the arguments of an operator of PyTorch. No function returns an argument: torch.onnx names
and types each result, and so would change an input of the model. `replaced_functions` replaces
functions earlier, while torch.export traces the model.

    median.dim(x, 1)   ->   TopK(x, (n + 1) // 2, axis=1, largest=0), its last
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from webmlc.frontend.doors.pytorch_custom_operators import custom_translations

Value = Any
"""A tensor of onnxscript."""
FIRST, LAST = [0], [-1]


def translations() -> dict[Any, Callable[..., Any]]:
    """The translations by operator of PyTorch."""
    import torch

    aten, prims = torch.ops.aten, torch.ops.prims
    return {
        aten.median.default: _median_of_all,
        aten.median.dim: _median,
        aten.nanmedian.default: _nanmedian_of_all,
        aten.nanmedian.dim: _nanmedian,
        aten.kthvalue.default: _kthvalue,
        aten._cdist_forward.default: _cdist_forward,
        aten._pdist_forward.default: _pdist_forward,
        aten.searchsorted.Tensor: _searchsorted,
        aten.linalg_inv.default: _inverse,
        aten.inverse.default: _inverse,
        aten.linalg_inv_ex.default: _linalg_inv_ex,
        aten.linalg_solve.default: _linalg_solve,
        aten._linalg_slogdet.default: _linalg_slogdet,
        aten.embedding_bag.default: _embedding_bag,
        aten.embedding_bag.padding_idx: _embedding_bag,
        aten.masked_select.default: _masked_select,
        prims.hypot.default: _hypot,
        prims.prod.default: _prod,
        **custom_translations(),
    }


def _onnx() -> Any:
    """The operators of opset 20, which torch.onnx writes."""
    from onnxscript import opset20

    return opset20


def _is_float(x: Value) -> bool:
    return x.dtype is not None and x.dtype.is_floating_point()


def _flat(x: Value) -> Value:
    return _onnx().Reshape(x, [-1])


def _middle(length: Value) -> Value:
    """The rank of the median. PyTorch takes the lower of the two middle elements."""
    op = _onnx()
    return op.Div(op.Add(length, [1]), [2])


def _size(x: Value, axis: int) -> Value:
    op = _onnx()
    return op.Shape(x, start=axis) if axis == -1 else op.Shape(x, start=axis, end=axis + 1)


def _nth_smallest(x: Value, rank: Value, axis: int, keepdim: bool) -> tuple[Value, Value]:
    """The element of this rank (from 1) along an axis, and its index. A NaN is the result of its
    row, as in PyTorch.
    """
    op = _onnx()
    ordered = op.TopK(x, rank, axis=axis, largest=0, sorted=1)
    value, index = (op.Slice(part, LAST, [2**31 - 1], [axis]) for part in ordered)
    if _is_float(x):
        nans = op.Cast(op.IsNaN(x), to=_INT64)
        has_nan = op.Greater(op.ReduceMax(nans, [axis], keepdims=1), 0)
        value = op.Where(has_nan, op.CastLike(math.nan, x), value)
    if keepdim:
        return value, index
    return op.Squeeze(value, [axis]), op.Squeeze(index, [axis])


_INT64 = 7
"""The number of int64 among ONNX's types (`onnx.TensorProto.INT64`)."""
_INT32 = 6


def _median(self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _nth_smallest(self, _middle(_size(self, dim)), dim, keepdim)


def _median_of_all(self: Value) -> Value:
    return _median(_flat(self), 0)[0]


def _kthvalue(self: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    return _nth_smallest(self, [k], dim, keepdim)


def _nanmedian(self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The median without NaNs. NaNs are replaced by infinity, so that numbers are sorted first."""
    op = _onnx()
    if not _is_float(self):
        return _median(self, dim, keepdim)
    is_nan = op.IsNaN(self)
    finite = op.Where(is_nan, op.CastLike(math.inf, self), self)
    values, indices = op.TopK(finite, _size(self, dim), axis=dim, largest=0, sorted=1)
    numbers = op.Cast(op.Not(is_nan), to=_INT64)
    count = op.ReduceSum(numbers, [dim], keepdims=1)
    place = op.Max(op.Sub(_middle(count), [1]), op.Constant(value_ints=[0]))
    value, index = (op.GatherElements(part, place, axis=dim) for part in (values, indices))
    value = op.Where(op.Equal(count, [0]), op.CastLike(math.nan, self), value)
    if keepdim:
        return value, index
    return op.Squeeze(value, [dim]), op.Squeeze(index, [dim])


def _nanmedian_of_all(self: Value) -> Value:
    return _nanmedian(_flat(self), 0)[0]


def _norm(difference: Value, p: float) -> Value:
    """The p-norm along the last axis."""
    op = _onnx()
    if p == 2:
        return op.ReduceL2(difference, LAST, keepdims=0)
    if p == 1:
        return op.ReduceL1(difference, LAST, keepdims=0)
    size = op.Abs(difference)
    if p == math.inf:
        return op.ReduceMax(size, LAST, keepdims=0)
    if p == 0:
        return op.ReduceSum(op.Sign(size), LAST, keepdims=0)
    total = op.ReduceSum(op.Pow(size, op.CastLike(p, size)), LAST, keepdims=0)
    return op.Pow(total, op.CastLike(1 / p, size))


def _cdist_forward(x1: Value, x2: Value, p: float, compute_mode: int | None = None) -> Value:
    op = _onnx()
    return _norm(op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3])), p)


def _pdist_forward(self: Value, p: float = 2.0) -> Value:
    """The distances of each row to the later rows."""
    import numpy as np

    op = _onnx()
    first, second = np.triu_indices(int(self.shape[0]), 1)
    rows = (op.Gather(self, indices.tolist(), axis=0) for indices in (first, second))
    return _norm(op.Sub(*rows), p)


def _searchsorted(
    sorted_sequence: Value,
    self: Value,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """The number of elements of the sequence before each value."""
    op = _onnx()
    if sorter is not None:
        sorted_sequence = op.GatherElements(sorted_sequence, sorter, axis=-1)
    sequence, values = op.Unsqueeze(sorted_sequence, [-2]), op.Unsqueeze(self, [-1])
    values = op.CastLike(values, sequence)
    is_right = right or side == "right"
    before = op.LessOrEqual(sequence, values) if is_right else op.Less(sequence, values)
    number = _INT32 if out_int32 else _INT64
    return op.ReduceSum(op.Cast(before, to=number), LAST, keepdims=0)


def _inverse(A: Value) -> Value:
    """The inverse, as onnxruntime's operator `Inverse`, for which `onnx` has no schema."""
    from onnx.defs import OpSchema
    from onnxscript.values import Op, Opset

    domain = "com.microsoft"
    x, y = (OpSchema.FormalParameter(name, "T") for name in "XY")
    types = ("T", ["tensor(float16)", "tensor(float)", "tensor(double)"], "floats")
    schema = OpSchema("Inverse", domain, 1, inputs=[x], outputs=[y], type_constraints=[types])
    return Op(Opset(domain, 1), "Inverse", schema)(A)


def _no_error(matrix: Value) -> Value:
    """The `info` of a decomposition that succeeded."""
    op = _onnx()
    return op.Expand(op.Constant(value_ints=[0]), op.Shape(matrix, start=0, end=-2))


def _linalg_inv_ex(A: Value, check_errors: bool = False) -> tuple[Value, Value]:
    return _inverse(A), _no_error(A)


def _linalg_solve(A: Value, B: Value, left: bool = True) -> Value:
    op = _onnx()
    inverse = _inverse(A)
    is_vector = len(B.shape) == 1 or list(B.shape) == list(A.shape)[:-1]
    right = op.Unsqueeze(B, LAST) if is_vector else B
    result = op.MatMul(inverse, right) if left else op.MatMul(right, inverse)
    return op.Squeeze(result, LAST) if is_vector else result


def _linalg_slogdet(A: Value) -> tuple[Value, Value, Value, Value]:
    """The sign and the logarithm of the determinant. Only a derivative reads the other two results,
    the decomposition and its pivots, so they are arbitrary tensors.
    """
    op = _onnx()
    determinant = op.Det(A)
    return op.Sign(determinant), op.Log(op.Abs(determinant)), op.Identity(A), _no_error(A)


@contextmanager
def replaced_functions() -> Iterator[None]:
    """Replace functions of PyTorch while a model is traced. torch.export cannot trace them, because
    they make symbolic sizes constant, or compare data.
    """
    import torch
    from torch.nn import functional

    functions: list[tuple[Any, str, Callable[..., Any]]]
    functions = [(functional, "affine_grid", _affine_grid)]
    for owner in (torch, torch.Tensor):
        functions += [(owner, "cov", _cov), (owner, "corrcoef", _corrcoef)]
    originals = [getattr(owner, name) for owner, name, _ in functions]
    for owner, name, function in functions:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name, _), original in zip(functions, originals, strict=True):
            setattr(owner, name, original)


def _cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """The covariances of the rows of a matrix, or the variance of a vector."""
    if fweights is not None or aweights is not None:
        raise NotImplementedError("covariances with weights: multiply the columns instead")
    centred = input - input.mean(-1, keepdim=True)
    products = centred @ centred.T if input.dim() == 2 else (centred * centred).sum()
    return products / (input.shape[-1] - correction)


def _corrcoef(input: Any) -> Any:
    """The correlations of the rows of a matrix; 1 for a vector."""
    covariances = _cov(input)
    if input.dim() < 2:
        return covariances / covariances
    deviations = covariances.diagonal().sqrt()
    return (covariances / deviations[:, None] / deviations[None]).clamp(-1, 1)


def _affine_grid(theta: Any, size: Any, align_corners: bool | None = None) -> Any:
    """The grid of torch.nn.functional.affine_grid, [N, *spatial, dimensions], for tensors of
    PyTorch.
    """
    import torch

    def centres(count: Any) -> Any:
        places = 2 * torch.arange(count, dtype=theta.dtype, device=theta.device)
        if align_corners:
            return places / (count - 1) - 1 if count > 1 else places
        return (places + 1) / count - 1

    batch, _, *spatial = size
    axes = torch.meshgrid(*map(centres, spatial), indexing="ij")
    base = torch.stack((*reversed(axes), torch.ones_like(axes[0])), -1)
    points = base.flatten(0, -2) @ theta.transpose(1, 2)
    return points.reshape(batch, *spatial, len(spatial))


def _embedding_bag(
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Value, Value, Value, Value]:
    """The sum (mode 0), mean (1) or maximum (2) of the rows of each bag. `members` [bags, indices]
    is true where an index is in a bag. Only a derivative reads the other three results, so they are
    arbitrary tensors.
    """
    op = _onnx()
    count = _size(indices, 0)
    starts = op.CastLike(offsets, indices)
    if include_last_offset:
        ends, starts = (
            op.Slice(starts, [1], [2**31 - 1], FIRST),
            op.Slice(starts, FIRST, LAST, FIRST),
        )
    else:
        last = op.CastLike(count, indices)
        ends = op.Concat(op.Slice(starts, [1], [2**31 - 1], FIRST), last, axis=0)
    places = op.CastLike(op.Range(0, op.Squeeze(count), 1), indices)
    is_after = op.GreaterOrEqual(places, op.Unsqueeze(starts, LAST))
    members = op.And(is_after, op.Less(places, op.Unsqueeze(ends, LAST)))
    if padding_idx is not None and padding_idx >= 0:
        is_real = op.Not(op.Equal(indices, op.CastLike(padding_idx, indices)))
        members = op.And(members, is_real)
    rows = op.Gather(weight, indices, axis=0)
    if per_sample_weights is not None:
        rows = op.Mul(rows, op.Unsqueeze(per_sample_weights, LAST))
    shares, zero = op.CastLike(members, weight), op.CastLike(0.0, weight)
    sizes = op.ReduceSum(shares, LAST, keepdims=1)
    if mode < 2:
        result = op.MatMul(shares, rows)
        if mode == 1:
            result = op.Div(result, op.Max(sizes, op.CastLike(1.0, weight)))
    else:
        lowest = op.CastLike(-math.inf, weight)
        candidates = op.Where(op.Unsqueeze(members, LAST), op.Unsqueeze(rows, FIRST), lowest)
        largest = op.ReduceMax(candidates, [1], keepdims=0)
        result = op.Where(op.Equal(sizes, zero), zero, largest)
    return result, *(op.Identity(indices) for _ in range(3))


def _masked_select(self: Value, mask: Value) -> Value:
    op = _onnx()
    shape = op.Shape(op.And(mask, op.Equal(self, self)))
    return op.Compress(_flat(op.Expand(self, shape)), _flat(op.Expand(mask, shape)))


def _hypot(a: Value, b: Value) -> Value:
    """√(a² + b²), divided by the larger side before squaring, so that no square overflows."""
    op = _onnx()
    a, b = op.Abs(a), op.Abs(b)
    large, small = op.Max(a, b), op.Min(a, b)
    zero = op.CastLike(0.0, a)
    ratio = op.Where(op.Equal(large, zero), zero, op.Div(small, large))
    one = op.CastLike(1.0, a)
    return op.Mul(large, op.Sqrt(op.Add(op.Mul(ratio, ratio), one)))


def _prod(inp: Value, dims: list[int], output_dtype: int | None = None) -> Value:
    op = _onnx()
    return op.ReduceProd(inp, op.Constant(value_ints=list(dims)), keepdims=0)
