"""Who measures the cells: `executor` (the protocol), `local` (this machine), `ray_cluster` and `ray_workers`,
`out_of_memory`.
"""
