"""`fairlead calibrate`: put a backend under a mixed load for two minutes, and learn how long its steps take."""
