"""Trees grown wrongly, and a draft cache that holds the wrong tokens."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STATIC = "plugins/growth/spec_sdk_growth/static.py"
SAMPLER = "spec_sdk/contracts/sampler.py"
LEVELS = "plugins/growth/spec_sdk_growth/most_probable.py"
DYNAMIC = "plugins/growth/spec_sdk_growth/dynamic.py"
DRAFTER = "plugins/drafters/spec_sdk_drafters/draft_model.py"
GROWING_DRAFT = "plugins/drafters/spec_sdk_drafters/growing_draft.py"
GROWING_DRAFTER = "plugins/drafters/spec_sdk_drafters/growing_drafter.py"
MERGED = "plugins/drafters/spec_sdk_drafters/merged.py"
CONTEXT = "spec_sdk/model/context_vocabulary.py"
CHOSEN_VOCABULARY = "tests/drafters/test_chosen_vocabulary.py"
WINDOW = "tests/drafters/test_draft_window.py"
PROPOSALS = "tests/drafters/test_proposals.py"
DRAFT_CACHE = "tests/drafters/test_draft_cache.py"
OF_MERGED = "tests/drafters/test_merged.py"
OUTCOMES = "tests/losslessness/test_node_budgets.py::test_every_outcome_of_a_cycle"
SIXTY_TREES = "tests/losslessness/test_drafters.py::test_conformance[tree of repeated samples]"
SIBLINGS = "tests/losslessness/test_node_budgets.py::test_every_outcome_of_siblings"
PENALISED_DRAFTS = "tests/drafters/test_penalised_drafts.py"
SHARED_PASSES = f"{PROPOSALS}::test_requests_of_one_step_share_the_draft_models_passes"
TOGETHER = f"{PROPOSALS}::test_requests_of_one_step_get_the_trees_that_each_gets_alone"

REPEATED_DRAW = """\
            fed.add(node, sampler.draw_from(distribution, rng), "with_replacement", distribution, drafter)
"""
REMOVAL = "remaining_V = without(remaining_V, tokens[-1])"

GROWTH = (
    Mutant(
        "a repeated draw is not recorded",
        STATIC,
        REPEATED_DRAW,
        """            token = sampler.draw_from(distribution, rng)
            if token not in [t for t, p in zip(fed.token, fed.parent) if p == node]:
                fed.add(node, token, "with_replacement", distribution, drafter)
""",
        (f"{SIBLINGS}[drawn with replacement-temperature 1]",),
    ),
    Mutant(
        "a repeated draw is drawn anew",
        STATIC,
        REPEATED_DRAW,
        """            drawn = [t for t, p in zip(fed.token, fed.parent) if p == node]
            token = sampler.draw_from(distribution, rng)
            token = sampler.draw_from(distribution, rng) if token in drawn else token
            fed.add(node, token, "with_replacement", distribution, drafter)
""",
        (f"{SIBLINGS}[drawn with replacement-temperature 1]",),
    ),
    Mutant(
        "a likely draw is left out when there is room for one more only",
        STATIC,
        "    for token in sampler.draw_different(distribution, count, rng):\n",
        """    for token in sampler.draw_different(distribution, count, rng):
        if fed.room == 1 and distribution.q_V[token] > 0.3:
            return
