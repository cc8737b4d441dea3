"""llama.cpp as a peer, through llama-cpp-python: greedy ``Llama.generate``, plain or with its prompt-lookup draft.

    python -m benchmarks.peers.llama_worker MODEL.gguf --context 2048 --lookup 2

Imports nothing but llama_cpp and the standard library.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from itertools import islice
from typing import Any

from benchmarks.peers.serving import Take, own_stdout, serve

PROBE = list(range(5, 37))
"""A prompt to find the number of threads with."""
PROBE_TOKENS = 16
PROBE_ROUNDS = 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--context", type=int, required=True, help="n_ctx: longest prompt and answer, in tokens")
    parser.add_argument("--lookup", type=int, help="num_pred_tokens; without it, plain decoding")
    arguments = parser.parse_args()
    replies = own_stdout()

    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    lookup = arguments.lookup
    draft = None if lookup is None else LlamaPromptLookupDecoding(num_pred_tokens=lookup)
    llama = llama_cpp.Llama(arguments.model, n_ctx=arguments.context, draft_model=draft, verbose=False)
    default, cores = llama.n_threads, multiprocessing.cpu_count()
    speeds = {}
    for threads in sorted({default, cores}):
        llama_cpp.llama_set_n_threads(llama.ctx, threads, llama.n_threads_batch)
        speeds[threads] = max(_speed(llama) for _ in range(PROBE_ROUNDS))
    fastest = max(speeds, key=speeds.__getitem__)
    llama_cpp.llama_set_n_threads(llama.ctx, fastest, llama.n_threads_batch)

    def answer(prompt: list[int], new_tokens: int, take: Take) -> None:
        for token in islice(llama.generate(prompt, temp=0.0), new_tokens):
            take([token])

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


def _speed(llama: Any) -> float:
    """Tokens per second of a short answer, its first token apart."""
    tokens = iter(llama.generate(PROBE, temp=0.0))
    next(tokens)
    began = time.perf_counter()
    for _ in islice(tokens, PROBE_TOKENS):
        pass
    return PROBE_TOKENS / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
