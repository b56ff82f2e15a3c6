"""Who measures the cells: `executor` (the protocol), `local` (this machine), `ray_cluster` and
`ray_workers` (one worker or many, here or on other machines), `out_of_memory` (told apart, and held off).
"""
