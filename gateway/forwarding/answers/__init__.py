"""The way of an answer back to its client: relayed, renamed, counted, settled."""
