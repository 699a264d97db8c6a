"""Fair batching: what one engine step runs, and how much prompt an engine can still take."""
