"""From how many rows on torch's own product is faster than the native kernel: measured once on a machine, and kept.

Torch needs the weights in rows, so that putting them there is part of its time. It is faster where its library has
instructions that the native kernels lack, such as AMX.

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
from spec_sdk_backends.native.panels import from_panels, to_panels
from spec_sdk_backends.native.structures import Matrix, address

ROWS = (64, 256, 1024)
"""Sizes of passes that are compared. Up to the first the native kernel is used without asking, since trees are such."""
ANY = 1 << 40
"""As many rows as there may be: torch was not faster with any of these."""
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
        if kept in (*ROWS, ANY):
            return kept
    found = measure(dtype)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found)
    return found


def measure(dtype: torch.dtype) -> int:
    """The same, measured now."""
    outputs, inputs = SIZE
    weights = [to_panels(torch.randn(SIZE).to(dtype)) for _ in range(MATRICES)]
    best = ROWS[0]
    for rows in ROWS[1:]:
        x_NI, y_NO = torch.randn(rows, inputs).to(dtype), torch.empty(rows, outputs, dtype=dtype)

        def native(x_NI: torch.Tensor = x_NI, y_NO: torch.Tensor = y_NO) -> None:
            for panels in weights:
                matrix = Matrix.dense(panels, outputs, inputs, None)
                library().spec_product(
                    DTYPES[dtype],
                    address(matrix),
                    x_NI.data_ptr(),
                    inputs,
                    x_NI.shape[0],
                    y_NO.data_ptr(),
                    torch.get_num_threads(),
                )

        def plain(x_NI: torch.Tensor = x_NI) -> None:
            for panels in weights:
                F.linear(x_NI, from_panels(panels, outputs, inputs))

        if _seconds(native) > MARGIN * _seconds(plain):
            return best
        best = rows
    return ANY


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
