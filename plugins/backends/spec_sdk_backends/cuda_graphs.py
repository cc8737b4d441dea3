"""Captures passes as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spec_sdk.model.executor import PassOutput

WARM_UPS = 2
"""Runs before a capture: kernels are compiled and libraries make their work space in the first one, and neither can be
captured."""


class GraphCapture:
    """A :data:`~spec_sdk.model.graph_executor.Capture` for one GPU, whose graphs share one pool of memory.

    They may, since what a graph returned is copied before another one runs. ``captures``: how many were made.
    """

    def __init__(self, device: torch.device) -> None:
        self.captures = 0
        self._device = device
        self._pool: Any = None

    def __call__(self, run: Callable[[], PassOutput]) -> tuple[Callable[[], object], PassOutput]:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # capturing needs a stream of its own, and what is warmed up must be warmed up there
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            output = run()
        self.captures += 1
        return graph.replay, output
