"""Keys and values in the wrong slots, masks that show or hide the wrong nodes, tokens at the wrong positions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CACHE = "spec_sdk/model/kv_cache.py"
MASK = "spec_sdk/ops/attention_mask.py"
SESSION = "spec_sdk/model/session.py"
INPUTS = "spec_sdk/ops/pass_inputs.py"
OF_CACHE = "tests/tree/test_cache.py"
OF_MASK = "tests/tree/test_attention.py"
OF_SESSION = "tests/model/test_session.py"

MODEL = (
    Mutant(
        "cache: a path that begins at the root is not moved",
        CACHE,
        "if row != place:",
        "if row != place and path[0] != 0:",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: a path's rows are counted from the slot's start",
        CACHE,
        "source.append(prefix + row)",
        "source.append(row)",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: the rows after those of the path",
        CACHE,
        "source.append(prefix + row)",
        "source.append(min(prefix + row + 1, self.capacity - 1))",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: the values stay where they were",
        CACHE,
        "for storage in (self.k_LSGCD, self.v_LSGCD):",
        "for storage in (self.k_LSGCD,):",
        (OF_CACHE,),
    ),
    Mutant(
        "session: the length goes up to the path's last row",
        SESSION,
        "extend(fed[row] for row in path)",
        "extend(fed[row] for row in range(path[-1] + 1 if path else 0))",
        (OF_SESSION,),
    ),
    Mutant(
        "cache: rows are moved one by one within the storage",
        CACHE,
        "storage[:, slot_K, :, target_K] = storage[:, slot_K, :, source_K]",
        """for one, column, place in reversed([*zip(slot, source, target, strict=True)]):
                storage[:, one, :, place] = storage[:, one, :, column]""",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: growing loses the last column",
        CACHE,
        "larger[:, :old_slots, :, :old_capacity] = storage",
        "larger[:, :old_slots, :, : max(old_capacity - 1, 0)] = storage[:, :, :, : max(old_capacity - 1, 0)]",
        (OF_CACHE,),
    ),
    Mutant(
        "mask: ancestors are hidden",
        MASK,
        "(self.key_start_T <= query_N1)",
        "(self.key_start_T == query_N1)",
        (OF_MASK,),
    ),
    Mutant(
        "mask: nodes to come are visible",
        MASK,
        "return (self.key_start_T <= query_N1) & (query_N1 < self.key_end_T)",
        "return query_N1 < self.key_end_T",
        (OF_MASK,),
    ),
    Mutant(
        "mask: siblings are visible",
        MASK,
        "return (self.key_start_T <= query_N1) & (query_N1 < self.key_end_T)",
        "return self.key_start_T <= query_N1",
        (OF_MASK,),
    ),
    Mutant(
        "mask: intervals end one node late",
        MASK,
        "(query_N1 < self.key_end_T)",
        "(query_N1 <= self.key_end_T)",
        (OF_MASK,),
    ),
    Mutant(
        "mask: a node does not see itself",
        MASK,
        "(self.key_start_T <= query_N1)",
        "(self.key_start_T < query_N1)",
        (OF_MASK,),
    ),
    Mutant(
        "mask: the oldest nodes of a growing tree ask",
        MASK,
        "key_start[-queries:]",
        "key_start[:queries]",
        (OF_MASK,),
    ),
    Mutant(
        "mask: a tree is taken for a chain",
        MASK,
        "is_preorder=True, live=end_N[0])",
        "is_preorder=True, is_chain=True, live=end_N[0])",
        (OF_MASK,),
    ),
    Mutant(
        "session: a tree's nodes lie one behind the other",
        INPUTS,
        "position = [prefix + depth for depth in depth_N]",
        "position = [prefix + place for place in order]",
        (OF_SESSION,),
    ),
    Mutant(
        "session: a tree lies one position late",
        INPUTS,
        "position = [prefix + depth for depth in depth_N]",
        "position = [prefix + depth + 1 for depth in depth_N]",
        (OF_SESSION,),
    ),
    Mutant(
        "session: a growing tree lies one position late",
        SESSION,
        "position=[prefix - 1 + depth for depth in",
        "position=[prefix + depth for depth in",
        (OF_SESSION,),
    ),
    Mutant(
        "session: fed tokens lie at the text's start",
        INPUTS,
        "range(prefix, prefix + count), order",
        "range(count), order",
        (OF_SESSION,),
    ),
    Mutant(
        "session: a growing tree overwrites its older nodes",
        SESSION,
        "write_at=prefix + tree.size - 1 - new",
        "write_at=prefix",
        (OF_SESSION,),
    ),
    Mutant(
        "session: the runner does not hear what is kept",
        SESSION,
        "self.runner.commit(slot, path)",
        "pass",
        ("tests/model/test_predictors.py", "tests/model/test_attention_verifiers.py"),
    ),
    Mutant(
        "session: the runner does not hear what is dropped",
        SESSION,
        "        self.runner.truncate(slot, length)\n",
        "",
        ("tests/model/test_predictors.py", "tests/model/test_attention_verifiers.py"),
    ),
    Mutant(
        "shared prefix: one token too many is taken over",
        SESSION,
        "next((i for i, (a, b) in pairs if a != b)",
        "next((i + 1 for i, (a, b) in pairs if a != b)",
        ("tests/model/test_shared_prefix.py",),
    ),
    Mutant(
        "tree: a second child begins inside the first one's subtree",
        "spec_sdk/tree.py",
        "next_free[parent] += subtree[node]",
        "next_free[parent] += 1",
        ("tests/tree/test_tree.py",),
    ),
)
