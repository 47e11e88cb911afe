"""The simulated engine: a tree of real processes that speaks SGLang's HTTP API with its real quirks.

What stays true: where it and SGLang differ, this one is wrong (tests/conformance runs the same cases on both). Tokens
flow from the rank-0 process through the detokenizer to the HTTP process, and every rank takes part in every step, so
that a killed or frozen rank stops generation as it does in the real engine. Imports neither SGLang nor torch.
"""
