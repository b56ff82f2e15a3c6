"""A mitigation and a task that `ostools` finds by their entry points."""
