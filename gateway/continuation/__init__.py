"""Continuation: another backend continues a stream after an interruption."""
