"""Hugging Face transformers as a peer: ``generate``, plain, with prompt lookup or with an assistant model.

    python -m spec_sdk.bench.peers.transformers_worker DIRECTORY --dtype bfloat16 --lookup 10

Imports nothing but transformers, torch and the standard library.
"""

from __future__ import annotations

import argparse
from typing import Any

from spec_sdk.bench.peers.serving import Request, Take, own_stdout, serve

ASSISTANT_SETTINGS = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
"""What the publisher of an assistant model may say in its generation_config.json of how it is to draft."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a directory in Hugging Face layout")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--device", default="cpu")
    drafts = parser.add_mutually_exclusive_group()
    drafts.add_argument("--lookup", type=int, help="prompt_lookup_num_tokens")
    drafts.add_argument("--assistant", help="a directory in Hugging Face layout: assistant_model")
    arguments = parser.parse_args()
    replies = own_stdout()

    import torch
    import transformers
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.generation.streamers import BaseStreamer

    class Arrivals(BaseStreamer):  # type: ignore[misc]
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

    def settings_of(**values: Any) -> Any:
        return GenerationConfig(**values)

    def loaded(directory: str) -> Any:
        model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, arguments.dtype))
        return model.to(arguments.device).eval()

    model = loaded(arguments.model)
    # ``generate`` takes from it what a request leaves out, such as end tokens
    model.generation_config = settings_of()
    drafting: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    if arguments.lookup is not None:
        drafting = {"prompt_lookup_num_tokens": arguments.lookup}
        facts = dict(drafting)
    if arguments.assistant is not None:
        assistant = loaded(arguments.assistant)
        said = {name: getattr(assistant.generation_config, name, None) for name in ASSISTANT_SETTINGS}
        assistant.generation_config = settings_of(**{k: v for k, v in said.items() if v is not None})
        drafting = {"assistant_model": assistant}
        facts = {"assistant": arguments.assistant, "assistant_layers": assistant.config.num_hidden_layers}

    def answer(request: Request, take: Take) -> None:
        sampled = {
            "temperature": request.temperature,
            "top_k": request.top_k,
            "top_p": request.top_p,
            "min_p": request.min_p or None,
        }
        settings = settings_of(
            max_new_tokens=request.new_tokens,
            pad_token_id=0,
            eos_token_id=list(request.stop_ids) or None,
            repetition_penalty=request.repetition_penalty,
            do_sample=request.temperature > 0,
            **(sampled if request.temperature > 0 else {}),
        )
        torch.manual_seed(request.seed)
        ids = torch.tensor([request.tokens], device=arguments.device)
        with torch.inference_mode():
            model.generate(ids, settings, attention_mask=torch.ones_like(ids), streamer=Arrivals(take), **drafting)

    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    serve(replies, answer, {"versions": versions, "threads": torch.get_num_threads(), **facts})


if __name__ == "__main__":
    main()
