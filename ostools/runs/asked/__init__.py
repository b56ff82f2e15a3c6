"""What is asked of a sweep: `yaml_file` (read as hostile), `sweep` (its schema), `cells` (and their keys)."""
