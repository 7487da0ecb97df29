"""Arrow in, Arrow out, no Spark: netting, Parquet files with their metrics."""
