"""GGUF files of the architecture ``deepseek2``, which llama.cpp has for all families that attend to latents: without
experts they are Youtu's, with experts chosen by probability DeepSeek-V2's, by sigmoids DeepSeek-V3's and GLM's.
"""

from __future__ import annotations

from typing import Any

from spec_sdk.model.config_fields import Fields
from spec_sdk.model.deepseek_mixture import gguf_deepseek_experts
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.latent_like import gguf_latent_like

ARCHITECTURE = "deepseek2"


def read_deepseek2(gguf: GGUFFile) -> dict[str, Any]:
    """What the config.json of a file's model would say, which also says of which family it is.

    Raises UserError for what the decoder cannot run or the file lacks.
    """
    meta = Fields(gguf.metadata, gguf.where)
    config = gguf_latent_like(gguf, ARCHITECTURE)
    if not meta.number(f"{ARCHITECTURE}.expert_count", 0):
        return config | {"model_type": "youtu"}
    # the first files of GLM 4.7 Flash do not say how experts are scored, but have what only sigmoids need
    by_sigmoid = any(name.endswith(".exp_probs_b.bias") for name in gguf.tensors)
    mixture = gguf_deepseek_experts(gguf, ARCHITECTURE, "sigmoid" if by_sigmoid else "softmax", grouped=by_sigmoid)
    return config | mixture | {"model_type": "deepseek_v3" if by_sigmoid else "deepseek_v2"}
