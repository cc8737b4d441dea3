"""Which layers of the target make the best draft model? Greedy removal by measured acceptance.

    python -m benchmarks.cut_draft --prompts spec_bench.jsonl --count 12

The target answers the prompts greedily. From the full stack, that layer is removed whose removal leaves the highest
share of positions at which the cut model's first choice is the target's token (its acceptance rate on a chain of depth
1), again and again. Every step is printed and written to results/cut_draft.json, with the tokens expected per target
pass, so that a cut can be chosen and named in spec_sdk/model/draft_cut.py.

Legend: B prompts, N tokens, M model dim.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.reports import write_report
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.prompts import read_prompt_texts
from spec_sdk.tree import TokenTree

ANSWER_TOKENS = 64
LONGEST_PROMPT = 160
"""Longer prompts are left out: sequences are padded to one length, so they would make every pass dearer."""


@torch.inference_mode()
def answer(decoder: Decoder, prompt: list[int]) -> list[int]:
    """The target's greedy continuation of ``prompt``, ANSWER_TOKENS long."""
    session, tokens = Session(TorchExecutor(decoder, Ops())), list(prompt)
    session.prefill(0, tokens[:-1])
    for _ in range(ANSWER_TOKENS):
        (scores,) = session.score([0], [TokenTree.root_only(tokens[-1])])
        session.commit([0], [[0]])
        tokens.append(int(scores.logits_NV[0].argmax()))
    return tokens[len(prompt) :]


class CutMeter:
    """Measures how often a cut model, reading the target's own text, would have drafted the target's next token."""

    def __init__(self, decoder: Decoder, sequences: list[tuple[list[int], list[int]]]) -> None:
        """``sequences``: prompts and the target's answers to them, which make one pass together."""
        self.decoder = decoder
        texts = [RequestRows.chain(slot, 0, prompt + answer) for slot, (prompt, answer) in enumerate(sequences)]
        inputs, cache = PassInputs.of("chain", texts, decoder.device), decoder.new_cache()
        cache.reserve(inputs.batch, inputs.width)
        self.token_BN = inputs.token_BN
        self.answer_BN = torch.zeros_like(self.token_BN, dtype=torch.bool)
        for row, (prompt, answer) in enumerate(sequences):
            self.answer_BN[row, len(prompt) : len(prompt) + len(answer)] = True
        self.embedded_BNM, self.work = decoder.forward_pass(inputs, cache, Ops())

    def run_block(self, layer: int, h_BNM: torch.Tensor) -> torch.Tensor:
        decoder, work = self.decoder, self.work
        q, k, v = decoder.pre_attention(layer, h_BNM, work)
        decoder.write_kv(layer, k, v, work)
        return decoder.post_attention(layer, h_BNM, decoder.project(layer, decoder.attend(layer, q, work)))

    def entering(self, layers: list[int]) -> list[torch.Tensor]:
        """Hidden states entering each of ``layers``, and leaving the last."""
        states = [self.embedded_BNM]
        for layer in layers:
            states.append(self.run_block(layer, states[-1]))
        return states

    def acceptance(self, h_BNM: torch.Tensor, layers: list[int]) -> float:
        """Acceptance of the model that goes on from ``h_BNM`` through ``layers``."""
        for layer in layers:
            h_BNM = self.run_block(layer, h_BNM)
        answered = self.answer_BN[:, 1:]
        guess = self.decoder.head(h_BNM[:, :-1][answered]).argmax(-1)
        return float((guess == self.token_BN[:, 1:][answered]).float().mean())


@torch.inference_mode()
def remove_greedily(meter: CutMeter, down_to: int) -> list[dict[str, object]]:
    """Remove layers one by one, each time the one that costs least acceptance; the first layer stays."""
    layers = list(range(meter.decoder.layers))
    steps: list[dict[str, object]] = []
    while len(layers) > down_to:
        began, states = time.perf_counter(), meter.entering(layers)
        rates = {layer: meter.acceptance(states[i], layers[i + 1 :]) for i, layer in enumerate(layers) if i > 0}
        worst = max(rates, key=lambda layer: rates[layer])
        layers.remove(worst)
        rate = rates[worst]
        steps.append({"layers": list(layers), "removed": worst, "acceptance": rate})
        chain = sum(rate**i for i in range(6))
        print(
            f"{len(layers):3d} layers  acceptance {rate:.3f}  chain of 5: {chain:.2f} tokens per pass  "
            f"removed {worst:2d}  ({time.perf_counter() - began:.0f} s)",
            flush=True,
        )
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--prompts", default="spec_bench_sample", help="JSONL of prompts, or spec_bench_sample")
    parser.add_argument("--count", type=int, default=12, help="prompts taken, evenly spread over the file")
    parser.add_argument("--down-to", type=int, default=10, help="stop at this many layers")
    add_output(parser, Path("benchmarks/results/cut_draft.json"))
    arguments = parser.parse_args()
    checkpoint = open_checkpoint(arguments.target)
    decoder = load_decoder(checkpoint, torch.device("cpu"), torch.bfloat16)
    texts = read_prompt_texts(arguments.prompts)
    sequences = []
    for text in texts[:: max(1, len(texts) // arguments.count)]:
        prompt = checkpoint.tokenizer.chat([{"role": "user", "content": text}])
        if len(prompt) <= LONGEST_PROMPT:
            sequences.append((prompt, answer(decoder, prompt)))
    print(f"{len(sequences)} prompts, {ANSWER_TOKENS} tokens each, target {checkpoint.name}", file=sys.stderr)
    steps = remove_greedily(CutMeter(decoder, sequences), arguments.down_to)
    write_report(arguments.output, {"target": checkpoint.name, "steps": steps})
    return 0


if __name__ == "__main__":
    sys.exit(main())
