"""The decoder, its KV cache, block runners, and the loading of checkpoints and tokenizers."""
