"""Stores of what outlives the process: versioned documents, their audit log, usage, and opaque learned data by name."""
