"""Checkpoint: the learnt state of a gateway, written every few seconds and at shutdown, and read again at its start."""
