"""What comes into an estimator: the first rows, the columns' types and shapes, and where the rows come from."""
