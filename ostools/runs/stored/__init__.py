"""The directory of a sweep: `store` (one Parquet file a cell), `reading` (as one table), `following` (one that is
being written).
"""
