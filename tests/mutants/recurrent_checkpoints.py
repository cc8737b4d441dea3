"""Weights of recurrent layers read otherwise: their order in GGUF files and by key head, gates, what is left out."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

HYBRID = "spec_sdk/model/qwen_hybrid.py"
LFM2 = "spec_sdk/model/lfm2_like.py"
LOADING = "spec_sdk/model/recurrent/loading.py"
PACKED = "spec_sdk/model/packed_weights.py"
TENSORS = "spec_sdk/model/gguf_tensors.py"
OF_GGUF = "tests/checkpoints/test_gguf_recurrent.py"
OF_KEY_HEADS = "tests/checkpoints/test_by_key_head.py"
OF_CONFIGS = "tests/checkpoints/test_recurrent_configs.py"
OF_NAMES = "tests/checkpoints/test_published_names.py"
OF_SPLITS = "tests/checkpoints/test_gguf_tokenizer.py::test_text_is_split_as_the_file_names_it"

RECURRENT_CHECKPOINTS = (
    Mutant(
        "recurrent: a GGUF file's value heads are taken for Hugging Face's",
        "spec_sdk/model/architectures/qwen3_5.py",
        'config["linear_num_value_heads"] != config["linear_num_key_heads"]',
        "False",
        (f"{OF_GGUF}::test_logits_equal_transformers",),
    ),
    Mutant(
        "recurrent: a prediction module is taken for a layer",
        HYBRID,
        "layers = layers_of(gguf, architecture)",
        'layers = config["num_hidden_layers"]',
        (f"{OF_GGUF}::test_a_prediction_module_is_no_layer_of_the_model",),
    ),
    Mutant(
        "recurrent: the first of four layers has attention",
        HYBRID,
        "said = [(layer + 1) % interval != 0",
        "said = [layer % interval != 0",
        (f"{OF_GGUF}::test_a_file_that_says_how_many_layers_lie_between",),
    ),
    Mutant(
        "recurrent: decays of GGUF files keep their sign",
        TENSORS,
        "floats = np.log(-floats)",
        "floats = -np.log(-floats)",
        (f"{OF_GGUF}::test_tensors_are_the_models",),
    ),
    Mutant(
        "recurrent: a gate in another form makes q, k and v floats",
        LOADING,
        "large = [roles[:-1], roles[-1:]]",
        "large = [roles]",
        (f"{OF_GGUF}::test_matrices_in_few_bits_stay_so",),
    ),
    Mutant(
        "recurrent: the gates of attention stay between queries",
        LOADING,
        "torch.arange(2 * H * D).view(H, 2, D).transpose(0, 1)",
        "torch.arange(2 * H * D).view(2, H, D)",
        (f"{OF_GGUF}::test_logits_equal_transformers",),
    ),
    Mutant(
        "by key head: neighbouring rows are cut out",
        "spec_sdk/model/weight_table.py",
        "starts = range(before // groups, sum(heights), sum(heights) // groups)",
        "starts = range(before, before + height, height // groups)",
        (f"{OF_KEY_HEADS}::test_matrices_in_float8",),
    ),
    Mutant(
        "by key head: parts are written one below the other",
        PACKED,
        "part.reshape(groups, -1, *part.shape[1:]) for part in own",
        "part[None] for part in own",
        (f"{OF_NAMES}::test_they_are_transformers",),
    ),
    Mutant(
        "by key head: of a matrix in few bits rows between its own are read too",
        PACKED,
        "return matrix if matrix is None or around == rows else matrix.rows(torch.tensor(rows) - around.start)",
        "return matrix",
        (f"{OF_KEY_HEADS}::test_matrices_in_few_bits",),
    ),
    Mutant(
        "lfm2: layers without KV heads have attention",
        LFM2,
        '"full_attention" if each else "conv"',
        '"conv" if each else "full_attention"',
        (f"{OF_GGUF}::test_logits_equal_transformers",),
    ),
    Mutant(
        "lfm2: biases of convolutions are left out",
        LFM2,
        'fields.flag("conv_bias", False)',
        "False",
        (f"{OF_CONFIGS}::test_what_a_config_cannot_say",),
    ),
    Mutant(
        "lfm2: the MLP is as wide as config.json says",
        "spec_sdk/model/architectures/lfm2.py",
        "int(2 * size / 3)",
        "size",
        (f"{OF_CONFIGS}::test_the_mlp_of_an_lfm2_is_as_wide_as_transformers",),
    ),
    Mutant(
        "lfm2: all experts' layers begin with the first",
        "spec_sdk/model/architectures/lfm2_moe.py",
        'fields.count("num_dense_layers", 2)',
        "0",
        (f"{OF_CONFIGS}::test_what_an_lfm2_with_experts_leaves_out",),
    ),
    Mutant(
        "gguf: a Qwen 3.5 splits marks from letters",
        "spec_sdk/model/gguf_pre_tokenizers.py",
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{L}]+",
        (OF_SPLITS,),
    ),
)
