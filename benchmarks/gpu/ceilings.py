"""What this GPU can do at best: copy bandwidth, matrix products, the cost of a launch. Every other figure is read
against these.

    python -m benchmarks.gpu.ceilings --output ceilings.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch


def median_ms(run: Callable[[], object], repeats: int = 20) -> float:
    """Median milliseconds of ``run`` by device events, after three runs to warm up."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def copy_tb_per_s(gib: int = 2) -> float:
    """Device-to-device copy, bytes read plus bytes written."""
    source = torch.empty(gib * 2**30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * source.numel() / (median_ms(lambda: target.copy_(source)) * 1e-3) / 1e12


def matmul_tflop_per_s(dtype: torch.dtype, size: int = 8192) -> float:
    """A square matrix product of random numbers."""
    a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    return 2 * size**3 / (median_ms(lambda: a @ b) * 1e-3) / 1e12


def launch_us(launches: int = 1000) -> tuple[float, float]:
    """Microseconds a tiny kernel costs, launched one by one and replayed in a CUDA graph."""
    x = torch.zeros(32, device="cuda")

    def work() -> None:
        for _ in range(launches):
            x.add_(1)

    eager = median_ms(work, 10)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return eager / launches * 1e3, median_ms(graph.replay, 10) / launches * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    properties = torch.cuda.get_device_properties(0)
    eager_us, graph_us = launch_us()
    report = {
        "machine": properties.name,
        "torch": torch.__version__,
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": properties.total_memory / 2**30,
        "copy_tb_per_s": copy_tb_per_s(),
        "matmul_bf16_tflop_per_s": matmul_tflop_per_s(torch.bfloat16),
        "matmul_fp32_tflop_per_s": matmul_tflop_per_s(torch.float32),
        "launch_eager_us": eager_us,
        "launch_in_graph_us": graph_us,
    }
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    for name, value in report.items():
        print(f"{name:28}{value:.3g}" if isinstance(value, float) else f"{name:28}{value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
