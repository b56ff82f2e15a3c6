"""Who measures the cells: `executor` (the protocol), `local` (this machine), `ray_cluster` and `ray_workers`,
`measuring` (one cell), `out_of_memory`.
"""
