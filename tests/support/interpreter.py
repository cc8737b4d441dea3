"""Triton's interpreter, without work whose result nothing reads, and with dots like a GPU's.

A launch replaces the operations of ``triton.language`` by interpreted ones and puts the old ones back at its end. Every
call of a ``@triton.jit`` function inside it looks through all of them once more, though they are replaced already: a
third of the time of kernels that call small functions. Here a module is looked through once in a launch. Every sum and
product of integers is computed once more in 64 bits, for an assertion that its options leave out: a quarter of the
time. Every number's NumPy type is looked up in a table that is made for it, and shapes are checked and wrapped for
every tensor: here once for each shape.

A row of ``tl.dot`` has the same bits wherever in the tile it is, on a GPU. The interpreter's is NumPy's product, whose
BLAS adds up in another order in some rows of a tile, on some processors.

Legend: I rows, K numbers of a row, J columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike


class PatchOnce:
    """In the place of the interpreter's ``_patch_lang``: what is replaced already in this launch is left as it is."""

    def __init__(self, interpreter: Any) -> None:
        self.patch, self.new_scope = interpreter._patch_lang, interpreter._LangPatchScope
        self.languages = (interpreter.tl, interpreter.tl.core)
        self.replaced: set[int] = set()
        self.looked_through: set[int] = set()

    def __call__(self, fn: Any) -> Any:
        if id(fn.__globals__) in self.looked_through:
            return self.new_scope()
        self.looked_through.add(id(fn.__globals__))
        seen = {id(value) for value in fn.__globals__.values()}
        named = {id(language) for language in self.languages if id(language) in seen}
        if named <= self.replaced and self.replaced:
            return self.new_scope()
        scope, begins = self.patch(fn), not self.replaced
        self.replaced |= named
        if begins:
            restore = scope.restore

            def ended() -> None:
                restore()
                self.replaced.clear()
                self.looked_through.clear()

            scope.restore = ended
        return scope


def matmul(a_IK: np.ndarray, b_KJ: np.ndarray, dtype: DTypeLike | None = None) -> np.ndarray:
    """NumPy's ``matmul``, of which every row is computed alike."""
    dtype = dtype or np.result_type(a_IK, b_KJ)
    # einsum asks no BLAS, unless told to optimize
    return np.einsum("...ik,...kj->...ij", a_IK.astype(dtype), b_KJ.astype(dtype))


def with_rows_alike() -> ModuleType:
    """NumPy with this ``matmul``."""
    numpy = ModuleType(np.__name__)
    vars(numpy).update(vars(np), matmul=matmul)
    return numpy


def found_once(np_dtype: Callable[[Any], np.dtype[Any]], pointer_type: type) -> Callable[[Any], np.dtype[Any]]:
    """``np_dtype`` of a scalar's or block's type, asked once for each kind of number."""
    of_scalar = cache(np_dtype)

    def found(of: Any) -> np.dtype[Any]:
        # types of pointers have no hash
        return np_dtype(of) if isinstance(of.scalar, pointer_type) else of_scalar(of.scalar)

    return found


def operation_replaced(semantic: Any) -> Callable[..., None]:
    """In the place of the interpreter's ``_patch_attr``: a call makes one dictionary, not two."""

    def patch_attr(place: Any, name: str, operation: Callable[..., Any], builder: Any, scope: Any) -> None:
        def interpreted(*args: Any, **options: Any) -> Any:
            options["_semantic"] = semantic
            return operation(*args, **options)

        scope.set_attr(place, name, interpreted)

    return patch_attr


def shapes_once(language: Any) -> None:
    """Let types and tensors of blocks share what hangs on their shape alone."""
    of_types: dict[tuple[int, ...], tuple[Any, int, str]] = {}
    # by the shape's id: shapes of types are those of the table above, which live on
    of_tensors: dict[int, tuple[Any, Any]] = {}
    make_type, make_tensor, equal = (
        language.block_type.__init__,
        language.tensor.__init__,
        language.tuple.__eq__,
    )

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(shape)
        known = of_types.get(sizes) if all(type(size) is int for size in sizes) else None
        if known is None:
            make_type(self, element_ty, shape)
            known = of_types.setdefault(tuple(self.shape), (self.shape, self.numel, str(self.shape)))
        self.shape, self.numel, written = known
        self.element_ty, self.name = element_ty, f"<{written}, {element_ty}>"

    def tensor(self: Any, handle: Any, type: Any) -> None:
        if not type.is_block():
            make_tensor(self, handle, type)
            return
        known = of_tensors.get(id(type.shape))
        if known is None:
            make_tensor(self, handle, type)
            of_tensors[id(type.shape)] = self.numel, self.shape
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = known

    def tuple_equal(self: Any, other: Any) -> Any:
        if self is other:
            return language.constexpr(True)
        return language.constexpr(self.values == other) if type(other) is list else equal(self, other)

    language.block_type.__init__, language.tensor.__init__ = block_type, tensor
    language.tuple.__eq__ = tuple_equal


def unwrapped_at_once(language: Any) -> Callable[[Any], Any]:
    """In the place of ``_unwrap_if_constexpr``, most of whose arguments are single values."""
    unwrap, constexpr = language._unwrap_if_constexpr, language.constexpr
    as_they_are = (int, bool, float, str, type(None), language.tensor)

    def unwrapped(of: Any) -> Any:
        kind = type(of)
        if kind is constexpr:
            return of.value
        return of if kind in as_they_are else unwrap(of)

    return unwrapped


def install() -> None:
    """Once per process; nothing where Triton is not installed or its interpreter is made otherwise."""
    try:
        from triton.runtime import interpreter  # type: ignore[import-untyped]
    except ImportError:
        return
    known = all(hasattr(interpreter, name) for name in ("_patch_lang", "_LangPatchScope", "tl"))
    if known and not isinstance(interpreter._patch_lang, PatchOnce):
        interpreter._patch_lang = PatchOnce(interpreter)
    if hasattr(interpreter, "_patch_attr") and hasattr(interpreter, "interpreter_semantic"):
        interpreter._patch_attr = operation_replaced(interpreter.interpreter_semantic)
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    options: Any = getattr(builder, "options", None)
    if getattr(options, "sanitize_overflow", False) and not options.debug:
        builder.options = replace(options, sanitize_overflow=False)
    if known and interpreter.tl.tensor.__init__.__module__ != __name__:
        shapes_once(interpreter.tl.core)
        interpreter.tl.core._unwrap_if_constexpr = unwrapped_at_once(interpreter.tl.core)
    np_dtype = getattr(interpreter, "_get_np_dtype", None)
    if np_dtype is not None and np_dtype.__module__ == interpreter.__name__:
        interpreter._get_np_dtype = found_once(np_dtype, interpreter.tl.pointer_type)
    if getattr(interpreter, "np", None) is np:
        interpreter.np = with_rows_alike()
