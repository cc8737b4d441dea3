"""Drafters of spec-sdk inside other programs that serve models: vLLM and SGLang."""