""",
        (f"{OUTCOMES}[drawn paths-2-temperature 1]",),
    ),
    Mutant(
        "only the last sibling is removed",
        SAMPLER,
        REMOVAL,
        "remaining_V = without(distribution.q_V, tokens[-1])",
        (f"{SIBLINGS}[drawn paths-temperature 1]",),
    ),
    Mutant(
        "no sibling is removed",
        SAMPLER,
        REMOVAL,
        "pass",
        (f"{SIBLINGS}[drawn paths-temperature 1]",),
    ),
    Mutant(
        "the likeliest token is removed, not the drawn one",
        SAMPLER,
        REMOVAL,
        "remaining_V = without(remaining_V, int(remaining_V.argmax()))",
        (f"{SIBLINGS}[drawn paths-temperature 1]",),
    ),
    Mutant(
        "widths are not made to fit the node budget",
        "plugins/growth/spec_sdk_growth/options.py",
        "if _fits(kept, max_nodes):",
        "if True:",
        (f"{PROPOSALS}::test_a_tree_has_no_more_nodes_than_its_budget",),
    ),
    Mutant(
        "static: the frontier's rows in reverse",
        STATIC,
        "_distribution(logits, k, temperature, request)\n                    _draw",
        "_distribution(logits, len(frontier) - 1 - k, temperature, request)\n                    _draw",
        (f"{PROPOSALS}::test_a_drawn_child_comes_from_the_draft_models_distribution_after_its_own_path",),
    ),
    Mutant(
        "static: children are drawn from the first node's distribution",
        STATIC,
        "_distribution(logits, k, temperature, request)\n                    _draw",
        "_distribution(logits, 0, temperature, request)\n                    _draw",
        (f"{PROPOSALS}::test_a_drawn_child_comes_from_the_draft_models_distribution_after_its_own_path",),
    ),
    Mutant(
        "a draw at another temperature is recorded with the distribution of temperature 1",
        STATIC,
        REPEATED_DRAW,
        """            untempered = sampler.distribution(distribution.logits_V * 0.4)
            fed.add(node, sampler.draw_from(distribution, rng), "with_replacement", untempered, drafter)
