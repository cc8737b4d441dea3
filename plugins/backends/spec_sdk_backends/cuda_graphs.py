"""Captures passes as CUDA graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from spec_sdk.model.executor import PassOutput
from spec_sdk.model.graph_executor import CannotCapture

WARM_UPS = 2
"""Runs before a capture: kernels are compiled and libraries make their work space in the first one, and neither can be
captured."""


class GraphCapture:
    """A :data:`~spec_sdk.model.graph_executor.Capture` for one GPU, whose graphs share one pool of memory and a stream.

    They may, since what a graph returned is copied before another one runs. ``captures``: how many were made.
    ``failure``: why the last one that failed did; empty where none has.
    """

    def __init__(self, device: torch.device) -> None:
        self.captures = 0
        self.failure = ""
        self._device = device
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._in_pool = weakref.WeakSet[torch.cuda.CUDAGraph]()

    def __call__(self, run: Callable[[], PassOutput]) -> tuple[Callable[[], object], PassOutput]:
        if not self._in_pool:
            # a pool ends with its last graph; while some tensor keeps its memory, torch refuses to go on with it
            self._pool = torch.cuda.graph_pool_handle()
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        # capturing needs a stream of its own, and what is warmed up must be warmed up there
        stream, current = self._stream, torch.cuda.current_stream(self._device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                output = run()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}".partition("\n")[0]
            # torch may have left the pool recording, and the stream capturing and current
            torch.cuda.set_stream(current)
            self._in_pool, self._stream = weakref.WeakSet(), None
            raise CannotCapture(self.failure) from error
        self._in_pool.add(graph)
        self.captures += 1
        return graph.replay, output
