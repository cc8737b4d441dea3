"""Models of random weights: the same every time, in the shape that is asked for."""

from __future__ import annotations

import pytest
import torch

from spec_sdk.bench.random_models import SHAPES, bytes_per_pass, hf_fields, random_decoder
from spec_sdk.model.architectures import read_config
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.quantized import BITS
from spec_sdk.tree import TokenTree


def test_a_random_decoder_runs_and_is_the_same_every_time() -> None:
    logits = []
    for _ in range(2):
        decoder = random_decoder("tiny", torch.device("cpu"), torch.float32, Ops())
        session = Session(TorchExecutor(decoder, Ops()))
        session.prefill(0, [1, 2, 3])
        logits.append(session.score([0], [TokenTree.chain(4, [5, 6])])[0].logits_NV)
    assert logits[0].shape == (3, hf_fields("tiny")["vocab_size"]) and torch.equal(*logits)
    # two layers of qkv, output, gate, up and down, and the output head, 4 bytes each
    assert bytes_per_pass(decoder) == 4 * (2 * (64 * 128 + 64 * 64 + 3 * 64 * 128) + 64 * 256)


@pytest.mark.parametrize("bits", BITS)
def test_weights_in_few_bits_are_as_large(bits: int) -> None:
    """And as many as those in floating point."""
    few, dense = (random_decoder("tiny", torch.device("cpu"), torch.float32, Ops(), which) for which in (bits, None))
    for one, other in zip(few.projections, dense.projections, strict=True):
        assert one.quantized is not None and one.quantized.bits == bits
        assert one.weight_OI.shape == other.weight_OI.shape
        assert one.weight_OI.std().item() == pytest.approx(other.weight_OI.std().item(), rel=0.1)
        assert abs(one.weight_OI.mean()) < 0.15 * other.weight_OI.std()


def test_every_shape_is_a_model_that_we_know() -> None:
    for name, (said, fields) in SHAPES.items():
        config = read_config(hf_fields(name), name)
        assert (config.hidden_size, config.vocab_size) == (fields["hidden_size"], fields["vocab_size"]) and said
