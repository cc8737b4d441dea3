"""How each peer is started: its command, and the settings that its own documentation advises."""

from __future__ import annotations

from pathlib import Path

from spec_sdk.bench.peers.assistant import Assistant

TRANSFORMERS_LOOKUP = 10
"""What transformers' documentation uses for ``prompt_lookup_num_tokens``."""
LLAMA_LOOKUP = 2
"""What llama-cpp-python's README gives as ``num_pred_tokens`` for machines without a GPU."""
LLAMA_LOOKUP_ON_GPU = 10
"""What it gives for those with one."""


def transformers_command(
    python: str,
    directory: Path,
    dtype: str,
    device: str = "cpu",
    lookup: bool = False,
    assistant: Assistant | None = None,
) -> list[str]:
    """``directory``: in Hugging Face layout. ``dtype`` and ``device`` as torch names them."""
    command = [python, "-m", "spec_sdk.bench.peers.transformers_worker", str(directory.resolve()), "--dtype", dtype]
    if device != "cpu":
        command += ["--device", device]
    if lookup:
        command += ["--lookup", str(TRANSFORMERS_LOOKUP)]
    if assistant is not None:
        command += ["--assistant", str(assistant.directory.resolve())]
    return command


def llama_command(python: str, file: Path, context: int, device: str = "cpu", lookup: bool = False) -> list[str]:
    """``file``: in GGUF. ``context``: tokens of the longest prompt and its answer."""
    command = [python, "-m", "spec_sdk.bench.peers.llama_worker", str(file.resolve()), "--context", str(context)]
    if device != "cpu":
        command += ["--device", device]
    if lookup:
        command += ["--lookup", str(lookup_tokens(device))]
    return command


def lookup_tokens(device: str) -> int:
    """How many tokens llama.cpp's prompt lookup drafts."""
    return LLAMA_LOOKUP if device == "cpu" else LLAMA_LOOKUP_ON_GPU
