"""Stores of state that outlives the process: versioned documents, their audit log, usage, and opaque learnt data by
name.
"""
