"""An estimator's input: the first rows, the columns' types and shapes, and the source of the rows."""
