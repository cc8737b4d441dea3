"""The memory that processes share, as the kernels use it within a pass: one message after the other, without Python."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from spec_sdk_backends.mapped_memory import LINE
from spec_sdk_backends.native.structures import Look, Ranks, address
from spec_sdk_backends.shared_memory import CAPACITY, SharedMemory


class KernelRanks:
    """``memory``, for kernels that run on all its ranks at once and send messages of at most CAPACITY bytes."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._error: BaseException | None = None
        self._hook_before = sys.unraisablehook
        # the structure does not keep it alive
        self._look = Look(self._wants_no_more)
        number_of, messages = memory.addresses
        self._structure = Ranks(
            memory.rank, memory.size, number_of, messages, LINE // 8, CAPACITY, 0, memory.patience.look_s, self._look
        )

    @contextlib.contextmanager
    def lent(self) -> Iterator[int]:
        """The address of what a kernel is given. Raises what ended its waiting for another rank."""
        self._structure.number = self._memory.number
        before = self._hook_before = sys.unraisablehook
        sys.unraisablehook = self._keep_interruption
        try:
            yield address(self._structure)
        finally:
            sys.unraisablehook = before
            self._memory.number = self._structure.number
        if self._error is not None:
            raise self._error

    def _keep_interruption(self, unraisable: Any) -> None:
        # Ctrl-C came just before the kernel's call was within ``try``
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            self._error = unraisable.exc_value
        else:
            self._hook_before(unraisable)

    def _wants_no_more(self, waited_s: float) -> bool:
        # an exception does not pass through a kernel
        try:
            self._memory.patience.check(waited_s)
        except BaseException as error:
            self._error = error
        return self._error is not None
