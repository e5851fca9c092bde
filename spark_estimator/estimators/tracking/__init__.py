"""MLflow: a run for each training, with its metrics while it trains and its model as a pyfunc flavour."""
