"""What everyone needs to know about Iceberg: catalogs, schemas, the py4j commit."""
