"""Wrong rules of acceptance."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "plugins/verifiers/spec_sdk_verifiers"
ACCEPTANCE = "spec_sdk/ops/acceptance.py"
BLOCK = "spec_sdk/ops/block_acceptance.py"
ROWS, IN_PASS = "spec_sdk/ops/rows.py", "spec_sdk/ops/in_pass.py"
VERDICTS = "tests/losslessness/test_verifiers.py"
FOLLOWS = f"{VERDICTS}::test_greedy_follows_the_argmax_through_a_tree"
CHI_SQUARE = "tests/losslessness/test_chi_square.py"
ENUMERATION = "tests/losslessness/test_exact_enumeration.py"
ODD = "tests/losslessness/test_odd_distributions.py"
DISTINCT = f"{ODD}::test_three_distinct_draws_where_draft_and_target_share_little"
BLOCKS = "tests/losslessness/test_block_and_typical.py"

VERIFIERS = (
    Mutant(
        "greedy: the next token is read at the node before",
        ACCEPTANCE,
        "    return follow(tree, lambda node: choices[node])\n",
        """    path, token = follow(tree, lambda node: choices[node])
    return path, choices[path[-2]] if len(path) > 1 else token
""",
        (FOLLOWS, VERDICTS),
    ),
    Mutant(
        "greedy: only the first child is looked at",
        IN_PASS,
        "for drawn in tree.draws_N[path[-1]] if",
        "for drawn in tree.draws_N[path[-1]][:1] if",
        (FOLLOWS,),
    ),
    Mutant(
        "greedy: a child of any node on the path will do",
        IN_PASS,
        "for drawn in tree.draws_N[path[-1]] if tree.token_N[drawn.node] == token",
        "for n in path for drawn in tree.draws_N[n] if tree.token_N[drawn.node] == token and drawn.node > path[-1]",
        (f"{VERDICTS}::test_conformance_greedy",),
    ),
    Mutant(
        "chain: a rejected token is redrawn from the target",
        ROWS,
        "self._less_V, self._rejected = q_V, draw",
        "self._less_V, self._rejected = None, draw",
        (f"{ENUMERATION}::test_chain_rejection",),
    ),
    Mutant(
        "chain: a rejected chosen token may come again",
        ROWS,
        "remove(self.p_V, token, normalised=not last)",
        "None if last else remove(self.p_V, token)",
        (f"{ENUMERATION}::test_chain_rejection",),
    ),
    Mutant(
        "chain: one random number for all tokens",
        ACCEPTANCE,
        "numbers[first_N1[node] :]",
        "numbers[:1] * len(numbers)",
        (f"{CHI_SQUARE}::test_chain_rejection",),
    ),
    Mutant(
        "chain: the number that rejected draws again",
        ACCEPTANCE,
        "left.draw(numbers[-1])",
        "left.draw(numbers[first_N1[node]])",
        (f"{CHI_SQUARE}::test_chain_rejection",),
    ),
    Mutant(
        "chain: the bonus token comes from the row of the last rejection test",
        ACCEPTANCE,
        "left.draw(numbers[-1])",
        "(left if tree.draws_N[node] else rows.left(path[-2:][0])).draw(numbers[-1])",
        (f"{ENUMERATION}::test_chain_rejection",),
    ),
    Mutant(
        "chain: a node is judged by its parent's row",
        ACCEPTANCE,
        "left = rows.left(node)",
        "left = rows.left(path[-2:][0])",
        (f"{ENUMERATION}::test_chain_rejection",),
    ),
    Mutant(
        "multi_step: a rejected chosen token may come again",
        ROWS,
        "remove(self.p_V, token, normalised=not last)",
        "remove(self.p_V, token, normalised=False) if last else None",
        (f"{ENUMERATION}::test_multi_step",),
    ),
    Mutant(
        "multi_step: the residual of the draft",
        ROWS,
        "residual(self.p_V, q_V, self.rows.spare(self.p_V))",
        "residual(q_V, self.p_V, self.rows.spare(self.p_V))",
        (f"{ENUMERATION}::test_multi_step",),
    ),
    Mutant(
        "multi_step: a draw without replacement may have given what was drawn before",
        ROWS,
        "            remove(self._undrawn[draw.sequence], token)\n",
        "",
        (DISTINCT,),
    ),
    Mutant(
        "multi_step: the first token leaves q, those after it do not",
        ROWS,
        "            remove(self._undrawn[draw.sequence], token)\n",
        "                remove(self._undrawn[draw.sequence], token)\n",
        (DISTINCT,),
    ),
    Mutant(
        "multi_step: the random numbers of one node serve the next too",
        ACCEPTANCE,
        "numbers[first_N1[node] :]",
        "numbers",
        ("tests/samplers/test_equal_tokens.py::test_random_trees", f"{CHI_SQUARE}::test_multi_step"),
    ),
    Mutant(
        "multi_step: the next token is drawn with the first test's random number",
        ACCEPTANCE,
        "left.draw(numbers[-1])",
        "left.draw(numbers[0])",
        (f"{CHI_SQUARE}::test_multi_step",),
    ),
    Mutant(
        "multi_step: what is left at one node is kept for the next",
        ACCEPTANCE,
        "left.draw(numbers[-1])\n",
        "left.draw(numbers[-1])\n        rows.logits_NV[child] = left.p_V.log()\n",
        (f"{ENUMERATION}::test_multi_step",),
    ),
    Mutant(
        "naive: a token that was not drafted is drawn again",
        IN_PASS,
        "return path, token\n",
        "return path, token_after(path[-1])\n",
        (f"{ENUMERATION}::test_naive_tree",),
    ),
    Mutant(
        "naive: all tokens from the root's row",
        ACCEPTANCE,
        "rows.left(node).draw(uniforms(1)[0])",
        "rows.left(0).draw(uniforms(1)[0])",
        (f"{ENUMERATION}::test_naive_tree",),
    ),
    Mutant(
        "block: a weight above 1",
        BLOCK,
        "weight = min(weight * (float(p_V[token]) / q), 1.0)",
        "weight = weight * (float(p_V[token]) / q)",
        (f"{ENUMERATION}::test_block_verification", BLOCKS),
    ),
    Mutant(
        "block: a weight of the last token alone",
        BLOCK,
        "min(weight * (float(p_V[token])",
        "min((float(p_V[token])",
        (f"{ENUMERATION}::test_block_verification", BLOCKS),
    ),
    Mutant(
        "block: the shortest block first",
        BLOCK,
        "range(len(blocks) - 2, 0, -1)",
        "range(1, len(blocks) - 1)",
        (f"{ENUMERATION}::test_block_verification", BLOCKS),
    ),
    Mutant(
        "block: a block accepted with what is left of it",
        BLOCK,
        "max(left + 1 - blocks[length].weight, TINY)",
        "1.0",
        (f"{ENUMERATION}::test_block_verification", BLOCKS),
    ),
    Mutant(
        "block: the next token of a part from the target",
        BLOCK,
        "first_beyond(block.weight * block.p_V, uniforms(1)[0], block.q_V)",
        "draw(block.p_V, uniforms(1)[0])",
        (f"{ENUMERATION}::test_block_verification", BLOCKS),
    ),
    Mutant(
        "block: a chosen token as if drawn from the target",
        BLOCK,
        "q_V = torch.zeros_like(p_V) if",
        "q_V = p_V.clone() if",
        (f"{ENUMERATION}::test_block_verification", BLOCKS),
    ),
    Mutant(
        "typical: the larger threshold",
        f"{ROOM}/typical.py",
        "return min(self.config.epsilon",
        "return max(self.config.epsilon",
        (f"{BLOCKS}::test_typical_keeps_plausible_tokens_that_are_not_the_best",),
    ),
)
