"""What outlives the process: versioned documents, their history, usage, and opaque things by name."""
