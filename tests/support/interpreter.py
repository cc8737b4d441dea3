"""Triton's interpreter, without what it does again at every call of a device function.

A launch replaces the operations of ``triton.language`` by interpreted ones and puts the old ones back at its end. Every
call of a ``@triton.jit`` function inside it looks through all of them once more, though they are replaced already: a
third of the time of kernels that call small functions. Here a module is looked through once in a launch.
"""

from __future__ import annotations

from typing import Any


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


def install() -> None:
    """Once per process; nothing where Triton is not installed or its interpreter is made otherwise."""
    try:
        from triton.runtime import interpreter  # type: ignore[import-untyped]
    except ImportError:
        return
    known = all(hasattr(interpreter, name) for name in ("_patch_lang", "_LangPatchScope", "tl"))
    if known and not isinstance(interpreter._patch_lang, PatchOnce):
        interpreter._patch_lang = PatchOnce(interpreter)
