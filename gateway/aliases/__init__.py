"""Aliases: model names that clients use, and the models that they stand for."""