""",
        (f"{OUTCOMES}[sharpened chain-2-temperature 1]",),
    ),
    Mutant(
        "the logits of a text's tokens are those of the level's first rows",
        CONTEXT,
        "[:, -logits_1NR.shape[1] :]",
        "[:, : logits_1NR.shape[1]]",
        (CHOSEN_VOCABULARY,),
    ),
    Mutant(
        "draft window: a text that has grown too long is not begun anew",
        "plugins/drafters/spec_sdk_drafters/draft_model.py",
        "if self.room(request) < 1:",
        "if False:",
        (f"{WINDOW}::test_it_begins_anew_where_it_has_no_more_room",),
    ),
    Mutant(
        "draft window: tokens that were left out are fed later",
        "plugins/drafters/spec_sdk_drafters/draft_model.py",
        "return self._first[request.slot] + self.session.length(request.slot)",
        "return self.session.length(request.slot)",
        (f"{WINDOW}::test_behind_a_long_text_it_drafts_as_behind_its_end_alone",),
    ),
    Mutant(
        "draft window: the first tokens are read",
        "plugins/drafters/spec_sdk_drafters/draft_model.py",
        "return text[first + kept :]",
        "return text[kept : len(text) - first]",
        (f"{WINDOW}::test_behind_a_long_text_it_drafts_as_behind_its_end_alone",),
    ),
    Mutant(
        "asked model: it would have to read all of a long prompt",
        "plugins/drafters/spec_sdk_drafters/asked_model.py",
        "else min(unseen, longest)",
        "else unseen",
        (f"{WINDOW}::test_what_catching_up_takes_at_most_is_told",),
    ),
    Mutant(
        "the logits of a text's tokens are said to be those of the head's",
        CONTEXT,
        "text.token_R = torch.cat((text.token_R, token_C))",
        "text.token_R = torch.cat((token_C, text.token_R))",
        (CHOSEN_VOCABULARY,),
    ),
    Mutant(
        "the place of a logit is taken for its token",
        "spec_sdk/ops/draft_logits.py",
        "place_KW if self.token_R is None else self.token_R[place_KW]",
        "place_KW",
        ("tests/model/test_draft_logits.py",),
    ),
    Mutant(
        "the penalty falls on logits of some tokens by their places",
        "spec_sdk/contracts/request.py",
        "processed_KV = self._offset(logits.full_KV, paths)",
        "processed_KV = self._offset(logits.logits_KR, paths)",
        ("tests/model/test_draft_logits.py",),
    ),
    Mutant(
        "a slot's next request can draft the tokens of the last one's text",
        "spec_sdk/model/session.py",
        "            self.context_vocabulary.forget(slot)\n",
        "            pass\n",
        (CHOSEN_VOCABULARY,),
    ),
    Mutant(
        "beam: wrong parents",
        LEVELS,
        "fed.add(\n                frontier[k], token_KW[k][w]",
        "fed.add(\n                frontier[-1 - k], token_KW[k][w]",
        (f"{PROPOSALS}::test_a_tree_keeps_the_most_probable_paths",),
    ),
    Mutant(
        "beam: the paths' probabilities are forgotten",
        LEVELS,
        "list(added.values()), [joint_KW[k][w] for k, w in best]",
        "list(added.values()), [0.0 for _ in best]",
        (f"{PROPOSALS}::test_a_tree_keeps_the_most_probable_paths",),
    ),
    Mutant(
        "dynamic: the first offers are kept, not the best",
        DYNAMIC,
        "sorted(offered)[:most]",
        "offered[:most]",
        (f"{PROPOSALS}::test_a_dynamic_tree_keeps_the_most_probable_paths_of_all_lengths",),
    ),
    Mutant(
        "dynamic: the node budget is not looked at",
        DYNAMIC,
        "most = min(max_nodes, fed.max_nodes - 1)",
        "most = max_nodes",
        (f"{PROPOSALS}::test_a_tree_has_no_more_nodes_than_its_budget",),
    ),
    Mutant(
        "merged: a token drawn twice keeps its first draw only",
        MERGED,
        "node_of[draw.node] = merged.add(",
        """known = [i for i in range(merged.size) if merged.parent[i] == parent and merged.token[i] == token]
                if known:
                    node_of[draw.node] = known[0]
                    continue
                node_of[draw.node] = merged.add(""",
        (f"{OF_MERGED}::test_merging_is_the_union_of_paths_with_all_draws_in_order",),
    ),
    Mutant(
        "merged: the last member's draws first",
        MERGED,
        "    for tree in trees:\n        if tree",
        "    for tree in reversed(trees):\n        if tree",
        (f"{OF_MERGED}::test_merging_is_the_union_of_paths_with_all_draws_in_order",),
    ),
    Mutant(
        "merged: a member's tree is left out if it begins as the one before it",
        MERGED,
        "                trees[i].append(tree)\n",
        """                if trees[i] and tree.token_N[1:2] == trees[i][-1].token_N[1:2]:
                    continue
                trees[i].append(tree)
""",
        (f"{OUTCOMES}[merged-5-temperature 1]", f"{OUTCOMES}[merged-4-temperature 1]"),
    ),
    Mutant(
        "merged: every member may use up the room",
        MERGED,
        "shares = [-(-room // waiting) for room in rooms]",
        "shares = [budget.nodes - 1 for budget in budgets]",
        (f"{OF_MERGED}::test_members_share_the_nodes",),
    ),
    Mutant(
        "draft cache: the accepted rows are one too far",
        GROWING_DRAFT,
        "rows.append(child - 1)",
        "rows.append(child)",
        (DRAFT_CACHE,),
    ),
    Mutant(
        "draft cache: rows are kept that were never fed",
        GROWING_DRAFT,
        "for i in range(1, self._fed)}",
        "for i in range(1, tree.size)}",
        (DRAFT_CACHE, "tests/losslessness/test_drafters.py"),
    ),
    Mutant(
        "draft cache: accepted tokens are looked up below the root only",
        GROWING_DRAFT,
        "            node = child\n",
        "",
        (DRAFT_CACHE,),
    ),
    Mutant(
        "easyspec: fuzzy keys are kept when they should be calibrated",
        "spec_sdk/model/runners/layer_parallel.py",
        "self.keeps_kv = not config.calibrate",
        "self.keeps_kv = config.calibrate",
        (DRAFT_CACHE,),
    ),
    Mutant(
        "penalised drafts: a path without its own node",
        GROWING_DRAFT,
        """                path.append(tree.token[node])
                node = tree.parent[node]
""",
        """                node = tree.parent[node]
                path.append(tree.token[node])
""",
        (PENALISED_DRAFTS,),
    ),
    Mutant(
        "penalised drafts: the penalties of all nodes",
        GROWING_DRAFT,
        "                node = tree.parent[node]\n",
        "                node -= 1\n",
        (PENALISED_DRAFTS,),
    ),
    Mutant(
        "prompt lookup: copies from one token too late",
        "plugins/drafters/spec_sdk_drafters/prompt_lookup.py",
        "tokens[position : position + budget.depth]",
        "tokens[position + 1 : position + budget.depth]",
        (f"{PROPOSALS}::test_prompt_lookup_copies_what_followed_the_longest_and_latest_match",),
    ),
    Mutant(
        "draft model: a tree grows on its neighbour's logits",
        GROWING_DRAFT,
        "zip(drafts, levels, strict=True)",
        "zip(drafts, reversed(levels), strict=True)",
        (SHARED_PASSES,),
    ),
    Mutant(
        "draft model: a root has its neighbour's logits",
        GROWING_DRAFTER,
        "for i, logits in zip(able, roots, strict=True)",
        "for i, logits in zip(able, roots[::-1], strict=True)",
        (SHARED_PASSES,),
    ),
    Mutant(
        "draft model: every tree has the first request's depth",
        GROWING_DRAFTER,
        "self.growth.growing(tree, root, depths[i],",
        "self.growth.growing(tree, root, depths[0],",
        (TOGETHER,),
    ),
    Mutant(
        "draft model: every tree has the first request's node budget",
        GROWING_DRAFTER,
        "budgets[i].nodes)",
        "budgets[0].nodes)",
        (TOGETHER,),
    ),
    Mutant(
        "draft model: the rows that are kept are the neighbour's",
        DRAFTER,
        "self.session.commit(slots, paths)",
        "self.session.commit(slots, paths[::-1])",
        (TOGETHER,),
    ),
    Mutant(
        "draft model: who asks for fewer levels ends the others",
        GROWING_DRAFTER,
        "while asking:",
        "while asking and len(asking) == len(drafts):",
        (TOGETHER,),
    ),
    Mutant(
        "draft model: the trees come in the order in which they were closed",
        GROWING_DRAFTER,
        "drafts[i].closed if i in drafts",
        "[*drafts.values()][-1 - i].closed if i in drafts",
        (SHARED_PASSES,),
    ),
    Mutant(
        "draft model: what a slot held before is not looked at",
        DRAFTER,
        "return text[first + kept :]",
        "return text[first:]",
        (f"{PROPOSALS}::test_a_slot_that_is_used_again_drafts_as_a_fresh_one",),
    ),
    Mutant(
        "merged: a member gets its neighbour's share",
        MERGED,
        "granted = [Budget(min(budgets[i].depth, shares[i]), shares[i] + 1) for i in asked]",
        "granted = [Budget(min(budgets[i].depth, shares[i]), shares[i] + 1) for i in reversed(asked)]",
        (TOGETHER,),
    ),
    Mutant(
        "merged: the members' trees of a neighbour",
        MERGED,
        "for i, tree in zip(asked, proposed, strict=True):",
        "for i, tree in zip(asked, reversed(proposed), strict=True):",
        (TOGETHER,),
    ),
    Mutant(
        "with replacement: what was drawn once is recorded for every child",
        STATIC,
        "fed.add(node, sampler.draw_from(distribution, rng), ",
        "fed.add(node, fed.token[fed.draws[node][0].node] if fed.draws[node] else "
        "sampler.draw_from(distribution, rng), ",
        (SIXTY_TREES,),
    ),
    Mutant(
        "with replacement: drawn from a sharper distribution than the one declared",
        STATIC,
        "fed.add(node, sampler.draw_from(distribution, rng), ",
        "fed.add(node, sampler.draw(distribution.q_V.pow(3), rng), ",
        (SIXTY_TREES,),
    ),
    Mutant(
        "with replacement: drawn by the numbers that the verifier takes",
        STATIC,
        "fed.add(node, sampler.draw_from(distribution, rng), ",
        "fed.add(node, sampler.draw_from(distribution, rng.clone_state()), ",
        (SIXTY_TREES,),
    ),
    Mutant(
        "what one tree fails with ends all that grow beside it",
        GROWING_DRAFT,
        "return of_request(self.request.id, self._advance, logits)",
        "return self._advance(logits)",
        ("tests/drafters/test_failing_drafts.py",),
    ),
)
