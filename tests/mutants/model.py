"""Keys and values in the wrong slots, masks that show or hide the wrong nodes, tokens at the wrong positions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CACHE = "spec_sdk/model/kv_cache.py"
MASK = "spec_sdk/model/attention_mask.py"
SESSION = "spec_sdk/model/session.py"
OF_CACHE = "tests/tree/test_cache.py"
OF_MASK = "tests/tree/test_attention.py"
OF_SESSION = "tests/model/test_session.py"

MODEL = (
    Mutant(
        "cache: a path that begins at the root is not moved",
        CACHE,
        "if kept and path[-1] != kept - 1:",
        "if kept and path[0] != 0:",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: a path's slots are counted from the cache's start",
        CACHE,
        "torch.tensor(path, device=self.k_LBGCD.device) + self.length",
        "torch.tensor(path, device=self.k_LBGCD.device)",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: the slots after those of the path",
        CACHE,
        "torch.tensor(path, device=self.k_LBGCD.device) + self.length",
        "(torch.tensor(path, device=self.k_LBGCD.device) + self.length + 1).clamp_max(self.capacity - 1)",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: the values stay where they were",
        CACHE,
        "for storage in (self.k_LBGCD, self.v_LBGCD):",
        "for storage in (self.k_LBGCD,):",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: the length goes up to the path's last slot",
        CACHE,
        "self.length += kept",
        "self.length += path[-1] + 1 if kept else 0",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: slots are moved one by one within the storage",
        CACHE,
        "storage[:, :, :, self.length : self.length + kept] = storage.index_select(3, source)",
        """for place, slot in reversed([*enumerate(source.tolist(), self.length)]):
                    storage[:, :, :, place] = storage[:, :, :, slot]""",
        (OF_CACHE,),
    ),
    Mutant(
        "cache: growing loses the last slot",
        CACHE,
        "larger[:, :, :, :old_capacity] = storage",
        "larger[:, :, :, : old_capacity - 1] = storage[:, :, :, :-1]",
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
        (OF_MASK, OF_SESSION),
    ),
    Mutant(
        "session: a tree's nodes lie one behind the other",
        SESSION,
        "position_N = torch.tensor(tree.depth_N, device=device) + self.length",
        "position_N = torch.arange(tree.size, device=device) + self.length",
        (OF_SESSION,),
    ),
    Mutant(
        "session: a tree lies one position late",
        SESSION,
        "position_N = torch.tensor(tree.depth_N, device=device) + self.length",
        "position_N = torch.tensor(tree.depth_N, device=device) + self.length + 1",
        (OF_SESSION,),
    ),
    Mutant(
        "session: a growing tree lies one position late",
        SESSION,
        "position_N = torch.tensor(depths, device=device) + (self.length - 1)",
        "position_N = torch.tensor(depths, device=device) + self.length",
        (OF_SESSION,),
    ),
    Mutant(
        "session: fed tokens lie at the text's start",
        SESSION,
        "torch.arange(self.length, self.length + count, device=device)",
        "torch.arange(count, device=device)",
        (OF_SESSION,),
    ),
    Mutant(
        "session: a growing tree overwrites its older nodes",
        SESSION,
        "write_at=mask.keys - len(tokens)",
        "write_at=self.length",
        (OF_SESSION,),
    ),
    Mutant(
        "session: the runner does not hear what is kept",
        SESSION,
        "        self.cache.commit(path)\n        self.runner.commit(path)\n",
        "        self.cache.commit(path)\n",
        ("tests/model/test_predictors.py", "tests/model/test_attention_verifiers.py"),
    ),
    Mutant(
        "session: the runner does not hear what is dropped",
        SESSION,
        "        self.runner.truncate(length)\n",
        "",
        ("tests/model/test_predictors.py", "tests/model/test_attention_verifiers.py"),
    ),
    Mutant(
        "shared prefix: one token too many is taken over",
        "spec_sdk/model/shared_prefix.py",
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
