"""llama.cpp as a peer, through llama-cpp-python: ``Llama.generate``, plain or with its prompt-lookup draft.

    python -m spec_sdk.bench.peers.llama_worker MODEL.gguf --context 2048 --lookup 2

Imports nothing but llama_cpp and the standard library.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from spec_sdk.bench.peers.serving import Request, Take, own_stdout, serve

PROBE = list(range(5, 37))
"""A prompt to find the number of threads with."""
PROBE_TOKENS = 16
PROBE_ROUNDS = 2
LEAST_CONTEXT = len(PROBE) + 2 * PROBE_TOKENS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--context", type=int, required=True, help="longest prompt and answer, in tokens")
    parser.add_argument("--lookup", type=int, help="num_pred_tokens; without it, plain decoding")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    replies = own_stdout()

    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    on_gpu = arguments.device != "cpu"
    if on_gpu and not llama_cpp.llama_supports_gpu_offload():
        sys.exit("this llama-cpp-python was built for the CPU alone")
    lookup = arguments.lookup
    draft = None if lookup is None else LlamaPromptLookupDecoding(num_pred_tokens=lookup)
    # a draft may go beyond what is asked for
    context = max(arguments.context, LEAST_CONTEXT) + (lookup or 0)
    llama = llama_cpp.Llama(
        arguments.model,
        n_ctx=context,
        draft_model=draft,
        # with a draft model it keeps every row of logits, but without this it has room for n_batch of them alone
        logits_all=draft is not None,
        n_gpu_layers=-1 if on_gpu else 0,
        verbose=False,
    )
    default, cores = llama.n_threads, multiprocessing.cpu_count()
    speeds = {}
    for threads in sorted({default, cores}):
        llama_cpp.llama_set_n_threads(llama.ctx, threads, llama.n_threads_batch)
        speeds[threads] = max(_speed(llama) for _ in range(PROBE_ROUNDS))
    fastest = max(speeds, key=speeds.__getitem__)
    llama_cpp.llama_set_n_threads(llama.ctx, fastest, llama.n_threads_batch)

    def answer(request: Request, take: Take) -> None:
        if request.repetition_penalty != 1:
            raise ValueError("repetition_penalty: llama.cpp's looks at the last 64 tokens only")
        for token in islice(_tokens(llama, request), request.new_tokens):
            take([token])
            if token in request.stop_ids:
                return

    facts = {
        "versions": {"llama-cpp-python": llama_cpp.__version__},
        "threads": fastest,
        "default_threads": default,
        "prefill_threads": llama.n_threads_batch,
        "tokens_per_s_by_threads": speeds,
        "system": llama_cpp.llama_print_system_info().decode(),
        **({} if lookup is None else {"num_pred_tokens": lookup}),
    }
    serve(replies, answer, facts)


def _tokens(llama: Any, request: Request) -> Iterator[int]:
    """New tokens without end. Of a prompt that begins like what was read last, llama-cpp-python reads the rest only."""
    # the largest one would mean a random seed
    llama.set_seed(request.seed % 0xFFFFFFFF)
    tokens: Iterator[int] = llama.generate(
        request.tokens,
        temp=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
    )
    return tokens


def _speed(llama: Any) -> float:
    """Tokens per second of a short answer, its first token apart."""
    tokens = _tokens(llama, Request(PROBE, PROBE_TOKENS + 1))
    next(tokens)
    began = time.perf_counter()
    for _ in islice(tokens, PROBE_TOKENS):
        pass
    return PROBE_TOKENS / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
