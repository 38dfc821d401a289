"""The benchmark: plan (grid x seeds), launch (local processes, Ray), records, selection."""
