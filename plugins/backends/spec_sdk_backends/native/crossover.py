"""From how many rows on torch's own product is faster than the native kernel: measured once on a machine, and kept.

Legend: N rows, O outputs, I inputs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from spec_sdk.files import write_json
from spec_sdk.model.source_cache import cache_root
from spec_sdk_backends.native.library import DTYPES, library
from spec_sdk_backends.native.structures import Matrix, address

ROWS = (64, 128, 256, 512)
"""Sizes of passes that are compared. Up to the first the native kernel is used without asking, since trees are such."""
SIZE = (1536, 768)
MATRICES = 4
TIMES = 5
MARGIN = 1.1
"""torch's product must be so many times faster: the native one keeps a row's result free of those beside it."""


@functools.cache
def most_rows(dtype: torch.dtype) -> int:
    """The most rows that the native kernel multiplies."""
    path = _place(dtype)
    with contextlib.suppress(OSError, ValueError, TypeError):
        kept = int(json.loads(path.read_text(encoding="utf-8")))
        if kept in ROWS:
            return kept
    found = measure(dtype)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found)
    return found


def measure(dtype: torch.dtype) -> int:
    """The same, measured now."""
    weights = [torch.randn(SIZE).to(dtype) for _ in range(MATRICES)]
    best = ROWS[0]
    for rows in ROWS[1:]:
        x_NI, y_NO = torch.randn(rows, SIZE[1]).to(dtype), torch.empty(rows, SIZE[0], dtype=dtype)

        def native(x_NI: torch.Tensor = x_NI, y_NO: torch.Tensor = y_NO) -> None:
            for weight_OI in weights:
                matrix = Matrix.dense(weight_OI, None)
                library().spec_product(
                    DTYPES[dtype],
                    address(matrix),
                    x_NI.data_ptr(),
                    SIZE[1],
                    x_NI.shape[0],
                    y_NO.data_ptr(),
                    torch.get_num_threads(),
                )

        def plain(x_NI: torch.Tensor = x_NI) -> None:
            for weight_OI in weights:
                F.linear(x_NI, weight_OI)

        if _seconds(native) > MARGIN * _seconds(plain):
            break
        best = rows
    return best


def _seconds(call: Callable[[], None]) -> float:
    taken = []
    for _ in range(TIMES):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _place(dtype: torch.dtype) -> Path:
    facts = f"{library()._name} {torch.__version__} {dtype} {torch.get_num_threads()} {ROWS} {SIZE}"
    return cache_root() / "native" / f"rows-{hashlib.sha256(facts.encode()).hexdigest()[:24]}.json"
