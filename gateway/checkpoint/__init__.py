"""What a gateway has learned, written every few seconds and at shutdown, and read again at its start."""
