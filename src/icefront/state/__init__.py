"""Notes that must survive a crash; losing them loses no data."""
