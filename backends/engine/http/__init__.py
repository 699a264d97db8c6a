"""The HTTP API of the engine, as vLLM has it: paths, bodies, answers, metrics."""
