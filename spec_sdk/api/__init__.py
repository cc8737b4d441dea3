"""The public library API, which ``spec_sdk`` exports: an engine of texts over the engine of tokens."""
