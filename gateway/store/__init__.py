"""What outlives the process: versioned documents, their history, usage, and what was learnt."""
