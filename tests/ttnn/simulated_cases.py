"""What is asked of backend=ttnn on TT-Lang's functional simulator, in a process of its own.

``python -m tests.ttnn.simulated_cases`` runs all cases and prints what each measured; test_simulated.py does that.

Legend: R rows, H query heads, G KV heads, E head dim, S keys, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from spec_sdk.engine.token_engine import TokenEngine, TokenRequest
from spec_sdk.model.architectures import read_config
from spec_sdk.model.executor import Executor, PassPlan
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry
from spec_sdk.testing import check_executor
from spec_sdk.testing.executors import check_closed_trees, random_tree
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.testing.side_by_side import SideBySide
from spec_sdk_backends.ttnn.backend import TtnnBackend, TtnnConfig
from spec_sdk_backends.ttnn.operations import HIDDEN, AttentionPart, Operations
from spec_sdk_drafters.skipped_layers import LayerSkipConfig, LayerSkipRunner
from tests.conftest import FULL
from tests.support.real_pipelines import settings_of
from tests.support.tiny_checkpoints import write_checkpoint

FLOAT32 = 1e-5
BFLOAT16 = {"attention": 1e-2, "rms_norm": 2e-2, "linear": 1e-2, "gated": 1e-2, "rotary": 1e-2, "add": 1e-2}
"""Largest error of an operation, as a part of the largest value."""
SMALL = dataclasses.replace(TINY, num_layers=2, num_heads=2, num_kv_heads=1, max_context=80)
"""Of the suite's model, as much as is left in a test of some seconds: two layers, a context that is soon full."""
SMOLLM2 = {
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 1,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""A layer of SmolLM2-135M's sizes, and a smaller vocabulary."""
PIPELINES: dict[str, tuple[str, ...]] = {
    "vanilla": (),
    "sd_chain": (),
    "specinfer_tree": (),
    "easyspec_paper": ("drafter.groups=[[0],[1,2]]", "model.draft_layers=[0,1,2]"),
}
ALWAYS = ("sd_chain", "easyspec_paper")
"""Chains and trees, passes that are sequential and that are not; the others make the same passes."""
PROMPTS = ([5, 9, 17, 30, 5, 9, 17, 31, 44, 5, 9], [41, 7])
NEW_TOKENS = 5

backend = TtnnBackend(TtnnConfig(simulate=True))


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).abs().max() / expected.double().abs().max())


def correlation(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Pearson's, of all values."""
    return float(torch.corrcoef(torch.stack((found.flatten().double(), expected.flatten().double())))[0, 1])


def operations_in(dtype: torch.dtype) -> dict[str, float]:
    """Every operation beside torch in float64, on numbers that the dtype can hold."""
    ops, rng = backend._operations(dtype), torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng).to(dtype).double()

    def host(x: Any, rows: int, columns: int) -> torch.Tensor:
        return ops.to_host(x, slice(rows), columns)

    to, rows, inner, outer = ops.to_device, 45, 300, 136
    x, weight, other, bias = (
        numbers(rows, inner),
        numbers(inner, outer) / inner**0.5,
        numbers(inner, outer) / inner**0.5,
        numbers(1, outer),
    )
    found = {
        "linear": relative_error(
            host(ops.linear(to(x), to(weight), to(bias)), rows, outer), x @ weight.to(dtype).double() + bias
        )
    }
    gate, up = weight.to(dtype).double(), other.to(dtype).double()
    found["gated"] = relative_error(host(ops.gated(to(x), to(gate), to(up)), rows, outer), F.silu(x @ gate) * (x @ up))
    found["add"] = relative_error(host(ops.add(to(x), to(x.flip(0))), rows, inner), x + x.flip(0))
    gain = numbers(1, inner)
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * gain
    found["rms_norm"] = relative_error(host(ops.rms_norm(to(x), to(gain), 1e-5, inner), rows, inner), normal)
    found |= heads_of(ops, numbers)
    return found


