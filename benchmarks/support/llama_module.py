"""What llama.cpp computes of a GGUF file's prediction module, through llama-cpp-python; run in a Python that has it.

    python llama_module.py FILE.gguf < question.json

The question: ``tokens`` with the target's ``states`` before them, and ``drafted``, the token behind them. The answer is
on stdout, ``logits`` behind both, and the package's ``version``.

Imports nothing but llama_cpp, numpy and the standard library.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

OF_MODULES = 1
"""llama.cpp's context of this type runs a file's module in the place of its model."""
SET, GET = "_Z26llama_set_embeddings_nextnP13llama_contextbb", "_Z30llama_get_embeddings_nextn_ithP13llama_contexti"
"""What the library exports beside its C interface: whether states are given out, and one of them."""


def main() -> None:
    import llama_cpp

    question = json.load(sys.stdin)
    llama_cpp.llama_backend_init()
    model_options, options = llama_cpp.llama_model_default_params(), llama_cpp.llama_context_default_params()
    model_options.load_mtp = True
    options.n_ctx, options.ctx_type, options.n_threads = 64, OF_MODULES, 1
    model = llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), model_options)
    context = model and llama_cpp.llama_init_from_model(model, options)
    if not context:
        sys.exit("llama.cpp cannot load this module")
    library = ctypes.CDLL(str(next((Path(llama_cpp.__file__).parent / "lib").glob("libllama.*"))))
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    give, state_of = getattr(library, SET), getattr(library, GET)
    give.argtypes, state_of.argtypes = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool], [ctypes.c_void_p, ctypes.c_int]
    state_of.restype = ctypes.POINTER(ctypes.c_float)
    give(context, True, False)

    def fed(tokens: list[int], states: Any, first: int) -> tuple[list[float], Any]:
        """Logits behind the last token, and the state that its children are fed."""
        states = np.ascontiguousarray(states, np.float32)
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        batch.embd = states.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, first + i, 1, 1
            batch.seq_id[i][0] = 0
        if llama_cpp.llama_decode(context, batch):
            sys.exit("llama.cpp cannot run this module")
        last = len(tokens) - 1
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, last), (vocabulary,))
        return logits.tolist(), np.ctypeslib.as_array(state_of(context, last), (states.shape[1],)).copy()

    root, state = fed(question["tokens"], question["states"], 0)
    child, _ = fed([question["drafted"]], state[None], len(question["tokens"]))
    json.dump({"logits": [root, child], "version": llama_cpp.__version__}, sys.stdout)


if __name__ == "__main__":
    main()
