"""What a sweep will take: `counts` (passes and bytes of a measurement), `forecast` (of each cell, and whether it fits)."""
