"""A token cycle that clips, stops, counts or tells wrongly."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SCHEDULER = "spec_sdk/scheduler.py"
CYCLE = "tests/pipelines/test_token_cycle.py"
REFUSALS = "tests/tree/test_refusals.py"
TINY = "tests/pipelines/test_tiny_pipelines.py"
CHI_SQUARE = "tests/losslessness/test_chi_square.py"
ANSWERS = "tests/losslessness/test_drafters.py::test_greedy_answers_are_those_of_plain_decoding"

SCHEDULING = (
    Mutant(
        "a stop token counts only as the last one of a cycle",
        SCHEDULER,
        "for i, token in enumerate(tokens):",
        "for i, token in list(enumerate(tokens))[-1:]:",
        (CYCLE,),
    ),
    Mutant(
        "a token too many behind the stop token",
        SCHEDULER,
        "return tokens[: i + 1]",
        "return tokens[: i + 2]",
        (CYCLE,),
    ),
    Mutant(
        "the last stop token of a cycle ends it, not the first",
        SCHEDULER,
        "for i, token in enumerate(tokens):",
        "for i, token in reversed([*enumerate(tokens)]):",
        (CYCLE,),
    ),
    Mutant(
        "a stop token at the prompt's end ends the answer",
        SCHEDULER,
        "if request.new_tokens and request.tokens[-1] in request.stop_ids:",
        "if request.tokens[-1] in request.stop_ids:",
        (CYCLE,),
    ),
    Mutant(
        "nodes behind a stop token stay in the cache",
        SCHEDULER,
        "path = verdict.path[: len(tokens)]",
        "path = verdict.path",
        (CYCLE,),
    ),
    Mutant(
        "the last accepted node is not kept",
        SCHEDULER,
        "self.target.commit(path)",
        "self.target.commit(path[:-1] or path)",
        (CYCLE,),
    ),
    Mutant(
        "the first nodes are kept, not those of the verdict",
        SCHEDULER,
        "self.target.commit(path)",
        "self.target.commit(range(len(path)))",
        (CYCLE, ANSWERS),
    ),
    Mutant(
        "the bonus token is lost",
        "spec_sdk/contracts/request.py",
        "for i in self.path[1:]] + [self.next_token]",
        "for i in self.path[1:]] + [self.next_token] * (len(self.path) == 1)",
        (CYCLE,),
    ),
    Mutant(
        "the bonus token comes twice",
        SCHEDULER,
        "request.tokens.extend(tokens)",
        "request.tokens.extend([*tokens, tokens[-1]] if len(tokens) > 1 else tokens)",
        (CYCLE,),
    ),
    Mutant(
        "the last of the tokens that are wanted is drafted too",
        SCHEDULER,
        "self.target.context - len(request.tokens)) - 1",
        "self.target.context - len(request.tokens))",
        (CYCLE,),
    ),
    Mutant(
        "the context's end is not looked at",
        SCHEDULER,
        "room = min(request.max_new_tokens - request.new_tokens, self.target.context - len(request.tokens)) - 1",
        "room = request.max_new_tokens - request.new_tokens - 1",
        (CYCLE,),
    ),
    Mutant(
        "an answer goes on behind the context",
        SCHEDULER,
        "len(request.tokens) >= self.target.context",
        "len(request.tokens) > self.target.context",
        (CYCLE,),
    ),
    Mutant(
        "deeper than the nodes allow",
        SCHEDULER,
        "min(granted.depth, granted.nodes - 1, room)",
        "min(granted.depth, room)",
        (CYCLE,),
    ),
    Mutant(
        "a tree of one node too many is taken",
        SCHEDULER,
        "if tree.size > budget.nodes:",
        "if tree.size > budget.nodes + 1:",
        (REFUSALS,),
    ),
    Mutant(
        "steps are not counted",
        SCHEDULER,
        "request.step += 1",
        "request.step += request.step == 0",
        (CYCLE,),
    ),
    Mutant(
        "the drafter hears of tokens behind the stop token",
        SCHEDULER,
        "self.drafter.observe(request, tokens,",
        "self.drafter.observe(request, verdict.tokens,",
        (CYCLE,),
    ),
    Mutant(
        "the drafter gets the hidden states of the first nodes",
        SCHEDULER,
        "h_NM[path]",
        "h_NM[: len(path)]",
        (CYCLE,),
    ),
    Mutant(
        "drafted tokens behind the stop token count as accepted",
        SCHEDULER,
        '"accepted": min(len(verdict.path) - 1, len(tokens))',
        '"accepted": len(verdict.path) - 1',
        (CYCLE,),
    ),
    Mutant(
        "the pending token is prefilled",
        SCHEDULER,
        "self.target.prefill(request.tokens[:-1]",
        "self.target.prefill(request.tokens",
        (CYCLE, ANSWERS),
    ),
    Mutant(
        "penalty: of a node's own token, not of its path",
        SCHEDULER,
        "paths.append([*paths[tree.parent_N[node]], tree.token_N[node]])",
        "paths.append([tree.token_N[node]])",
        (f"{CYCLE}::test_every_node_is_penalised_for_the_tokens_before_it",),
    ),
    Mutant(
        "penalty: of the node before, not of the parent",
        SCHEDULER,
        "paths.append([*paths[tree.parent_N[node]], tree.token_N[node]])",
        "paths.append([*paths[node - 1], tree.token_N[node]])",
        (f"{CYCLE}::test_every_node_is_penalised_for_the_tokens_before_it",),
    ),
    Mutant(
        "penalty: the pending token is free",
        SCHEDULER,
        "request.sampler.penalise(logits_NV, request.tokens, paths)",
        "request.sampler.penalise(logits_NV, request.tokens[:-1], paths)",
        (f"{CYCLE}::test_every_node_is_penalised_for_the_tokens_before_it",),
    ),
    Mutant(
        "all requests draw the same random numbers",
        "spec_sdk/pipeline.py",
        "self.sampling.seed + SEED_STRIDE * request_id",
        "self.sampling.seed",
        (f"{TINY}::test_sampling_is_reproducible",),
    ),
)
