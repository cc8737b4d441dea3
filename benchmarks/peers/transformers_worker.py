"""Hugging Face transformers as a peer: greedy ``generate``, plain or with prompt lookup.

python -m benchmarks.peers.transformers_worker DIRECTORY --dtype bfloat16 --lookup 10
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.peers.serving import Take, own_stdout, serve


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a directory in Hugging Face layout")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--lookup", type=int, help="prompt_lookup_num_tokens; without it, plain decoding")
    arguments = parser.parse_args()
    replies = own_stdout()

    import torch
    import transformers
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.generation import BaseStreamer

    class Arrivals(BaseStreamer):
        """Passes on what ``generate`` gives: the prompt first, which is left out, then new tokens."""

        def __init__(self, take: Take) -> None:
            self._take = take
            self._prompt = True

        def put(self, value: torch.Tensor) -> None:
            if not self._prompt:
                self._take(value.flatten().tolist())
            self._prompt = False

        def end(self) -> None:
            pass

    model: Any = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype)).eval()
    # ``generate`` takes from it what a request leaves out: an end token would end the answer
    model.generation_config = GenerationConfig()
    lookup = {} if arguments.lookup is None else {"prompt_lookup_num_tokens": arguments.lookup}

    def answer(prompt: list[int], new_tokens: int, take: Take) -> None:
        greedy = GenerationConfig(do_sample=False, max_new_tokens=new_tokens, pad_token_id=0, **lookup)
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            model.generate(ids, greedy, attention_mask=torch.ones_like(ids), streamer=Arrivals(take))

    facts = {
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "threads": torch.get_num_threads(),
        **lookup,
    }
    serve(replies, answer, facts)


if __name__ == "__main__":
    main()
