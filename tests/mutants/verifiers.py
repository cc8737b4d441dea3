"""Wrong rules of acceptance."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROOM = "plugins/verifiers/spec_sdk_verifiers"
VERDICTS = "tests/losslessness/test_verifiers.py"
FOLLOWS = f"{VERDICTS}::test_greedy_follows_the_argmax_through_a_tree"
CHI_SQUARE = "tests/losslessness/test_chi_square.py"
ENUMERATION = "tests/losslessness/test_exact_enumeration.py"
ODD = "tests/losslessness/test_odd_laws.py"
DISTINCT = f"{ODD}::test_three_distinct_draws_where_draft_and_target_share_little"
BLOCKS = "tests/losslessness/test_block_and_typical.py"

VERIFIERS = (
    Mutant(
        "greedy: the next token is read at the node before",
        f"{ROOM}/greedy.py",
        "return Verdict(path, choice, tree)",
        "return Verdict(path, choices[path[-2]] if len(path) > 1 else choice, tree)",
        (FOLLOWS, VERDICTS),
    ),
    Mutant(
        "greedy: only the first child is looked at",
        f"{ROOM}/greedy.py",
        "for draw in tree.draws_N[path[-1]] if",
        "for draw in tree.draws_N[path[-1]][:1] if",
        (FOLLOWS,),
    ),
    Mutant(
        "greedy: a child of any node on the path will do",
        f"{ROOM}/greedy.py",
        "for draw in tree.draws_N[path[-1]] if tree.token_N[draw.node] == choice",
        "for node in path for draw in tree.draws_N[node] if tree.token_N[draw.node] == choice and draw.node > path[-1]",
        (f"{VERDICTS}::test_conformance_greedy",),
    ),
    Mutant(
        "chain_rejection: a rejected token is redrawn from the target",
        f"{ROOM}/chain_rejection.py",
        "rest_V = p_V if accepted else sampler.residual(p_V, q_V)",
        "rest_V = p_V",
        (f"{ENUMERATION}::test_chain_rejection",),
    ),
    Mutant(
        "chain_rejection: a rejected chosen token may come again",
        f"{ROOM}/chain_rejection.py",
        "rest_V = p_V if accepted else sampler.without(p_V, token)",
        "rest_V = p_V",
        (f"{ENUMERATION}::test_chain_rejection",),
    ),
    Mutant(
        "chain_rejection: one random number for all tokens",
        f"{ROOM}/chain_rejection.py",
        "uniforms[len(path) - 1]",
        "uniforms[0]",
        (f"{CHI_SQUARE}::test_chain_rejection",),
    ),
    Mutant(
        "chain_rejection: the number that rejected draws again",
        f"{ROOM}/chain_rejection.py",
        "sampler.draw(rest_V, last)",
        "sampler.draw(rest_V, uniform)",
        (f"{CHI_SQUARE}::test_chain_rejection",),
    ),
    Mutant(
        "chain_rejection: the bonus token comes from the row of the last rejection test",
        f"{ROOM}/chain_rejection.py",
        "return Verdict(path, sampler.draw(p_V, last), tree)",
        "return Verdict(path, sampler.draw(target_law(sampler, logits_NV, path[-2:][0]), last), tree)",
        (f"{ENUMERATION}::test_chain_rejection",),
    ),
    Mutant(
        "multi_step: a rejected chosen token may come again",
        f"{ROOM}/multi_step.py",
        "p_V = sampler.without(p_V, token)",
        "pass",
        (f"{ENUMERATION}::test_multi_step",),
    ),
    Mutant(
        "multi_step: the residual of the draft",
        f"{ROOM}/multi_step.py",
        "p_V = sampler.residual(p_V, q_V)",
        "p_V = sampler.residual(q_V, p_V)",
        (f"{ENUMERATION}::test_multi_step",),
    ),
    Mutant(
        "multi_step: a draw without replacement may have given what was drawn before",
        f"{ROOM}/multi_step.py",
        "undrawn[draw.sequence] = sampler.without(q_V, token)",
        "undrawn[draw.sequence] = q_V",
        (DISTINCT,),
    ),
    Mutant(
        "multi_step: the first token leaves q, those after it do not",
        f"{ROOM}/multi_step.py",
        "undrawn[draw.sequence] = sampler.without(q_V, token)",
        "undrawn.setdefault(draw.sequence, sampler.without(q_V, token))",
        (DISTINCT,),
    ),
    Mutant(
        "multi_step: the random numbers of one node serve the next too",
        f"{ROOM}/multi_step.py",
        "uniforms[first_N[path[-1]] :]",
        "uniforms",
        ("tests/samplers/test_equal_tokens.py::test_random_trees", f"{CHI_SQUARE}::test_multi_step"),
    ),
    Mutant(
        "multi_step: the next token is drawn with the first test's random number",
        f"{ROOM}/multi_step.py",
        "request.sampler.draw(rest_V, uniforms[-1])",
        "request.sampler.draw(rest_V, uniforms[0])",
        (f"{CHI_SQUARE}::test_multi_step",),
    ),
    Mutant(
        "multi_step: what is left at one node is kept for the next",
        f"{ROOM}/multi_step.py",
        "            path.append(child)\n",
        "            path.append(child)\n            logits_NV[child] = rest_V.log()\n",
        (f"{ENUMERATION}::test_multi_step",),
    ),
    Mutant(
        "naive_tree: a token that was not drafted is drawn again",
        f"{ROOM}/naive_tree.py",
        "            if child is None:\n",
        """            if child is None:
                token = request.sampler.draw(target_law(request.sampler, logits_NV, path[-1]), request.rng)
""",
        (f"{ENUMERATION}::test_naive_tree",),
    ),
    Mutant(
        "naive_tree: all tokens from the root's row",
        f"{ROOM}/naive_tree.py",
        "target_law(request.sampler, logits_NV, path[-1])",
        "target_law(request.sampler, logits_NV, path[0])",
        (f"{ENUMERATION}::test_naive_tree",),
    ),
    Mutant(
        "block_verification: a weight above 1",
        f"{ROOM}/block_verification.py",
        "weight = min(weight * ratio, 1.0)",
        "weight = weight * ratio",
        (f"{ENUMERATION}::test_block_verification", BLOCKS),
    ),
    Mutant(
        "block_verification: a weight of the last token alone",
        f"{ROOM}/block_verification.py",
        "weight = min(weight * ratio, 1.0)",
        "weight = min(ratio, 1.0)",
        (f"{ENUMERATION}::test_block_verification", BLOCKS),
    ),
    Mutant(
        "block_verification: the shortest block first",
        f"{ROOM}/block_verification.py",
        "range(len(blocks) - 1, 0, -1)",
        "range(1, len(blocks))",
        (f"{ENUMERATION}::test_block_verification", BLOCKS),
    ),
    Mutant(
        "block_verification: a block accepted with what is left of it",
        f"{ROOM}/block_verification.py",
        "max(left + 1 - weight, TINY)",
        "1.0",
        (f"{ENUMERATION}::test_block_verification", BLOCKS),
    ),
    Mutant(
        "block_verification: the next token of a part from the target",
        f"{ROOM}/block_verification.py",
        "p_V = self._rest(weight, p_V, q_V, request)",
        "pass",
        (f"{ENUMERATION}::test_block_verification", BLOCKS),
    ),
    Mutant(
        "block_verification: a chosen token as if drawn from the target",
        f"{ROOM}/block_verification.py",
        "q_V = torch.zeros_like(p_V)",
        "q_V = p_V.clone()",
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
