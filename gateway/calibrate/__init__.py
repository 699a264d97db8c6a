"""`fairlead calibrate`: puts a backend under a mixed load for two minutes, and learns its step-time model."""
