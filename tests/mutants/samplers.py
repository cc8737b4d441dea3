"""Wrong arithmetic of samplers, and a wrong repetition penalty."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

REFERENCE = "plugins/samplers/spec_sdk_samplers/reference.py"
EXACT = "plugins/samplers/spec_sdk_samplers/exact.py"
CANDIDATES = "plugins/samplers/spec_sdk_samplers/candidates.py"
INVERSION = "plugins/samplers/spec_sdk_samplers/inversion.py"
CONTRACT = "spec_sdk/contracts/sampler.py"
OF_REFERENCE = "tests/losslessness/test_sampler.py"
EQUAL = "tests/samplers/test_equal_tokens.py"
REMEMBERED = f"{EQUAL}::test_a_law_drawn_from_in_both_ways"
EDGES = "tests/samplers/test_edges.py"
OF_CANDIDATES = "tests/samplers/test_candidates.py"
OF_EXACT = "tests/samplers/test_losslessness.py"
RANDOM_TREES = f"{EQUAL}::test_random_trees"
EVERY_DRAW = f"{EQUAL}::test_every_draw_is_judged_by_what_the_ones_before_left"

SAMPLERS = (
    Mutant(
        "top-k loses the k-th",
        REFERENCE,
        "score_NV < kth_N1",
        "score_NV <= kth_N1",
        (OF_REFERENCE,),
    ),
    Mutant(
        "top-p loses the token at its border",
        REFERENCE,
        "before_NK >= top_p",
        "before_NK + p_NK >= top_p",
        (OF_REFERENCE,),
    ),
    Mutant(
        "min-p is no share of the largest",
        REFERENCE,
        "self.params.min_p * p_NV.amax(-1, keepdim=True)",
        "self.params.min_p",
        (OF_REFERENCE,),
    ),
    Mutant(
        "filtered probabilities do not sum to 1",
        REFERENCE,
        "return p_NV / p_NV.sum(-1, keepdim=True)",
        "return p_NV",
        (OF_REFERENCE,),
    ),
    Mutant(
        "a draw of 0 gives a token without mass",
        REFERENCE,
        "cdf_V[-1], right=True)",
        "cdf_V[-1], right=False)",
        (EDGES,),
    ),
    Mutant(
        "mass that does not sum to 1 is drawn from as if it did",
        REFERENCE,
        "uniform(random) * cdf_V[-1]",
        "uniform(random)",
        (EDGES,),
    ),
    Mutant(
        "a drawn token is accepted with p",
        REFERENCE,
        "return uniform(random) * q < p",
        "return uniform(random) < p",
        (OF_REFERENCE,),
    ),
    Mutant(
        "a token without mass may be accepted",
        REFERENCE,
        "return uniform(random) * q < p",
        "return uniform(random) * q <= p",
        (EDGES,),
    ),
    Mutant(
        "the residual is the distance",
        REFERENCE,
        "(p_V - q_V).clamp_min_(0.0)",
        "(p_V - q_V).abs_()",
        (OF_REFERENCE,),
    ),
    Mutant(
        "the residual does not sum to 1",
        REFERENCE,
        "return _normalised((p_V - q_V).clamp_min_(0.0), p_V)",
        "return (p_V - q_V).clamp_min_(0.0)",
        (OF_REFERENCE,),
    ),
    Mutant(
        "what is left without a token does not sum to 1",
        REFERENCE,
        "return _normalised(rest_V, p_V)",
        "return rest_V",
        (OF_REFERENCE,),
    ),
    Mutant(
        "exact: what is left without a chosen token does not sum to 1",
        EXACT,
        "normalised=not is_last",
        "normalised=False",
        (EVERY_DRAW, RANDOM_TREES),
    ),
    Mutant(
        "exact: a drawn token is accepted with p",
        EXACT,
        "if uniforms[i] * q < p:",
        "if uniforms[i] < p:",
        (EVERY_DRAW, RANDOM_TREES),
    ),
    Mutant(
        "exact: q keeps a token that was drawn without replacement",
        EXACT,
        "                _remove(left[sequence], token)\n",
        "",
        (EVERY_DRAW, RANDOM_TREES),
    ),
    Mutant(
        "exact: the target is not reduced by a rejected draw",
        EXACT,
        "            p_V = self._residual(p_V, q_V)\n",
        "",
        (EVERY_DRAW, RANDOM_TREES),
    ),
    Mutant(
        "exact: the next token may be the rejected one",
        EXACT,
        "first_beyond(rest_V, uniforms[-1], less_V)",
        "first_beyond(rest_V, uniforms[-1])",
        (RANDOM_TREES,),
    ),
    Mutant(
        "exact: a node takes the random numbers from its own number on",
        EXACT,
        "uniforms[first[node] :]",
        "uniforms[node:]",
        (RANDOM_TREES,),
    ),
    Mutant(
        "exact: two rows in one place",
        EXACT,
        'q_V = self.row_law(source.logits_V, 0, "q")',
        'q_V = self.row_law(source.logits_V, 0, "p")',
        (RANDOM_TREES,),
    ),
    Mutant(
        "exact: a probability remembered from a draw serves for what is left of q",
        EXACT,
        "isinstance(source, DraftDistribution) and q_V is None else",
        "isinstance(source, DraftDistribution) else",
        (REMEMBERED,),
    ),
    Mutant(
        "exact: top-p loses the token at its border",
        CANDIDATES,
        "before_K >= top_p",
        "before_K + sorted_K >= top_p",
        (OF_CANDIDATES,),
    ),
    Mutant(
        "exact: top-k looks into too few tiles",
        CANDIDATES,
        "most_T >= most_K[-1]",
        "most_T > most_K[-1]",
        (OF_CANDIDATES,),
    ),
    Mutant(
        "exact: the place in a tile is counted from the row's start",
        INVERSION,
        "cdf_T[tile - 1] if tile else 0.0",
        "0.0",
        ("tests/samplers/test_pieces.py",),
    ),
    Mutant(
        "penalty: a token of the prompt that is drafted again is penalised twice",
        CONTRACT,
        "{*path} - common",
        "{*path}",
        (f"{OF_EXACT}::test_the_repetition_penalty_by_enumeration",),
    ),
    Mutant(
        "penalty: a negative logit is divided too",
        CONTRACT,
        "torch.where(score < 0, score * penalty, score / penalty)",
        "score / penalty",
        (f"{OF_EXACT}::test_the_penalty_is_that_of_transformers",),
    ),
)
