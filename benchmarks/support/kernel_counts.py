"""Which kernel served attention speculation: calls counted where the ops hand over to it."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from spec_sdk.ops.attention_mask import AttentionMask

FUSED = {
    "torch, one pass (CPU)": ("spec_sdk.ops.attention", "speculative_attention_on_cpu"),
    "Triton": ("spec_sdk_backends.triton_ops", "speculative_attention"),
}
"""Name of a fused kernel → module and name by which the ops call it."""


@contextlib.contextmanager
def counted_kernels() -> Iterator[dict[str, Counter[int]]]:
    """While it lasts, counts the calls of every fused kernel, by the number of rows (tree nodes) of the call."""
    counts: dict[str, Counter[int]] = {}
    with contextlib.ExitStack() as stack:
        for label, (module_name, name) in FUSED.items():
            try:
                module = importlib.import_module(module_name)
            except ImportError:  # no triton here: then it serves nothing
                continue
            kernel = getattr(module, name)
            stack.callback(setattr, module, name, kernel)
            setattr(module, name, _counting(kernel, counts.setdefault(label, Counter())))
        yield counts


def _counting(kernel: Callable[..., Any], calls: Counter[int]) -> Callable[..., Any]:
    @functools.wraps(kernel)
    def counted(q: torch.Tensor, *rest: Any, **named: Any) -> Any:
        # on the CPU the query heads are folded into the rows, and the mask knows how many there are
        masks = [value for value in (*rest, *named.values()) if isinstance(value, AttentionMask)]
        calls[masks[0].queries if masks else q.shape[1]] += 1
        return kernel(q, *rest, **named)

    return counted
