"""What is reported of a run: figures, tables, plots and the page."""
