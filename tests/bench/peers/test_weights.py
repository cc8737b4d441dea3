"""One model in the forms that the programs read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors import safe_open

from spec_sdk.bench.peers.weights import weights_of, write_plain
from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import Checkpoint
from tests.checkpoints.gguf_files import write_gguf


def mostly_q4_1(name: str) -> str:
    return "Q8_0" if "attn_v" in name else "Q4_1"


@pytest.mark.parametrize(("kind", "bits"), [(mostly_q4_1, 4), ("Q5_0", 5), ("Q8_0", 8)])
def test_the_plain_gguf_file_holds_the_quantised_values(
    kind: str | Callable[[str], str], bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "q.gguf", kind=kind, customize=lambda writer: writer.add_file_type(3))
    weights = weights_of(tmp_path / "q.gguf", "F16")
    assert (weights.in_bits, weights.bits) == (tmp_path / "q.gguf", bits) and weights.plain is not None
    source, made = gguf.GGUFReader(tmp_path / "q.gguf"), gguf.GGUFReader(weights.plain)
    assert set(made.fields) == set(source.fields)
    for name, field in source.fields.items():
        if not name.startswith("GGUF.") and name != gguf.Keys.General.FILE_TYPE:
            assert made.fields[name].contents() == field.contents()
    kinds = set()
    for old, new in zip(source.tensors, made.tensors, strict=True):
        values = gguf.quants.dequantize(old.data, old.tensor_type)
        assert old.name == new.name and np.array_equal(new.data, values.astype(new.data.dtype))
        kinds.add((values.ndim, new.tensor_type.name))
    assert kinds == {(1, "F32"), (2, "F16")}
    # what transformers reads has every weight under its own name
    directory = Checkpoint(weights.directory, "", "")
    with safe_open(weights.directory / "model.safetensors", "pt") as stored:
        assert set(stored.keys()) >= directory.names()


@pytest.mark.parametrize("kind", ["BF16", "TQ1_0"])
def test_a_file_whose_matrices_are_mostly_dense_here_is_in_no_bits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    shape: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    write_gguf(tmp_path / "plain.gguf", kind=lambda name: "Q8_0" if "token_embd" in name else kind, **shape)
    weights = weights_of(tmp_path / "plain.gguf", "F16")
    assert (weights.in_bits, weights.bits) == (None, None)


def test_values_that_f16_does_not_hold_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "large.gguf", "llama")
    writer.add_tensor("output.weight", np.full((2, 2), 1e6, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match=r"output\.weight has values that F16 does not hold"):
        write_plain(tmp_path / "large.gguf", tmp_path / "f16.gguf", "F16")
