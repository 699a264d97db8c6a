"""The admin port: who is served, with what weight and limits, by which backends; changed while it runs."""
