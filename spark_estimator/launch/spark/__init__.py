"""Jobs on Spark: ranks as tasks of one barrier stage, and elastic jobs with a small Spark job for each process."""
