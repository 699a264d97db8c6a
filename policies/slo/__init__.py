"""Are requests served in the time that they were promised? What an envelope means, and who keeps it."""
