"""Fair batching: the requests that one engine step runs, and the prompt tokens that an engine can still take."""
