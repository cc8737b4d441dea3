"""The benchmarks of products on a GPU, run in Triton's interpreter: products are compared there and not timed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.gpu import few_rows, in_bits, matrix_vector
from benchmarks.gpu.matrix_vector import Product, Weights
from spec_sdk.ops.linear import Projection
from spec_sdk_backends.few_rows_tiles import FewRowsTile
from spec_sdk_backends.interleaved_weights import Interleaving
from spec_sdk_backends.matrix_vector import MatrixVectorTile
from tests.support.skips import interpreted

pytestmark = interpreted
PRODUCTS = [
    Product("a norm", 256, 64, normed=True),
    Product("a residual", 512, 64, added=True),
    Product("a gate", 256, 64, normed=True, gated=True),
]
REFERENCES: dict[Projection, torch.Tensor] = {}


def compared(call: Callable[[Projection], torch.Tensor], projections: Sequence[Projection]) -> float:
    """In the place of a time: every call on the same weights must give what the first did, parts summed up."""
    for projection in projections:
        result = call(projection).float()
        result = result.sum(0) if result.ndim == 4 else result
        first = REFERENCES.setdefault(projection, result)
        torch.testing.assert_close(result, first, atol=2e-3, rtol=2e-3)
    return 1.0


def in_this_process(compile_cases: Callable[[Sequence[Any]], None], cases: Sequence[Any]) -> None:
    assert cases
    compile_cases(cases[:2])


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    REFERENCES.clear()
    monkeypatch.setattr(Weights, "by_library", with_the_residual)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=2))
    for module in (few_rows, in_bits, matrix_vector):
        monkeypatch.setattr(module, "DEVICE", torch.device("cpu"))
        monkeypatch.setattr(module, "COPIED_BYTES", 0)
        monkeypatch.setattr(module, "products_of", lambda shape: PRODUCTS)
        monkeypatch.setattr(module, "compile_beside", in_this_process)
        monkeypatch.setattr(module, "microseconds", compared)
        monkeypatch.setattr(module, "copy_tb_per_s", lambda: 1.0)
        monkeypatch.setattr(module, "made", lambda *shape: torch.randn(shape) / 16)


def with_the_residual(self: Weights, projection: Projection) -> torch.Tensor:
    """The library's, to which the benchmark leaves the next norm to add the residual."""
    result = BY_LIBRARY(self, projection)
    return result + self.added_11O if self.product.added else result


BY_LIBRARY = Weights.by_library
TILES: dict[ModuleType, list[Any]] = {
    few_rows: [FewRowsTile(64, 64, 1, 3, 4, 64), FewRowsTile(32, 64, 2, 3, 4, 0)],
    in_bits: [FewRowsTile(64, 256, 1, 3, 4, 512), FewRowsTile(32, 256, 2, 4, 2, 512)],
    matrix_vector: [MatrixVectorTile(4, 256, 2), MatrixVectorTile(16, 512, 4)],
}


@pytest.mark.parametrize(("module", "cases"), [(few_rows, 6), (in_bits, 12), (matrix_vector, 3)])
def test_every_tile_computes_what_the_library_does(
    module: Any, cases: int, on_the_cpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "tiles_of", lambda *of: TILES[module])
    output = tmp_path / "products.json"
    rows = [] if module is matrix_vector else ["--rows", "40", "64"]
    rows += ["--bits", "4", "6"] if module is in_bits else []
    assert module.main(["--shapes", "8b", *rows, "--output", str(output)]) == 0
    report = json.loads(output.read_text(encoding="utf-8"))
    assert len(report["products"]) == cases and report["left_out"] == []
    for product in report["products"]:
        assert product["library_us"] == product["chosen_us"] == 1 and len(product["tiles"]) == 2


@pytest.mark.parametrize("module", [few_rows, in_bits, matrix_vector])
def test_products_without_time_are_named_and_nothing_measured_is_no_success(
    module: Any, on_the_cpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "tiles_of", lambda *of: TILES[module])
    assert module.main(["--shapes", "8b", "--seconds", "0"]) == 1
    assert "left out: a norm" in capsys.readouterr().out


@pytest.mark.parametrize("shape", ["8b", "1b"])
def test_there_are_tiles_for_every_product_of_a_shape(shape: str) -> None:
    """On a device of 132 multiprocessors."""
    for product in matrix_vector.products_of(shape):
        assert 4 <= len(matrix_vector.tiles_of(product)) <= 40
        for rows in (8, 32, 64):
            tiles = few_rows.tiles_of(product, rows, 132)
            assert 1 <= len(tiles) <= 80, (product, rows, len(tiles))
            assert all(product.rows % tile.outputs == 0 == product.inputs % tile.inputs for tile in tiles)
            assert 1 <= len(in_bits.tiles_of(product, rows, Interleaving(4), 132)) <= 40
            shared = [few_rows.shared_bytes(tile, rows) for tile in tiles]
            assert max(shared) <= few_rows.SHARED, "a multiprocessor has no more"


@pytest.mark.parametrize(
    ("outputs", "inputs", "stages", "rows", "expected"),
    [(64, 128, 5, 64, 163_840), (128, 256, 3, 8, 245_760), (16, 256, 5, 8, 65_536)],
)
def test_shared_memory_is_what_the_compiler_takes(
    outputs: int, inputs: int, stages: int, rows: int, expected: int
) -> None:
    tile = FewRowsTile(outputs, inputs, parts=1, stages=stages, warps=4, ahead=0)
    assert few_rows.shared_bytes(tile, rows) == expected
