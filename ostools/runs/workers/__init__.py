"""Who measures the cells: `executor` (the protocol), `local` (this machine), `ray_cluster` and
`ray_workers` (one worker or many, here or on other machines).
"""
