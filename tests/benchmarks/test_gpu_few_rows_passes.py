"""Passes over few rows, tried out on a tiny model in Triton's interpreter, where they are not captured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.gpu import few_rows_passes
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk_backends.few_rows import FewRows, gated_product_of_few_rows
from tests.support.skips import interpreted

pytestmark = interpreted


def test_both_ways_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The products of few rows serve the passes of one way alone, and both have the eager decoder's logits."""
    served: list[int] = []

    def noted(rows: FewRows, projection: Projection, activation: str) -> torch.Tensor | None:
        served.append(rows.x_BNI.shape[1])
        return gated_product_of_few_rows(rows, projection, activation)

    monkeypatch.setattr("spec_sdk_backends.fused_decoder.gated_product_of_few_rows", noted)
    # a CPU's own packs its matrices, which the kernels do not read
    monkeypatch.setattr("benchmarks.gpu.random_model.device_ops", lambda device: Ops())
    output = tmp_path / "passes.json"
    tiny = ["--device=cpu", "--shapes=tiny", "--rows", "3", "4", "--prefix=80", "--rounds=1", f"--output={output}"]
    assert few_rows_passes.main(tiny) == 0
    # the prompt has more than these products take
    assert set(served) == {3, 4}
    first, second = json.loads(output.read_text())["shapes"]["tiny"]
    assert first["rows"] == 3 and second["rows"] == 4
    for row in (first, second):
        assert row["few_rows_over_library"] == pytest.approx(row["few_rows_ms"] / row["library_ms"])
        assert row["few_rows_over_plain"] == pytest.approx(row["few_rows_ms"] / row["plain_ms"])
        assert max(row["few_rows_off_by"], row["library_off_by"]) < 1e-4
    assert "tiny, 4 rows:" in capsys.readouterr().out


def test_a_shape_for_which_there_is_no_time_is_named(tmp_path: Path) -> None:
    output = tmp_path / "passes.json"
    assert few_rows_passes.main(["--device=cpu", "--shapes=tiny", "--seconds=-1", f"--output={output}"]) == 1
    assert not output.exists()
