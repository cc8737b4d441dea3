"""Hydra heads that compute something else than their authors' program, or read its files in another way."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "spec_sdk/model/draft_heads"
FILES = "tests/draft_heads/test_hydra_files.py"
DRAFTER = "tests/draft_heads/test_hydra.py"
FORMULA = f"{FILES}::test_trees_of_a_batch_over_several_rounds"

HYDRA = (
    Mutant(
        "Hydra: the tokens stand before the state",
        f"{ROOM}/hydra.py",
        "torch.cat((state_KM, embedded_KX), dim=-1)",
        "torch.cat((embedded_KX, state_KM), dim=-1)",
        (FORMULA,),
    ),
    Mutant(
        "Hydra: the first block has an ordinary residual",
        f"{ROOM}/hydra.py",
        "self.shortcut(x_KX) + ",
        "x_KX[..., : self.first.outputs] + ",
        (FORMULA,),
    ),
    Mutant(
        "Hydra++: the heads read a state that is not normalized",
        f"{ROOM}/hydra.py",
        "        return self._norm(h, self.final_norm_M)",
        "        return h",
        (FORMULA,),
    ),
    Mutant(
        "Hydra: an earlier layer's state is normalized too",
        f"{ROOM}/hydra.py",
        "if self.layer == self.target.layers else h_NM",
        "if True else h_NM",
        (f"{FILES}::test_an_earlier_layer_is_read_without_the_final_norm",),
    ),
    Mutant(
        "Hydra session: the root's state is that of the first pair",
        f"{ROOM}/hydra_session.py",
        "features_NM[-1:].clone()",
        "features_NM[:1].clone()",
        (FORMULA,),
    ),
    Mutant(
        "Hydra session: a head reads two tokens at most",
        f"{ROOM}/hydra_session.py",
        "    while node:\n        node = tree.parent[node]",
        "    while node and len(tokens) < 2:\n        node = tree.parent[node]",
        (FORMULA,),
    ),
    Mutant(
        "Hydra session: a slot's pairs outlive its request",
        f"{ROOM}/hydra_session.py",
        "        self.forget(slot)\n",
        "",
        (f"{DRAFTER}::test_a_new_request_has_no_state_of_the_slots_last_one",),
    ),
    Mutant(
        "Hydra++: blocks behind dropouts are counted as if there were none",
        f"{ROOM}/layouts/hydra.py",
        'dropout=kind == "prefix-mlp"))',
        "dropout=False))",
        (f"{FILES}::test_layouts_are_told_apart",),
    ),
)
"""Hydra and Hydra++: heads, prefix layer, session, layout."""
