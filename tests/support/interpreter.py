"""Triton's interpreter, without what it does again at every call of a device function, and with dots like a GPU's.

A launch replaces the operations of ``triton.language`` by interpreted ones and puts the old ones back at its end. Every
call of a ``@triton.jit`` function inside it looks through all of them once more, though they are replaced already: a
third of the time of kernels that call small functions. Here a module is looked through once in a launch.

A row of ``tl.dot`` has the same bits wherever in the tile it is, on a GPU. The interpreter's is NumPy's product, whose
BLAS adds up in another order in some rows of a tile, on some processors.

Legend: I rows, K numbers of a row, J columns.
"""

from __future__ import annotations

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

    def __call__(self, fn: Any) -> Any:
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


def install() -> None:
    """Once per process; nothing where Triton is not installed or its interpreter is made otherwise."""
    try:
        from triton.runtime import interpreter  # type: ignore[import-untyped]
    except ImportError:
        return
    known = all(hasattr(interpreter, name) for name in ("_patch_lang", "_LangPatchScope", "tl"))
    if known and not isinstance(interpreter._patch_lang, PatchOnce):
        interpreter._patch_lang = PatchOnce(interpreter)
    if getattr(interpreter, "np", None) is np:
        interpreter.np = with_rows_alike()
