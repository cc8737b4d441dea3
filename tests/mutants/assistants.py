"""Assistants that attend to something else, stand elsewhere, or are told of another token."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MODEL = "spec_sdk/model/assistant/model.py"
SESSION = "spec_sdk/model/assistant/session.py"
LOADING = "spec_sdk/model/assistant/loading.py"
EXECUTOR = "spec_sdk/model/torch_executor.py"
STATES = "spec_sdk/engine/tapped_states.py"
OF_ASSISTANTS = "tests/assistant/test_assistant.py::test_logits_and_states_are_transformers"
OF_BLOCKS = "tests/model/test_blocks_without_kv.py"
OF_STATES = "tests/engine/test_last_states.py"

ASSISTANTS = (
    Mutant(
        "an assistant's window counts from the pending token",
        SESSION,
        "max(0, length - window - 1)",
        "max(0, length - window + 1)",
        (OF_ASSISTANTS,),
    ),
    Mutant(
        "an assistant's children are fed the pending token's state",
        SESSION,
        "self._states_TW[slot][numbers_on(device, tree.parent[-new:])]",
        "self._states_TW[slot][:1].expand(new, -1) * 0",
        (OF_ASSISTANTS,),
    ),
    Mutant(
        "an assistant stands at the position of the token before",
        SESSION,
        "TextInSight(length,",
        "TextInSight(length - 1,",
        (OF_ASSISTANTS,),
    ),
    Mutant(
        "an assistant's queries are scaled",
        MODEL,
        "scale=1.0)",
        "scale=0.9)",
        (OF_ASSISTANTS,),
    ),
    Mutant(
        "an assistant attends to the first layer that makes K and V",
        LOADING,
        "found[is_global] = makers[-1]",
        "found[is_global] = makers[0]",
        (OF_ASSISTANTS,),
    ),
    Mutant(
        "a prompt's rows end one block too early",
        EXECUTOR,
        "needed = max(self.decoder.blocks_with_kv, *plan.taps, 0)",
        "needed = max(self.decoder.blocks_with_kv - 1, *plan.taps, 0)",
        (OF_BLOCKS,),
    ),
    Mutant(
        "the last state outlives its token",
        STATES,
        "            if length < len(self._tokens.get(slot, [])):",
        "            if length < 0:",
        (OF_STATES,),
    ),
)
