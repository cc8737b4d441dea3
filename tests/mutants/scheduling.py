"""A token cycle that clips, stops, counts or tells wrongly."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SCHEDULER = "spec_sdk/engine/scheduler.py"
FAULTS = "spec_sdk/engine/faults.py"
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
        "return self.verdict.path[: len(self.tokens)]",
        "return self.verdict.path",
        (CYCLE,),
    ),
    Mutant(
        "the last accepted node is not kept",
        SCHEDULER,
        "[turn.path for turn in turns])",
        "[turn.path[:-1] or turn.path for turn in turns])",
        (CYCLE,),
    ),
    Mutant(
        "the first nodes are kept, not those of the verdict",
        SCHEDULER,
        "[turn.path for turn in turns])",
        "[range(len(turn.path)) for turn in turns])",
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
        "state.tokens.extend(turn.tokens)",
        "state.tokens.extend([*turn.tokens, turn.tokens[-1]] if len(turn.tokens) > 1 else turn.tokens)",
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
        "min(budget.depth, budget.nodes - 1, room)",
        "min(budget.depth, room)",
        (CYCLE,),
    ),
    Mutant(
        "a tree of one node too many is taken",
        FAULTS,
        "if tree.size > budget.nodes:",
        "if tree.size > budget.nodes + 1:",
        (REFUSALS,),
    ),
    Mutant(
        "steps are not counted",
        SCHEDULER,
        "state.step += 1\n",
        "state.step += turn.active.state.step == 0\n",
        (CYCLE,),
    ),
    Mutant(
        "the drafter hears of tokens behind the stop token",
        SCHEDULER,
        "[turn.tokens for turn in told], hidden)",
        "[turn.verdict.tokens for turn in told], hidden)",
        (CYCLE,),
    ),
    Mutant(
        "the drafter gets the hidden states of the first nodes",
        SCHEDULER,
        "h_NM[turn.path]",
        "h_NM[: len(turn.path)]",
        (CYCLE,),
    ),
    Mutant(
        "drafted tokens behind the stop token count as accepted",
        SCHEDULER,
        "accepted=min(len(turn.verdict.path) - 1, len(turn.tokens))",
        "accepted=len(turn.verdict.path) - 1",
        (CYCLE,),
    ),
    Mutant(
        "the pending token is prefilled",
        SCHEDULER,
        "state.tokens[: state.prompt_length - 1]",
        "state.tokens[: state.prompt_length]",
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
        "spec_sdk/engine/engine.py",
        "sampling.seed + SEED_STRIDE * number",
        "sampling.seed",
        (f"{TINY}::test_sampling_is_reproducible",),
    ),
)
