"""Continuation: a stream goes on at another backend after it was interrupted."""
