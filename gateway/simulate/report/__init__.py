"""Report: the figures, tables, plots and page of a run."""