def heads_of(ops: Operations, numbers: Callable[..., torch.Tensor]) -> dict[str, float]:
    """The operations that know of heads: of SmolLM2's sizes, two requests in a pass."""
    to, H, G, E, R, S = ops.to_device, 9, 3, 64, 64, 256
    q, cos, sin = numbers(R, H * E), numbers(R, E // 2).repeat(1, 2), numbers(R, E // 2).repeat(1, 2)
    x_RHE = q.view(R, H, E)
    swapped = torch.cat((-x_RHE[..., E // 2 :], x_RHE[..., : E // 2]), -1)
    rotated = (x_RHE * cos[:, None] + swapped * sin[:, None]).reshape(R, H * E)
    found = {"rotary": relative_error(ops.to_host(ops.rotary(to(q), to(cos), to(sin)), slice(R), H * E), rotated)}

    caches, parts, expected = [], [], []
    for request, keys in enumerate((70, 201)):
        k, v = numbers(keys, G * E), numbers(keys, G * E)
        cache = []
        for new in (k, v):
            content = ops.new_cache(S, G, E)
            # in two goes, of which the second begins within a tile
            for rows in (range(0, 33), range(33, keys)):
                ops.update_cache(content, to(new[rows.start : rows.stop]), 0, rows)
            assert torch.equal(ops.read_cache(content)[:keys].double(), new), "what was written is not what is read"
            cache.append(content)
        seen = numbers(32, keys) > 0
        # not to see the first chunk of keys at all must leave nothing of it
        seen[:, :1], seen[5, : keys - 1], seen[5, -1] = True, False, True
        mask = torch.full((32, S), HIDDEN)
        mask[:, :keys][seen] = 0.0
        caches.append((cache[0], cache[1]))
        parts.append(AttentionPart(request, request + 1, to(mask)))
        q_HRE = x_RHE[32 * request : 32 * request + 32].transpose(0, 1)
        k_HSE, v_HSE = (y.view(keys, G, E).transpose(0, 1).repeat_interleave(H // G, 0) for y in (k, v))
        o_HRE = F.scaled_dot_product_attention(q_HRE, k_HSE, v_HSE, attn_mask=seen)
        expected.append(o_HRE.transpose(0, 1).reshape(32, H * E))
    attended = ops.attention(to(q), caches, parts, H, G, E**-0.5)
    found["attention"] = relative_error(ops.to_host(attended, slice(R), H * E), torch.cat(expected))
    return found


def case_operations_in_float32() -> dict[str, float]:
    found = operations_in(torch.float32)
    assert max(found.values()) <= FLOAT32, found
    return found


def case_operations_in_bfloat16() -> dict[str, float]:
    found = operations_in(torch.bfloat16)
    over = {name: error for name, error in found.items() if not error <= BFLOAT16[name]}
    assert not over, over
    assert found["linear"] > FLOAT32, "this is no bfloat16"
    return found


def case_rows_move_in_a_cache() -> dict[str, float]:
    """To the front, across tiles, and nothing else changes."""
    ops, rng = backend._operations(torch.float32), random.Random(0)
    for _ in range(4):
        content = torch.randn(256, 64)
        cache = ops.new_cache(256, 1, 64)
        ops.write_cache(cache, content)
        column = rng.randrange(100)
        sources = sorted(rng.sample(range(column, 250), rng.randint(1, 60)))
        ops.move_in_cache(cache, sources, column)
        content[column : column + len(sources)] = content[sources]
        assert torch.equal(ops.read_cache(cache), content)
    return {}


def layer_in(dtype: torch.dtype) -> dict[str, float]:
    """One layer of SmolLM2's sizes: a prompt of 40 tokens, then a tree of 12 nodes, beside torch in float32."""
    source = RandomWeights(read_config(SMOLLM2, "smollm2 layer"), 0, dtype)
    reference = TorchExecutor(load_decoder(source, torch.device("cpu"), torch.float32), Ops())
    executor, rng = backend.load(source, dtype), random.Random(0)
    tree = random_tree(rng, 12, 2048)
    prompt = RequestRows.chain(0, 0, [rng.randrange(2048) for _ in range(40)])
    passes = [
        PassInputs.of("chain", [prompt], torch.device("cpu")),
        PassInputs.of("tree", [RequestRows.tree(0, 40, tree.token_N, tree.depth_N, tree.end_N)], torch.device("cpu")),
    ]

    def logits_of(model: Executor) -> tuple[torch.Tensor, torch.Tensor]:
        cache = model.new_cache()
        cache.reserve(1, 60)
        outputs = [model.forward(inputs, cache, PassPlan(SequentialRunner(), taps=(1,))) for inputs in passes]
        return torch.cat([o.logits_BNV[0] for o in outputs]), torch.cat([o.hidden[1][0] for o in outputs])

    (found_RV, state), (expected_RV, expected_state) = logits_of(executor), logits_of(reference)
    assert found_RV.dtype == dtype
    top5, expected_top5 = found_RV.topk(5).indices, expected_RV.topk(5).indices
    return {
        "state error": relative_error(state, expected_state),
        "logits error": relative_error(found_RV, expected_RV),
        "state PCC": correlation(state, expected_state),
        "logits PCC": correlation(found_RV, expected_RV),
        "top-1 agreement": float((top5[:, 0] == expected_top5[:, 0]).float().mean()),
        "top-5 agreement": float((top5[:, :, None] == expected_top5[:, None]).any(-1).float().mean()),
    }


def case_a_layer_of_smollm2_in_float32() -> dict[str, float]:
    found = layer_in(torch.float32)
    assert max(found["state error"], found["logits error"]) <= FLOAT32, found
    assert found["top-1 agreement"] == found["top-5 agreement"] == 1.0, found
    return found


def case_a_layer_of_smollm2_in_bfloat16() -> dict[str, float]:
    found = layer_in(torch.bfloat16)
    assert min(found["state PCC"], found["logits PCC"]) >= 0.99, found
    assert found["top-1 agreement"] >= 0.85 and found["top-5 agreement"] >= 0.85, found
    return found


def case_the_conformance_suite() -> dict[str, float]:
    """All of its checks with the plain runner, of one seed and a model of two layers."""
    check_executor(backend.load, tolerances={torch.float32: FLOAT32}, config=SMALL, seeds=[0])
    return {}


def case_other_runners() -> dict[str, float]:
    """Groups of layers, and layers left out: of the suite the check of closed trees."""
    source, largest = RandomWeights(TINY, 1), {}
    executor = backend.load(source, torch.float32)
    reference = TorchExecutor(load_decoder(source, torch.device("cpu"), torch.float32), Ops())
    for name, make in {
        "layer_parallel": lambda: LayerParallelRunner(LayerParallelConfig(size=2)),
        "layer_skip": lambda: LayerSkipRunner(LayerSkipConfig()),
    }.items():
        side = SideBySide(executor, reference, make, FLOAT32, random.Random(0), name)
        check_closed_trees(side)
        largest[name] = side.largest_error
    return largest


def answers_of(engine: TokenEngine) -> list[list[int]]:
    """The tokens of every prompt, added at once."""
    ids = [engine.add(TokenRequest(prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True)) for prompt in PROMPTS]
    tokens: dict[int, list[int]] = {request: [] for request in ids}
    while engine.busy:
        for progress in engine.step():
            assert progress.error is None, progress.error
            tokens[progress.request] += progress.tokens
    return [tokens[request] for request in ids]


def case_pipelines_give_the_tokens_of_the_cpu() -> dict[str, float]:
    """Greedy and sampled, two requests at once."""
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder) / "target", "smollm", num_hidden_layers=3)
        for name, overrides in PIPELINES.items():
            if name not in ALWAYS and not FULL:
                continue
            for sampling in ((), ("sampling.temperature=0.8", "sampling.seed=11"))[: 2 if name == "sd_chain" else 1]:
                tokens = {}
                for where in ("cpu", "ttnn"):
                    options = (f"model.target={folder}/target", f"backend={where}", f"pipeline={name}")
                    settings = settings_of(*options, *overrides, *sampling)
                    running = build_pipeline(settings, Registry.discover())
                    tokens[where] = answers_of(running.new_engine(2))
                assert tokens["ttnn"] == tokens["cpu"], (name, sampling, tokens)
                assert [len(answer) for answer in tokens["ttnn"]] == [NEW_TOKENS, NEW_TOKENS]
    return {}


def case_the_process_keeps_its_dtypes() -> dict[str, float]:
    """The simulator makes torch.bfloat16 another name of float32 while it is imported."""
    assert str(torch.bfloat16) == "torch.bfloat16" and str(torch.float16) == "torch.float16"
    x = backend._operations(torch.bfloat16).to_device(torch.ones(3, 3))
    assert x.to_torch().dtype == torch.bfloat16
    return {}


def main(names: list[str]) -> None:
    """A line of JSON for each case: what it measured, or what went wrong, and its seconds."""
    torch.set_num_threads(1)
    # what the simulator says of an operation whose buffers a node has no room for
    for start in ("Total DataflowBuffer capacity", "Kernel defines"):
        warnings.filterwarnings("error", message=start)
    for name in names or CASES:
        began, error, found = time.perf_counter(), "", {}
        try:
            found = globals()[f"case_{name}"]()
        except Exception:
            error = traceback.format_exc()
        seconds = round(time.perf_counter() - began, 1)
        print(json.dumps({"case": name, "seconds": seconds, "found": found, "error": error}), flush=True)


CASES = [name.removeprefix("case_") for name in globals() if name.startswith("case_")]

if __name__ == "__main__":
    main(sys.argv[1:])
