"""The stream of the live document: its events, and the viewers that get the same bytes."""
