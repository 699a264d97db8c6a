"""What can be asked for: one file per sort of thing."""
