"""Recurrent layers computed otherwise: trees, states, what is kept of them, gates."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SOURCE = "plugins/backends/spec_sdk_backends/native/source/"
DELTA = "spec_sdk/ops/gated_delta.py"
STATE = "spec_sdk/model/recurrent/state.py"
PATHS = "spec_sdk/model/recurrent/paths.py"
LAYERS = "spec_sdk/model/recurrent/layers.py"
SPACE = "spec_sdk/model/recurrent/state_space.py"
CACHE = "spec_sdk/model/recurrent/cache.py"
SESSION = "spec_sdk/model/session.py"
GATED = "spec_sdk/model/gated_attention.py"
LOADING = "spec_sdk/model/recurrent/loading.py"
MTP = "spec_sdk/model/draft_heads/mtp_spec.py"
OF_DELTA = "tests/recurrent/test_gated_delta.py::test_rows_of_a_tree_get_what_the_recurrence_gives_along_their_paths"
OF_SESSIONS = "tests/recurrent/test_sessions.py"
OF_TREES = f"{OF_SESSIONS}::test_what_follows_kept_and_rejected_nodes_sees_the_kept_ones_alone"
OF_ENDS = f"{OF_SESSIONS}::test_another_end_of_a_text_goes_on_from_what_is_kept_of_it"
OF_MODULE = "tests/recurrent/test_prediction_module.py::test_the_layer_is_transformers"
OF_TRANSFORMERS = "tests/checkpoints/test_gguf_recurrent.py::test_logits_equal_transformers"
OF_BITS = "tests/native/test_recurrent_decoder.py::test_a_row_has_the_same_bits_in_every_pass"
OF_NATIVE = "tests/native/test_recurrent.py"

RECURRENT = (
    Mutant(
        "gated delta: a row's own decay does not reach what is before it",
        DELTA,
        "path_HN = path_HN + torch.minimum(before_HN, state_path_H[:, None])",
        "path_HN = torch.minimum(before_HN, state_path_H[:, None])",
        (OF_DELTA,),
    ),
    Mutant(
        "gated delta: nodes of other branches are corrected for, too",
        DELTA,
        'weight_HNS = decay_HNS.masked_fill(~visible_NS, float("-inf")).exp()',
        "weight_HNS = decay_HNS.exp()",
        (OF_DELTA,),
    ),
    Mutant(
        "gated delta: earlier rows are not corrected for",
        DELTA,
        "u_HNV = u_HNV - from_state_HXV[:, :N] - among_keys_HNS[..., :P] @ u_HPV",
        "u_HNV = u_HNV - from_state_HXV[:, :N]",
        (OF_DELTA,),
    ),
    Mutant(
        "gated delta: rows of one pass are not corrected for",
        DELTA,
        "if corrects and N > 1:",
        "if False:",
        (OF_DELTA,),
    ),
    Mutant(
        "states: rows that are folded leave none of the decay between them and the last",
        DELTA,
        "weighted_HPV = u_HPV * (end_H1 - path_HP).to(u_HPV.dtype).exp()[..., None]",
        "weighted_HPV = u_HPV",
        (OF_DELTA,),
    ),
    Mutant(
        "states: what is folded is one row more than what is dropped",
        STATE,
        "self.drop_rows(steps * STEP)",
        "self.drop_rows(steps * STEP - 1)",
        (OF_TREES,),
    ),
    Mutant(
        "states: kept nodes stay where they are",
        CACHE,
        "if any(row != place for place, row in enumerate(path)):",
        "if False:",
        (OF_TREES,),
    ),
    Mutant(
        "states: they are not rolled back",
        SESSION,
        "length = self.cache.roll_back(slot, length)",
        "length = length",
        (OF_ENDS,),
    ),
    Mutant(
        "snapshots: none is taken",
        STATE,
        "if length and self.takes_snapshots and (length % SNAPSHOT_EVERY == 0 or length == self._marked):",
        "if False:",
        (OF_ENDS,),
    ),
    Mutant(
        "snapshots: with the rows of another place",
        STATE,
        "rows = tuple(tensor[..., first : first + self.lead, :].clone() for tensor in self.rows)",
        "rows = tuple(tensor[..., : self.lead, :].clone() for tensor in self.rows)",
        (OF_ENDS,),
    ),
    Mutant(
        "convolution: a node's ancestors are the rows before it",
        PATHS,
        "position_NK < self.prefix, position_NK, self.prefix + there_NKT.int().argmax(-1)",
        "position_NK < self.prefix, position_NK, position_NK",
        (OF_TREES,),
    ),
    Mutant(
        "delta nets: queries are not scaled",
        LAYERS,
        "self._heads(q_NY) * self.key_dim**-0.5",
        "self._heads(q_NY)",
        (OF_TRANSFORMERS,),
    ),
    Mutant(
        "delta nets: a file's value heads are taken for neighbours",
        "spec_sdk/model/qwen_hybrid.py",
        "tiled=fields.flag(TILED, False)",
        "tiled=False",
        (OF_TRANSFORMERS,),
    ),
    Mutant(
        "state spaces: the gate comes behind the norm",
        SPACE,
        "y_NY = o_HNV.transpose(0, 1).reshape(N, Y) * F.silu(z_NY.to(o_HNV.dtype) * self.gate_scale)",
        "y_NY = o_HNV.transpose(0, 1).reshape(N, Y)",
        (OF_TRANSFORMERS,),
    ),
    Mutant(
        "gated attention: no gate",
        GATED,
        "return super().attend(layer, q_BNHD.contiguous(), work) * torch.sigmoid(gate_BNHD)",
        "return super().attend(layer, q_BNHD.contiguous(), work)",
        (OF_MODULE,),
    ),
    Mutant(
        "gated attention: a head's gate is taken for its query",
        LOADING,
        "row_2HD = torch.arange(2 * H * D).view(H, 2, D).transpose(0, 1).flatten(1)",
        "row_2HD = torch.arange(2 * H * D).view(H, 2, D).transpose(0, 1).flatten(1).flip(0)",
        (OF_MODULE,),
    ),
    Mutant(
        "prediction modules: norms that are stored less one are taken as they are",
        MTP,
        'less = 1.0 if weights_of(self.config).row("final_norm").gain_minus_one else 0.0',
        "less = 0.0",
        (OF_MODULE,),
    ),
    Mutant(
        "native states: all rows of a pass go on from the same",
        SOURCE + "paths.h",
        "return std::clamp<int64_t>((tokens - length) / step, 0, std::max<int64_t>(0, memories - 1));",
        "return 0 * tokens;",
        (OF_BITS,),
    ),
    Mutant(
        "native delta nets: a row's path is all rows before it",
        SOURCE + "paths.h",
        "if (!of.query || (of.start[s] <= of.query[n] && of.query[n] < of.end[s])) to[count++] = s;",
        "to[count++] = s;",
        (OF_NATIVE,),
    ),
    Mutant(
        "native delta nets: wide passes are torch's",
        "plugins/backends/spec_sdk_backends/native/recurrent_decoder.py",
        "            if not self.in_parts:\n                return None\n",
        "            return None\n",
        (OF_BITS,),
    ),
)
